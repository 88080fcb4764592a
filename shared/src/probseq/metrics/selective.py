"""Failure prediction: does confidence rank the right answers above the wrong ones?

:func:`selective_error` asks the same of numbers, whose confidence is a small variance.

The risk-coverage curve and its area (Geifman & El-Yaniv 2017), and the ROC metrics with "correct"
as the positive class and the confidence as the score, as in KEP-SVGP's tables (AURC there is
times 1000, the others times 100).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probseq.metrics._checks import check_flags, check_vector
from probseq.metrics.ranking import TprMode, auroc_of, fpr_at_tpr_of

_NAMES = ("confidence", "correct")


def risk_coverage_curve(
    confidence: Float[Tensor, " n"], correct: Bool[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the error rate among the k most confident samples, for k = 1..N.

    Equal confidences keep the order in which they came (a stable sort), so under ties the curve
    depends on the order of the samples.

    Args:
        confidence: e.g. the largest probability of each sample.
        correct: whether each prediction was right.

    Returns:
        (coverage, risk): coverage k/N, and risk (errors among the k most confident)/k.

    Raises:
        ValueError: bad shapes, NaN or infinity, or nothing given.
    """
    confidence = check_vector("confidence", confidence).detach()
    correct = check_flags("correct", correct, confidence.numel())
    order = confidence.argsort(descending=True, stable=True)
    taken = torch.arange(1, order.numel() + 1, device=order.device)
    errors = (~correct[order]).long().cumsum(0)
    return taken.double() / order.numel(), errors.double() / taken


def selective_error(
    error: Float[Tensor, " n"], variance: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the mean absolute error of the k predictions of least variance, for k = 1..N.

    Args:
        error: of each prediction; its sign does not count.
        variance: of each prediction; equal ones keep the order in which they came.

    Returns:
        (coverage, error): coverage k/N, and the mean over the k.

    Raises:
        ValueError: bad shapes, NaN or infinity, or nothing given.

    Example:
        >>> selective_error(torch.tensor([3.0, -1.0]), torch.tensor([0.2, 0.1]))[1].tolist()
        [1.0, 2.0]
    """
    error = check_vector("error", error).detach()
    variance = check_vector("variance", variance).detach()
    if error.shape != variance.shape:
        raise ValueError(
            f"error and variance must have equal lengths, got {len(error)} and {len(variance)}"
        )
    ordered = error.abs()[variance.argsort(stable=True)].double()
    taken = torch.arange(1, len(ordered) + 1, device=ordered.device).double()
    return taken / len(ordered), ordered.cumsum(0) / taken


def aurc(confidence: Float[Tensor, " n"], correct: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return the area under the risk-coverage curve, (1/N) Σ_k (errors of the k surest)/k.

    Args:
        confidence: e.g. the largest probability of each sample.
        correct: whether each prediction was right.

    Returns:
        A scalar in 0..1; lower is better.

    Raises:
        ValueError: as :func:`risk_coverage_curve`.

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

    Args:
        confidence: e.g. the largest probability of each sample.
        correct: whether each prediction was right.

    Returns:
        A scalar >= 0; 0 for an ideal ranking, and where all or none are correct.

    Raises:
        ValueError: as :func:`risk_coverage_curve`.
    """
    area = aurc(confidence, correct)
    # The ideal ranking's curve is that of confidence = correct, through the same code: the excess
    # of an ideal ranking is 0 to the last bit.
    return area - aurc(correct.double(), correct)


def failure_auroc(
    confidence: Float[Tensor, " n"], correct: Bool[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Return the AUROC with "correct" as the positive class and confidence as the score.

    Args:
        confidence: e.g. the largest probability of each sample.
        correct: whether each prediction was right.

    Returns:
        A scalar in 0..1; higher is better.

    Raises:
        ValueError: bad shapes, NaN or infinity, nothing given, or all or none correct.
    """
    return auroc_of(confidence, correct, names=_NAMES)


def failure_fpr(
    confidence: Float[Tensor, " n"],
    correct: Bool[Tensor, " n"],
    tpr: float = 0.95,
    mode: TprMode = "first",
) -> Float[Tensor, ""]:
    """Return the share of errors that are accepted with a share ``tpr`` of the right answers.

    Args:
        confidence: e.g. the largest probability of each sample.
        correct: whether each prediction was right; the positive class.
        tpr: the true-positive rate to reach.
        mode: ``"first"``, or ``"nearest"`` for KEP-SVGP's numbers; see
            :func:`probseq.metrics.ranking.fpr_at_tpr`.

    Returns:
        A scalar in 0..1; lower is better.

    Raises:
        ValueError: as :func:`failure_auroc`, a rate outside 0..1, or an unknown mode.
    """
    return fpr_at_tpr_of(confidence, correct, tpr, mode, names=_NAMES)
