"""Which steps of a diffusion process are taken when it is walked in fewer (Nichol & Dhariwal)."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from operator import index
from typing import SupportsIndex

StepChoice = SupportsIndex | str | Sequence[SupportsIndex]
"""A number of steps, a number for each of several sections, or "ddimN"; see `spaced_steps`."""


def spaced_steps(num_steps: int, spec: StepChoice) -> tuple[int, ...]:
    """Steps of 0..S−1 that are kept, ascending, chosen as improved DDPM does.

    A number n, or "n", keeps n steps as evenly as whole numbers allow, the first and the last
    among them. Several numbers, as a sequence or "10,15,20", cut the process into that many
    sections of equal length and space each for itself. "ddimN" takes every k-th step from 0 on,
    with the smallest k that gives N steps: the last step kept then lies below S−1.

    Args:
        num_steps: S.
        spec: what to keep.

    Raises:
        ValueError: it leaves no step, asks for more than there are, cannot be read, or no stride
            gives N steps.
    """
    if isinstance(spec, str) and spec.startswith("ddim"):
        return _strided(num_steps, spec)
    counts = _counts(spec)
    if min(counts, default=0) < 1:
        raise ValueError(f"spec must leave at least one step in each section, got {spec!r}")
    kept: list[int] = []
    start = 0
    for section, count in enumerate(counts):
        # The first sections take what is left over.
        size = num_steps // len(counts) + (section < num_steps % len(counts))
        if count > size:
            raise ValueError(
                f"spec must ask for at most {size} steps of a section of {size}, got {spec!r}"
            )
        stride = (size - 1) / (count - 1) if count > 1 else 0.0
        place = 0.0
        for _ in range(count):
            kept.append(start + round(place))
            # Added up, not multiplied: on a tie the sum decides as improved DDPM's does.
            place += stride
        start += size
    return tuple(kept)


def check_timesteps(timesteps: tuple[int, ...], count: int, original_steps: int) -> None:
    """Refuse what is no choice of steps.

    Args:
        timesteps: the original number of each step.
        count: how many there must be.
        original_steps: of the original process.

    Raises:
        ValueError: they are not `count` ascending numbers below `original_steps`.
    """
    ascending = all(one < other for one, other in pairwise(timesteps))
    inside = timesteps[0] >= 0 and timesteps[-1] < original_steps if timesteps else False
    if len(timesteps) != count or not (ascending and inside):
        raise ValueError(
            f"timesteps must be {count} ascending numbers of 0..{original_steps - 1}, "
            f"got {timesteps}"
        )


def _strided(num_steps: int, spec: str) -> tuple[int, ...]:
    number = spec.removeprefix("ddim")
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"spec must be 'ddimN' with a whole number N of at least 1, got {spec!r}")
    for stride in range(1, num_steps + 1):
        steps = range(0, num_steps, stride)
        if len(steps) == int(number):
            return tuple(steps)
    raise ValueError(
        f"spec must be 'ddimN' with N steps at an even stride of {num_steps}, which {spec!r} is not"
    )


def _counts(spec: StepChoice) -> tuple[int, ...]:
    if isinstance(spec, str):
        words = [part.strip() for part in spec.split(",")]
        if all(word.isdecimal() for word in words):
            return tuple(map(int, words))
    else:
        parts = spec if isinstance(spec, Sequence) else (spec,)
        # True has an index, and is no number of steps.
        if not any(isinstance(part, bool) for part in parts):
            with suppress(TypeError):
                return tuple(map(index, parts))
    raise ValueError(
        f"spec must be whole numbers, as a string with commas between, or 'ddimN', got {spec!r}"
    )
