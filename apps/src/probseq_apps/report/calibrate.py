"""The report of `probseq calibrate`: what each way to calibrate gives, and which to take."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch

from probseq.metrics import Predictions
from probseq.summary import Summary, summarise
from probseq_apps.report.classify import details, lead_of, metric_tables, temperatures_text
from probseq_apps.report.lead import lead_table, outcome
from probseq_apps.report.report import Report
from probseq_apps.report.set_plots import class_figures, shift_figures
from probseq_apps.report.tables import Measure
from probseq_apps.settings.calibrate import parse_calibration

# Rows that anybody would try first.
_PLAIN = ("model", "probe")


class Calibration(NamedTuple):
    """What was measured of a way to calibrate, an entry for each model, or one for an ensemble."""

    title: str  # what it is
    # Values by name; None where a metric is not defined
    metrics: Sequence[Mapping[str, float | None]]
    predictions: Sequence[Mapping[str, Predictions]]  # of each set, by name
    losses: Sequence[float]  # negative log-likelihood of validation data that chose nothing
    temperatures: Sequence[float]  # chosen; empty without
    deviations: Sequence[float]  # prior standard deviations chosen; empty without

    def summaries(self) -> dict[str, Summary]:
        """Return the summary of each metric over the models, the loss before all others."""
        others = {name: summarise([one[name] for one in self.metrics]) for name in self.metrics[0]}
        return {"validation/nll": summarise(self.losses), **others}

    def losses_of_examples(self) -> Summary:
        """Return the negative log-likelihood of each test example, mean over the models."""
        sets = [one["test"] for one in self.predictions]
        losses = [-p.log_probs.gather(-1, p.labels[:, None])[:, 0] for p in sets]
        return summarise(torch.stack(losses).mean(0).tolist())


def calibrate_report(
    measured: Mapping[str, Calibration], stored: Sequence[tuple[str, str]], **common: Any
) -> Report:
    """Return the report: tables as those of `classify`, and what validation data recommend.

    For each model `stored` has its folder, and the row that it holds.
    """
    methods = {name: calibration.summaries() for name, calibration in measured.items()}
    data, numbers, rows = common["data"], dict[str, Any](), list[str]()
    means: dict[str, float] = {}
    for name, calibration in measured.items():
        summaries = {metric: asdict(summary) for metric, summary in methods[name].items()}
        chosen = {"temperatures": calibration.temperatures, "deviations": calibration.deviations}
        numbers[name] = {"title": calibration.title, **chosen, "metrics": summaries}
        means[name] = sum(calibration.losses) / len(calibration.losses)
        facts = [f"`{name}`: {calibration.title}"]
        if calibration.temperatures:
            facts.append(f"temperatures {temperatures_text(calibration.temperatures)}")
        if calibration.deviations:
            facts.append(
                f"deviations {', '.join(f'{each:.3g}' for each in calibration.deviations)}"
            )
        rows.append("; ".join(facts))
    best, *rest = sorted(means, key=lambda name: means[name])
    titles = {name: parse_calibration(name).short_title for name in measured}
    behind = f", {means[rest[0]]:z.3f} of {titles[rest[0]]}" if rest else ""
    recommended = f"Recommended: {titles[best]}, validation NLL {means[best]:z.3f}{behind}."
    titled = {title: methods[name] for name, title in titles.items()}
    drawn = {titles[name]: calibration.predictions for name, calibration in measured.items()}
    sentences, first = [recommended], [titles[best]]
    for plain in (name for name in _PLAIN if name in measured and name != best):
        pair = {titles[name]: measured[name].losses_of_examples() for name in (best, plain)}
        sentences += outcome({Measure.of("nll"): pair}, of="test examples")
        first.append(titles[plain])
    holds = "; ".join(f"{folder}: {row}" for folder, row in stored)
    return Report(
        experiment="calibrate",
        title="calibrated classifiers compared",
        lead=lead_table(lead_of(titled)),
        outcome=sentences,
        story=("calibration",),
        opening=(
            f"{data['validation']:,} validation and {data['test']:,} test examples in "
            f"{data['classes']} classes."
        ),
        numbers={"methods": numbers, "recommended": best},
        tables=metric_tables(methods),
        facts=[f"`sgpa.load_calibrated` reads {holds}."] if stored else [],
        rows=rows,
        details=details(methods),
        figures=lambda: {
            "calibration": class_figures({n: drawn[n] for n in first})["reliability"],
            **class_figures(drawn),
            **shift_figures(titled),
        },
        **common,
    )
