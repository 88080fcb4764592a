"""All figures of a comparison of methods on several sets, over their seeds, by name."""

import math
import re
from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from probseq.figures import IN_A_PANEL, Curve, curves_plot, small_multiples
from probseq.metrics import plots
from probseq.metrics.calibration import calibration_bins
from probseq.metrics.regression import COVERAGE_LEVELS, LaplaceMixture, is_constant
from probseq.metrics.selective import selective_error
from probseq.metrics.sets import Predictions, severities_of
from probseq.summary import LABELS, Summary, summarise

# Predictive distribution and true values, by the set's name.
NumberSets = Mapping[str, tuple[LaplaceMixture, Tensor]]

_SHIFTS = {"shift": "Corrupted test examples", "cifar-c": "Published corruptions (CIFAR-C)"}
_UNDER_SHIFT, _OUTSIDE = ("accuracy", "nll", "ece"), "ood/"
_ACCEPTED = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def class_figures(methods: Mapping[str, Sequence[Mapping[str, Predictions]]]) -> dict[str, Figure]:
    """Draw how sure and how right classifiers are.

    Reliability pools the predictions of all seeds; curves of what can be trusted are means over
    them.
    """
    bins = {name: calibration_bins(*_pooled(seeds, "test")) for name, seeds in methods.items()}
    labels = {"test": "Wrong among the accepted"}
    labels |= {name: f"Accepted of {name.removeprefix(_OUTSIDE)}" for name in _others(methods)[:2]}
    curves = {
        label: {method: _accepted(seeds, name) for method, seeds in methods.items()}
        for name, label in labels.items()
    }
    title = "What can be trusted: errors, and other examples that are as sure"
    figures = _curves("trusted", curves, title, "Share accepted, the surest first")
    figures["reliability"] = plots.reliability_diagram(bins)
    return figures


def shift_figures(methods: Mapping[str, Mapping[str, Summary]]) -> dict[str, Figure]:
    """Draw accuracy, NLL and ECE by the severity of a shift: means with standard errors."""
    figures: dict[str, Figure] = {}
    for kind, title in _SHIFTS.items():
        severities = severities_of(next(iter(methods.values())), kind)
        if not severities:
            continue
        set_names = ["test", *(f"{kind}/severity-{severity}" for severity in severities)]
        x, title = [0, *severities], f"{title}, mean over the corruptions"
        curves = {
            LABELS[metric][0]: {
                name: _errors_by(x, [summaries[f"{set_name}/{metric}"] for set_name in set_names])
                for name, summaries in methods.items()
            }
            for metric in _UNDER_SHIFT
        }
        figures |= _curves(kind, curves, title, "Severity")
    return figures


def _curves(
    name: str, curves: Mapping[str, Mapping[str, Curve]], title: str, x_label: str
) -> dict[str, Figure]:
    """Draw a panel for each label; of many methods a figure for each, and a panel for a method."""
    if len(next(iter(curves.values()))) <= IN_A_PANEL:
        return {name: curves_plot(curves, title=title, x_label=x_label)}
    return {
        f"{name}-{re.sub('[^a-z0-9]+', '-', label.lower())}": small_multiples(
            of_methods, title=title, x_label=x_label, y_label=label
        )
        for label, of_methods in curves.items()
    }


def number_figures(methods: Mapping[str, Sequence[NumberSets]], target: str) -> dict[str, Figure]:
    """Draw how sure and how right predictions of numbers are.

    Predicted values are those of the first seed. Coverage and error by variance are means over the
    seeds.
    """
    tests = {method: [seed["test"] for seed in seeds] for method, seeds in methods.items()}
    flat = {m for m, pairs in tests.items() if all(is_constant(p.variance) for p, _ in pairs)}
    first = {method: pairs[0] for method, pairs in tests.items()}
    levels = (0.0, *COVERAGE_LEVELS, 1.0)
    inside = {m: [p.coverage(y, levels) for p, y in pairs] for m, pairs in tests.items()}
    probability = torch.tensor(levels, dtype=torch.float64)
    return {
        "predicted": plots.predicted_plot(
            {m: (y, p.mean, p.variance) for m, (p, y) in first.items()}, target=target
        ),
        "coverage": plots.interval_coverage_plot(
            {m: (probability, torch.tensor(shares).mean(0)) for m, shares in inside.items()}
        ),
        "error-by-variance": plots.selective_error_plot(
            dict(_selective(method, pairs, method in flat) for method, pairs in tests.items()),
            target=target,
        ),
    }


def _others(methods: Mapping[str, Sequence[Mapping[str, object]]]) -> list[str]:
    return [name for name in next(iter(methods.values()))[0] if name.startswith(_OUTSIDE)]


def _pooled(seeds: Sequence[Mapping[str, Predictions]], name: str) -> tuple[Tensor, Tensor]:
    predictions = [sets[name] for sets in seeds]
    probs = torch.cat([seed.log_probs.double().exp() for seed in predictions])
    return probs, torch.cat([seed.labels for seed in predictions])


def _accepted(seeds: Sequence[Mapping[str, Predictions]], name: str) -> Curve:
    """Return the errors among the surest of the test set, or how many of another set are as sure.

    It is by the share of the test set that is accepted, over the seeds.
    """
    summaries: list[Summary] = []
    for share in _ACCEPTED:
        values: list[float] = []
        for sets in seeds:
            (confidence, predicted), labels = sets["test"].log_probs.max(-1), sets["test"].labels
            # Of equal confidences all are accepted.
            least = confidence.sort(descending=True).values[math.ceil(share * len(labels)) - 1]
            wrong = (predicted != labels)[confidence >= least]
            others = sets[name].log_probs.max(-1).values >= least
            values.append(float((wrong if name == "test" else others).double().mean()))
        summaries.append(summarise(values))
    return _errors_by(_ACCEPTED, summaries)


def _errors_by(x: Sequence[int | float], summaries: Sequence[Summary]) -> Curve:
    means = [math.nan if summary.mean is None else summary.mean for summary in summaries]
    return Curve(x, means, [summary.standard_error or 0.0 for summary in summaries])


def _selective(
    name: str, seeds: Sequence[tuple[LaplaceMixture, Tensor]], flat: bool
) -> tuple[str, tuple[Tensor, Tensor]]:
    """Return a method's label, and the means of coverage and error over its seeds."""
    curves = [selective_error(p.mean - y, p.variance) for p, y in seeds]
    coverage, error = curves[0][0], torch.stack([error for _, error in curves]).mean(0)
    if not flat:
        return name, (coverage, error)
    # Every choice has the same error on average.
    return f"{name} (no order)", (torch.tensor([0.0, 1.0]), error[-1].expand(2))
