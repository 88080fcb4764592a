"""How a run's setting differs from that of a paper: recipe, sizes, seeds, epochs, samples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probseq_apps.engine.files import flatten
from probseq_apps.report.compare import Comparison
from probseq_apps.report.measured import (
    DIFFUSION,
    GENERATE,
    GENERATIONS,
    HVAE,
    SIZES,
    MeasuredRun,
)
from probseq_apps.settings.classify import RECIPES, REGRESS_RECIPES
from probseq_apps.settings.generate import GENERATE_RECIPES
from probseq_apps.settings.methods import METHODS
from probseq_apps.settings.models import DIFFUSION_RECIPES, HVAE_RECIPES
from probseq_apps.settings.online import ONLINE_RECIPES

_RECIPES: Mapping[str, Callable[[], Any]] = {
    **RECIPES.known,
    **REGRESS_RECIPES.known,
    **ONLINE_RECIPES.known,
    **GENERATE_RECIPES.known,
    **DIFFUSION_RECIPES.known,
    **HVAE_RECIPES.known,
}
# Where the run ran, and what only decides which numbers exist.
_NOT_COMPARED = (
    "data",
    "method",
    "seeds",
    "training.device",
    "training.compile",
    "training.tensorboard",
    "training.checkpoint_every",
    "evaluation.shift",
    "evaluation.corruptions",
    "evaluation.severities",
    "evaluation.ood",
    "evaluation.features.inception_weights",
    "evaluation.features.classifier_steps",
    "lpips_weights",
    "arms",
    "stem",
    "frames",
    "controls",
)
_SECTIONS_NOT_COMPARED = ("reading", "machine", "priors")
# Settings of one method say nothing about the others.
_OF_METHODS = {method.attention for method in METHODS.values()}


def run_notes(comparison: Comparison) -> list[str]:
    """One line about each run that the comparison uses, in the order of their numbers."""
    return [_note(number, run, comparison) for number, run in enumerate(comparison.runs, start=1)]


def _note(number: int, run: MeasuredRun, comparison: Comparison) -> str:
    used = _methods_of(run, comparison)
    seeds = sorted({len(run.seeds[method]) for method in used})
    many = " or ".join(map(str, seeds))
    parts = [
        f"[{number}] {run.folder}: {run.data}, {many} seed{'' if seeds == [1] else 's'}, "
        f"{_length(run)}, recipe {run.recipe}"
    ]
    if run.experiment in GENERATIONS:
        parts += generation_parts(run, comparison)
    if sizes := _sizes(run, comparison):
        parts.append(sizes)
    if sources := _sources(run, comparison):
        parts.append(sources)
    # A run on other images stands in for those of the first data set.
    recipes_of = comparison.table.recipes
    recipes = recipes_of.get(run.data) or recipes_of.get(comparison.table.first_data or "", ())
    if not recipes:
        parts.append("the program has no recipe of the paper's setting")
        return "; ".join(parts) + "."
    # The nearest, where the table's rows have several.
    found = {recipe: _differences(run, recipe, used) for recipe in recipes}
    if run.data not in recipes_of:
        other = f"data {run.data} ({comparison.table.first_data})"
        found = {recipe: [other, *differences] for recipe, differences in found.items()}
    nearest = min(found, key=lambda recipe: len(found[recipe]))
    if found[nearest]:
        parts.append(f"unlike the paper's recipe {nearest} in {', '.join(found[nearest])}")
    else:
        parts.append(f"as the paper's recipe {nearest}")
    return "; ".join(parts) + "."


def _length(run: MeasuredRun) -> str:
    """How long was trained; of a stream, how it was learned, and where its pictures are."""
    if run.experiment in GENERATIONS:
        return generation_length(run)
    if (steps := run.setting("model.learn_steps")) is None:
        return f"epochs {run.setting('training.epochs')}"
    return (
        f"{run.setting('stream.num_tasks')} tasks, M = {run.setting('model.num_inducing')}, "
        f"{steps} Adam steps a task where inducing points are learned, plots in "
        f"{run.folder / 'plots'}"
    )


def _methods_of(run: MeasuredRun, comparison: Comparison) -> list[str]:
    rows = [row for group in comparison.groups for row in group.rows]
    return [
        row.method
        for row in rows
        if row.method is not None and any(run in cell.runs for cell in row.cells)
    ]


def _sizes(run: MeasuredRun, comparison: Comparison) -> str:
    """The paper's numbers of examples where ours are others."""
    groups = [group for group in comparison.table.groups if group.columns[0].data == run.data]
    paper = next((group.sizes for group in groups if group.sizes), {})
    other = [
        f"{run.facts[part]:,} {part} examples (paper: {size:,})"
        for part, size in paper.items()
        if part in run.facts and run.facts[part] != size
    ]
    return ", ".join(other)


def _sources(run: MeasuredRun, comparison: Comparison) -> str:
    cells = [c for group in comparison.groups for row in group.rows for c in row.cells]
    kinds = {(c.source or "").partition("/")[0] for c in cells if run in c.runs}
    found: list[str] = []
    corruptions = _shown(run.setting("evaluation.corruptions"))
    severities = _shown(run.setting("evaluation.severities"))
    if "shift" in kinds:
        found.append(
            f"corruptions made by the program, not the published files: {corruptions}, "
            f"at severities {severities}"
        )
    if "cifar-c" in kinds:
        found.append(f"published corruptions at severities {severities}")
    if "ood" in kinds:
        found.append(f"unknown sets: {', '.join(_outsides(run))}")
    return "; ".join(found)


def _outsides(run: MeasuredRun) -> list[str]:
    names = [name for metrics in run.metrics.values() for name in metrics]
    # ood/NAME/DETECTOR/METRIC, and a folder's path has slashes of its own.
    found = [name.rsplit("/", 2)[0].removeprefix("ood/") for name in names if name[:4] == "ood/"]
    return list(dict.fromkeys(found))


def _differences(run: MeasuredRun, recipe: str, methods: Sequence[str]) -> list[str]:
    bases = {method.partition("+")[0].partition("-")[0] for method in methods}
    theirs, ours = _flat(_RECIPES[recipe]().to_dict()), _flat(run.settings)
    found: list[str] = []
    for path, value in theirs.items():
        section = path.partition(".")[0]
        if path in _NOT_COMPARED or section in _SECTIONS_NOT_COMPARED or path not in ours:
            continue
        of_method = path.split(".")[1] if section == "warm_start" else section
        if of_method in _OF_METHODS and of_method not in bases:
            continue
        if ours[path] != value:
            found.append(f"{path} {_shown(ours[path])} ({_shown(value)})")
    return found


def _flat(settings: Mapping[str, Any]) -> dict[str, object]:
    # JSON has lists where the settings have tuples.
    return {k: list(v) if isinstance(v, tuple) else v for k, v in flatten(settings)}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} kinds" if len(value) > 5 else _listed(value)  # pyright: ignore[reportUnknownArgumentType]
    return str(value)


def _listed(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, Sequence) else str(values)  # pyright: ignore[reportUnknownArgumentType]


# What a table's numbers are made with, as one types it.
COMMANDS: Mapping[str, str] = {
    GENERATE: "probseq generate run",
    DIFFUSION: "probseq generate diffusion",
    HVAE: "probseq generate hvae",
}


def generation_parts(run: MeasuredRun, comparison: Comparison) -> list[str]:
    """What a note says of a run's images and samples."""
    parts: list[str] = []
    table = comparison.table
    # Where its images are none of the thesis', it stands in for those of the first data set.
    instead = run.data if run.data in table.data else table.data[0]
    size, channels = run.facts["image_size"], run.facts["channels"]
    theirs = SIZES.get(instead)
    side = "" if theirs is None or theirs[1] == size else f" (thesis: {_size(*theirs)})"
    parts.append(f"images of {_size(channels, size)}{side}")
    features = ", ".join(run.facts["features"])
    if table.experiment == HVAE:
        parts.append(f"scores are IS{features.removeprefix('FID').removeprefix('FD')}{_split(run)}")
    else:
        other = "" if features == "FID" else ", not FID"
        parts.append(f"distances are {features}{other}")
    if run.facts["samples"]:
        parts.append(f"{_counted(run.facts['samples'])} samples of each model")
    if run.facts["sampling"]:
        unit = "levels" if table.experiment == HVAE else "steps a frame or window"
        parts.append(f"sampling {', '.join(run.facts['sampling'])} {unit}")
    return parts


def generation_length(run: MeasuredRun) -> str:
    """How long each model was trained."""
    return f"{run.setting('training.steps'):,} optimizer steps a model"


def _size(channels: int, side: int) -> str:
    return f"{channels}x{side}x{side}"


def _split(run: MeasuredRun) -> str:
    splits = run.facts["splits"]
    return f" in {_counted(splits)} split{'' if splits == [1] else 's'}" if splits else ""


def _counted(numbers: list[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)
