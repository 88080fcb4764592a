"""Failure prediction: does confidence rank the right answers above the wrong ones?

The risk-coverage curve and its area (Geifman & El-Yaniv 2017; AURC in KEP-SVGP's tables is times
1000), and which answers to accept so that few are wrong. :func:`selective_error` asks the same of
numbers, whose confidence is a small variance. Confidence is e.g. the largest probability.

AUROC and FPR95 of failures are those of :mod:`probseq.metrics.ranking`, with "correct" as the
positive class and the confidence as the score.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from scipy import special
from torch import Tensor

from probseq.checks import as_flags, as_vector, check_counts, check_shares


def risk_coverage_curve(
    confidence: Float[Tensor, " n"], correct: Bool[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return coverages k/N and risks, the error rates among the k surest samples, for k = 1..N.

    Among equal confidences a risk is the mean over all of their orders.
    """
    confidence = as_vector("confidence", confidence).detach()
    correct = as_flags("correct", correct, confidence.numel())
    return _mean_of_surest((~correct).double(), confidence)


def selective_error(
    error: Float[Tensor, " n"], variance: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return coverages k/N and the mean absolute error of the k predictions of least variance.

    An error's sign does not count; among equal variances it is the mean over all of their orders.

    Example:
        >>> selective_error(torch.tensor([3.0, -1.0]), torch.tensor([0.2, 0.1]))[1].tolist()
        [1.0, 2.0]
    """
    error = as_vector("error", error).detach()
    variance = as_vector("variance", variance).detach()
    if error.shape != variance.shape:
        raise ValueError(
            f"error and variance must have equal lengths, got {len(error)} and {len(variance)}"
        )
    return _mean_of_surest(error.abs().double(), -variance)


def _mean_of_surest(losses: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
    """Return k/N and the mean loss of the k surest; equal confidences share their mean loss."""
    ordered, order = confidence.sort(descending=True, stable=True)
    _, group, sizes = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    losses = losses[order]
    # Each sample's loss becomes the mean of its group of equal confidences
    totals = torch.zeros(len(sizes), dtype=losses.dtype, device=losses.device)
    shared = (totals.index_add(0, group, losses) / sizes)[group]
    # (1/k) Σ of the losses of the k surest, k = 1..N
    taken = torch.arange(1, len(order) + 1, device=order.device).double()
    return taken / len(order), shared.cumsum(0) / taken


def aurc(confidence: Float[Tensor, " n"], correct: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return the area under the risk-coverage curve, (1/N) Σ_k (errors of the k surest)/k.

    Example:
        >>> float(aurc(torch.tensor([0.9, 0.6]), torch.tensor([True, False])))
        0.25
    """
    _, risk = risk_coverage_curve(confidence, correct)
    return risk.mean()


def e_aurc(confidence: Float[Tensor, " n"], correct: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    r"""Return the excess AURC: AURC minus that of an ideal ranking with as many errors.

    The ideal ranking puts all E errors last, and its area is the finite sum
    AURC* = (1/N) Σ_{j=1..E} j / (N − E + j).
    Geifman et al. (2019) and the code of the papers take its limit r + (1 − r) log(1 − r), r = E/N,
    instead, which is NaN at r = 1 and makes an ideal ranking's excess O(1/N), not 0.

    It is 0 for an ideal ranking, and where all or none are correct.
    """
    area, correct = aurc(confidence, correct), as_flags("correct", correct, len(confidence))
    # The ideal ranking's curve is that of confidence = correct, through the same code: the excess
    # of an ideal ranking is 0 to the last bit.
    return area - aurc(correct.double(), correct)


class Selection(NamedTuple):
    """A threshold of accepted predictions, and how often these are wrong."""

    # A prediction is accepted if its confidence is above it; minus infinity accepts all, infinity
    # none
    threshold: float
    coverage: float  # share of the examples that were accepted
    error: float  # share of wrong ones among the accepted
    bound: float  # what the true share of wrong ones is at most, with the level's probability


def select_with_error(
    confidence: Float[Tensor, " n"],
    correct: Bool[Tensor, " n"],
    max_error: float,
    *,
    level: float = 0.95,
    num_coverages: int = 20,
) -> Selection:
    r"""Choose the lowest confidence that is accepted so that errors stay below a wanted share.

    With probability ``level`` over the examples, which neither trained the model nor chose its
    temperature, the share of wrong answers among *new* examples of the same distribution that are
    accepted is at most ``max_error`` (selection with guaranteed risk by exact binomial bounds;
    Geifman & El-Yaniv 2017). The coverages :math:`1/K, 2/K, ..., 1`, K = ``num_coverages``, are
    tried, each at level :math:`1 - (1 - \mathrm{level})/K`, and the largest is taken whose bound is
    small enough: given its own threshold, the errors of those above are binomial for each of them,
    so that the guarantee needs no assumption on the confidence. The threshold is infinite where no
    coverage can be guaranteed. No error in k examples bounds their share by :math:`1 - ((1 -
    \mathrm{level})/K)^{1/k}`: 1 % takes about 600 accepted examples.

    Example:
        >>> confidence = torch.linspace(0.5, 1, 2000)
        >>> correct = torch.arange(2000) >= 200  # the least confident tenth is wrong
        >>> selection = select_with_error(confidence, correct, max_error=0.02)
        >>> selection.coverage, round(selection.bound, 4)
        (0.9, 0.0033)
    """
    confidence = as_vector("confidence", confidence).detach()
    correct = as_flags("correct", correct, confidence.numel())
    check_shares(max_error=max_error, level=level)
    check_counts(num_coverages=num_coverages)
    ordered, order = confidence.double().sort(descending=True)
    errors = (~correct[order]).double().cumsum(0)
    size = len(ordered)
    # Accepted are those above the next one's confidence; of equal ones, all or none.
    tried = (torch.arange(1, num_coverages + 1) * size) // num_coverages
    below = torch.cat([ordered, ordered.new_full((1,), -torch.inf)])[tried]
    accepted = (ordered > below[:, None]).sum(1)
    wrong = torch.where(accepted > 0, errors[(accepted - 1).clamp(min=0)], 0.0)
    bounds = _binomial_upper(wrong, accepted.double(), (1.0 - level) / num_coverages)
    fine = (bounds <= max_error).nonzero()
    if not len(fine):
        return Selection(torch.inf, 0.0, 0.0, 0.0)
    last = int(fine[-1])
    number = int(accepted[last])
    share = float(wrong[last]) / number
    return Selection(float(below[last]), number / size, share, float(bounds[last]))


def _binomial_upper(
    wrong: Float[Tensor, " k"], total: Float[Tensor, " k"], miss: float
) -> Float[Tensor, " k"]:
    """Return the largest rate of which so few errors have probability `miss` (Clopper, Pearson)."""
    counts = wrong.cpu().numpy(), total.cpu().numpy()
    # The (1 − miss)-quantile of Beta(errors + 1, n − errors)
    rates = special.betaincinv(counts[0] + 1.0, counts[1] - counts[0], 1.0 - miss)
    return torch.where(wrong < total, torch.from_numpy(rates).to(total), 1.0)
