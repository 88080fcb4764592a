"""The arms of the comparison: videos of several lengths, and controls of equal bits."""

from collections.abc import Sequence
from typing import NamedTuple

from probseq_apps.experiments.generate_groups import CorruptionName
from probseq_apps.experiments.generate_prior_groups import ArmKind


class Arm(NamedTuple):
    """One way from images to tokens.

    Attributes:
        name: in tables and folders.
        kind: `frames` for a length of --frames, `repeat` for as many identical frames, `patch` for
            one frame in patches of half the side.
        frames: T.
        patch_size: side of a patch in pixels.
        corruption: what makes the frames.
    """

    name: str
    kind: ArmKind
    frames: int
    patch_size: int
    corruption: CorruptionName


def all_arms(
    frames: Sequence[int], patch_size: int, corruption: CorruptionName, *, controls: bool
) -> tuple[Arm, ...]:
    """Arms in the order of the tables.

    A video of T frames has T/2 slots of tokens, so it spends T/2 times the bits of its image. Two
    controls spend bits on the image alone: T identical frames have exactly the bits of the video;
    one frame in half patches has four times those of the image, which is exact for T = 8 only.

    Args:
        frames: lengths T; 1 for the image alone.
        patch_size: side of a patch in pixels.
        corruption: what makes the frames before the image.
        controls: add the controls, where there is a video to compare with.
    """
    arms: list[Arm] = []
    for number in frames:
        arms.append(Arm(f"{number}-frame", "frames", number, patch_size, corruption))
        if controls and number > 1 and corruption != "repeat":
            arms.append(Arm(f"{number}-frame-repeat", "repeat", number, patch_size, "repeat"))
    if controls and max(frames) > 1:
        half = patch_size // 2
        arms.append(Arm(f"1-frame-patch{half}", "patch", 1, half, corruption))
    return tuple(arms)


def run_name(arm: str, stem: str, seed: int) -> str:
    """Name of a tokenizer's folder and files."""
    return f"{arm}-{stem}-seed{seed}"


def prior_name(prior: str, arm: str, stem: str, seed: int) -> str:
    """Name of a prior's folder and files."""
    return f"{prior}-{run_name(arm, stem, seed)}"
