"""Ranking metrics from scores and a boolean target, exact under ties.

Higher scores mean "more likely positive". Equal scores share one threshold, so no result depends on
the order of the samples. Counts are integers and are divided once, in float64.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probseq.checks import as_flags, as_vector


class RocCurve(NamedTuple):
    """Receiver operating characteristic with K distinct thresholds, from (0, 0) to (1, 1)."""

    # Share of the negatives with a score at or above each threshold; ascending
    fpr: Float[Tensor, " k"]
    # Share of the positives with a score at or above each threshold; ascending
    tpr: Float[Tensor, " k"]


def _checked(scores: Tensor, positive: Tensor, *, both: bool) -> tuple[Tensor, Tensor]:
    scores = as_vector("scores", scores).detach()
    positive = as_flags("positive", positive, scores.numel())
    hits = int(positive.sum())
    if hits == 0 or (both and hits == positive.numel()):
        needed = "both True and False" if both else "a True"
        only = "False" if hits == 0 else "True"
        raise ValueError(
            f"positive must hold {needed}, got {positive.numel()} times {only}: "
            "the metric is undefined on one class"
        )
    return scores, positive


def _counts(
    scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]
) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """Return false and true positives at each distinct threshold, from the highest score down."""
    order = scores.argsort(descending=True, stable=True)
    scores, positive = scores[order], positive[order]
    last_of_tie = torch.ones_like(positive)
    last_of_tie[:-1] = scores[1:] != scores[:-1]
    true_positives = positive.long().cumsum(0)[last_of_tie]
    taken = last_of_tie.nonzero()[:, 0] + 1
    return taken - true_positives, true_positives


def _with_origin(counts: Int[Tensor, " k"]) -> Int[Tensor, " k+1"]:
    return torch.cat([counts.new_zeros(1), counts])


def _rates(false_positives: Int[Tensor, " k"], true_positives: Int[Tensor, " k"]) -> RocCurve:
    fp, tp = _with_origin(false_positives), _with_origin(true_positives)
    return RocCurve(fp.double() / fp[-1], tp.double() / tp[-1])


def roc_curve(scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]) -> RocCurve:
    """Return the ROC curve with one point for each distinct score, after the origin."""
    scores, positive = _checked(scores, positive, both=True)
    return _rates(*_counts(scores, positive))


def auroc(scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return the area under the ROC curve: P(score of positive > of negative) + ½ P(equal).

    Example:
        >>> float(auroc(torch.tensor([0.9, 0.4, 0.4]), torch.tensor([True, False, True])))
        0.75
    """
    scores, positive = _checked(scores, positive, both=True)
    fp, tp = (_with_origin(counts) for counts in _counts(scores, positive))
    # Twice the trapezoids' area is an integer; halves come from ties.
    doubled = (fp.diff() * (tp[1:] + tp[:-1])).sum()
    return doubled.double() / (2 * fp[-1] * tp[-1])


def average_precision(
    scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Return the area under the precision-recall step function, Σ_k (R_k − R_{k−1}) P_k.

    No interpolation: the trapezoid rule is too optimistic. Random scores have the share of
    positives.
    """
    scores, positive = _checked(scores, positive, both=False)
    fp, tp = _counts(scores, positive)
    precision = tp.double() / (tp + fp)
    return (_with_origin(tp).diff() * precision).sum() / tp[-1]


def fpr_at_tpr(
    scores: Float[Tensor, " n"], positive: Bool[Tensor, " n"], tpr: float = 0.95
) -> Float[Tensor, ""]:
    """Return the false-positive rate of the first ROC point whose true-positive rate is enough.

    (KEP-SVGP's published numbers are of the point whose rate is closest, on the curve
    without its collinear points.)
    """
    scores, positive = _checked(scores, positive, both=True)
    if not 0.0 < tpr <= 1.0:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr}")
    curve = _rates(*_counts(scores, positive))
    return curve.fpr[torch.searchsorted(curve.tpr, tpr)]
