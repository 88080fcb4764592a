"""Arms of `probseq generate diffusion`, by their names; importable without torch."""

import re
from typing import NamedTuple

from probseq_apps.data.names import unknown_name_message
from probseq_apps.experiments.generate_groups import CorruptionName

# What stands behind "T-frame-" and makes the frames before the image.
CORRUPTION_OF: dict[str, CorruptionName] = {
    "first-order": "first-order-noise",
    "high-order": "high-order-noise",
    "matched": "matched-noise",
    "blur": "high-order-blur",
}
_NAME = re.compile(r"([1-9]\d*)-frame(?:-(.+))?")
# Lengths that the thesis has, for the list of names.
_LENGTHS = (4, 8)


class DiffusionArm(NamedTuple):
    """An image model, or a model of pseudo videos.

    Attributes:
        name: in tables and folders.
        frames: T; 1 for the image alone.
        corruption: what makes the frames before the image; None for one frame.
        diffusion_steps: of an arm that has its own number; None for that of all.
    """

    name: str
    frames: int
    corruption: CorruptionName | None
    diffusion_steps: int | None

    @property
    def is_video(self) -> bool:
        """Whether it has frames before the image."""
        return self.frames > 1


def diffusion_arm(name: str) -> DiffusionArm:
    """What an arm's name means.

    - ``1-frame``: the image model; ``1-frame-4000`` with 4,000 diffusion steps.
    - ``T-frame-first-order``, ``T-frame-high-order``, ``T-frame-matched`` (first-order noise at the
      levels of the high-order one), ``T-frame-blur`` (high-order blur), for any even T.

    Args:
        name: one of these.

    Raises:
        ValueError: the name is unknown, and the message suggests the nearest known one; or T is
            neither 1 nor even.
    """
    match = _NAME.fullmatch(name)
    if match is not None:
        frames, kind = int(match[1]), match[2]
        if frames == 1 and (kind is None or kind.isdecimal()):
            return DiffusionArm(name, 1, None, None if kind is None else _steps(name, int(kind)))
        if frames > 1 and kind in CORRUPTION_OF:
            if frames % 2:
                raise ValueError(
                    f"arms must have 1 frame or an even number, since the context is half of "
                    f"them, got {name!r}"
                )
            return DiffusionArm(name, frames, CORRUPTION_OF[kind], None)
    own = () if match is None or match[1] == "1" else (int(match[1]),)
    lengths = tuple(sorted({*_LENGTHS, *own}))
    known = ("1-frame", "1-frame-4000", *(f"{t}-frame-{k}" for t in lengths for k in CORRUPTION_OF))
    raise ValueError(unknown_name_message("arm", name, known))


def model_name(arm: str, seed: int) -> str:
    """Name of a model's folder and files."""
    return f"{arm}-seed{seed}"


def _steps(name: str, number: int) -> int:
    if number < 2:
        raise ValueError(f"arms must have at least 2 diffusion steps, got {name!r}")
    return number
