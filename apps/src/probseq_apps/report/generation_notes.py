"""How a run of `probseq generate` differs from the thesis: data, images, samples, features."""

from collections.abc import Mapping

from probseq_apps.report.compare import Comparison
from probseq_apps.report.measured import MeasuredRun
from probseq_apps.report.measured_generation import DIFFUSION, GENERATE, HVAE, SIZES

# What a table's numbers are made with, as one types it.
COMMANDS: Mapping[str, str] = {
    GENERATE: "probseq generate run",
    DIFFUSION: "probseq generate diffusion",
    HVAE: "probseq generate hvae",
}


def generation_parts(run: MeasuredRun, comparison: Comparison) -> list[str]:
    """What a note says of a run's images and samples.

    Args:
        run: of one of the three kinds.
        comparison: the table.
    """
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
        parts.append(f"{_listed(run.facts['samples'])} samples of each model")
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
    return f" in {_listed(splits)} split{'' if splits == [1] else 's'}" if splits else ""


def _listed(numbers: list[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)
