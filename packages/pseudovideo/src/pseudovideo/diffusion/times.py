"""Which steps a batch is trained at (Nichol & Dhariwal 2021, section 3.3)."""

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

# Share of draws that stays uniform, so that no step is forgotten.
_UNIFORM_SHARE = 0.001


class UniformTimes(nn.Module):
    """All steps alike.

    Args:
        num_steps: S.

    Raises:
        ValueError: `num_steps` is no whole number of at least 1.
    """

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        check_counts(num_steps=num_steps)
        self.num_steps = num_steps

    def sample(
        self, b: int, generator: torch.Generator | None = None
    ) -> tuple[Int64[Tensor, " b"], Float[Tensor, " b"]]:
        """Draw steps.

        Args:
            b: how many.
            generator: None takes torch's global one.

        Returns:
            Steps, and weights of their losses, all 1; on the generator's device.

        Raises:
            ValueError: `b` is no whole number of at least 1.
        """
        check_counts(b=b)
        device = None if generator is None else generator.device
        t = torch.randint(self.num_steps, (b,), generator=generator, device=device)
        return t, torch.ones(b, device=device)

    def update(self, t: Int64[Tensor, " b"], losses: Float[Tensor, " b"]) -> None:
        """Nothing is learned from losses."""


class ImportanceTimes(nn.Module):
    r"""Steps with probability ∝ √E[L_t²], and weights 1/(S p_t) that keep the loss unbiased.

    The mean is over the last losses of each step; until every step has that many, and after a loss
    that is not finite, all steps are alike. The state is in buffers and comes back with them. In
    distributed training all go by the losses of process 0, whose buffers
    `DistributedDataParallel` hands to the others before each step; improved DDPM gathers all.

    Args:
        num_steps: S.
        history: losses that are kept of each step.

    Raises:
        ValueError: `num_steps` or `history` is no whole number of at least 1.
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
        known = (self.counts >= self.losses.shape[1]).all() & total.isfinite() & (total > 0)
        learned = (1 - _UNIFORM_SHARE) * size / total + _UNIFORM_SHARE / self.num_steps
        return torch.where(known, learned, torch.full_like(size, 1 / self.num_steps))

    def sample(
        self, b: int, generator: torch.Generator | None = None
    ) -> tuple[Int64[Tensor, " b"], Float[Tensor, " b"]]:
        """Draw steps.

        Args:
            b: how many.
            generator: None takes torch's global one.

        Returns:
            Steps, and weights of their losses; on the generator's device.

        Raises:
            ValueError: `b` is no whole number of at least 1.
        """
        check_counts(b=b)
        p = self.probabilities
        p = p if generator is None else p.to(generator.device)
        t = torch.multinomial(p, b, replacement=True, generator=generator)
        return t, 1 / (self.num_steps * p[t])

    def update(self, t: Int64[Tensor, " b"], losses: Float[Tensor, " b"]) -> None:
        """Keep the losses of steps in place of the oldest ones.

        Args:
            t: steps, as often as they come.
            losses: of these, without their weights.

        Raises:
            ValueError: steps beyond S (looked at on the CPU only, where that costs no
                synchronisation), or losses of another shape.
        """
        check_sizes("t", t, "b")
        check_integers(0, self.num_steps - 1, t=t)
        check_floating(losses=losses)
        check_same_shape(t=t, losses=losses)
        history = self.losses.shape[1]
        order = t.argsort(stable=True)
        t, losses = t[order], losses.detach()[order].to(self.losses.dtype)
        fresh = t.bincount(minlength=self.num_steps)
        # How many of the same step come before, in this batch.
        before = torch.arange(len(t), device=t.device) - (fresh.cumsum(0) - fresh)[t]
        # Of more than the history holds, the last: no place is written twice.
        kept = before >= fresh[t] - history
        place = (self.counts[t] + before) % history
        self.losses[t[kept], place[kept]] = losses[kept]
        self.counts += fresh
