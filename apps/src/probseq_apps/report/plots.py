"""Plots of an experiment, as PNG files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from probseq.metrics import calibration_bins, max_softmax_score, risk_coverage_curve, roc_curve
from probseq.metrics.plots import reliability_diagram, risk_coverage_plot, roc_plot
from probseq_apps.experiments.prediction import Predictions
from probseq_apps.experiments.rows import Row
from probseq_apps.report.summary import Summary

# Okabe and Ito's colours, as in `probseq.metrics.plots`.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("-", "--", ":")
_MARKERS = "osD^vP*X"
_SHIFT = {"accuracy": "Accuracy", "nll": "NLL", "ece": "ECE"}
_TITLES = {"shift": "Corrupted test images", "cifar-c": "Published corruptions (CIFAR-C)"}


def write_plots(
    folder: Path, rows: Mapping[str, Row], summaries: Mapping[str, Mapping[str, Summary]]
) -> list[Path]:
    """Draw everything that the predictions allow.

    Curves pool the predictions of all seeds, except risk-coverage curves, which are means over
    them; points under shift are means with standard errors.

    Args:
        folder: where to write; made if it is not there.
        rows: predictions by method.
        summaries: metrics by method.

    Returns:
        The files.
    """
    figures: dict[str, Figure] = {
        "reliability": reliability_diagram(
            {name: calibration_bins(*_pooled(row, "test")) for name, row in rows.items()}
        ),
        "risk-coverage": risk_coverage_plot(
            {name: _risk_coverage(row) for name, row in rows.items()}
        ),
    }
    for name in next(iter(rows.values())).predictions[0]:
        if name.startswith("ood/"):
            figure = roc_plot({method: _roc(row, name) for method, row in rows.items()})
            outside = name.removeprefix("ood/")
            figure.suptitle(f"Test set against {outside}, by largest probability", fontsize=10)
            figures[f"ood-{re.sub('[^A-Za-z0-9]+', '-', outside).strip('-')}"] = figure
    for kind in _TITLES:
        severities = _severities(next(iter(summaries.values())), kind)
        if severities:
            figures[kind] = _shift_figure(kind, severities, summaries)
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path)
    return paths


def _pooled(row: Row, name: str) -> tuple[Tensor, Tensor]:
    found: Sequence[Predictions] = [sets[name] for sets in row.predictions]
    probs = torch.cat([predictions.log_probs.double().exp() for predictions in found])
    return probs, torch.cat([predictions.labels for predictions in found])


def _risk_coverage(row: Row) -> tuple[Tensor, Tensor]:
    curves: list[tuple[Tensor, Tensor]] = []
    for sets in row.predictions:
        confidence, predicted = sets["test"].log_probs.double().exp().max(-1)
        curves.append(risk_coverage_curve(confidence, predicted == sets["test"].labels))
    return curves[0][0], torch.stack([risk for _, risk in curves]).mean(0)


def _roc(row: Row, name: str) -> tuple[Tensor, Tensor]:
    inside, outside = (max_softmax_score(_pooled(row, part)[0]) for part in ("test", name))
    positive = torch.cat([inside.new_zeros(len(inside)), inside.new_ones(len(outside))]).bool()
    curve = roc_curve(torch.cat([inside, outside]), positive)
    return curve.fpr, curve.tpr


def _severities(metrics: Mapping[str, Summary], kind: str) -> list[int]:
    prefix = f"{kind}/severity-"
    found = {
        int(name.split("/")[1].partition("-")[2]) for name in metrics if name.startswith(prefix)
    }
    return sorted(found)


def _shift_figure(
    kind: str, severities: Sequence[int], summaries: Mapping[str, Mapping[str, Summary]]
) -> Figure:
    figure = Figure(figsize=(10.5, 3.9), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(_SHIFT))
    for panel, (metric, label) in zip(panels, _SHIFT.items(), strict=True):
        for index, (method, metrics) in enumerate(summaries.items()):
            shown = [metrics[f"{kind}/severity-{severity}/{metric}"] for severity in severities]
            means, errors = [s.mean for s in shown], [s.standard_error or 0.0 for s in shown]
            # Severity 0 is the test set as it is.
            clean = metrics[f"test/{metric}"]
            panel.errorbar(
                [0, *severities],
                [clean.mean, *means],
                yerr=[clean.standard_error or 0.0, *errors],
                label=method,
                color=_COLOURS[index % len(_COLOURS)],
                linestyle=_DASHES[index // len(_COLOURS) % len(_DASHES)],
                marker=_MARKERS[index % len(_MARKERS)],
                markersize=4,
                linewidth=1.6,
                capsize=2,
            )
        panel.set_xlabel("Severity", fontsize=10)
        panel.set_ylabel(label, fontsize=10)
        panel.set_xticks([0, *severities])
        panel.grid(visible=True, color="#E5E5E5", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=9)
    figure.suptitle(f"{_TITLES[kind]}, mean over the corruptions", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = min(len(labels), 6)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    return figure
