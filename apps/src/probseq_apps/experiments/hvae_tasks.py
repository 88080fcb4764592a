"""What `probseq generate hvae` trains."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq_apps.data.generation import to_unit
from probseq_apps.training.task import LossParts
from pseudovideo.hvae import HVAE


class HvaeObjective(nn.Module):
    """An HVAE whose forward pass is its loss.

    Args:
        hvae: what is trained.
    """

    def __init__(self, hvae: HVAE) -> None:
        super().__init__()
        self.hvae = hvae

    def forward(
        self, images: Float[Tensor, "b c h w"], *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """The bound, with gradient, and its parts; see `HVAE.training_losses`."""
        return self.hvae.training_losses(images, generator=generator)


class HvaeTask:
    """An HVAE on images.

    Args:
        hvae: with either encoder; its weights are in `model.hvae`.
    """

    model: nn.Module

    def __init__(self, hvae: HVAE) -> None:
        self.model = HvaeObjective(hvae)

    def loss(
        self,
        model: nn.Module,
        batch: tuple[Tensor, ...],
        *,
        progress: float,
        generator: torch.Generator,
    ) -> LossParts:
        """The bound of a batch of images, estimated at a random level of each."""
        (images,) = batch
        parts = model(to_unit(images), generator=generator)
        loss = parts["loss"]
        return LossParts(loss, {name: v for name, v in parts.items() if name != "loss"})

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> float:
        """Less the bound, estimated as in training; noise is from the global generator."""
        total, count = 0.0, 0
        for (images,) in batches:
            total += len(images) * float(model(to_unit(images))["loss"])
            count += len(images)
        return -total / count
