"""The report of `probseq classify`: tables of metrics, under shift, and of detection; plots."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from probseq.figures import IN_A_PANEL, Curve, curves_plot, small_multiples
from probseq.metrics import (
    Predictions,
    calibration_bins,
    max_softmax_score,
    ood_roc,
    risk_coverage_curve,
)
from probseq.metrics.plots import reliability_diagram, risk_coverage_plot, roc_plot
from probseq.summary import LABELS, Summary, average_ranks, mean_of, summarise
from probseq_apps.data.names import CORRUPTION_GROUPS
from probseq_apps.report.report import PAGES, Report, comparison, save_figures
from probseq_apps.report.tables import (
    Measure,
    SideBySide,
    Table,
    summary_table,
)

# Metrics over the seeds by name, and those of each method.
Metrics = Mapping[str, Summary]
Methods = Mapping[str, Metrics]
Sets = Mapping[str, Predictions]
# Columns of a table: the names of the metrics that each is a mean of.
Columns = dict[Measure, list[str]]

# More methods than these stand below each other, with the metrics side by side.
_METHODS_ACROSS = 5
_SHIFT_TITLES = {"shift": "corrupted", "cifar-c": "CIFAR-C"}
_PLOT_TITLES = {"shift": "Corrupted test images", "cifar-c": "Published corruptions (CIFAR-C)"}
# Of the many numbers under shift and on other data sets, those in the table of all.
_SHIFT_SHOWN = ("accuracy", "nll", "ece")
# Of detection: of few methods, of many, and by the variance of numbers (thesis Table B.32).
_OOD_SHOWN, _OF_MANY, _OF_VARIANCE = ("auroc", "fpr95"), ("auroc",), ("auroc", "aupr-out")
_SHIFT_DETAILS = ("accuracy", "nll", "ece", "mce")
_OOD_DETAILS = ("auroc", "aupr-in", "aupr-out", "fpr95")
_RANKED = ("auroc", "aupr-out")
# The published files hold corruptions that belong to none of the program's groups.
_GROUPS = (*CORRUPTION_GROUPS, "other")


class MethodResult(NamedTuple):
    """What was measured of a method, an entry for each seed, or a single one for an ensemble.

    Attributes:
        title: what the method is.
        metrics: of each entry, values by name; None where a metric is not defined.
        train_seconds: of each seed.
        temperatures: of each seed; empty without temperature scaling.
    """

    title: str
    metrics: Sequence[Mapping[str, float | None]]
    train_seconds: Sequence[float]
    temperatures: Sequence[float] = ()

    def summaries(self) -> dict[str, Summary]:
        """Return the summary of each metric over the entries."""
        return {name: summarise([one[name] for one in self.metrics]) for name in self.metrics[0]}


def methods_report(
    experiment: str, results: Mapping[str, MethodResult], examples: str, **parts: Any
) -> Report:
    """Return the report of a comparison of methods; `examples` says what the data hold."""
    data, numbers, rows = parts["data"], dict[str, Any](), list[str]()
    for name, (title, _, seconds, temperatures) in results.items():
        found = results[name].summaries()
        numbers[name] = {
            "title": title,
            "seeds": parts["settings"]["seeds"],
            "temperatures": temperatures,
            "train_seconds": seconds,
            "metrics": {metric: asdict(summary) for metric, summary in found.items()},
        }
        text = ", ".join(f"{temperature:.3f}" for temperature in temperatures)
        rows.append(
            f"`{name}`: {title}; trained in {sum(seconds) / len(seconds):.1f} s a seed"
            f"{f'; temperatures {text}' if text else ''}"
        )
    return comparison(
        experiment,
        title=", ".join(results),
        opening=(
            f"{data['train']:,} training, {data['validation']:,} validation and {data['test']:,} "
            f"test {examples}."
        ),
        numbers={"methods": numbers},
        tables=metric_tables({name: method.summaries() for name, method in results.items()}),
        rows=rows,
        **parts,
    )


def classify_report(
    results: Mapping[str, MethodResult], rows: Mapping[str, Sequence[Sets]], **given: Any
) -> Report:
    """Return the report of a comparison of classifiers: what was measured, and predictions."""
    methods = {name: method.summaries() for name, method in results.items()}
    return methods_report(
        "classify",
        results,
        f"examples in {given['data']['classes']} classes",
        details=details(methods),
        plots=lambda folder: save_figures(classify_figures(rows, methods), folder),
        **given,
    )


def metric_tables(methods: Methods) -> list[Table | SideBySide]:
    """Return one table for each section: test sets, then shift, then other data.

    Of more than five methods, numbers under shift are means over the severities, and detection on
    other data is told by its AUROC.
    """
    few = len(methods) <= _METHODS_ACROSS
    detection = {"variance": _OF_VARIANCE}
    sections: dict[str, Columns] = {}
    for metric in _names(methods):
        *path, name = metric.split("/")
        label, direction = LABELS.get(name, ("", None))
        columns = [metric]
        match path:
            case [("shift" | "cifar-c") as kind, where] if name in _SHIFT_SHOWN:
                if not where.startswith("severity-"):
                    continue
                section = f"{_SHIFT_TITLES[kind]}, {where.replace('-', ' ')}"
                if not few:
                    section = f"{_SHIFT_TITLES[kind]}, all severities"
                    columns = _over_severities(methods, kind, "severity", name)
            # A folder's path has slashes of its own.
            case ["ood", *outside, detector]:
                if name not in detection.get(detector, _OOD_SHOWN if few else _OF_MANY):
                    continue
                section, label = f"test set against {'/'.join(outside)}", f"{label}, {detector}"
            case [section] if name in LABELS:
                pass
            case _:
                continue
        sections.setdefault(section, {})[Measure(label, direction)] = columns
    tables = [_table(title, columns, methods) for title, columns in sections.items()]
    return [SideBySide(tuple(tables))] if few else [*tables]


def details(methods: Methods) -> str:
    """Return Markdown with every table under shift and of detection; empty without any."""
    parts: list[str] = []
    for name, tables in (("shift", shift_tables(methods)), ("ood", ood_tables(methods))):
        if tables:
            parts += [PAGES["classify"][name], *(table.markdown() for table in tables)]
    return "\n\n".join(parts)


def shift_tables(methods: Methods) -> list[Table]:
    """Return for each kind of corrupted images and each metric: by severity, then by group.

    A number by severity is a mean over the corruptions; one by group is a mean over its corruptions
    and the severities, `all` that over all corruptions and severities.
    """
    tables: list[Table] = []
    for kind, title in _SHIFT_TITLES.items():
        severities = severities_of(methods, kind)
        groups = [g for g in _GROUPS if any(n.startswith(f"{kind}/{g}-") for n in _names(methods))]
        for metric in _SHIFT_DETAILS if severities else ():
            label, direction = LABELS[metric]
            by_severity = {
                Measure(f"severity {s}", direction): [f"{kind}/severity-{s}/{metric}"]
                for s in severities
            }
            by_group = {
                Measure(name, direction): _over_severities(methods, kind, group, metric)
                for name, group in [*zip(groups, groups, strict=True), ("all", "severity")]
            }
            # One group alone is what all are.
            for columns in (by_severity, by_group) if len(groups) > 1 else (by_severity,):
                tables.append(_table(f"{title}: {label}", columns, methods))
    return tables


def ood_tables(methods: Methods) -> list[Table]:
    """Return for each set and each detector AUROC, AUPR and FPR95; of several sets means and ranks.

    The mean over the sets is that of CGPT's Table III, the average ranks over the sets are those of
    the thesis' Table 3.2, for each detector.
    """
    # A folder's path has slashes of its own.
    found = [name[4:].rsplit("/", 2) for name in _names(methods) if name.startswith("ood/")]
    outsides = list(dict.fromkeys(outside for outside, _, _ in found))
    detectors = list(dict.fromkeys(detector for _, detector, _ in found))
    groups = [(f"against {outside}", [outside]) for outside in outsides]
    if len(outsides) > 1:
        groups.append((f"mean over {len(outsides)} sets", outsides))
    tables: list[Table] = []
    for title, sets in groups:
        for detector in detectors:
            columns = {
                Measure.of(m): [f"ood/{o}/{detector}/{m}" for o in sets] for m in _OOD_DETAILS
            }
            tables.append(_table(f"{title}, {detector}", columns, methods))
    if len(outsides) > 1 and len(methods) > 1:
        ranked, columns = {name: dict(own) for name, own in methods.items()}, Columns()
        for detector, metric in product(detectors, _RANKED):
            label, direction = LABELS[metric]
            names = [f"ood/{outside}/{detector}/{metric}" for outside in outsides]
            means = [{name: own[key].mean for name, own in methods.items()} for key in names]
            tasks = [{n: mean for n, mean in one.items() if mean is not None} for one in means]
            ranks, rank = average_ranks(tasks, direction), f"{detector} {label}"
            for name, own in ranked.items():
                own[rank] = summarise([ranks.get(name)])
            columns[Measure(rank, "lower")] = [rank]
        tables.append(_table(f"average rank over {len(outsides)} sets", columns, ranked))
    return tables


def _over_severities(methods: Methods, kind: str, group: str, metric: str) -> list[str]:
    """Return the names of a metric at all severities of a group of corruptions."""
    pattern = re.compile(rf"{kind}/{group}-.*/{metric}")
    return [name for name in _names(methods) if pattern.fullmatch(name)]


def _table(title: str, columns: Columns, methods: Methods) -> Table:
    """Return a table whose columns are means over metrics, taken for each seed first."""
    rows = {
        name: [mean_of(own[metric] for metric in metrics) for metrics in columns.values()]
        for name, own in methods.items()
    }
    counts = {name: len(next(iter(own.values())).values) for name, own in methods.items()}
    return summary_table(title, list(columns), rows, counts)


def severities_of(methods: Methods, kind: str) -> list[int]:
    """Return the severities that were measured, in order."""
    places = (re.match(rf"{kind}/severity-(\d+)/", name) for name in _names(methods))
    return sorted({int(place[1]) for place in places if place})


def classify_figures(rows: Mapping[str, Sequence[Sets]], methods: Methods) -> dict[str, Figure]:
    """Draw everything that the predictions allow.

    Curves pool the predictions of all seeds, except risk-coverage curves, which are means over
    them; points under shift are means with standard errors. Of many methods each has a panel.
    """
    bins = {name: calibration_bins(*_pooled(row, "test")) for name, row in rows.items()}
    figures = {
        "reliability": reliability_diagram(bins),
        "risk-coverage": risk_coverage_plot({n: _risk_coverage(row) for n, row in rows.items()}),
    }
    for name in next(iter(rows.values()))[0]:
        if name.startswith("ood/"):
            outside = name.removeprefix("ood/")
            scores = {
                method: [max_softmax_score(_pooled(row, part)[0]) for part in ("test", name)]
                for method, row in rows.items()
            }
            figure = roc_plot({method: ood_roc(*both) for method, both in scores.items()})
            figure.suptitle(f"Test set against {outside}, by largest probability", fontsize=10)
            figures[f"ood-{re.sub('[^A-Za-z0-9]+', '-', outside).strip('-')}"] = figure
    for kind, plot_title in _PLOT_TITLES.items():
        severities, title = severities_of(methods, kind), f"{plot_title}, mean over the corruptions"
        curves = {
            metric: {m: _by_severity(own, kind, metric, severities) for m, own in methods.items()}
            for metric in _SHIFT_SHOWN
            if severities
        }
        if len(methods) > IN_A_PANEL:
            for metric, own in curves.items():
                figures[f"{kind}-{metric}"] = small_multiples(
                    own, title=title, x_label="Severity", y_label=LABELS[metric][0]
                )
        elif curves:
            labelled = {LABELS[metric][0]: own for metric, own in curves.items()}
            figures[kind] = curves_plot(labelled, title=title, x_label="Severity")
    return figures


def _names(methods: Methods) -> list[str]:
    return list(next(iter(methods.values())))


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


def _by_severity(own: Metrics, kind: str, metric: str, severities: Sequence[int]) -> Curve:
    """Means and standard errors by severity, 0 being the test set as it is."""
    shown = [own[f"test/{metric}"]]
    shown += [own[f"{kind}/severity-{severity}/{metric}"] for severity in severities]
    means = [math.nan if s.mean is None else s.mean for s in shown]
    return Curve([0, *severities], means, [s.standard_error or 0.0 for s in shown])
