"""Inducing points learned by gradient ascent on the online bound."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.inducing import Inducing, PointFunctional
from probseq.checks import check_counts, check_positive
from probseq.errors import CholeskyError


@dataclass(frozen=True, kw_only=True)
class AdamSteps:
    """Number and size of Adam's steps at every step of the stream."""

    steps: int = 1000  # number of Adam steps (the thesis takes 1000 for time series)
    # about how far a step goes; for inducing points in lengthscales, so that the result doesn't
    # depend on the units of the inputs, and for q(v) in standard deviations of the posterior so far
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        check_counts(steps=self.steps)
        check_positive(learning_rate=self.learning_rate)


def learn_nodes(
    start: Float[Tensor, "*b m d"],
    scale: Float[Tensor, "*#b 1 d"],
    objective: Callable[[Inducing], Tensor],
    options: AdamSteps,
) -> PointFunctional:
    """Maximise the online bound over the positions of inducing points, by Adam.

    Only the positions are learned; no gradient is left in the kernel or the likelihood, and the
    best positions of all steps are returned, so that the bound is never below that of ``start``.

    Positions are in units of ``scale``, the kernel's lengthscale in each dimension; the objective
    is the bound in nats.

    Raises:
        CholeskyError: the bound could not be computed at a step; the message says at which.
    """
    start, scale = start.detach(), scale.detach()
    offset = torch.zeros_like(start).requires_grad_()
    adam = torch.optim.Adam([offset], lr=options.learning_rate)
    best, best_offset = -math.inf, offset.detach().clone()
    for step in range(options.steps + 1):
        try:
            with torch.enable_grad():
                value = objective(PointFunctional(start + scale * offset))
            if not bool(value.isfinite()):
                raise CholeskyError(f"the online bound must be finite, got {value.item()}")
        except CholeskyError as error:
            message = f"learning inducing points failed at step {step}: {error}"
            raise CholeskyError(message) from error
        if (current := value.item()) > best:
            best, best_offset = current, offset.detach().clone()
        # The last evaluation only judges where the last step led.
        if step < options.steps:
            (gradient,) = torch.autograd.grad(value, offset)
            offset.grad = -gradient
            adam.step()
    return PointFunctional(start + scale * best_offset)
