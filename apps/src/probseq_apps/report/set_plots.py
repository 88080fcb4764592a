"""All figures of a comparison of methods on several sets, over their seeds, by name."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from probseq.figures import IN_A_PANEL, Curve, curves_plot, small_multiples
from probseq.metrics.calibration import calibration_bins
from probseq.metrics.ood import max_softmax_score, ood_roc
from probseq.metrics.plots import (
    interval_coverage_plot,
    predicted_plot,
    reliability_diagram,
    risk_coverage_plot,
    roc_plot,
    selective_error_plot,
)
from probseq.metrics.regression import COVERAGE_LEVELS, LaplaceMixture, is_constant
from probseq.metrics.selective import risk_coverage_curve, selective_error
from probseq.metrics.sets import Predictions, severities_of
from probseq.summary import LABELS, Summary

# Predictive distribution and true values, by the set's name.
NumberSets = Mapping[str, tuple[LaplaceMixture, Tensor]]

_SHIFTS = {"shift": "Corrupted test images", "cifar-c": "Published corruptions (CIFAR-C)"}
_UNDER_SHIFT = ("accuracy", "nll", "ece")
_OUTSIDE = "ood/"


def class_figures(
    methods: Mapping[str, Sequence[Mapping[str, Predictions]]],
) -> dict[str, Figure]:
    """Draw how sure and how right classifiers are, and what they tell from the test set.

    Curves pool the predictions of all seeds, except risk-coverage curves, which are means over
    them.
    """
    bins = {name: calibration_bins(*_pooled(seeds, "test")) for name, seeds in methods.items()}
    risks = {name: _risk_coverage(seeds) for name, seeds in methods.items()}
    figures = {"reliability": reliability_diagram(bins), "risk-coverage": risk_coverage_plot(risks)}
    for name in _others(methods):
        curves = {
            method: ood_roc(*(max_softmax_score(_pooled(seeds, s)[0]) for s in ("test", name)))
            for method, seeds in methods.items()
        }
        outside = name.removeprefix(_OUTSIDE)
        file = re.sub("[^A-Za-z0-9]+", "-", outside).strip("-")
        figures[f"ood-{file}"] = figure = roc_plot(curves)
        figure.suptitle(f"Test set against {outside}, by largest probability", fontsize=10)
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
            metric: {
                name: _errors_by(x, [summaries[f"{set_name}/{metric}"] for set_name in set_names])
                for name, summaries in methods.items()
            }
            for metric in _UNDER_SHIFT
        }
        if len(methods) > IN_A_PANEL:
            for metric, of_methods in curves.items():
                figures[f"{kind}-{metric}"] = small_multiples(
                    of_methods, title=title, x_label="Severity", y_label=LABELS[metric][0]
                )
        else:
            labelled = {LABELS[metric][0]: of_methods for metric, of_methods in curves.items()}
            figures[kind] = curves_plot(labelled, title=title, x_label="Severity")
    return figures


def number_figures(methods: Mapping[str, Sequence[NumberSets]], target: str) -> dict[str, Figure]:
    """Draw how sure and how right predictions of numbers are, and what variances tell apart.

    Predicted values are those of the first seed. Coverage and error by variance are means over the
    seeds; ROC curves pool them. A method whose variance is the same everywhere tells
    nothing apart, and is in no figure of other sets.
    """
    tests = {method: [seed["test"] for seed in seeds] for method, seeds in methods.items()}
    flat = {m for m, pairs in tests.items() if all(is_constant(p.variance) for p, _ in pairs)}
    first = {method: pairs[0] for method, pairs in tests.items()}
    levels = (0.0, *COVERAGE_LEVELS, 1.0)
    inside = {m: [p.coverage(y, levels) for p, y in pairs] for m, pairs in tests.items()}
    probability = torch.tensor(levels, dtype=torch.float64)
    figures = {
        "predicted": predicted_plot(
            {m: (y, p.mean, p.variance) for m, (p, y) in first.items()}, target=target
        ),
        "coverage": interval_coverage_plot(
            {m: (probability, torch.tensor(shares).mean(0)) for m, shares in inside.items()}
        ),
        "error-by-variance": selective_error_plot(
            dict(_selective(method, pairs, method in flat) for method, pairs in tests.items()),
            target=target,
        ),
    }
    telling = {method: seeds for method, seeds in methods.items() if method not in flat}
    for name in _others(methods) if telling else ():
        outside = name.removeprefix(_OUTSIDE)
        label = outside.replace("-", " ")
        variances = {
            method: [
                torch.cat([sets[set_name][0].function_variance for sets in seeds])
                for set_name in ("test", name)
            ]
            for method, seeds in telling.items()
        }
        curves = {method: ood_roc(*both) for method, both in variances.items()}
        figures[f"ood-{outside}"] = figure = roc_plot(curves)
        figure.suptitle(f"Test set against {label}, by predictive variance", fontsize=10)
    return figures


def _others(methods: Mapping[str, Sequence[Mapping[str, object]]]) -> list[str]:
    return [name for name in next(iter(methods.values()))[0] if name.startswith(_OUTSIDE)]


def _pooled(seeds: Sequence[Mapping[str, Predictions]], name: str) -> tuple[Tensor, Tensor]:
    predictions = [sets[name] for sets in seeds]
    probs = torch.cat([seed.log_probs.double().exp() for seed in predictions])
    return probs, torch.cat([seed.labels for seed in predictions])


def _risk_coverage(seeds: Sequence[Mapping[str, Predictions]]) -> tuple[Tensor, Tensor]:
    curves: list[tuple[Tensor, Tensor]] = []
    for sets in seeds:
        confidence, predicted = sets["test"].log_probs.double().exp().max(-1)
        curves.append(risk_coverage_curve(confidence, predicted == sets["test"].labels))
    # Seeds may have test sets of their own, of other sizes.
    shares = curves[0][0]
    risks = [np.interp(shares.numpy(), x.numpy(), risk.numpy()) for x, risk in curves]
    return shares, torch.from_numpy(np.mean(risks, axis=0))


def _errors_by(x: Sequence[int], summaries: Sequence[Summary]) -> Curve:
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
