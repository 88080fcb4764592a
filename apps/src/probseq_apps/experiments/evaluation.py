"""Metrics of predictions, as flat names: `test/nll`, `shift/severity-3/ece`, `ood/svhn/...`."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from probseq import metrics
from probseq_apps.data.names import CORRUPTION_GROUPS
from probseq_apps.experiments.prediction import Predictions
from probseq_apps.experiments.test_sets import SHIFT_PREFIXES

Metric = Callable[[Tensor, Tensor], Tensor]


def _classwise_ece(probs: Tensor, labels: Tensor) -> Tensor:
    return metrics.expected_calibration_error(probs, labels, mode="classwise")


def _on_confidence(metric: Metric) -> Metric:
    def of_predictions(probs: Tensor, labels: Tensor) -> Tensor:
        confidence, predicted = probs.max(-1)
        return metric(confidence, predicted == labels)

    return of_predictions


_TEST_METRICS: dict[str, Metric] = {
    "accuracy": metrics.accuracy,
    "nll": metrics.nll,
    "ece": metrics.expected_calibration_error,
    "classwise-ece": _classwise_ece,
    "mce": metrics.maximum_calibration_error,
    "brier": metrics.brier,
    "aurc": _on_confidence(metrics.aurc),
    "e-aurc": _on_confidence(metrics.e_aurc),
}
# Under shift, on many sets, those that the papers' tables have.
_SHIFT_METRICS = {
    name: metric
    for name, metric in _TEST_METRICS.items()
    if name not in ("classwise-ece", "e-aurc")
}
# Need right and wrong answers both.
_FAILURE_METRICS: dict[str, Metric] = {
    "failure-auroc": _on_confidence(metrics.failure_auroc),
    "failure-fpr95": _on_confidence(metrics.failure_fpr),
}


def evaluate(sets: Mapping[str, Predictions]) -> dict[str, float | None]:
    """Compute all metrics of one model or ensemble.

    Args:
        sets: predictions by name: `test` and further labelled sets, `shift/CORRUPTION/SEVERITY`
            (or `cifar-c/...`), `ood/NAME`, and `validation`, on which detectors are fitted.

    Returns:
        Values by name; None where a metric is not defined on these predictions, as the AUROC of
        failures is without failures. Under shift, `shift/severity-3/ece` is the mean over the
        corruptions, and `shift/noise-3/ece` that over a group of them.
    """
    values: dict[str, float | None] = {}
    for name, predictions in sets.items():
        if name == "validation" or name.startswith("ood/"):
            continue
        wanted = _SHIFT_METRICS if name.startswith(SHIFT_PREFIXES) else _TEST_METRICS
        values.update(_labelled(name, predictions, wanted))
    values.update(_shift_means(values))
    scores = _OutOfDistribution(sets["test"], sets.get("validation"))
    for name, predictions in sets.items():
        if name.startswith("ood/"):
            values.update(scores.against(name, predictions))
    return values


def _measure(
    name: str, predictions: Predictions, wanted: Mapping[str, Metric]
) -> dict[str, float | None]:
    probs = predictions.log_probs.double().exp()
    return {
        f"{name}/{metric}": float(function(probs, predictions.labels))
        for metric, function in wanted.items()
    }


def _labelled(
    name: str, predictions: Predictions, wanted: Mapping[str, Metric]
) -> dict[str, float | None]:
    values = _measure(name, predictions, wanted)
    if predictions.log_probs.shape[-1] == 2:
        values |= _measure(name, predictions, {"mcc": metrics.matthews_correlation})
    if values[f"{name}/accuracy"] in (0.0, 1.0):
        return values | {f"{name}/{metric}": None for metric in _FAILURE_METRICS}
    return values | _measure(name, predictions, _FAILURE_METRICS)


def _shift_means(values: Mapping[str, float | None]) -> dict[str, float | None]:
    group_of = {name: group for group, names in CORRUPTION_GROUPS.items() for name in names}
    collected: dict[str, list[float]] = {}
    for name, value in values.items():
        if not name.startswith(SHIFT_PREFIXES):
            continue
        kind, corruption, severity, metric = name.split("/")
        for part in ("severity", group_of.get(corruption, "other")):
            found = collected.setdefault(f"{kind}/{part}-{severity}/{metric}", [])
            # Of failures of a model without any, nothing is known; the others still have a mean.
            found += [] if value is None else [value]
    return {name: sum(found) / len(found) if found else None for name, found in collected.items()}


class _OutOfDistribution:
    """Detectors fitted once, applied to each out-of-distribution set."""

    def __init__(self, test: Predictions, validation: Predictions | None) -> None:
        self._matching = None
        if validation is not None:
            classes = torch.arange(test.log_probs.shape[-1])
            # A class without validation examples has no typical prediction.
            if torch.isin(classes, validation.labels).all():
                self._matching = metrics.KLMatching.fit(
                    validation.log_probs.double().exp(), validation.labels
                )
        self._test = self.scores(test)

    def scores(self, predictions: Predictions) -> dict[str, Tensor]:
        """Scores that grow with the distance from the training distribution."""
        probs = predictions.log_probs.double().exp()
        found = {
            "max-softmax": metrics.max_softmax_score(probs),
            "entropy": metrics.entropy_score(probs),
            "energy": predictions.energy.double(),
        }
        if self._matching is not None:
            found["kl-matching"] = self._matching.score(probs)
        return found

    def against(self, name: str, outside: Predictions) -> dict[str, float | None]:
        """Metrics of each detector, test set against another set."""
        return {
            f"{name}/{detector}/{metric.replace('_', '-')}": float(value)
            for detector, scores in self.scores(outside).items()
            for metric, value in metrics.ood_metrics(self._test[detector], scores).items()
        }
