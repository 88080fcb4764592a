"""What `probseq generate` trains: tokenizers, priors over tokens, and a classifier of images."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Integer, UInt8
from torch import Tensor, nn

from probseq.metrics.image import psnr
from probseq_apps.data.generation import to_unit
from probseq_apps.training.config import TrainConfig
from probseq_apps.training.schedule import derive_seed, steps_per_epoch, total_steps
from probseq_apps.training.task import LossParts
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.priors.autoregressive import AutoregressivePrior
from pseudovideo.priors.masked import MaskedPrior
from pseudovideo.tokenizers.objective import TokenizerObjective

# An image that came back to the bit would make the mean over images infinite.
_LARGEST_PSNR = 100.0


def numbered(
    images: UInt8[Tensor, "n c h w"],
) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]:
    """Images with their numbers: what a `TokenizerTask` learns from and is scored by."""
    return images, torch.arange(len(images))


class TokenizerTask:
    """A tokenizer and its discriminator under their objective, on pseudo videos.

    Videos are made of the images at each step, on the images' device. Their noise depends on the
    run's seed, the epoch and the image alone; in validation, on the image alone.

    Args:
        objective: holds the tokenizer.
        videos: the kind of pseudo video.
        config: the settings of the training; tell step and epoch.
        num_train: number of training images.

    Raises:
        ValueError: the videos have another number of frames than the tokenizer's.
    """

    model: nn.Module

    def __init__(
        self,
        objective: TokenizerObjective,
        videos: PseudoVideoConfig,
        config: TrainConfig,
        num_train: int,
    ) -> None:
        frames = objective.tokenizer.config.num_frames
        if videos.num_frames != frames:
            raise ValueError(
                f"videos must have num_frames={frames} as the tokenizer, got {videos.num_frames}"
            )
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
        """The objective of a batch of images and their numbers."""
        images, index = batch
        # A quotient of whole numbers times its divisor is off by far less than a half.
        step = round(progress * self._total_steps)
        epoch = step // self._steps_per_epoch
        videos = pseudo_videos(
            to_unit(images), self._videos, seed=self._seed, epoch=epoch, index=index
        )
        parts = model(videos, step=step, generator=generator)
        loss = parts["loss"]
        return LossParts(loss, {name: v.detach() for name, v in parts.items() if name != "loss"})

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """PSNR of the last frame, the mean over images of each one's."""
        if not isinstance(model, TokenizerObjective):
            raise TypeError(f"model must be a TokenizerObjective, got {type(model).__name__}")
        values: list[Tensor] = []
        for images, index in batches:
            videos = pseudo_videos(
                to_unit(images), self._videos, seed=self._validation_seed, index=index
            )
            decoded = model.tokenizer.reconstruct(videos)[:, -1].float()
            values.append(psnr(decoded, videos[:, -1]).clamp(max=_LARGEST_PSNR))
        return float(torch.cat(values).mean())


class PriorObjective(nn.Module):
    """A prior whose forward pass is its loss, so that it can be wrapped for several processes.

    Args:
        prior: what is trained.
    """

    def __init__(self, prior: AutoregressivePrior | MaskedPrior) -> None:
        super().__init__()
        self.prior = prior

    def forward(
        self, tokens: Integer[Tensor, "b t h w"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, ""]:
        """Nats per token: of all tokens, or of those that a masked prior's masks hide.

        Args:
            tokens: grids of any integer type.
            generator: draws the masks.
        """
        if isinstance(self.prior, MaskedPrior):
            return self.prior.loss(tokens, generator=generator)
        return self.prior.loss(tokens)


class PriorTask:
    """A prior over the tokens of a tokenizer.

    Args:
        prior: autoregressive or masked; its weights are in `model.prior`.
    """

    model: nn.Module

    def __init__(self, prior: AutoregressivePrior | MaskedPrior) -> None:
        self.model = PriorObjective(prior)

    def loss(
        self,
        model: nn.Module,
        batch: tuple[Tensor, ...],
        *,
        progress: float,
        generator: torch.Generator,
    ) -> LossParts:
        """Nats per token of a batch of token grids."""
        (tokens,) = batch
        return LossParts(model(tokens, generator=generator), {})

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """Less the nats per token.

        A masked prior's masks are drawn from the global generator, which is seeded alike at each
        validation; its loss is a mean over the masked tokens of a batch, and batches count by
        their grids.
        """
        total, count = 0.0, 0
        for (tokens,) in batches:
            total += len(tokens) * float(model(tokens))
            count += len(tokens)
        return -total / count


class ClassifierTask:
    """A classifier of small images by cross-entropy.

    Args:
        model: takes images (n, c, h, w) in -1..1 to logits.
    """

    model: nn.Module

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(
        self,
        model: nn.Module,
        batch: tuple[Tensor, ...],
        *,
        progress: float,
        generator: torch.Generator,
    ) -> LossParts:
        """Cross-entropy of a batch of images and labels."""
        images, labels = batch
        logits = model(to_unit(images)).float()
        right = (logits.detach().argmax(-1) == labels).float().mean()
        return LossParts(F.cross_entropy(logits, labels), {"accuracy": right})

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """Accuracy on the whole validation set."""
        right = total = 0
        for images, labels in batches:
            right += int((model(to_unit(images)).argmax(-1) == labels).sum())
            total += len(labels)
        return right / total
