"""All metrics of class predictions at once, by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.batches import read_batches
from probseq.checks import as_probs
from probseq.metrics.calibration import expected_calibration_error, maximum_calibration_error
from probseq.metrics.classification import accuracy, brier, matthews_correlation, nll
from probseq.metrics.ood import KLMatching, entropy_score, max_softmax_score, ood_metrics
from probseq.metrics.ranking import auroc, fpr_at_tpr
from probseq.metrics.selective import aurc, e_aurc

_CLASSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": accuracy,
    "nll": nll,
    "ece": expected_calibration_error,
    "classwise-ece": lambda p, y: expected_calibration_error(p, y, mode="classwise"),
    "mce": maximum_calibration_error,
    "brier": brier,
}
_CONFIDENCE = {"aurc": aurc, "e-aurc": e_aurc}
_FAILURES = {"failure-auroc": auroc, "failure-fpr95": fpr_at_tpr}


def evaluate(probs: Any, labels: Any = None) -> dict[str, float | None]:
    """Return accuracy, likelihood, calibration and selective prediction of a classifier.

    Args:
        probs: predicted probabilities, ``(n, classes)``, as a tensor, an array or rows of a list;
            or, without labels, batches of both, see :func:`~probseq.batches.read_batches`; those
            that are mappings have them under ``"probs"`` and ``"labels"``.
        labels: true classes, one whole number a row.

    Returns:
        Values by name: accuracy, nll, ece, classwise-ece, mce, brier, aurc, e-aurc, of two classes
        mcc, failure-auroc and failure-fpr95; the last two are None where all or no predictions are
        right.
    """
    batches = list(read_batches(probs if labels is None else (probs, labels), name="probs"))
    if not batches:
        raise ValueError("probs must hold data, got none")
    probs = torch.cat([_probabilities(rows) for rows, _ in batches])
    labels = torch.cat([classes.to(probs.device) for _, classes in batches])
    values: dict[str, float | None] = {
        name: float(metric(probs, labels)) for name, metric in _CLASSES.items()
    }
    confidence, predicted = probs.max(-1)
    right = predicted == labels
    values |= {name: float(metric(confidence, right)) for name, metric in _CONFIDENCE.items()}
    if probs.shape[-1] == 2:
        values["mcc"] = float(matthews_correlation(probs, labels))
    both = 0.0 < float(right.double().mean()) < 1.0
    return values | {
        name: float(metric(confidence, right)) if both else None
        for name, metric in _FAILURES.items()
    }


def _probabilities(rows: Any) -> Tensor:
    rows = rows.get("probs") if isinstance(rows, Mapping) else rows
    rows = np.array(rows, dtype=np.float64) if isinstance(rows, list) else rows
    array = isinstance(rows, np.ndarray)
    return as_probs(torch.from_numpy(np.array(rows, order="C")) if array else rows)


def evaluate_ood(
    inside: tuple[Float[Tensor, "n c"], Mapping[str, Float[Tensor, " n"]]],
    outside: tuple[Float[Tensor, "m c"], Mapping[str, Float[Tensor, " m"]]],
    validation: tuple[Float[Tensor, "k c"], Int64[Tensor, " k"]] | None = None,
) -> dict[str, float]:
    """Return how well scores of predictions tell another set, the positive class, from a test set.

    Both are probabilities and further scores by name; one that is NaN is left out, as the energy of
    a model that has no logits. The typical predictions of ``kl-matching`` are fitted on
    probabilities and labels of validation data; without them, or where a class is missing, that
    score is left out.

    Returns:
        Values by ``SCORE/METRIC``: of max-softmax, entropy, the further scores and kl-matching the
        AUROC, AUPR-in, AUPR-out and FPR95.
    """
    matching = None
    if validation is not None:
        classes = torch.arange(validation[0].shape[-1])
        # A class without validation examples has no typical prediction.
        if torch.isin(classes, validation[1]).all():
            matching = KLMatching.fit(*validation)
    inner, outer = (_scores(*each, matching) for each in (inside, outside))
    return {
        f"{score}/{metric.replace('_', '-')}": float(value)
        for score in inner
        for metric, value in ood_metrics(inner[score], outer[score]).items()
    }


def _scores(
    probs: Tensor, others: Mapping[str, Tensor], matching: KLMatching | None
) -> dict[str, Tensor]:
    """Return scores that grow with the distance from the training distribution."""
    scores = {"max-softmax": max_softmax_score(probs), "entropy": entropy_score(probs)}
    scores |= {name: score for name, score in others.items() if not score.isnan().any()}
    return scores if matching is None else scores | {"kl-matching": matching.score(probs)}
