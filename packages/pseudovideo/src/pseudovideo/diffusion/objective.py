"""What diffusion models are trained by: one random step of each video.

NaN and infinity in a tensor reach the result.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.losses import HybridLosses
from pseudovideo.diffusion.times import ImportanceTimes, UniformTimes


@runtime_checkable
class DiffusionModel(Protocol):
    """A module that learns images or, where its config has `num_frames`, videos."""

    config: Any
    diffusion: GaussianDiffusion

    def training_losses(
        self,
        images: Float[Tensor, "b ..."],
        t: Int64[Tensor, " b"],
        /,
        *,
        generator: torch.Generator | None = None,
    ) -> HybridLosses:
        """Losses (b,) at steps t."""
        ...


class DiffusionObjective(nn.Module):
    """A diffusion model with its loss at random steps.

    Args:
        model: of images, which learns the last frames, or of videos.
        importance: draw steps by their losses, see `ImportanceTimes`; else all alike.
    """

    def __init__(self, model: DiffusionModel, *, importance: bool = False) -> None:
        super().__init__()
        self.model = model
        self.times = (ImportanceTimes if importance else UniformTimes)(model.diffusion.num_steps)

    def forward(
        self, videos: Float[Tensor, "b T c h w"], *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """The loss and what to log of it.

        Importance sampling learns from calls with gradients only, not from validation.

        Args:
            videos: frames in −1..1, the image last.
            generator: draws steps and noise.

        Returns:
            Scalars, weighted means over the batch that are unbiased however steps are drawn:
            `loss`, the only one with a gradient, `mse` of the noise, and `vlb`, the bound's mean
            term in bits per dimension; S times that, plus the prior's, is the bound.

        Raises:
            ValueError: no videos, or videos of another kind than the model's.
        """
        if not len(videos):
            raise ValueError(f"videos must not be empty, got shape {tuple(videos.shape)}")
        t, weights = self.times.sample(len(videos), generator)
        t, weights = t.to(videos.device), weights.to(videos.device)
        inputs = videos if hasattr(self.model.config, "num_frames") else videos[:, -1]
        losses = self.model.training_losses(inputs, t, generator=generator)
        if torch.is_grad_enabled():
            self.times.update(t, losses.loss)
        return {
            "loss": (weights * losses.loss).mean(),
            "mse": (weights * losses.mse).mean().detach(),
            "vlb": (weights * losses.vlb).mean().detach(),
        }
