"""The loss that diffusion models are trained by: one random step of each video.

NaN and infinity in a tensor reach the result.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from probseq.checks import (
    check_counts,
    check_floating,
    check_integers,
    check_same_shape,
    check_sizes,
)
from pseudovideo.diffusion.gaussian import GaussianDiffusion, split_output
from pseudovideo.diffusion.likelihood import vlb_terms
from pseudovideo.ranks import rows_of_ranks

# The bound's weight is S times this: its λ is 0.001 on the sum over S steps, of which t is one.
_VLB_WEIGHT = 1e-3


class HybridLosses(NamedTuple):
    """Losses of each entry.

    Attributes:
        loss: (n,), mse + S/1000 · vlb.
        mse: (n,), squared error of what is predicted, mean over the dimensions.
        vlb: (n,), the bound's term of step t in bits per dimension.
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
    the squared error's reaches the first.

    Args:
        diffusion: the process.
        output: of the network for `x_t`: prediction and variances.
        x0: images.
        x_t: their noisy states.
        noise: what was added.
        t: steps.
    """
    check_floating(x0=x0, noise=noise)
    check_same_shape(x_t=x_t, x0=x0, noise=noise)
    predicted, position = split_output(output, x_t)
    frozen = torch.cat((predicted.detach(), position), dim=1)
    # L_simple, and L_vlb with its mean frozen
    mse = (predicted - diffusion.target(x0, noise, t)).square().flatten(1).mean(1)
    vlb = vlb_terms(diffusion, frozen, x0, x_t, t, limit=None)
    return HybridLosses(mse + _VLB_WEIGHT * diffusion.num_steps * vlb, mse, vlb)


# Share of draws that stays uniform, so that no step is forgotten.
_UNIFORM_SHARE = 0.001


class ImportanceTimes(nn.Module):
    r"""Steps with probability ∝ √E[L_t²], and weights 1/(S p_t) that keep the loss unbiased.

    The mean is over the last losses of each step; until every step has that many, and after a loss
    that is not finite, all steps are alike. The state is in buffers and comes back with them. In
    distributed training all go by the losses of all processes, in the order of the ranks.

    Args:
        num_steps: S.
        history: losses that are kept of each step.
    """

    def __init__(self, num_steps: int, history: int = 10) -> None:
        super().__init__()
        check_counts(num_steps=num_steps, history=history)
        self.num_steps = num_steps
        self.register_buffer("losses", torch.zeros(num_steps, history))
        self.register_buffer("counts", torch.zeros(num_steps, dtype=torch.int64))

    losses: Float[Tensor, "S history"]
    counts: Int64[Tensor, " S"]

    @property
    def probabilities(self) -> Float[Tensor, " S"]:
        """p_t of the next draw."""
        size = self.losses.square().mean(1).sqrt()
        total = size.sum()
        complete = (self.counts >= self.losses.shape[1]).all() & total.isfinite() & (total > 0)
        # p_t ∝ √E[L_t²], mixed with a little of the uniform distribution
        learned = (1 - _UNIFORM_SHARE) * size / total + _UNIFORM_SHARE / self.num_steps
        return torch.where(complete, learned, torch.full_like(size, 1 / self.num_steps))

    def sample(
        self, b: int, generator: torch.Generator | None = None
    ) -> tuple[Int64[Tensor, " b"], Float[Tensor, " b"]]:
        """Draw b steps, and weights of their losses, on the generator's device."""
        check_counts(b=b)
        p = self.probabilities
        p = p if generator is None else p.to(generator.device)
        t = torch.multinomial(p, b, replacement=True, generator=generator)
        return t, 1 / (self.num_steps * p[t])

    def update(self, t: Int64[Tensor, " b"], losses: Float[Tensor, " b"]) -> None:
        """Keep the losses of steps, without their weights, in place of the oldest ones."""
        check_sizes("t", t, "b")
        check_integers(0, self.num_steps - 1, t=t)
        check_floating(losses=losses)
        check_same_shape(t=t, losses=losses)
        t, losses = rows_of_ranks(t), rows_of_ranks(losses.detach())
        history = self.losses.shape[1]
        order = t.argsort(stable=True)
        t, losses = t[order], losses.detach()[order].to(self.losses.dtype)
        fresh = t.bincount(minlength=self.num_steps)
        # How many of the same step come before, in this batch.
        before = torch.arange(len(t), device=t.device) - (fresh.cumsum(0) - fresh)[t]
        # Of more than the history holds, the last: no place is written twice.
        stays = before >= fresh[t] - history
        slot = (self.counts[t] + before) % history
        self.losses[t[stays], slot[stays]] = losses[stays]
        self.counts += fresh


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
    """A diffusion model with its loss at random steps.

    Args:
        model: of images, which learns the last frames, or of videos.
        importance: draw steps by their losses, see `ImportanceTimes`; else all alike.
    """

    def __init__(self, model: DiffusionModel, *, importance: bool = False) -> None:
        super().__init__()
        self.model = model
        self.times = ImportanceTimes(model.diffusion.num_steps) if importance else None

    def forward(
        self,
        videos: Float[Tensor, "b T c h w"],
        labels: Int64[Tensor, " b"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Return the loss and what to log of it.

        Importance sampling learns from calls with gradients only, not from validation.

        Args:
            videos: frames in −1..1, the image last.
            labels: class of each, where the model has classes.
            generator: draws steps and noise, and which labels are hidden.

        Returns:
            Scalars, weighted means over the batch that are unbiased however steps are drawn:
            `loss`, the only one with a gradient, `mse` of the prediction, and `vlb`, the mean
            term in bits per dimension; S times that, plus the prior's, is the bound.
        """
        if videos.ndim != 5 or not len(videos):
            raise ValueError(
                "videos must have shape (batch, frames, channels, height, width), images one frame "
                f"(images[:, None]), and not be empty, got shape {tuple(videos.shape)}"
            )
        if self.times is None:
            device = None if generator is None else generator.device
            steps = self.model.diffusion.num_steps
            t = torch.randint(steps, (len(videos),), generator=generator, device=device)
            weights = torch.ones(len(videos))
        else:
            t, weights = self.times.sample(len(videos), generator)
        t, weights = t.to(videos.device), weights.to(videos.device)
        inputs = videos if hasattr(self.model.config, "num_frames") else videos[:, -1]
        losses = self.model.training_losses(inputs, t, labels, generator=generator)
        if self.times is not None and torch.is_grad_enabled():
            self.times.update(t, losses.loss.detach())
        return {
            "loss": (weights * losses.loss).mean(),
            "mse": (weights * losses.mse).mean().detach(),
            "vlb": (weights * losses.vlb).mean().detach(),
        }
