"""Checks of arguments that more than one module makes."""

import math
from typing import get_args


def check_choice(name: str, value: str, choices: object) -> None:
    """Refuse a value that is none of a ``Literal``'s.

    Raises:
        ValueError: ``value`` is unknown; the message lists the known ones.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {get_args(choices)}, got {value!r}")


def check_positive(**values: float) -> None:
    """Refuse values that are not positive and finite.

    Raises:
        ValueError: a value is not positive and finite; the message names it.
    """
    for name, value in values.items():
        if not (value > 0.0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_counts(**counts: object) -> None:
    """Refuse counts that are not whole numbers of at least 1.

    Raises:
        ValueError: a count is not a whole number of at least 1; the message names it.
    """
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_exact(regulariser: str, canonical_prior: str) -> None:
    """Refuse settings that mean nothing to ``conditional="exact"``.

    Raises:
        ValueError: ``regulariser`` or ``canonical_prior`` needs inducing values.
    """
    if regulariser == "jensen" or canonical_prior == "noisy":
        raise ValueError(
            "conditional='exact' has no inducing values: regulariser must be 'joint' or "
            "'marginals' and canonical_prior 'noise-free', got "
            f"{regulariser!r} and {canonical_prior!r}"
        )
