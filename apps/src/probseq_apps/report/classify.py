"""The report of `probseq classify`: tables of metrics, under shift, and of detection; plots."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from probseq.figures import legend, light_grid, line_style, panels
from probseq.metrics import calibration_bins, max_softmax_score, risk_coverage_curve, roc_curve
from probseq.metrics.plots import reliability_diagram, risk_coverage_plot, roc_plot
from probseq_apps.data.names import CORRUPTION_GROUPS
from probseq_apps.methods.post_hoc import Sets
from probseq_apps.report.figures import Curve, small_multiples
from probseq_apps.report.report import Report
from probseq_apps.report.summary import Summary, average_ranks, mean_of, summarise
from probseq_apps.report.tables import (
    LABELS,
    MARKS_LEGEND,
    Measure,
    SideBySide,
    Table,
    summary_table,
)

# Metrics by method.
Summaries = Mapping[str, Mapping[str, Summary]]
Counts = Mapping[str, int]

# More methods than these stand below each other, with the metrics side by side.
_METHODS_ACROSS = 5
# More than these have a panel each.
_METHODS_IN_A_PANEL = 7
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
_AGAINST = "test set against"
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
        names = self.metrics[0]
        return {name: summarise([found[name] for found in self.metrics]) for name in names}

    def numbers(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Return what `report.json` says about it."""
        return {
            "title": self.title,
            "seeds": list(seeds),
            "temperatures": list(self.temperatures),
            "train_seconds": list(self.train_seconds),
            "metrics": {
                name: {
                    "mean": found.mean,
                    "standard_error": found.standard_error,
                    "values": list(found.values),
                }
                for name, found in self.summaries().items()
            },
        }

    def line(self, name: str) -> str:
        """Return what the report says about it below the tables."""
        seconds = sum(self.train_seconds) / len(self.train_seconds)
        text = f"`{name}`: {self.title}; trained in {seconds:.1f} s a seed"
        found = ", ".join(f"{temperature:.3f}" for temperature in self.temperatures)
        return f"{text}; temperatures {found}" if found else text


def methods_report(
    experiment: str,
    methods: Mapping[str, MethodResult],
    examples: str,
    *,
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    recipe: str,
    **parts: Any,
) -> Report:
    """Return the report of a comparison of methods; `examples` says what the data hold."""
    seeds = settings["seeds"]
    return Report(
        numbers={
            "experiment": experiment,
            "recipe": recipe,
            "settings": settings,
            "data": data,
            "methods": {name: method.numbers(seeds) for name, method in methods.items()},
        },
        title=f"{data['name']}: {', '.join(methods)}",
        opening=(
            f"{data['train']:,} training, {data['validation']:,} validation and {data['test']:,} "
            f"test {examples}. Recipe `{recipe}`, seeds {', '.join(map(str, seeds))}; all settings "
            "are in `config.json`."
        ),
        facts=data["notes"],
        tables=metric_tables(summaries_of(methods), counts_of(methods)),
        rows=[method.line(name) for name, method in methods.items()],
        **parts,
    )


def classify_report(
    methods: Mapping[str, MethodResult], rows: Mapping[str, Sequence[Sets]], **given: Any
) -> Report:
    """Return the report of a comparison of classifiers: what was measured, and predictions."""
    summaries = summaries_of(methods)
    return methods_report(
        "classify",
        methods,
        f"examples in {given['data']['classes']} classes",
        legend=f"{MARKS_LEGEND} {POSITIVE}",
        details=details(summaries, counts_of(methods)),
        plots=lambda folder: write_plots(folder, rows, summaries),
        about_plots=_POOLED,
        **given,
    )


def summaries_of(methods: Mapping[str, MethodResult]) -> dict[str, dict[str, Summary]]:
    """Return the metrics of each method."""
    return {name: method.summaries() for name, method in methods.items()}


def counts_of(methods: Mapping[str, MethodResult]) -> dict[str, int]:
    """Return the number of entries of each method."""
    return {name: len(method.metrics) for name, method in methods.items()}


def metric_tables(summaries: Summaries, counts: Counts) -> list[Table | SideBySide]:
    """Return one table for each section: test sets, then shift, then other data.

    Of more than five methods, numbers under shift are means over the severities, and detection on
    other data is told by its AUROC.
    """
    few = len(summaries) <= _METHODS_ACROSS
    sections: dict[str, dict[str, str]] = {}
    for metric in next(iter(summaries.values())):
        shown = _shown(metric, few=few)
        if shown is not None:
            section, label = shown
            sections.setdefault(section, {})[metric] = label
    tables = {
        title: summary_table(
            title,
            [Measure(label, LABELS[m.rpartition("/")[2]][1]) for m, label in found.items()],
            {name: [own[metric] for metric in found] for name, own in summaries.items()},
            counts,
        )
        for title, found in sections.items()
    }
    if few:
        return [SideBySide(tuple(tables.values()))]
    test = [table for title, table in tables.items() if not title.startswith(_AGAINST)]
    against = [table for title, table in tables.items() if title.startswith(_AGAINST)]
    means = [
        summary_table(
            f"{title}, all severities",
            [Measure.of(metric) for metric in _SHIFT_SHOWN],
            {
                name: [mean_over_severities(own, kind, "severity", m) for m in _SHIFT_SHOWN]
                for name, own in summaries.items()
            },
            counts,
        )
        for kind, title in _SHIFT_TITLES.items()
        if severities_of(summaries, kind)
    ]
    return [*test, *means, *against]


def details(summaries: Summaries, counts: Counts) -> str:
    """Return Markdown with every table under shift and of detection; empty without any."""
    parts: list[str] = []
    for text, tables in (
        (_SHIFT, shift_tables(summaries, counts)),
        (_OOD, ood_tables(summaries, counts)),
    ):
        if tables:
            parts += [text, *(table.markdown() for table in tables)]
    return "\n\n".join(parts)


def shift_tables(summaries: Summaries, counts: Counts) -> list[Table]:
    """Return for each kind of corrupted images and each metric: by severity, then by group.

    A number by severity is a mean over the corruptions; one by group is a mean over its corruptions
    and the severities, `all` that over all corruptions and severities.
    """
    tables: list[Table] = []
    names = next(iter(summaries.values()))
    for kind, title in _SHIFT_TITLES.items():
        severities = severities_of(summaries, kind)
        groups = [g for g in _GROUPS if any(n.startswith(f"{kind}/{g}-") for n in names)]
        for metric in _SHIFT_DETAILS if severities else ():
            label, direction = LABELS[metric]
            by_severity = {
                name: [own[f"{kind}/severity-{severity}/{metric}"] for severity in severities]
                for name, own in summaries.items()
            }
            heads = [Measure(f"severity {severity}", direction) for severity in severities]
            tables.append(summary_table(f"{title}: {label}", heads, by_severity, counts))
            if len(groups) > 1:  # one group alone is what all are
                every = (*groups, "severity")
                by_group = {
                    name: [mean_over_severities(own, kind, group, metric) for group in every]
                    for name, own in summaries.items()
                }
                heads = [Measure(group, direction) for group in (*groups, "all")]
                tables.append(summary_table(f"{title}: {label}", heads, by_group, counts))
    return tables


def ood_tables(summaries: Summaries, counts: Counts) -> list[Table]:
    """Return for each set and each detector AUROC, AUPR and FPR95; of several sets means and ranks.

    The mean over the sets is that of CGPT's Table III, the average ranks over the sets are those of
    the thesis' Table 3.2, for each detector.
    """
    # A folder's path has slashes of its own.
    found = [
        name.removeprefix("ood/").rsplit("/", 2)
        for name in next(iter(summaries.values()))
        if name.startswith("ood/")
    ]
    outsides = list(dict.fromkeys(outside for outside, _, _ in found))
    detectors = list(dict.fromkeys(detector for _, detector, _ in found))

    groups = [(f"against {outside}", [outside]) for outside in outsides]
    if len(outsides) > 1:
        groups.append((f"mean over {len(outsides)} sets", outsides))
    measures = [Measure.of(metric) for metric in _OOD_DETAILS]
    tables: list[Table] = []
    for title, sets in groups:
        for detector in detectors:
            rows = {
                name: [mean_of(own[f"ood/{o}/{detector}/{m}"] for o in sets) for m in _OOD_DETAILS]
                for name, own in summaries.items()
            }
            tables.append(summary_table(f"{title}, {detector}", measures, rows, counts))
    if len(outsides) > 1 and len(summaries) > 1:
        tables.append(_rank_table(summaries, counts, detectors, outsides))
    return tables


def mean_over_severities(
    metrics: Mapping[str, Summary], kind: str, group: str, metric: str
) -> Summary:
    """Return the mean of a metric over the severities for a group of corruptions."""
    return mean_of(
        summary
        for name, summary in metrics.items()
        if name.startswith(f"{kind}/{group}-") and name.endswith(f"/{metric}")
    )


def _shown(metric: str, *, few: bool) -> tuple[str, str] | None:
    """Return section and label of a metric; None for those that are in `report.json` alone."""
    match metric.split("/"):
        case [("shift" | "cifar-c") as kind, where, name]:
            if few and where.startswith("severity-") and name in _SHIFT_SHOWN:
                severity = where.removeprefix("severity-")
                return f"{_SHIFT_TITLES[kind]}, severity {severity}", LABELS[name][0]
        case ["ood", *name, detector, own] if own in _detection(detector, few=few):
            # A folder's path has slashes of its own.
            return f"{_AGAINST} {'/'.join(name)}", f"{LABELS[own][0]}, {detector}"
        case [name, own] if own in LABELS:
            return name, LABELS[own][0]
        case _:
            pass
    return None


def _detection(detector: str, *, few: bool) -> tuple[str, ...]:
    if detector == "variance":
        return _OF_VARIANCE
    return _OOD_SHOWN if few else _OF_MANY


def _rank_table(
    summaries: Summaries, counts: Counts, detectors: list[str], outsides: list[str]
) -> Table:
    measures: list[Measure] = []
    columns: list[dict[str, float]] = []
    for detector in detectors:
        for metric in _RANKED:
            tasks = [
                {
                    name: mean
                    for name, own in summaries.items()
                    if (mean := own[f"ood/{outside}/{detector}/{metric}"].mean) is not None
                }
                for outside in outsides
            ]
            label, direction = LABELS[metric]
            columns.append(average_ranks(tasks, direction))
            measures.append(Measure(f"{detector} {label}", "lower"))
    rows = {name: [summarise([column.get(name)]) for column in columns] for name in summaries}
    return summary_table(f"average rank over {len(outsides)} sets", measures, rows, counts)


def write_plots(
    folder: Path, rows: Mapping[str, Sequence[Sets]], summaries: Summaries
) -> list[Path]:
    """Draw everything that the predictions allow.

    Curves pool the predictions of all seeds, except risk-coverage curves, which are means over
    them; points under shift are means with standard errors. Of many methods each has a panel.
    """
    many = len(rows) > _METHODS_IN_A_PANEL
    bins = {name: calibration_bins(*_pooled(row, "test")) for name, row in rows.items()}
    coverage = {name: _risk_coverage(row) for name, row in rows.items()}
    figures = {"reliability": reliability_diagram(bins)}
    if many:
        curves = {n: Curve(x, y, f"AURC {float(y.mean()):.4f}") for n, (x, y) in coverage.items()}
        # The risk of the first few samples is all or nothing and would flatten the rest.
        top = max(float(y[x >= 0.05].max()) for x, y in coverage.values())
        figures["risk-coverage"] = small_multiples(
            curves,
            title="Risk against coverage",
            x_label="Coverage",
            y_label="Risk",
            y_limits=(0.0, min(1.15 * top, 1.0) or 0.01),
        )
    else:
        figures["risk-coverage"] = risk_coverage_plot(coverage)
    for name in next(iter(rows.values()))[0]:
        if name.startswith("ood/"):
            outside = name.removeprefix("ood/")
            rates = {method: _roc(row, name) for method, row in rows.items()}
            file = f"ood-{re.sub('[^A-Za-z0-9]+', '-', outside).strip('-')}"
            figures[file] = _roc_figure(rates, outside, many=many)
    for kind in _PLOT_TITLES:
        severities = severities_of(summaries, kind)
        if severities and many:
            for metric in _SHIFT_SHOWN:
                figures[f"{kind}-{metric}"] = _shift_panels(kind, metric, severities, summaries)
        elif severities:
            figures[kind] = _shift_figure(kind, severities, summaries)
    paths = [folder / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path)
    return paths


def _roc_figure(rates: Mapping[str, tuple[Tensor, Tensor]], outside: str, *, many: bool) -> Figure:
    title = f"Test set against {outside}, by largest probability"
    if not many:
        figure = roc_plot(rates)
        figure.suptitle(title, fontsize=10)
        return figure
    areas = {name: float(torch.trapezoid(tpr, fpr)) for name, (fpr, tpr) in rates.items()}
    return small_multiples(
        {name: Curve(*rates[name], f"AUROC {area:.4f}") for name, area in areas.items()},
        title=title,
        x_label="False-positive rate",
        y_label="True-positive rate",
        diagonal=True,
    )


def severities_of(summaries: Summaries, kind: str) -> list[int]:
    """Return the severities that were measured, in order."""
    prefix = f"{kind}/severity-"
    found = [name for name in next(iter(summaries.values())) if name.startswith(prefix)]
    return sorted({int(name.removeprefix(prefix).split("/")[0]) for name in found})


def _shift_panels(
    kind: str,
    metric: str,
    severities: Sequence[int],
    summaries: Summaries,
) -> Figure:
    curves: dict[str, Curve] = {}
    for method, metrics in summaries.items():
        places, means, errors = _by_severity(metrics, kind, metric, severities)
        curves[method] = Curve(torch.tensor(places), torch.tensor(means), "", torch.tensor(errors))
    return small_multiples(
        curves,
        title=f"{_PLOT_TITLES[kind]}, mean over the corruptions",
        x_label="Severity",
        y_label=LABELS[metric][0],
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


def _shift_figure(kind: str, severities: Sequence[int], summaries: Summaries) -> Figure:
    figure, found = panels(len(_SHIFT_SHOWN), 3, (3.4, 3.2), shared=False)
    for panel, metric in zip(found, _SHIFT_SHOWN, strict=True):
        for index, (method, metrics) in enumerate(summaries.items()):
            places, means, errors = _by_severity(metrics, kind, metric, severities)
            style: dict[str, Any] = {"markersize": 4, "linewidth": 1.6, "capsize": 2}
            panel.errorbar(places, means, yerr=errors, label=method, **(line_style(index) | style))
        panel.set(xlabel="Severity", ylabel=LABELS[metric][0], xticks=[0, *severities])
        light_grid(panel)
    figure.suptitle(f"{_PLOT_TITLES[kind]}, mean over the corruptions", fontsize=10)
    legend(figure, found)
    return figure
