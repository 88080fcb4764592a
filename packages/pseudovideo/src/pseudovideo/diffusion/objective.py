"""The loss that diffusion models are trained by: one random step of each video.

NaN and infinity in a tensor reach the result.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from probseq.checks import check_floating, check_same_shape
from pseudovideo.diffusion.gaussian import GaussianDiffusion, split_output
from pseudovideo.diffusion.likelihood import vlb_terms

# The bound's weight is S times this: its λ is 0.001 on the sum over S steps, of which t is one.
_VLB_WEIGHT = 1e-3


class HybridLosses(NamedTuple):
    """Losses of each entry (n,): mse + S/1000 · vlb, and both.

    `mse` is the squared error of what is predicted, a mean over the dimensions, `vlb` the bound's
    term of step t in bits per dimension.
    """

    loss: Tensor
    mse: Tensor
    vlb: Tensor


def hybrid_losses(
    diffusion: GaussianDiffusion,
    output: Float[Tensor, "n channels h w"],
    x0: Float[Tensor, "n c h w"],
    x_t: Float[Tensor, "n c h w"],
    noise: Float[Tensor, "n c h w"],
    t: Int64[Tensor, " n"],
) -> HybridLosses:
    """Return the squared error of the prediction, plus the bound as a loss of the variances alone.

    The mean is frozen in the bound: its gradient reaches the second half of the channels only, as
    the squared error's reaches the first. The output, prediction and variances, is the network's
    for x_t, the images x_0 with noise at steps t.
    """
    check_floating(x0=x0, noise=noise)
    check_same_shape(x_t=x_t, x0=x0, noise=noise)
    predicted, position = split_output(output, x_t)
    frozen = torch.cat((predicted.detach(), position), dim=1)
    # L_simple, and L_vlb with its mean frozen
    mse = (predicted - diffusion.target(x0, noise, t)).square().flatten(1).mean(1)
    vlb = vlb_terms(diffusion, frozen, x0, x_t, t, limit=None)
    return HybridLosses(mse + _VLB_WEIGHT * diffusion.num_steps * vlb, mse, vlb)


@runtime_checkable
class DiffusionModel(Protocol):
    """A module that learns images or, where its config has `num_frames`, videos."""

    config: Any
    diffusion: GaussianDiffusion

    def training_losses(
        self,
        images: Float[Tensor, "b ..."],
        t: Int64[Tensor, " b"],
        labels: Int64[Tensor, " b"] | None = None,
        /,
        *,
        generator: torch.Generator | None = None,
    ) -> HybridLosses:
        """Return losses (b,) at steps t, of images or videos of these classes."""
        ...


class DiffusionObjective(nn.Module):
    """A diffusion model of images, which learns the last frames, or of videos, with its loss."""

    def __init__(self, model: DiffusionModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        videos: Float[Tensor, "b T c h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Return means over the batch, at random steps that are all alike.

        Videos are frames in −1..1, the image last; the generator draws steps and noise, and which
        labels are hidden. Of the means `loss` is the only one with a gradient; `mse` is of the
        prediction, and `vlb` the bound's term in bits per dimension: S times that, plus the
        prior's, is the bound.
        """
        if videos.ndim != 5 or not len(videos):
            raise ValueError(
                "videos must have shape (batch, frames, channels, height, width), images one frame "
                f"(images[:, None]), and not be empty, got shape {tuple(videos.shape)}"
            )
        device = None if generator is None else generator.device
        steps = self.model.diffusion.num_steps
        t = torch.randint(steps, (len(videos),), generator=generator, device=device)
        inputs = videos if hasattr(self.model.config, "num_frames") else videos[:, -1]
        losses = self.model.training_losses(
            inputs, t.to(videos.device), labels, generator=generator
        )
        return {
            "loss": losses.loss.mean(),
            "mse": losses.mse.mean().detach(),
            "vlb": losses.vlb.mean().detach(),
        }
