"""The report of `probseq classify`: tables of metrics, under shift, and of detection; plots."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from probseq.figures import IN_A_PANEL, Curve, curves_plot, small_multiples
from probseq.metrics import calibration_bins, max_softmax_score, ood_roc, risk_coverage_curve
from probseq.metrics.plots import reliability_diagram, risk_coverage_plot, roc_plot
from probseq.summary import Summary, average_ranks, mean_of, summarise
from probseq_apps.data.names import CORRUPTION_GROUPS
from probseq_apps.methods.post_hoc import Sets
from probseq_apps.report.report import Report, comparison, save_figures
from probseq_apps.report.tables import (
    LABELS,
    MARKS_LEGEND,
    Measure,
    SideBySide,
    Table,
    summary_table,
)

# Metrics over the seeds by name, and those of each method.
Metrics = Mapping[str, Summary]
Methods = Mapping[str, Metrics]

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
_SHIFT = """## Distribution shift

By severity: the mean over the corruptions. By group: the mean over its corruptions and the
severities; `all` is that over all corruptions."""
_OOD = "## Out-of-distribution detection"
POSITIVE = (
    "Positive class: the other set in AUROC, AUPR-out and FPR95 (the share of the test set flagged "
    "where 95% of the other set are), the test set in AUPR-in; right answers in failure AUROC and "
    "failure FPR95 (the share of the errors accepted where 95% of the right answers are)."
)
_POOLED = """Reliability diagrams and ROC curves pool the predictions of all seeds, so their ECE and
AUROC differ a little from the means in the table; risk-coverage curves are means over the seeds."""


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

    def numbers(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Return what `report.json` says about it."""
        return {
            "title": self.title,
            "seeds": seeds,
            "temperatures": self.temperatures,
            "train_seconds": self.train_seconds,
            "metrics": {name: asdict(found) for name, found in self.summaries().items()},
        }

    def line(self, name: str) -> str:
        """Return what the report says about it below the tables."""
        seconds = sum(self.train_seconds) / len(self.train_seconds)
        text = f"`{name}`: {self.title}; trained in {seconds:.1f} s a seed"
        found = ", ".join(f"{temperature:.3f}" for temperature in self.temperatures)
        return f"{text}; temperatures {found}" if found else text


def methods_report(
    experiment: str, results: Mapping[str, MethodResult], examples: str, **parts: Any
) -> Report:
    """Return the report of a comparison of methods; `examples` says what the data hold."""
    seeds, data = parts["settings"]["seeds"], parts["data"]
    return comparison(
        experiment,
        title=", ".join(results),
        opening=(
            f"{data['train']:,} training, {data['validation']:,} validation and {data['test']:,} "
            f"test {examples}."
        ),
        numbers={"methods": {name: method.numbers(seeds) for name, method in results.items()}},
        tables=metric_tables({name: method.summaries() for name, method in results.items()}),
        rows=[method.line(name) for name, method in results.items()],
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
        legend=f"{MARKS_LEGEND} {POSITIVE}",
        details=details(methods),
        plots=lambda folder: save_figures(classify_figures(rows, methods), folder),
        about_plots=_POOLED,
        **given,
    )


def metric_tables(methods: Methods) -> list[Table | SideBySide]:
    """Return one table for each section: test sets, then shift, then other data.

    Of more than five methods, numbers under shift are means over the severities, and detection on
    other data is told by its AUROC.
    """
    few = len(methods) <= _METHODS_ACROSS
    sections: dict[str, dict[Measure, Callable[[Metrics], Summary]]] = {}
    for metric in _names(methods):
        *path, name = metric.split("/")
        label, direction = LABELS.get(name, ("", None))
        read: Callable[[Metrics], Summary] = itemgetter(metric)
        match path:
            case [("shift" | "cifar-c") as kind, where] if (
                where.startswith("severity-") and name in _SHIFT_SHOWN
            ):
                section = f"{_SHIFT_TITLES[kind]}, {where.replace('-', ' ')}"
                if not few:
                    section = f"{_SHIFT_TITLES[kind]}, all severities"
                    read = partial(mean_over_severities, kind=kind, group="severity", metric=name)
            # A folder's path has slashes of its own.
            case ["ood", *outside, detector] if name in _detection(detector, few=few):
                section, label = f"test set against {'/'.join(outside)}", f"{label}, {detector}"
            case [section] if name in LABELS:
                pass
            case _:
                continue
        sections.setdefault(section, {})[Measure(label, direction)] = read
    tables = [_table(title, columns, methods) for title, columns in sections.items()]
    return [SideBySide(tuple(tables))] if few else [*tables]


def details(methods: Methods) -> str:
    """Return Markdown with every table under shift and of detection; empty without any."""
    parts: list[str] = []
    for text, tables in ((_SHIFT, shift_tables(methods)), (_OOD, ood_tables(methods))):
        if tables:
            parts += [text, *(table.markdown() for table in tables)]
    return "\n\n".join(parts)


def shift_tables(methods: Methods) -> list[Table]:
    """Return for each kind of corrupted images and each metric: by severity, then by group.

    A number by severity is a mean over the corruptions; one by group is a mean over its corruptions
    and the severities, `all` that over all corruptions and severities.
    """
    tables: list[Table] = []
    for kind, kind_title in _SHIFT_TITLES.items():
        severities = severities_of(methods, kind)
        groups = [g for g in _GROUPS if any(n.startswith(f"{kind}/{g}-") for n in _names(methods))]
        for metric in _SHIFT_DETAILS if severities else ():
            label, direction = LABELS[metric]
            title, mean = f"{kind_title}: {label}", partial(mean_over_severities, metric=metric)
            by_severity = {
                Measure(f"severity {s}", direction): itemgetter(f"{kind}/severity-{s}/{metric}")
                for s in severities
            }
            by_group = {
                Measure("all" if group == "severity" else group, direction): partial(
                    mean, kind=kind, group=group
                )
                for group in (*groups, "severity")
            }
            tables.append(_table(title, by_severity, methods))
            if len(groups) > 1:  # one group alone is what all are
                tables.append(_table(title, by_group, methods))
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

    def mean(own: Metrics, sets: Sequence[str], ending: str) -> Summary:
        return mean_of(own[f"ood/{outside}/{ending}"] for outside in sets)

    tables = [
        _table(
            f"{title}, {detector}",
            {
                Measure.of(m): partial(mean, sets=sets, ending=f"{detector}/{m}")
                for m in _OOD_DETAILS
            },
            methods,
        )
        for title, sets in groups
        for detector in detectors
    ]
    if len(outsides) > 1 and len(methods) > 1:
        ranks = {f"{d}/{m}": _ranks(methods, outsides, d, m) for d in detectors for m in _RANKED}
        ranked = {
            name: {**own, **{key: summarise([rank.get(name)]) for key, rank in ranks.items()}}
            for name, own in methods.items()
        }
        columns = {
            Measure(f"{detector} {LABELS[m][0]}", "lower"): itemgetter(f"{detector}/{m}")
            for detector in detectors
            for m in _RANKED
        }
        tables.append(_table(f"average rank over {len(outsides)} sets", columns, ranked))
    return tables


def mean_over_severities(own: Metrics, kind: str, group: str, metric: str) -> Summary:
    """Return the mean of a metric over the severities for a group of corruptions."""
    return mean_of(
        summary
        for name, summary in own.items()
        if name.startswith(f"{kind}/{group}-") and name.endswith(f"/{metric}")
    )


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


def _table(
    title: str, columns: Mapping[Measure, Callable[[Metrics], Summary]], methods: Methods
) -> Table:
    rows = {name: [read(own) for read in columns.values()] for name, own in methods.items()}
    counts = {name: len(next(iter(own.values())).values) for name, own in methods.items()}
    return summary_table(title, list(columns), rows, counts)


def _detection(detector: str, *, few: bool) -> tuple[str, ...]:
    if detector == "variance":
        return _OF_VARIANCE
    return _OOD_SHOWN if few else _OF_MANY


def _ranks(
    methods: Methods, outsides: Sequence[str], detector: str, metric: str
) -> dict[str, float]:
    key = f"{detector}/{metric}"
    tasks = [
        {
            name: mean
            for name, own in methods.items()
            if (mean := own[f"ood/{outside}/{key}"].mean) is not None
        }
        for outside in outsides
    ]
    return average_ranks(tasks, LABELS[metric][1])


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
