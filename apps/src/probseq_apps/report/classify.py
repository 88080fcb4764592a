"""The report of `probseq classify`: tables of metrics, under shift, and of detection; plots."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from probseq.metrics import Predictions, severities_of
from probseq.metrics.post_hoc import is_bound
from probseq.summary import LABELS, Summary, mean_of, summarise
from probseq_apps.report.headline import Columns, conclusion, difference_table, headline_table
from probseq_apps.report.report import PAGES, Report
from probseq_apps.report.set_plots import class_figures, shift_figures
from probseq_apps.report.tables import Measure, Table, summary_table
from probseq_apps.settings.methods import Row

# Metrics of an entry by name; None where one is not defined.
Entry = dict[str, float | None]
# Metrics over the seeds by name, and those of each method.
Metrics = Mapping[str, Summary]
Methods = Mapping[str, Metrics]
# Of each column of a table, the names of the metrics that it is a mean of.
MeansOf = dict[Measure, list[str]]

UNKNOWN_VALIDATION = "validation/unknown"  # the unknown classes among the validation part
# The score among those for detection that validation data chose.
CHOSEN = "chosen"
_UNKNOWN = "unknown AUROC"
_PAGE_TITLES = {"classify": "classifiers compared", "regress": "predictions compared"}
_SHIFT_TITLES = {"shift": "corrupted", "cifar-c": "CIFAR-C"}
# Of the test set whose attention is taken out.
_WITHOUT_COLUMNS = ("accuracy", "nll")
_SHIFT_DETAILS = ("accuracy", "nll", "ece", "mce")
# Corruptions of images by their kind, as CGPT's tables II and V have them; the published families
# are more than the program makes.
_GROUPS = {
    "noise": "gaussian_noise|shot_noise|impulse_noise|speckle_noise",
    "blur": "defocus_blur|gaussian_blur|motion_blur|zoom_blur|glass_blur",
    "weather": "fog|snow|frost|brightness|spatter",
    "digital": "contrast|elastic_transform|pixelate|jpeg_compression|saturate",
}
_OOD_DETAILS = ("auroc", "aupr-in", "aupr-out", "fpr95")


class MethodResult(NamedTuple):
    """The results of a method, an entry for each seed, or a single one for an ensemble."""

    row: Row
    metrics: Sequence[Mapping[str, float | None]]  # of each entry, as in `Entry`
    train_seconds: Sequence[float]  # of each seed
    temperatures: Sequence[float] = ()  # of each seed; empty without temperature scaling
    # Variant with the lowest validation loss, for each seed; empty where there is one
    chosen: Sequence[str] = ()
    # Score that tells the unknown, of each entry; empty where validation data chose none
    scores: Sequence[str] = ()

    def summaries(self) -> dict[str, Summary]:
        """Return the summary of each metric over the entries."""
        return {
            name: summarise([entry[name] for entry in self.metrics]) for name in self.metrics[0]
        }


def temperatures_text(temperatures: Sequence[float]) -> str:
    """Return temperatures to read, those that are bounds of the search marked."""
    return ", ".join(f"{each:.3f}{' (a bound)' if is_bound(each) else ''}" for each in temperatures)


def methods_report(
    experiment: str, results: Mapping[str, MethodResult], examples: str, **common: Any
) -> Report:
    """Return the report of a comparison of methods; `examples` describes the examples."""
    data, numbers, rows = common["data"], dict[str, Any](), list[str]()
    methods = {name: method.summaries() for name, method in results.items()}
    first_model = min(results, key=lambda name: results[name].row.method.estimator)
    columns = beside_chance(headline_columns(titled(results)), data["chance"], data["test"])
    for name, (row, _, seconds, temperatures, chosen, scores) in results.items():
        numbers[name] = {
            "title": row.title,
            "seeds": common["settings"]["seeds"],
            "temperatures": temperatures,
            "chosen": chosen,
            "scores": scores,
            "train_seconds": seconds,
            "metrics": {metric: asdict(summary) for metric, summary in methods[name].items()},
        }
        scales = temperatures_text(temperatures)
        taken = ", ".join(chosen)
        choices = ", ".join(f"{each} ({count})" for each, count in Counter(scores).items())
        rows.append(
            f"`{name}`: {row.title}; trained in {sum(seconds) / len(seconds):.1f} s a seed"
            f"{f'; temperatures {scales}' if scales else ''}"
            f"{f'; by validation loss {taken}' if taken else ''}"
            f"{f'; unknown ones are told by {choices}' if choices else ''}"
        )
    return Report(
        experiment=experiment,
        title=_PAGE_TITLES[experiment],
        head=_head(experiment, data),
        headline=headline_table(columns, errors=experiment == "regress"),
        with_errors=headline_table(columns),
        alert=trust_text(titled(results)),
        conclusions=[nothing_learned(columns) or conclusion(columns), below_guesses(columns)],
        opening=(
            f"{data['train']:,} training, {data['validation']:,} validation and {data['test']:,} "
            f"test {examples}."
        ),
        numbers={"methods": numbers},
        tables=[*metric_tables(methods), *differences(methods, of=first_model)],
        rows=rows,
        **common,
    )


def _head(experiment: str, data: Mapping[str, Any]) -> list[str]:
    """Return what the task is, what knows nothing reaches, and what the columns are of."""
    words, chance = PAGES[experiment], data["chance"]
    sets = {"shifted": data.get("shifted"), "OOD": data.get("unknown")}
    others = [
        words[name].format(", ".join(named).replace("_", " "))
        for name, named in sets.items()
        if named
    ]
    numbers = ", ".join(f"{LABELS[name][0]} {value:.3f}" for name, value in chance.items())
    return [
        f"Task: {PAGES['tasks'].get(data['name'], words['task'])}. {data['train']:,} examples to "
        f"learn from, {data['validation']:,} to choose by, {data['test']:,} to test.",
        f"Chance: {words['chance']} has {numbers}.",
        " ".join(others),
        words.get("columns", ""),
    ]


def classify_report(
    results: Mapping[str, MethodResult],
    rows: Mapping[str, Sequence[Mapping[str, Predictions]]],
    **common: Any,
) -> Report:
    """Return the report of a comparison of classifiers from their results and predictions."""
    methods = {name: method.summaries() for name, method in results.items()}
    return methods_report(
        "classify",
        results,
        f"examples in {common['data']['classes']} classes",
        details=details(methods),
        story=("trusted", *_SHIFT_TITLES, *(f"{kind}-accuracy" for kind in _SHIFT_TITLES)),
        figures=lambda: {
            **class_figures({results[name].row.short_title: sets for name, sets in rows.items()}),
            **shift_figures(titled(results)),
        },
        **common,
    )


def with_chosen_scores(entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """Return metrics with those of the score that tells the unknown best, and these scores.

    For each entry it is chosen by all others: that of the highest mean AUROC on their validation
    parts' known and unknown classes. A single entry, which nothing else chooses for, has the
    entropy. Without unknown classes for validation nothing is added.
    """
    pattern = re.compile(rf"{UNKNOWN_VALIDATION}/(.*)/auroc")
    # The unknown classes of a seed may have no examples in its validation part.
    matches = (pattern.fullmatch(name) for entry in entries for name in entry)
    candidates = dict.fromkeys(match[1] for match in matches if match)
    if not candidates:
        return list(entries), []
    added: list[Entry] = []
    scores: list[str] = []
    for entry in entries:
        means = {score: 0.0 for score in ("entropy", *candidates)}
        for other in (other for other in entries if other is not entry):
            for score in candidates:
                means[score] += other.get(f"{UNKNOWN_VALIDATION}/{score}/auroc") or 0.0
        best = max(means, key=means.__getitem__)
        names = [name for name in entry if name.startswith("ood/")]
        added.append(entry | {n.replace(f"/{best}/", f"/{CHOSEN}/"): entry[n] for n in names})
        scores.append(best)
    return added, scores


def beside_chance(columns: Columns, chance: Mapping[str, float], count: int) -> Columns:
    """Return columns that know what guesses reach among so many examples.

    Of accuracy two standard deviations above chance; of detection one half.
    """
    bounds = {LABELS[name][0]: value for name, value in chance.items()} | {_UNKNOWN: 0.5}
    if (share := chance.get("accuracy")) is not None:
        bounds["accuracy"] = share + 2 * (share * (1 - share) / count) ** 0.5
    return {m._replace(chance=bounds.get(m.label)): column for m, column in columns.items()}


def nothing_learned(columns: Columns) -> str:
    """Return a sentence where no row is better than guesses by the first measure, else ""."""
    measure, column = next(iter(columns.items()))
    if measure.chance is None or any(map(measure.beats_chance, column.values())):
        return ""
    return f"Nothing has learned: all rows are at chance by {measure.label}."


def below_guesses(columns: Columns) -> str:
    """Return a sentence on the rows that are surer of the unknown than of the test, else ""."""
    aurocs = next((each for measure, each in columns.items() if measure.label == _UNKNOWN), {})
    rows = [row for row, auroc in aurocs.items() if auroc.mean is not None and auroc.mean < 0.5]
    return PAGES["classify"]["below"].format(", ".join(rows)) if rows else ""


def differences(methods: Methods, of: str) -> list[Table]:
    """Return the paired differences of rows from one; for AUROC by each score, from its chosen."""
    columns, names = headline_columns(methods), _names(methods)
    others = {m: {n: c[n] for n in c if n != of} for m, c in columns.items()}
    title = f"difference from `{of}`"
    tables = [difference_table(title, others, [c[of] for c in columns.values()])]
    scores = dict.fromkeys(n.rsplit("/", 2)[1] for n in names if re.match("ood/.*/auroc", n))
    if len(scores) > 1:
        by_score: Columns = {
            Measure(s): _means(methods, [n for n in names if re.match(f"ood/.*/{s}/auroc", n)])
            for s in scores
        }
        mark = next(c[of] for measure, c in columns.items() if measure.label == _UNKNOWN)
        title = f"AUROC, difference from that of `{of}` above"
        tables.append(difference_table(title, by_score, [mark] * len(by_score)))
    return tables if len(methods) > 1 else []


def titled(results: Mapping[str, MethodResult]) -> Methods:
    """Return the metrics of each method by its title in words."""
    return {result.row.short_title: result.summaries() for result in results.values()}


def headline_columns(methods: Methods) -> Columns:
    """Return the metrics that decide, as far as they were measured; under shift means."""
    names, usual = _names(methods), ("accuracy", "nll", "mae", "rmse", "nlpd")
    score = CHOSEN if any(f"/{CHOSEN}/" in name for name in names) else "(entropy|variance)"
    columns = {Measure.of(m): [f"test/{m}"] for m in usual if f"test/{m}" in names}
    for measure, pattern in (
        (Measure("trusted", "higher"), r"test/trusted"),
        (Measure("wrong", "lower"), r"test/trusted-error"),
        (Measure("refused", "higher"), r"trusted-refused/.*"),
        (Measure(_UNKNOWN, "higher"), rf"ood/.*/{score}/auroc"),
        (Measure("shifted NLL", "lower"), r"(shift|cifar-c)/severity-\d+/nll"),
    ):
        if matching := [name for name in names if re.fullmatch(pattern, name)]:
            columns[measure] = matching
    return {measure: _means(methods, metrics) for measure, metrics in columns.items()}


def trust_text(methods: Methods) -> str:
    """Return what to refuse, by the row of lowest validation loss; "" where none is measured."""
    losses = {
        row: values["validation/nll"].mean
        for row, values in methods.items()
        if "validation/nll" in values
    }
    ranked = sorted((loss, row) for row, loss in losses.items() if loss is not None)
    values = methods[ranked[0][1]] if ranked else {}
    refused = mean_of(values[name] for name in values if name.startswith("surest-refused/")).mean
    if refused is None:
        return ""
    wrong = values["test/surest-error"].mean
    errors = "" if wrong is None else f"{wrong:.1%} of the rest is wrong, and "
    refusal = f"{refused:.0%} of the unknown are refused"
    return f"Refuse the tenth of which {ranked[0][1]} is least sure: {errors}{refusal}."


def metric_tables(methods: Methods) -> list[Table]:
    """Return one table for each test set as it is; `details` has those under shift and of others.

    The test set's has the penalty, too.
    """
    others = {"test/penalty": Measure("penalty, nats")}
    sections: dict[str, MeansOf] = {}
    for metric in _names(methods):
        section, _, name = metric.partition("/")
        measure = others.get(metric) or (Measure.of(name) if name in LABELS else None)
        attention = section == "without-attention"
        if measure is None or (section == "validation" and metric not in others):
            continue
        if attention and name not in _WITHOUT_COLUMNS:
            continue
        title = "test" if metric in others else section
        title = "test, attention taken out" if attention else title
        sections.setdefault(title, {})[measure] = [metric]
    return [_table(title, columns, methods) for title, columns in sections.items()]


def details(methods: Methods) -> str:
    """Return Markdown with every table under shift and of detection; empty without any."""
    paragraphs: list[str] = []
    for name, tables in (("shift", shift_tables(methods)), ("ood", ood_tables(methods))):
        if tables:
            paragraphs += [PAGES["classify"][name], *(table.markdown() for table in tables)]
    return "\n\n".join(paragraphs)


def shift_tables(methods: Methods) -> list[Table]:
    """Return for each kind of corrupted examples and each metric means over the corruptions.

    A column is of one severity, of a group of corruptions at all severities, or of all.
    """
    tables: list[Table] = []
    for kind, title in _SHIFT_TITLES.items():
        severities = severities_of(_names(methods), kind)
        for metric in _SHIFT_DETAILS if severities else ():
            label, direction = LABELS[metric]
            names = [f"{kind}/severity-{severity}/{metric}" for severity in severities]
            columns = {
                Measure(f"severity {severity}", direction): [name]
                for severity, name in zip(severities, names, strict=True)
            }
            for group, corruptions in _GROUPS.items():
                pattern = re.compile(rf"{kind}/({corruptions})/\d+/{metric}")
                if of_group := list(filter(pattern.fullmatch, _names(methods))):
                    columns[Measure(group, direction)] = of_group
            columns[Measure("all", direction)] = names
            tables.append(_table(f"{title}: {label}", columns, methods))
    return tables


def ood_tables(methods: Methods) -> list[Table]:
    """Return for each set AUROC, AUPR and FPR95 by each detector; of several sets their means.

    The mean over the sets is that of CGPT's Table III.
    """
    # A folder's path has slashes of its own.
    keys = [name[4:].rsplit("/", 2) for name in _names(methods) if name.startswith("ood/")]
    outsides = list(dict.fromkeys(outside for outside, _, _ in keys))
    detectors = list(dict.fromkeys(detector for _, detector, _ in keys))
    groups = [(f"against {outside}", [outside]) for outside in outsides]
    if len(outsides) > 1:
        groups.append((f"mean over {len(outsides)} sets", outsides))
    tables: list[Table] = []
    for title, sets in groups:
        for metric in _OOD_DETAILS:
            label, direction = LABELS[metric]
            columns = {
                Measure(each, direction): [f"ood/{o}/{each}/{metric}" for o in sets]
                for each in detectors
            }
            tables.append(_table(f"{title}: {label}", columns, methods))
    return tables


def _table(title: str, columns: MeansOf, methods: Methods) -> Table:
    """Return a table whose columns are means over metrics, taken for each seed first."""
    return summary_table(title, {m: _means(methods, names) for m, names in columns.items()})


def _means(methods: Methods, metrics: Sequence[str]) -> dict[str, Summary]:
    """Return the mean of metrics, taken for each seed first, by the row."""
    return {row: mean_of(values[m] for m in metrics) for row, values in methods.items()}


def _names(methods: Methods) -> list[str]:
    return list(next(iter(methods.values())))
