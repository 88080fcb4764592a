"""The report of `probseq language`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from probseq.metrics import CalibrationBins
from probseq.metrics.plots import reliability_diagram
from probseq.summary import Summary, summarise
from probseq_apps.report.generate_plots import CURVES, save_curves
from probseq_apps.report.lead import Lead, lead_table, outcome
from probseq_apps.report.report import Report
from probseq_apps.report.tables import Measure, summary_table
from probseq_apps.settings.language import DECODERS

PAIRS = "counts of pairs of tokens"
_MEASURES = {
    "bits": Measure("bits", "lower"),
    "ece": Measure("ECE", "lower"),
    "accuracy": Measure("accuracy", "higher"),
    "kl": Measure("KL, nats"),
}


def language_report(
    results: Mapping[str, Mapping[str, Any]],
    pairs: Mapping[str, Mapping[str, float]],
    logs: Mapping[str, Sequence[Path]],
    **common: Any,
) -> Report:
    """Return the report: a table for the test text and for each other one, all by token.

    Counts of pairs, which need no training, have bits and accuracy by text; logs are folders of all
    seeds by method.
    """
    sets = list(pairs)
    numbers: dict[str, dict[str, dict[str, Summary]]] = {
        name: {
            each: {
                key: summarise([seed[each][key] for seed in seeds.values()]) for key in _MEASURES
            }
            for each in sets
        }
        for name, seeds in results.items()
    }
    counts = {name: len(seeds) for name, seeds in results.items()}
    tables = [
        summary_table(
            each.removeprefix("ood/"),
            list(_MEASURES.values()),
            {name: list(summaries[each].values()) for name, summaries in numbers.items()},
            counts,
        )
        for each in sets
    ]
    rows = [
        f"`{name}`: {DECODERS[name]}; trained in "
        f"{sum(seed['seconds'] for seed in seeds.values()) / len(seeds):.1f} s a seed"
        for name, seeds in results.items()
    ]
    data, lead = common["data"], lead_of(numbers, pairs)
    titles = {name: DECODERS[name].partition(":")[0] for name in results}
    titled = {titles[name]: seeds for name, seeds in results.items()}
    return Report(
        experiment="language",
        title="decoders compared",
        lead=lead_table(lead),
        outcome=outcome(lead, [PAIRS]),
        story=("training",),
        opening=f"{data['train']:,} tokens of {data['kinds']} kinds to train on.",
        numbers={
            "pairs": pairs,
            "methods": {
                name: {
                    each: {k: asdict(v) for k, v in of.items()} for each, of in summaries.items()
                }
                for name, summaries in numbers.items()
            },
        },
        tables=tables,
        rows=rows,
        figures=lambda: {
            "reliability-" + each.replace("/", "-").replace(":", "-"): _reliability(titled, each)
            for each in sets
        },
        pictures=lambda plots: save_curves(
            {titles[n]: logs[n] for n in results}, plots / "training.png", CURVES["language"]
        ),
        **common,
    )


def lead_of(
    numbers: Mapping[str, Mapping[str, Mapping[str, Summary]]],
    pairs: Mapping[str, Mapping[str, float]],
) -> Lead:
    """Return what decides by title: of the test text, and bits of each other one."""
    columns = {("test", name): _MEASURES[name] for name in ("bits", "ece", "accuracy")}
    for each in (each for each in pairs if each != "test"):
        short = each.removeprefix("ood/").rpartition("/")[2]
        columns[each, "bits"] = Measure(f"bits of {short}", "lower")
    lead: dict[Measure, dict[str, Summary]] = {}
    for (each, name), measure in columns.items():
        lead[measure] = {
            DECODERS[method].partition(":")[0]: texts[each][name]
            for method, texts in numbers.items()
        }
        if name in pairs[each]:
            count = len(next(iter(lead[measure].values())).values)
            lead[measure][PAIRS] = summarise([pairs[each][name]] * count)
    return lead


def _reliability(results: Mapping[str, Mapping[str, Any]], each: str) -> Figure:
    """Draw confidence against accuracy of the first seed of each method."""
    first = {name: next(iter(seeds.values()))[each]["bins"] for name, seeds in results.items()}
    bins = {
        name: CalibrationBins(**{key: torch.tensor(value) for key, value in arrays.items()})
        for name, arrays in first.items()
    }
    return reliability_diagram(bins)
