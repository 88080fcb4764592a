"""Checks of settings; importable without torch."""

import math
from dataclasses import fields
from typing import Any


def at_least(name: str, value: int, minimum: int) -> None:
    """Refuse a value that is not at least `minimum`.

    Raises:
        ValueError: names the setting.
    """
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def positive(name: str, value: float) -> None:
    """Refuse a value that is not positive and finite.

    Raises:
        ValueError: names the setting.
    """
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")


def not_negative(name: str, value: float) -> None:
    """Refuse a value that is not at least 0 and finite.

    Raises:
        ValueError: names the setting.
    """
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def unique(name: str, values: tuple[object, ...]) -> None:
    """Refuse a value that is not free of repetitions.

    Raises:
        ValueError: names the setting.
    """
    if len(set(values)) < len(values):
        raise ValueError(f"{name} must not repeat a value, got {' '.join(map(str, values))}")


def unlike_defaults(settings: Any) -> list[str]:
    """Names of those of some settings, a dataclass, that differ from their defaults."""
    default = type(settings)()
    names = [field.name for field in fields(settings)]
    return [name for name in names if getattr(settings, name) != getattr(default, name)]
