"""`probseq claims`: the claims of the papers, the numbers of runs, and a verdict for each."""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, NamedTuple

from tyro.conf import Positional, arg

from probseq.files import write_atomic
from probseq.summary import Gain, direction_of, judge
from probseq_apps.engine.files import flatten
from probseq_apps.registry import REGISTRY, load
from probseq_apps.report.measured import MeasuredRun, find_runs
from probseq_apps.report.tables import DASH, decimals_of, markdown_table
from probseq_apps.settings.methods import METHODS

_RECIPES = {entry.kind: entry.settings for entry in REGISTRY.values() if entry.kind}
# Where a run ran, and what only decides which numbers exist.
_NOT_COMPARED = re.compile(
    r"method|seeds|variants|stem|frames|controls|lpips_weights|reading\.image_size|(machine|priors)\..*"
    r"|training\.(device|compile|checkpoint_every)"
    r"|evaluation\.(shift|corruptions|severities|ood|features\.(inception_w|classifier_s).*)"
)


@dataclass(frozen=True, kw_only=True)
class ClaimsSettings:
    """Runs to judge the claims by, and the folder of the table."""

    run_folders: Annotated[
        Positional[tuple[Path, ...]],
        arg(metavar="[RUN_FOLDER ...]", help="Run folders, or folders of them; none: runs/."),
    ] = ()
    output_dir: Path = Path()
    """Folder of the table, claims.md."""


def claims(settings: ClaimsSettings) -> None:
    """Print the verdict on each claim, and write it with the papers' numbers as Markdown."""
    runs, left_out = find_runs(settings.run_folders or (Path("runs"),))
    verdicts = judge_claims(runs)
    for verdict in verdicts:
        task = "" if verdict.run is None else f" ({verdict.run.recipe})"
        print(f"{verdict.text}: {verdict.claim.statement}{task}")
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    page = settings.output_dir / "claims.md"
    notes = "\n".join(f"- {note}" for note in left_out)
    pages = tomllib.loads((files("probseq_apps.report") / "pages.toml").read_text("utf-8"))
    table, rule = claims_markdown(verdicts), pages["claims"]["rule"]
    paragraphs = filter(None, ("# Claims of the papers", table, rule, notes))
    write_atomic(page, "\n\n".join(paragraphs) + "\n")
    print(f"\nwritten: {page}")


class Claim(NamedTuple):
    """The claim that a row of a run's table is better than others by a metric."""

    name: str
    statement: str
    paper: str  # which, and where in it
    printed: str  # its numbers
    better: str  # row that is claimed to be better
    than: tuple[str, ...]
    metric: str  # in the names of `MeasuredRun.numbers`, without the row
    effect: float  # smallest gain worth having; negative: the largest loss that is allowed
    recipes: tuple[str, ...]  # that test it, the laptop's first

    @property
    def costs(self) -> bool:
        """True where the metric is in seconds: gains are factors then."""
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
        counts = [seeds for seeds in needed if seeds is not None]
        if len(counts) < len(needed):
            return "not resolved"
        return f"not resolved: would need {max(counts)} seeds"


def load_claims() -> list[Claim]:
    """Return the claims, in the order of the papers, one for each task that they are tried on."""
    text = files("probseq_apps.report").joinpath("claims.toml").read_text("utf-8")
    return [
        Claim(name, **values | {"than": tuple(values["than"]), "recipes": tuple(recipes)})
        for name, values in tomllib.loads(text).items()
        for recipes in (values["recipes"], *values.pop("also", ()))
    ]


def judge_claims(runs: Sequence[MeasuredRun]) -> list[Verdict]:
    """Judge each claim by the runs, which are sorted from the newest to the oldest."""
    return [_judged(claim, runs) for claim in load_claims()]


def _judged(claim: Claim, runs: Sequence[MeasuredRun]) -> Verdict:
    fitting = [run for run in runs if run.recipe in claim.recipes]
    rows = (claim.better, *claim.than)

    def distance(run: MeasuredRun) -> tuple[bool, int, int]:
        changed = len(differences(run, rows))
        return changed > 0, -claim.recipes.index(run.recipe), changed

    for run in sorted(fitting, key=distance):
        gains = {other: gain for other in claim.than if (gain := _gain(claim, other, run))}
        if len(gains) == len(claim.than):
            return Verdict(claim, run, gains)
    return Verdict(claim, None, {})


def _gain(claim: Claim, other: str, run: MeasuredRun) -> Gain | None:
    """Return the gain over another row; None where the run lacks one of the two."""
    least = 0.0 if claim.costs else -math.inf
    samples: list[list[float]] = []
    for row in (claim.better, other):
        _, values = run.values(f"{row}/{claim.metric}") or ("", ())
        samples.append(
            [value for value in values if value is not None and least < value < math.inf]
        )
        if not values or len(samples[-1]) < len(values) or len(values) != len(samples[0]):
            return None
    sign = 1.0 if direction_of(claim.metric) == "higher" else -1.0
    scale = math.log if claim.costs else float
    pairs = zip(*samples, strict=True)
    gains = [sign * (scale(better) - scale(other)) for better, other in pairs]
    return judge(gains, claim.effect)


def differences(run: MeasuredRun, rows: Iterable[str]) -> list[str]:
    """Return the settings that differ, with the recipe's; those of methods in no row left out."""
    reference = json.loads(json.dumps(load(_RECIPES[run.experiment]).load(run.recipe).to_dict()))
    settings = dict(flatten(run.settings))
    bases = [METHODS.get(row.partition("+")[0]) for row in rows]
    used = {base.attention for base in bases if base is not None}
    others = {method.attention for method in METHODS.values()} - used
    return [
        f"{path} {_setting_text(settings[path])} ({_setting_text(value)})"
        for path, value in flatten(reference)
        if settings.get(path, value) != value
        and not _NOT_COMPARED.fullmatch(path)
        and path.removeprefix("warm_start.").partition(".")[0] not in others
    ]


def _setting_text(value: object) -> str:
    """Return a setting as text; of a long list, its length."""
    if not isinstance(value, list):
        return str(value)
    return f"{len(value)} kinds" if len(value) > 5 else ", ".join(map(str, value))


def claims_markdown(verdicts: Iterable[Verdict]) -> str:
    """Return the table of claims as Markdown: the paper's numbers, our gains, and the verdicts."""
    heads = ["claim", "paper", "printed there", "our gain", "of", "verdict"]
    rows: list[list[str]] = []
    for verdict in verdicts:
        claim = verdict.claim
        gains = "; ".join(_gain_text(claim, other, gain) for other, gain in verdict.gains.items())
        cells = [claim.statement, claim.paper, claim.printed, gains or DASH]
        rows.append([*cells, _run_text(verdict), verdict.text])
    return markdown_table([heads, *rows]).replace("---:", "---")


def _gain_text(claim: Claim, other: str, gain: Gain) -> str:
    mean, around = gain.summary.mean or 0.0, gain.summary.interval
    if claim.costs:
        low, high = (f"{math.exp(mean + sign * (around or 0.0)):.3g}" for sign in (-1, 1))
        factor = f"{math.exp(mean):.3g} times"
        return (
            f"{factor} over {other}" if around is None else f"{factor} [{low}, {high}] over {other}"
        )
    digits = decimals_of([mean]) - 1
    error = "" if around is None else f" ± {around:.{digits}f}"
    return f"{mean:+z.{digits}f}{error} over {other}"


def _run_text(verdict: Verdict) -> str:
    run, claim = verdict.run, verdict.claim
    if run is None:
        return DASH
    seeds, changes = len(run.settings["seeds"]), differences(run, (claim.better, *claim.than))
    changed = f" with {', '.join(changes)}" if changes else ""
    return f"{run.recipe}{changed}, {seeds} seed{'s'[: seeds - 1]}"
