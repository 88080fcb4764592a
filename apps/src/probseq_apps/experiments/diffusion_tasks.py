"""What `probseq generate diffusion` trains."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from probseq_apps.data.generation import to_unit
from probseq_apps.training.config import TrainConfig
from probseq_apps.training.schedule import derive_seed, steps_per_epoch, total_steps
from probseq_apps.training.task import LossParts
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.diffusion.objective import DiffusionObjective


class DiffusionTask:
    """A diffusion model on pseudo videos, or on images as videos of one frame.

    Videos are made of the images at each step, on the images' device. Their noise depends on the
    run's seed, the epoch and the image alone; in validation, on the image alone.

    Args:
        objective: holds the model.
        videos: the kind of pseudo video.
        config: the settings of the training; tell step and epoch.
        num_train: number of training images.
    """

    model: nn.Module

    def __init__(
        self,
        objective: DiffusionObjective,
        videos: PseudoVideoConfig,
        config: TrainConfig,
        num_train: int,
    ) -> None:
        self.model = objective
        self._videos = videos
        self._steps_per_epoch = steps_per_epoch(config, num_train)
        self._total_steps = total_steps(config, self._steps_per_epoch)
        self._seed = derive_seed(config.seed, "videos")
        self._validation_seed = derive_seed(config.seed, "validation videos")

    def loss(
        self,
        model: nn.Module,
        batch: tuple[Tensor, ...],
        *,
        progress: float,
        generator: torch.Generator,
    ) -> LossParts:
        """The hybrid loss of a batch of images and their numbers, each at a random step."""
        images, index = batch
        # A quotient of whole numbers times its divisor is off by far less than a half.
        epoch = round(progress * self._total_steps) // self._steps_per_epoch
        videos = pseudo_videos(
            to_unit(images), self._videos, seed=self._seed, epoch=epoch, index=index
        )
        parts = model(videos, generator=generator)
        return LossParts(parts["loss"], {name: v for name, v in parts.items() if name != "loss"})

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """Less the loss, estimated as in training; steps are from the global generator."""
        total, count = 0.0, 0
        for images, index in batches:
            videos = pseudo_videos(
                to_unit(images), self._videos, seed=self._validation_seed, index=index
            )
            total += len(images) * float(model(videos)["loss"])
            count += len(images)
        return -total / count
