"""The report of `probseq language`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from matplotlib.figure import Figure

from probseq.metrics import CalibrationBins
from probseq.metrics.plots import reliability_diagram
from probseq.summary import Summary, summarise
from probseq_apps.report.report import Report
from probseq_apps.report.tables import Measure, summary_table
from probseq_apps.settings.language import DECODERS

_MEASURES = {
    "bits": Measure("bits", "lower"),
    "ece": Measure("ECE", "lower"),
    "accuracy": Measure("accuracy", "higher"),
    "kl": Measure("KL, nats"),
}


def language_report(
    results: Mapping[str, Mapping[str, Any]], sets: Sequence[str], **common: Any
) -> Report:
    """Return the report: a table for the test text and for each other one, all by token.

    Args:
        results: metrics of each text, by method and seed.
        sets: names of the predicted texts.
        common: arguments of every report.
    """
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
    data = common["data"]
    return Report(
        experiment="language",
        title=", ".join(results),
        opening=f"{data['train']:,} tokens of {data['kinds']} kinds to train on.",
        numbers={
            "methods": {
                name: {
                    each: {k: asdict(v) for k, v in of.items()} for each, of in summaries.items()
                }
                for name, summaries in numbers.items()
            }
        },
        tables=tables,
        rows=rows,
        figures=lambda: {
            each.replace("/", "-").replace(":", "-"): _reliability(results, each) for each in sets
        },
        **common,
    )


def _reliability(results: Mapping[str, Mapping[str, Any]], each: str) -> Figure:
    """Draw confidence against accuracy of the first seed of each method."""
    first = {name: next(iter(seeds.values()))[each]["bins"] for name, seeds in results.items()}
    bins = {
        name: CalibrationBins(**{key: torch.tensor(value) for key, value in arrays.items()})
        for name, arrays in first.items()
    }
    return reliability_diagram(bins)
