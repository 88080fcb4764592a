"""Settings of nested dataclasses from plain values."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def settings_from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """Build nested settings from plain values, as a run's `config.json` holds them.

    Args:
        cls: a dataclass of settings, whose groups are such classes, too.
        values: by name; what is left out keeps its default.

    Raises:
        ValueError: a key is unknown or a value is refused.
    """
    known = {item.name: item for item in fields(cls)}  # pyright: ignore[reportArgumentType]
    if unknown := sorted(values.keys() - known.keys()):
        raise ValueError(f"unknown settings {', '.join(unknown)}; known are {', '.join(known)}")
    kinds, built = get_type_hints(cls), dict[str, Any]()
    for name, value in values.items():
        kind = kinds[name]
        if isinstance(value, Mapping) and isinstance(kind, type):
            built[name] = settings_from_dict(kind, value)
        else:
            # JSON has lists where the settings have tuples.
            built[name] = tuple(value) if isinstance(value, list) else value
    return cls(**built)
