"""Settings: frozen, checked by their types, and the same again when they come back from JSON.

Importing this module loads no torch, so that a command line can read settings at once.

Example:
    >>> from probseq.settings import Count, Rate, Settings
    >>> class Sizes(Settings):
    ...     depth: Count = 2
    ...     dropout: Rate = 0.1
    >>> Sizes(depth=0)
    Traceback (most recent call last):
    ValueError: depth must be a whole number of at least 1, got 0
    >>> Sizes.from_dict({"depths": 3})
    Traceback (most recent call last):
    ValueError: unknown setting 'depths': did you mean 'depth'?
    >>> Sizes(depth=3).differs_from(Sizes())
    {'depth': (3, 2)}
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    no_type_check,
)

__all__ = ["Bound", "Count", "Index", "NotNegative", "Positive", "Rate", "Settings", "Share"]


class Bound(NamedTuple):
    """A condition on a setting beyond its type, as metadata of ``Annotated``."""

    words: str  # text after "must be" in the error
    holds: Callable[[Any], bool]  # whether a value meets the condition


# Kinds of numbers that settings hold, each with what a refusal says of it.
Count = Annotated[int, Bound("a whole number of at least 1", lambda value: value >= 1)]
Index = Annotated[int, Bound("a whole number of at least 0", lambda value: value >= 0)]
Positive = Annotated[float, Bound("positive and finite", lambda value: value > 0)]
NotNegative = Annotated[float, Bound("finite and not negative", lambda value: value >= 0)]
Share = Annotated[float, Bound("in [0, 1]", lambda value: 0 <= value <= 1)]
Rate = Annotated[float, Bound("in [0, 1)", lambda value: 0 <= value < 1)]

# Not typing.Self: beartype, which checks signatures in the tests, knows it in whole classes only.
SettingsT = TypeVar("SettingsT", bound="Settings")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Settings:
    """Base of all settings: a subclass is a frozen dataclass whose fields are given by keyword.

    A field is annotated with ``bool``, ``int``, ``float``, ``str``, ``Literal[...]``, a subclass of
    ``Settings``, ``tuple[..., ...]`` of these, or ``... | None``; ``Annotated`` adds bounds. Whole
    numbers become floats where floats are asked, lists tuples, and mappings settings, so that what
    JSON gives back is what it was given; booleans are no numbers, and floats are finite.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)
        # Fields check themselves: checkers of annotations would refuse lists for tuples first.
        no_type_check(cls.__init__)

    def __post_init__(self) -> None:
        for name, kind in _annotations(type(self)).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, _fit(kind, value))
            except _MisfitError:
                raise ValueError(f"{name} must be {_words(kind)}, got {_text(value)}") from None
        for kind in reversed(type(self).__mro__):
            if "check" in vars(kind):
                kind.check(self)

    def check(self) -> None:
        """Refuse values that do not go together; after the bases' own, a subclass says which."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a plain dictionary, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[SettingsT], settings: Mapping[str, Any]) -> SettingsT:
        """Build from a dictionary, such as JSON gives back.

        A setting that is left out keeps its default.
        """
        defined = {item.name: item for item in fields(cls)}
        for name in settings:
            if name not in defined:
                near = get_close_matches(str(name), defined, n=1, cutoff=0.75)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(defined)}"
                raise ValueError(f"unknown setting {name!r}: {hint}")
        for name, item in defined.items():
            if name not in settings and item.default is item.default_factory is MISSING:
                raise ValueError(f"{name} must be given, got {sorted(settings)}")
        return cls(**settings)

    def differs_from(self: SettingsT, other: SettingsT) -> dict[str, tuple[Any, Any]]:
        """Return both values of the settings that differ, by name; dotted names inside groups."""
        differences: dict[str, tuple[Any, Any]] = {}
        for name in _annotations(type(self)):
            value, other_value = getattr(self, name), getattr(other, name)
            if isinstance(value, Settings) and type(value) is type(other_value):
                inside = value.differs_from(other_value)
                differences |= {f"{name}.{key}": values for key, values in inside.items()}
            elif value != other_value:
                differences[name] = (value, other_value)
        return differences


class _MisfitError(Exception):
    """A value is not what its annotation says."""


@cache
def _annotations(cls: type[Settings]) -> dict[str, Any]:
    """Return the annotations of the fields by name, with their bounds."""
    hints = get_type_hints(cls, include_extras=True)
    return {item.name: hints[item.name] for item in fields(cls)}


def _fit(kind: Any, value: Any) -> Any:
    """Return a value in the form that an annotation asks for, or raise a _MisfitError."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        value = _fit(arguments[0], value)
        if all(bound.holds(value) for bound in arguments[1:] if isinstance(bound, Bound)):
            return value
    elif origin in (Union, UnionType):
        for choice in arguments:
            with suppress(_MisfitError):
                return _fit(choice, value)
    elif origin is Literal:
        # Equal is not enough: True equals 1.
        if any(type(value) is type(choice) and value == choice for choice in arguments):
            return value
    elif origin is tuple:
        if isinstance(value, (tuple, list)):
            return tuple(_fit(arguments[0], item) for item in cast("Sequence[Any]", value))
    elif origin is int:
        if _is_number(value, Integral):
            return int(value)
    elif origin is float:
        with suppress(OverflowError):  # of a whole number that no float can hold
            if _is_number(value, Real) and math.isfinite(value):
                return float(value)
    elif issubclass(origin, Settings) and isinstance(value, Mapping):
        return origin.from_dict(cast("Mapping[str, Any]", value))
    elif isinstance(value, origin):
        return value
    raise _MisfitError


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _text(value: object) -> str:
    """Return a value as it is to be read in a refusal."""
    if isinstance(value, tuple | list):
        return ", ".join(map(repr, cast("Sequence[object]", value))) or "nothing"
    return repr(value)


_PLAIN = {
    NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
}


def _words(kind: Any) -> str:
    """Return the values that an annotation allows, in words."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        bounds = " and ".join(bound.words for bound in arguments[1:] if isinstance(bound, Bound))
        if bounds and get_origin(arguments[0]) is tuple:
            return f"{_words(arguments[0])}, {bounds}"
        return bounds or _words(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_words, arguments))
    if origin is Literal:
        return f"one of {arguments}"
    if origin is tuple:
        return f"a list, each entry {_words(arguments[0])}"
    if issubclass(kind, Settings):
        return "settings by their names"
    return _PLAIN.get(kind) or f"of type {kind.__name__}"
