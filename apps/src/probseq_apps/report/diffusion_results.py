"""Results of `probseq generate diffusion`: arms by their kind, and errors of single frames."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from probseq_apps.experiments.diffusion_arms import diffusion_arm
from probseq_apps.experiments.generate_groups import CorruptionName
from probseq_apps.report.arm_results import ArmGroup, Measure, Result, arms_of

BASE = "1-frame"
# Mean squared errors per pixel are told in thousandths.
PER_PIXEL = 1000.0
INTERMEDIATE = Measure(
    "Squared error of the intermediate frames, in thousandths", "", "lower", ("intermediate",)
)
LAST = Measure("Squared error of the image, in thousandths", "", "lower", ("last",))


class Arm(NamedTuple):
    """An arm of the comparison.

    Attributes:
        group: its results.
        frames: T.
        corruption: what makes the frames before the image; None for one frame.
    """

    group: ArmGroup
    frames: int
    corruption: CorruptionName | None


def diffusion_arms(results: Sequence[Result]) -> list[Arm]:
    """All arms, in order of appearance.

    Args:
        results: of all arms and seeds.

    Raises:
        ValueError: an arm's name is none of this comparison.
    """
    groups = [(group, diffusion_arm(group.name)) for group in arms_of(results)]
    return [Arm(group, arm.frames, arm.corruption) for group, arm in groups]


def frame_arms(results: Sequence[Result]) -> list[Arm]:
    """Errors of single frames as results of their own, for arms that have them.

    Each holds in thousandths: "model" and "exact" by frame, "intermediate" and
    "exact_intermediate", means over the frames before the image, and "last", the image's. What was
    not measured is None. The frames of an arm are those of its first seed in all seeds.

    Args:
        results: of all arms and seeds.
    """
    found: list[dict[str, Any]] = []
    for result in results:
        errors = result.get("frame_errors")
        if errors is None:
            continue
        frames = [int(frame) for frame in errors["frames"]]
        model = dict(zip(frames, errors["model"], strict=True))
        exact = dict(zip(frames, errors["exact"] or [None] * len(frames), strict=True))
        before = [frame for frame in frames if frame < result["frames"]]
        found.append(
            {
                **{key: result[key] for key in ("arm", "seed", "frames")},
                "num_images": errors["num_images"],
                "num_samples": errors["num_samples"],
                "model": {str(frame): _scaled([model[frame]]) for frame in frames},
                "exact": {str(frame): _scaled([exact[frame]]) for frame in frames},
                "intermediate": _scaled([model[frame] for frame in before]),
                "exact_intermediate": _scaled([exact[frame] for frame in before]),
                "last": _scaled([model.get(result["frames"])]),
            }
        )
    return diffusion_arms(found)


def frames_of(arm: Arm) -> list[int]:
    """Frames whose errors an arm of `frame_arms` has."""
    return [int(frame) for frame in arm.group.fact("model")]


def of_kind(arms: Sequence[Arm], frames: int, corruption: CorruptionName) -> ArmGroup | None:
    """Results of a kind of videos of one length; None where there are none.

    Args:
        arms: all.
        frames: T.
        corruption: what makes the frames before the image.
    """
    return next(
        (arm.group for arm in arms if arm.frames == frames and arm.corruption == corruption), None
    )


def lengths_of(arms: Sequence[Arm]) -> list[int]:
    """Lengths T of the videos, rising; the image alone is none."""
    return sorted({arm.frames for arm in arms if arm.frames > 1})


def total_steps(group: ArmGroup) -> int:
    """Denoising steps that make an image: those of a stage, times the stages of a video.

    The first C frames are one stage, each later frame is one.

    Args:
        group: results of an arm.
    """
    frames, context = group.fact("frames"), group.fact("context")
    stages = 1 if frames == 1 else frames - context + 1
    return stages * group.fact("generation", "sampling_steps")


def _scaled(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return PER_PIXEL * fmean(known) if known and len(known) == len(values) else None
