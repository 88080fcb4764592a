"""The report of `probseq regress`: tables of metrics, and plots."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from probseq.metrics import roc_curve
from probseq.metrics.plots import roc_plot
from probseq_apps.report.classify import MethodResult, metric_tables
from probseq_apps.report.report import Report
from probseq_apps.report.tables import MARKS_LEGEND

_PLOTS = """Predicted values are those of the first seed. Coverage and error by variance are
means over the seeds; histograms and ROC curves pool the seeds, so their AUROC differs a little from
the table's."""
# Okabe and Ito's colours, as in `probseq.metrics.plots`.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", ":")
_GUIDE = "#1A1A1A"
_PANELS_ACROSS = 4


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


def regress_report(
    methods: Mapping[str, MethodResult],
    rows: Rows,
    *,
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    recipe: str,
) -> Report:
    """Return the report of a comparison of regressors.

    Args:
        methods: what was measured.
        rows: predictions of each method's entries, by set.
        settings: what was compared.
        data: its name, sizes, target and notes.
        recipe: name of the recipe that the settings came from.
    """
    summaries = {name: method.summaries() for name, method in methods.items()}
    counts = {name: len(method.metrics) for name, method in methods.items()}
    return Report(
        numbers={
            "experiment": "regress",
            "recipe": recipe,
            "settings": settings,
            "data": data,
            "methods": {
                name: method.numbers(settings["seeds"]) for name, method in methods.items()
            },
        },
        title=f"{data['name']}: {', '.join(methods)}",
        opening=(
            f"{data['train']:,} training, {data['validation']:,} validation and {data['test']:,} "
            f"test molecules; the target is `{data['target']}`, and errors are in its unit. Recipe "
            f"`{recipe}`, seeds {', '.join(map(str, settings['seeds']))}; all settings are in "
            "`config.json`."
        ),
        facts=data["notes"],
        tables=metric_tables(summaries, counts),
        legend=MARKS_LEGEND,
        rows=[method.line(name) for name, method in methods.items()],
        plots=lambda folder: write_regress_plots(folder, rows, target=data["target"]),
        about_plots=_PLOTS,
    )


def is_constant(values: Float[Tensor, " n"]) -> bool:
    """Return whether values differ by nothing but round-off."""
    spread = values.amax() - values.amin()
    return bool(spread <= 1e-9 * values.abs().amax())


def selective_error(found: Predicted) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return coverage k/N and the mean absolute error of the k predictions of least variance.

    Args:
        found: predictions of one set; k = 1..N.
    """
    order = found.variance.argsort(stable=True)
    errors = (found.mean - found.targets).abs()[order]
    taken = torch.arange(1, len(order) + 1).double()
    return taken / len(order), errors.cumsum(0) / taken


def write_regress_plots(folder: Path, rows: Rows, *, target: str) -> list[Path]:
    """Draw everything that the predictions allow.

    Args:
        folder: where to write.
        rows: predictions by method.
        target: name of the predicted number, for the axes.

    Returns:
        The files.
    """
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
    """Predictions of the first entry against true values, with two standard deviations."""
    figure, panels = _grid(rows, shared=True)
    for (method, entries), panel in zip(rows.items(), panels, strict=True):
        test = entries[0]["test"]
        truth, mean = test.targets, test.mean
        panel.errorbar(
            truth.numpy(),
            mean.numpy(),
            yerr=2.0 * test.variance.sqrt().numpy(),
            fmt="o",
            color=_COLOURS[0],
            ecolor="#A6CBE3",
            markersize=3,
            elinewidth=0.8,
        )
        low, high = float(min(truth.amin(), mean.amin())), float(max(truth.amax(), mean.amax()))
        panel.plot((low, high), (low, high), color=_GUIDE, linestyle="--", linewidth=1, zorder=3)
        panel.set_title(method, fontsize=11)
        panel.set_xlabel(f"True {target}")
    _label_first_column(panels, f"Predicted {target} ± 2 std")
    return figure


def coverage_figure(rows: Rows) -> Figure:
    """Share of the true values inside central intervals, against the intervals' probability."""
    figure, axes = _panel()
    axes.plot((0, 100), (0, 100), color=_GUIDE, linewidth=1, linestyle="--")
    for index, (method, entries) in enumerate(rows.items()):
        levels = list(entries[0]["test"].coverage)
        found = torch.tensor([list(entry["test"].coverage.values()) for entry in entries])
        axes.plot(
            [100 * level for level in levels],
            100 * found.mean(0).numpy(),
            marker="o",
            markersize=3,
            label=method,
            **_line(index),
        )
    axes.set(xlabel="Probability of the interval (%)", ylabel="True values inside (%)")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 102)
    _legend(figure, axes)
    return figure


def selective_figure(rows: Rows, target: str) -> Figure:
    """Mean absolute error over the predictions of least variance, against their share."""
    figure, axes = _panel()
    top = 0.0
    for index, (method, entries) in enumerate(rows.items()):
        curves = [selective_error(entry["test"]) for entry in entries]
        if all(is_constant(entry["test"].variance) for entry in entries):
            # No order: every choice has the same error on average.
            overall = float(torch.stack([error[-1] for _, error in curves]).mean())
            axes.plot((0, 100), (overall, overall), label=f"{method} (no order)", **_line(index))
            top = max(top, overall)
            continue
        coverage, error = curves[0][0], torch.stack([error for _, error in curves]).mean(0)
        axes.plot(100 * coverage.numpy(), error.numpy(), label=method, **_line(index))
        # The error of the first few is chance and would flatten the rest.
        top = max(top, float(error[coverage >= 0.1].amax()))
    axes.set(xlabel="Coverage (% of molecules answered)", ylabel=f"MAE of {target} among them")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.1 * top or 1.0)
    _legend(figure, axes)
    return figure


def variance_figure(rows: Rows, name: str, target: str) -> Figure:
    """Histograms of the function values' standard deviation, test set and another set."""
    # What is much for one method is little for another.
    figure, panels = _grid(rows, shared=False)
    for (method, entries), panel in zip(rows.items(), panels, strict=True):
        inside, outside = (v.sqrt() for v in _variances(entries, "test", name))
        both = torch.cat([inside, outside])
        # The largest hundredth would squeeze all others into one bar.
        edges = torch.linspace(float(both.amin()), float(both.quantile(0.99)), 25).numpy()
        for values, label, colour in (
            (inside, "Test set", _COLOURS[0]),
            (outside, name.removeprefix("ood/").replace("-", " ").capitalize(), _COLOURS[1]),
        ):
            panel.hist(
                values.clamp(max=float(edges[-1])).numpy(),
                bins=edges.tolist(),
                color=colour,
                alpha=0.55,
                label=label,
            )
        panel.set_title(method, fontsize=11)
        panel.set_xlabel(f"Std of {target} without noise")
    _label_first_column(panels, "Molecules")
    _legend(figure, panels[0])
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
    """Variances of the function values in each set, all entries together."""
    return [torch.cat([entry[name].function_variance for entry in entries]) for name in names]


def _line(index: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _DASHES[index // len(_COLOURS) % len(_DASHES)],
    }


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    FigureCanvasAgg(figure)
    return figure


def _panel() -> tuple[Figure, Axes]:
    figure = _figure(5.6, 4.4)
    axes = figure.add_subplot()
    _finish(axes)
    return figure, axes


def _grid(rows: Rows, *, shared: bool) -> tuple[Figure, list[Axes]]:
    """A panel for each method, on the same axes or on its own."""
    columns = min(len(rows), _PANELS_ACROSS)
    lines = math.ceil(len(rows) / columns)
    figure = _figure(2.7 * columns + 0.9, 2.9 * lines + 0.4)
    panels: list[Axes] = []
    for place in range(len(rows)):
        first = panels[0] if shared and panels else None
        panels.append(figure.add_subplot(lines, columns, place + 1, sharex=first, sharey=first))
        _finish(panels[-1])
    return figure, panels


def _label_first_column(panels: Sequence[Axes], label: str) -> None:
    for panel in panels[::_PANELS_ACROSS]:
        panel.set_ylabel(label)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 3),
        frameon=False,
        fontsize=9,
    )


def _finish(axes: Axes) -> None:
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
