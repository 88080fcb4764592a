"""The report of `probseq classify`: tables of metrics, under shift, and of detection."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probseq_apps.data.names import CORRUPTION_GROUPS
from probseq_apps.report.classify_plots import Sets, severities_of, write_plots
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

# More methods than these stand below each other, with the metrics side by side.
_METHODS_ACROSS = 5
_SHIFT_TITLES = {"shift": "corrupted", "cifar-c": "CIFAR-C"}
# Of the many numbers under shift and on other data sets, those in the table of all.
_SHIFT_SHOWN = ("accuracy", "nll", "ece")
_OOD_SHOWN = ("auroc", "fpr95")
_OOD_SHOWN_OF_MANY = ("auroc",)
# The columns of the thesis' Table B.32.
_VARIANCE_SHOWN = ("auroc", "aupr-out")
_SHIFT_DETAILS = ("accuracy", "nll", "ece", "mce")
_OOD_DETAILS = ("auroc", "aupr-in", "aupr-out", "fpr95")
_RANKED = ("auroc", "aupr-out")
# The published files hold corruptions that belong to none of the program's groups.
_GROUPS = (*CORRUPTION_GROUPS, "other")
_AGAINST = "test set against"
_SHIFT = """## Distribution shift

By severity: the mean over the corruptions. By group: the mean over its corruptions and the
severities; `all` is that over all corruptions."""
_OOD = """## Out-of-distribution detection

AUPR-in has the test set as the positive class, AUPR-out the other set; FPR95 is the share of the
test set flagged where 95% of the other set are."""
_PLOTS = """Reliability diagrams and ROC curves pool the predictions of all seeds, so their ECE and
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
        """Return what `report.json` says about it.

        Args:
            seeds: of the runs.
        """
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
        """Return what the report says about it below the tables.

        Args:
            name: of the method.
        """
        seconds = sum(self.train_seconds) / len(self.train_seconds)
        text = f"`{name}`: {self.title}; trained in {seconds:.1f} s a seed"
        found = ", ".join(f"{temperature:.3f}" for temperature in self.temperatures)
        return f"{text}; temperatures {found}" if found else text


def classify_report(
    methods: Mapping[str, MethodResult],
    rows: Mapping[str, Sequence[Sets]],
    *,
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    recipe: str,
) -> Report:
    """Return the report of a comparison of classifiers.

    Args:
        methods: what was measured.
        rows: predictions of each method's entries, by set.
        settings: what was compared.
        data: its name, sizes, number of classes and notes.
        recipe: name of the recipe that the settings came from.
    """
    summaries = {name: method.summaries() for name, method in methods.items()}
    counts = {name: len(method.metrics) for name, method in methods.items()}
    return Report(
        numbers={
            "experiment": "classify",
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
            f"test examples in {data['classes']} classes. Recipe `{recipe}`, seeds "
            f"{', '.join(map(str, settings['seeds']))}; all settings are in `config.json`."
        ),
        facts=data["notes"],
        tables=metric_tables(summaries, counts),
        legend=MARKS_LEGEND,
        rows=[method.line(name) for name, method in methods.items()],
        details=details(summaries, counts),
        plots=lambda folder: write_plots(folder, rows, summaries),
        about_plots=_PLOTS,
    )


def metric_tables(summaries: Summaries, counts: Mapping[str, int]) -> list[Table | SideBySide]:
    """Return one table for each section: test sets, then shift, then other data.

    Of more than five methods, numbers under shift are means over the severities, and detection on
    other data is told by its AUROC.

    Args:
        summaries: metrics by method.
        counts: number of entries of each method.
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


def details(summaries: Summaries, counts: Mapping[str, int]) -> str:
    """Return Markdown with every table under shift and of detection; empty without any.

    Args:
        summaries: metrics by method.
        counts: number of entries of each method.
    """
    parts: list[str] = []
    for text, tables in (
        (_SHIFT, shift_tables(summaries, counts)),
        (_OOD, ood_tables(summaries, counts)),
    ):
        if tables:
            parts += [text, *(table.markdown() for table in tables)]
    return "\n\n".join(parts)


def shift_tables(summaries: Summaries, counts: Mapping[str, int]) -> list[Table]:
    """Return for each kind of corrupted images and each metric: by severity, then by group.

    A number by severity is a mean over the corruptions; one by group is a mean over its corruptions
    and the severities, `all` that over all corruptions and severities.

    Args:
        summaries: metrics by method.
        counts: number of entries of each method.
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


def ood_tables(summaries: Summaries, counts: Mapping[str, int]) -> list[Table]:
    """Return for each set and each detector AUROC, AUPR and FPR95; of several sets means and ranks.

    The mean over the sets is that of CGPT's Table III, the average ranks over the sets are those of
    the thesis' Table 3.2, for each detector.

    Args:
        summaries: metrics by method.
        counts: number of entries of each method.
    """
    # A folder's path has slashes of its own.
    found = [
        name.removeprefix("ood/").rsplit("/", 2)
        for name in next(iter(summaries.values()))
        if name.startswith("ood/")
    ]
    outsides = list(dict.fromkeys(outside for outside, _, _ in found))
    detectors = list(dict.fromkeys(detector for _, detector, _ in found))

    def table(title: str, detector: str, sets: Sequence[str]) -> Table:
        rows = {
            name: [mean_of(own[f"ood/{one}/{detector}/{m}"] for one in sets) for m in _OOD_DETAILS]
            for name, own in summaries.items()
        }
        return summary_table(title, [Measure.of(metric) for metric in _OOD_DETAILS], rows, counts)

    tables = [
        table(f"against {outside}, {detector}", detector, [outside])
        for outside in outsides
        for detector in detectors
    ]
    if len(outsides) > 1:
        tables += [
            table(f"mean over {len(outsides)} sets, {detector}", detector, outsides)
            for detector in detectors
        ]
        if len(summaries) > 1:
            tables.append(_rank_table(summaries, counts, detectors, outsides))
    return tables


def mean_over_severities(
    metrics: Mapping[str, Summary], kind: str, group: str, metric: str
) -> Summary:
    """Return the mean of a metric over the severities for a group of corruptions.

    Args:
        metrics: of one method.
        kind: `shift` or `cifar-c`.
        group: of corruptions; `severity` stands for all of them.
        metric: own name of the metric.
    """
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
        return _VARIANCE_SHOWN
    return _OOD_SHOWN if few else _OOD_SHOWN_OF_MANY


def _rank_table(
    summaries: Summaries, counts: Mapping[str, int], detectors: list[str], outsides: list[str]
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
