"""Plots of `probseq classify`, as PNG files."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from probseq.metrics import calibration_bins, max_softmax_score, risk_coverage_curve, roc_curve
from probseq.metrics.plots import reliability_diagram, risk_coverage_plot, roc_plot
from probseq_apps.report.figures import Curve, small_multiples
from probseq_apps.report.summary import Summary

# Okabe and Ito's colours, as in `probseq.metrics.plots`.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "osD^vP*"
_SHIFT = {"accuracy": "Accuracy", "nll": "NLL", "ece": "ECE"}
_TITLES = {"shift": "Corrupted test images", "cifar-c": "Published corruptions (CIFAR-C)"}


@runtime_checkable
class Predicted(Protocol):
    """Predictions of a set."""

    @property
    def log_probs(self) -> Tensor:
        """Log probabilities of the classes, shape (n, c)."""
        ...

    @property
    def labels(self) -> Tensor:
        """True classes, shape (n,)."""
        ...


# Predictions by set.
Sets = Mapping[str, Predicted]


def write_plots(
    folder: Path, rows: Mapping[str, Sequence[Sets]], summaries: Mapping[str, Mapping[str, Summary]]
) -> list[Path]:
    """Draw everything that the predictions allow.

    Curves pool the predictions of all seeds, except risk-coverage curves, which are means over
    them; points under shift are means with standard errors. More methods than colours have a panel
    each.

    Args:
        folder: where to write.
        rows: predictions of each method's entries, by set.
        summaries: metrics by method.

    Returns:
        The files.
    """
    many = len(rows) > len(_COLOURS)
    coverage = {name: _risk_coverage(row) for name, row in rows.items()}
    figures: dict[str, Figure] = {
        "reliability": reliability_diagram(
            {name: calibration_bins(*_pooled(row, "test")) for name, row in rows.items()}
        ),
        "risk-coverage": _risk_coverage_panels(coverage) if many else risk_coverage_plot(coverage),
    }
    for name in next(iter(rows.values()))[0]:
        if name.startswith("ood/"):
            outside = name.removeprefix("ood/")
            curves = {method: _roc(row, name) for method, row in rows.items()}
            title = f"Test set against {outside}, by largest probability"
            figure = _roc_panels(curves, title) if many else roc_plot(curves)
            if not many:
                figure.suptitle(title, fontsize=10)
            figures[f"ood-{re.sub('[^A-Za-z0-9]+', '-', outside).strip('-')}"] = figure
    for kind in _TITLES:
        severities = severities_of(summaries, kind)
        if severities and many:
            for metric in _SHIFT:
                figures[f"{kind}-{metric}"] = _shift_panels(kind, metric, severities, summaries)
        elif severities:
            figures[kind] = _shift_figure(kind, severities, summaries)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path)
    return paths


def severities_of(summaries: Mapping[str, Mapping[str, Summary]], kind: str) -> list[int]:
    """Return the severities that were measured, in order.

    Args:
        summaries: metrics by method.
        kind: `shift` or `cifar-c`.
    """
    prefix = f"{kind}/severity-"
    found = [name for name in next(iter(summaries.values())) if name.startswith(prefix)]
    return sorted({int(name.removeprefix(prefix).split("/")[0]) for name in found})


def _risk_coverage_panels(curves: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    # The risk of the first few samples is all or nothing and would flatten the rest.
    top = max(float(risk[coverage >= 0.05].max()) for coverage, risk in curves.values())
    return small_multiples(
        {
            name: Curve(100 * coverage, 100 * risk, f"AURC {float(risk.mean()):.4f}")
            for name, (coverage, risk) in curves.items()
        },
        title="Risk against coverage",
        x_label="Coverage (% of samples answered)",
        y_label="Risk (% errors among them)",
        y_limits=(0.0, min(115.0 * top, 100.0) or 1.0),
    )


def _roc_panels(curves: Mapping[str, tuple[Tensor, Tensor]], title: str) -> Figure:
    return small_multiples(
        {
            name: Curve(
                100 * fpr, 100 * tpr, f"AUROC {100 * float(torch.trapezoid(tpr, fpr)):.1f}%"
            )
            for name, (fpr, tpr) in curves.items()
        },
        title=title,
        x_label="False-positive rate (%)",
        y_label="True-positive rate (%)",
        diagonal=True,
    )


def _shift_panels(
    kind: str,
    metric: str,
    severities: Sequence[int],
    summaries: Mapping[str, Mapping[str, Summary]],
) -> Figure:
    curves: dict[str, Curve] = {}
    for method, metrics in summaries.items():
        places, means, errors = _by_severity(metrics, kind, metric, severities)
        curves[method] = Curve(torch.tensor(places), torch.tensor(means), "", torch.tensor(errors))
    return small_multiples(
        curves,
        title=f"{_TITLES[kind]}, mean over the corruptions",
        x_label="Severity",
        y_label=_SHIFT[metric],
    )


def _pooled(row: Sequence[Sets], name: str) -> tuple[Tensor, Tensor]:
    found = [sets[name] for sets in row]
    probs = torch.cat([predictions.log_probs.double().exp() for predictions in found])
    return probs, torch.cat([predictions.labels for predictions in found])


def _risk_coverage(row: Sequence[Sets]) -> tuple[Tensor, Tensor]:
    curves: list[tuple[Tensor, Tensor]] = []
    for sets in row:
        confidence, predicted = sets["test"].log_probs.double().exp().max(-1)
        curves.append(risk_coverage_curve(confidence, predicted == sets["test"].labels))
    return curves[0][0], torch.stack([risk for _, risk in curves]).mean(0)


def _roc(row: Sequence[Sets], name: str) -> tuple[Tensor, Tensor]:
    inside, outside = (max_softmax_score(_pooled(row, part)[0]) for part in ("test", name))
    positive = torch.cat([inside.new_zeros(len(inside)), inside.new_ones(len(outside))]).bool()
    curve = roc_curve(torch.cat([inside, outside]), positive)
    return curve.fpr, curve.tpr


def _by_severity(
    metrics: Mapping[str, Summary], kind: str, metric: str, severities: Sequence[int]
) -> tuple[list[int], list[float], list[float]]:
    """Severities, means and standard errors; severity 0 is the test set as it is."""
    shown = [metrics[f"test/{metric}"]]
    shown += [metrics[f"{kind}/severity-{severity}/{metric}"] for severity in severities]
    means = [math.nan if s.mean is None else s.mean for s in shown]
    return [0, *severities], means, [s.standard_error or 0.0 for s in shown]


def _shift_figure(
    kind: str, severities: Sequence[int], summaries: Mapping[str, Mapping[str, Summary]]
) -> Figure:
    figure = Figure(figsize=(10.5, 3.9), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(_SHIFT))
    for panel, (metric, label) in zip(panels, _SHIFT.items(), strict=True):
        for index, (method, metrics) in enumerate(summaries.items()):
            places, means, errors = _by_severity(metrics, kind, metric, severities)
            panel.errorbar(
                places,
                means,
                yerr=errors,
                label=method,
                color=_COLOURS[index],
                marker=_MARKERS[index],
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
