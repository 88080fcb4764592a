"""Checks of arguments that are no tensors, without torch; the errors name the argument."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import get_args


def check_choice(name: str, value: str, choices: object) -> None:
    """Refuse a value that is none of a ``Literal``'s."""
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {get_args(choices)}, got {value!r}")


def check_counts(**counts: object) -> None:
    """Refuse counts that are not whole numbers of at least 1."""
    for name, value in counts.items():
        if value is True or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_whole(**values: object) -> None:
    """Refuse what is no whole number, such as of a seed; any sign will do."""
    for name, value in values.items():
        if not isinstance(value, Integral):
            raise ValueError(f"{name} must be a whole number, got {value!r}")


def check_positive(**values: float | int) -> None:
    """Refuse values that are not positive and finite."""
    for name, value in values.items():
        if not isinstance(value, Real) or not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_not_negative(**values: float | int) -> None:
    """Refuse values that are negative, infinite or NaN."""
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")


def check_rates(**rates: float | int) -> None:
    """Refuse dropout rates outside [0, 1)."""
    for name, rate in rates.items():
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"{name} must be in [0, 1), got {rate!r}")


def check_shares(**shares: float) -> None:
    """Refuse shares and probabilities that are not above 0 and below 1."""
    for name, share in shares.items():
        if not isinstance(share, Real | int) or not 0.0 < share < 1.0:
            raise ValueError(f"{name} must be above 0 and below 1, got {share!r}")


def check_shape(**shapes: object) -> None:
    """Refuse what is no tuple of whole numbers of at least 0."""
    for name, shape in shapes.items():
        sizes = shape if isinstance(shape, tuple) else (None,)
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError(
                f"{name} must be a tuple of whole numbers of at least 0, got {shape!r}"
            )


def parse_number(text: str) -> float:
    """Read a finite number."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"a value must be a number, got {text!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"a value must be finite, got {text!r}")
    return number


def broadcastable(*shapes: Sequence[int]) -> bool:
    """Return whether tensors of these shapes broadcast against one another.

    Not ``torch.broadcast_shapes``, which imports sympy: seconds in the first call of a process.
    """
    for axis in range(1, max([len(shape) for shape in shapes]) + 1):
        size = 1
        for shape in shapes:
            if axis <= len(shape) and shape[-axis] != 1:
                if size not in (1, shape[-axis]):
                    return False
                size = shape[-axis]
    return True
