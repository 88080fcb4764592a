"""`probseq report --claims`: what the papers claim, what runs measured, and a verdict for each."""

import math
import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import NamedTuple

from probseq.summary import Gain, direction_of, judge
from probseq_apps.report.measured import MeasuredRun
from probseq_apps.report.tables import DASH, Table, decimals_of

RULE = """\
Gain: by how much the first row is better than each of the others in the same run, seed by seed: the mean of the paired
differences ± half of its 95% interval (Student's t), or the mean factor for seconds. A claim holds if the mean gain is at
least the smallest one worth having and the interval is above 0 (above the largest loss that is allowed, where the claim
is that little is lost); it does not hold if the whole interval is below; else it is not resolved, and would be with as
many seeds as stand there, were mean and scatter to stay. Against several rows the worst verdict counts. Of several runs
that of the recipe nearest to the paper's is taken, then the newest."""


class Claim(NamedTuple):
    """That a row of a run's table is better than others by a metric."""

    name: str
    statement: str
    paper: str  # which, and where in it
    printed: str  # its numbers
    better: str  # row that is said to be better
    than: tuple[str, ...]
    metric: str  # in the names of `MeasuredRun.numbers`, without the row
    effect: float  # smallest gain worth having; negative: the largest loss that is allowed
    recipes: tuple[str, ...]  # that test it, the laptop's first

    @property
    def costs(self) -> bool:
        """Whether the metric is of seconds, whose factors count."""
        return "seconds" in self.metric


class Verdict(NamedTuple):
    """A claim, the run that tests it, and its gain over each of the other rows."""

    claim: Claim
    run: MeasuredRun | None
    gains: dict[str, Gain]

    @property
    def text(self) -> str:
        """The verdict in words."""
        verdicts = {gain.verdict for gain in self.gains.values()}
        if not verdicts:
            return "not run"
        if "does not hold" in verdicts:
            return "does not hold"
        if "not resolved" not in verdicts:
            return "holds"
        needed = [gain.seeds for gain in self.gains.values() if gain.verdict == "not resolved"]
        known = [seeds for seeds in needed if seeds is not None]
        if len(known) < len(needed):
            return "not resolved"
        return f"not resolved: would need {max(known)} seeds"


def load_claims() -> list[Claim]:
    """Return the claims, in the order of the papers."""
    text = files("probseq_apps.report").joinpath("claims.toml").read_text("utf-8")
    lists = ("than", "recipes")
    return [
        Claim(name=name, **{key: tuple(v) if key in lists else v for key, v in values.items()})
        for name, values in tomllib.loads(text).items()
    ]


def judge_claims(runs: Sequence[MeasuredRun]) -> list[Verdict]:
    """Judge each claim by the runs, which are sorted from the newest to the oldest."""
    return [_judged(claim, runs) for claim in load_claims()]


def _judged(claim: Claim, runs: Sequence[MeasuredRun]) -> Verdict:
    fitting = [run for run in runs if run.recipe in claim.recipes]
    for run in sorted(fitting, key=lambda run: -claim.recipes.index(run.recipe)):
        gains = {other: gain for other in claim.than if (gain := _gain(claim, other, run))}
        if len(gains) == len(claim.than):
            return Verdict(claim, run, gains)
    return Verdict(claim, None, {})


def _gain(claim: Claim, other: str, run: MeasuredRun) -> Gain | None:
    """Return the gain over another row; None where the run lacks one of the two."""
    found = [run.values(f"{row}/{claim.metric}") for row in (claim.better, other)]
    pairs = list(zip(*(values for _, values in filter(None, found)), strict=True))
    if None in found or any(None in pair for pair in pairs):
        return None
    sign = 1.0 if direction_of(claim.metric) == "higher" else -1.0
    scale = math.log if claim.costs else float
    return judge([sign * (scale(own) - scale(theirs)) for own, theirs in pairs], claim.effect)


def claims_table(verdicts: Iterable[Verdict]) -> Table:
    """Return the table: claim, where and what the paper says, ours, and the verdict."""
    heads = ["claim", "paper", "printed there", "ours: gain", "run", "verdict"]
    rows = [
        [
            verdict.claim.statement,
            verdict.claim.paper,
            verdict.claim.printed,
            "; ".join(_gain_text(verdict.claim, *own) for own in verdict.gains.items()) or DASH,
            DASH if verdict.run is None else _run_text(verdict.run),
            verdict.text,
        ]
        for verdict in verdicts
    ]
    return Table(heads, rows)


def _gain_text(claim: Claim, other: str, gain: Gain) -> str:
    mean, around = gain.summary.mean or 0.0, gain.summary.interval
    if claim.costs:
        low, high = (f"{math.exp(mean + sign * (around or 0.0)):.3g}" for sign in (-1, 1))
        return f"{math.exp(mean):.3g} times [{low}, {high}] over {other}"
    digits = decimals_of([mean]) - 1
    error = "" if around is None else f" ± {around:.{digits}f}"
    return f"{mean:+.{digits}f}{error} over {other}"


def _run_text(run: MeasuredRun) -> str:
    seeds = len(run.setting("seeds"))
    return f"{run.recipe}, {seeds} seed{'s'[: seeds - 1]}"
