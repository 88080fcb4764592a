"""The regularised objective (CGPT, Eqs. 28-29) and the schedule of its weight.

NaN and infinity in a tensor reach the result.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_not_negative, check_terms


class PenalisedLoss(NamedTuple):
    """The loss and its parts, in nats a sequence.

    Attributes:
        loss: ``nll + alpha * penalty``.
        nll: negative log likelihood.
        penalty: negative log density of all layers' outputs and observations, not scaled.
    """

    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    penalty: Float[Tensor, ""]


def penalised_loss(
    log_likelihood: Float[Tensor, "*samples batch"],
    penalty: Float[Tensor, ""],
    *,
    alpha: float,
) -> PenalisedLoss:
    """Combine log likelihoods and the layers' regularisers (Eq. 28).

    Args:
        log_likelihood: log p(y | ν) of each sequence, for each sample if there are several.
        penalty: sum of the layers' penalties, from the transformer's output. It is summed over
            tokens, heads and output dimensions and may be negative, as densities are no
            probabilities: in the ten thousands against a cross-entropy of about one.
        alpha: its weight α, see :func:`alpha_schedule`.

    Raises:
        ValueError: ``alpha`` is negative or not finite, or see :func:`~probseq.checks.check_terms`.
    """
    check_terms(log_likelihood, penalty)
    check_not_negative(alpha=alpha)
    nll = -log_likelihood.mean()
    return PenalisedLoss(nll + alpha * penalty, nll, penalty)


def alpha_schedule(progress: float, *, start: float = 0.0, end: float = 1.0) -> float:
    """Weight of the regulariser: linear from ``start`` to ``end`` over training.

    The paper anneals from 0 to 1 (section 5.1), in its appendix from 0.5 to 1 or not at all (0.7).

    Args:
        progress: share of the training steps done, 0 to 1.
        start: weight at the first step.
        end: weight at the last step.

    Raises:
        ValueError: ``progress`` is outside 0 to 1, or a weight is negative or not finite.
    """
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"progress must be from 0 to 1, got {progress}")
    check_not_negative(start=start, end=end)
    return start + (end - start) * progress
