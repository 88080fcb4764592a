"""The report of `probseq regress`: tables of metrics, and plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from probseq.figures import COLOURS, GUIDE, legend, light_grid, line_style, panels
from probseq.metrics import roc_curve
from probseq.metrics.plots import roc_plot
from probseq_apps.report.classify import MethodResult, methods_report
from probseq_apps.report.report import Report
from probseq_apps.report.tables import MARKS_LEGEND

_PLOTS = """Predicted values are those of the first seed. Coverage and error by variance are
means over the seeds; histograms and ROC curves pool the seeds, so their AUROC differs a little from
the table's."""
_POSITIVE = "AUROC and AUPR-out: the other set is the positive class."
_ACROSS = 4


class Predicted(NamedTuple):
    """Predictions of a set by one model or ensemble.

    Attributes:
        targets: true values.
        mean: predictive means.
        variance: predictive variances.
        function_variance: the same without the noise.
        coverage: share of the true values inside central intervals, by the intervals' probability.
    """

    targets: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    function_variance: Float[Tensor, " n"]
    coverage: Mapping[float, float]


# For each method, its entries: predictions by set.
Rows = Mapping[str, Sequence[Mapping[str, Predicted]]]


def regress_report(methods: Mapping[str, MethodResult], rows: Rows, **given: Any) -> Report:
    """Return the report of a comparison of regressors: what was measured, and predictions."""
    target = given["data"]["target"]
    return methods_report(
        "regress",
        methods,
        f"examples; the target is `{target}`, and errors are in its unit",
        legend=f"{MARKS_LEGEND} {_POSITIVE}",
        plots=lambda folder: write_regress_plots(folder, rows, target=target),
        about_plots=_PLOTS,
        **given,
    )


def is_constant(values: Float[Tensor, " n"]) -> bool:
    """Return whether values differ by nothing but round-off."""
    spread = values.amax() - values.amin()
    return bool(spread <= 1e-9 * values.abs().amax())


def selective_error(found: Predicted) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return coverage k/N and the mean absolute error of the k predictions of least variance."""
    order = found.variance.argsort(stable=True)
    errors = (found.mean - found.targets).abs()[order]
    taken = torch.arange(1, len(order) + 1).double()
    return taken / len(order), errors.cumsum(0) / taken


def write_regress_plots(folder: Path, rows: Rows, *, target: str) -> list[Path]:
    """Draw everything that the predictions allow."""
    figures = {
        "predicted": predicted_figure(rows, target),
        "coverage": coverage_figure(rows),
        "error-by-variance": selective_figure(rows, target),
    }
    for name in next(iter(rows.values()))[0]:
        # Nothing but noise tells nothing apart, and has no curve to draw.
        telling = {
            method: entries
            for method, entries in rows.items()
            if not all(is_constant(entry["test"].variance) for entry in entries)
        }
        if name.startswith("ood/") and telling:
            outside = name.removeprefix("ood/")
            figures[f"ood-{outside}"] = variance_figure(telling, name, target)
            figures[f"ood-{outside}-roc"] = _roc_figure(telling, name)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path)
    return paths


def predicted_figure(rows: Rows, target: str) -> Figure:
    """Draw predictions of the first entry against true values, with two standard deviations."""
    figure, found = panels(len(rows), _ACROSS, (2.7, 2.9))
    for (method, entries), panel in zip(rows.items(), found, strict=True):
        test = entries[0]["test"]
        truth, mean, error = (t.numpy() for t in (test.targets, test.mean, test.variance.sqrt()))
        style: dict[str, Any] = {
            "color": COLOURS[0],
            "ecolor": "#A6CBE3",
            "markersize": 3,
            "elinewidth": 0.8,
        }
        panel.errorbar(truth, mean, yerr=2.0 * error, fmt="o", **style)
        ends = min(truth.min(), mean.min()), max(truth.max(), mean.max())
        panel.plot(ends, ends, color=GUIDE, linestyle="--", linewidth=1, zorder=3)
        panel.set_title(method, fontsize=11)
        panel.set_xlabel(f"True {target}")
        light_grid(panel)
    for panel in found[::_ACROSS]:
        panel.set_ylabel(f"Predicted {target} ± 2 std")
    return figure


def coverage_figure(rows: Rows) -> Figure:
    """Draw the share of the true values inside central intervals, by the intervals' probability."""
    curves: dict[str, tuple[Any, Any]] = {}
    for method, entries in rows.items():
        found = torch.tensor([list(entry["test"].coverage.values()) for entry in entries])
        curves[method] = list(entries[0]["test"].coverage), found.mean(0).numpy()
    return _curves(curves, "Probability of the interval", "True values inside", 1.02, diagonal=True)


def selective_figure(rows: Rows, target: str) -> Figure:
    """Draw the mean absolute error over the predictions of least variance, by their share."""
    found: dict[str, tuple[Any, Any]] = {}
    top = 0.0
    for method, entries in rows.items():
        curves = [selective_error(entry["test"]) for entry in entries]
        if all(is_constant(entry["test"].variance) for entry in entries):
            # No order: every choice has the same error on average.
            overall = float(torch.stack([error[-1] for _, error in curves]).mean())
            found[f"{method} (no order)"] = (0, 1), (overall, overall)
            top = max(top, overall)
            continue
        coverage, error = curves[0][0], torch.stack([error for _, error in curves]).mean(0)
        found[method] = coverage.numpy(), error.numpy()
        # The error of the first few is chance and would flatten the rest.
        top = max(top, float(error[coverage >= 0.1].amax()))
    return _curves(found, "Coverage", f"MAE of {target} among them", 1.1 * top or 1.0)


def variance_figure(rows: Rows, name: str, target: str) -> Figure:
    """Draw histograms of the function values' standard deviation, test set and another set."""
    # What is much for one method is little for another.
    figure, found = panels(len(rows), _ACROSS, (2.7, 2.9), shared=False)
    labels = "Test set", name.removeprefix("ood/").replace("-", " ").capitalize()
    for (method, entries), panel in zip(rows.items(), found, strict=True):
        both = [values.sqrt() for values in _variances(entries, "test", name)]
        every = torch.cat(both)
        # The largest hundredth would squeeze all others into one bar.
        edges = torch.linspace(float(every.amin()), float(every.quantile(0.99)), 25).tolist()
        for values, label, colour in zip(both, labels, COLOURS, strict=False):
            shown = values.clamp(max=edges[-1]).numpy()
            panel.hist(shown, bins=edges, color=colour, alpha=0.55, label=label)
        panel.set_title(method, fontsize=11)
        panel.set_xlabel(f"Std of {target} without noise")
        light_grid(panel)
    for panel in found[::_ACROSS]:
        panel.set_ylabel("Examples")
    legend(figure, found, across=3)
    return figure


def _curves(
    curves: Mapping[str, tuple[Any, Any]], x: str, y: str, top: float, *, diagonal: bool = False
) -> Figure:
    figure, (axes,) = panels(1, 1, (5.1, 3.7))
    if diagonal:
        axes.plot((0, 1), (0, 1), color=GUIDE, linewidth=1, linestyle="--")
    for index, (label, (across, up)) in enumerate(curves.items()):
        marks: dict[str, Any] = {"marker": "o" if diagonal else None, "markersize": 3}
        axes.plot(across, up, label=label, **(line_style(index) | marks))
    axes.set(xlabel=x, ylabel=y, xlim=(0, 1), ylim=(0, top))
    light_grid(axes)
    legend(figure, [axes], across=3)
    return figure


def _roc_figure(rows: Rows, name: str) -> Figure:
    curves: dict[str, tuple[Tensor, Tensor]] = {}
    for method, entries in rows.items():
        inside, outside = _variances(entries, "test", name)
        scores = torch.cat([inside, outside])
        curve = roc_curve(scores, torch.arange(len(scores)) >= len(inside))
        curves[method] = curve.fpr, curve.tpr
    figure = roc_plot(curves)
    outside_name = name.removeprefix("ood/").replace("-", " ")
    figure.suptitle(f"Test set against {outside_name}, by predictive variance", fontsize=10)
    return figure


def _variances(entries: Sequence[Mapping[str, Predicted]], *names: str) -> list[Tensor]:
    """Return variances of the function values in each set, all entries together."""
    return [torch.cat([entry[name].function_variance for entry in entries]) for name in names]
