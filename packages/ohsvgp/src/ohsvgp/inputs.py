"""Time stamps, targets and masks of users, as tensors that the algebra can trust."""

from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Clock", "as_mask", "as_points", "as_targets", "nanoseconds"]

# What int64 nanoseconds since 1970 reach, in seconds.
_LAST_SECOND = np.iinfo(np.int64).max // 10**9


@dataclass(frozen=True)
class Clock:
    """Where time starts and what a unit of it is.

    Attributes:
        origin: t0, a float, or integer nanoseconds since 1970 for calendar stamps.
        unit: nanoseconds in a unit of time for calendar stamps; None for plain numbers.
    """

    origin: float | int
    unit: int | None = None

    def internal(self, t: Any, *, name: str = "t") -> Tensor:
        """Times since t0 in float64, shape (n,).

        Raises:
            ValueError: a calendar stamp where numbers are expected or the reverse; see ``stamps``.
        """
        values, calendar = stamps(t, name=name)
        if values.size and calendar != (self.unit is not None):
            kinds = ("calendar stamps", "numbers")
            raise ValueError(
                f"{name} must hold {kinds[calendar]} like the stamps before, "
                f"got {kinds[not calendar]}"
            )
        if self.unit is None:
            return torch.from_numpy(values - self.origin)
        return torch.from_numpy((values - self.origin) / self.unit)

    def user(self, length: float) -> float | np.datetime64:
        """The stamp that lies ``length`` after t0."""
        if self.unit is None:
            return self.origin + length
        return np.datetime64(round(self.origin + length * self.unit), "ns")


def start_clock(t: Any, time_unit: str, *, sort: bool = False) -> Clock:
    """A clock whose t0 is the first of the stamps.

    Args:
        t: stamps, at least one.
        time_unit: numpy's code of the unit ("s", "h", "D", "W") that calendar stamps count in.
        sort: take the earliest instead of the first.

    Raises:
        ValueError: see ``stamps``.
    """
    values, calendar = stamps(t, name="t")
    if values.size == 0:
        raise ValueError("t must hold at least one stamp where time starts, or give t0")
    first = values.min() if sort else values[0]
    if not calendar:
        return Clock(float(first))
    return Clock(int(first), nanoseconds(time_unit))


def nanoseconds(time_unit: str) -> int:
    """Length of a unit of time.

    Args:
        time_unit: numpy's code of it.

    Raises:
        ValueError: no such code, or a unit without a fixed whole number of nanoseconds.
    """
    try:
        length = int(np.timedelta64(1, time_unit) / np.timedelta64(1, "ns"))
    except TypeError as error:
        raise ValueError(
            f'time_unit must be a numpy code like "s", "m", "h", "D" or "W", got {time_unit!r}'
        ) from error
    if length < 1:
        raise ValueError(f"time_unit must be a nanosecond or longer, got {time_unit!r}")
    return length


def stamps(t: Any, *, name: str) -> tuple[np.ndarray, bool]:
    """Stamps as float64, or as integer nanoseconds if they are calendar stamps, and which it is.

    Args:
        t: torch tensor, numpy array, pandas series or index, list, or a single stamp; shape (n,).
            Calendar stamps are numpy's, pandas' or Python's, without a time zone.
        name: the argument's name for errors.

    Raises:
        ValueError: another shape, NaN, NaT, infinity, something that is no number or stamp, a
            stamp with a time zone, or one that nanoseconds since 1970 do not reach.
    """
    array = np.atleast_1d(t.detach().cpu().numpy() if isinstance(t, Tensor) else np.asarray(t))
    if array.ndim != 1:
        raise ValueError(
            f"{name} must have shape (n,), got {array.shape}: all series share their time stamps"
        )
    if array.dtype == object and all(isinstance(value, date) for value in array):
        if any(getattr(value, "tzinfo", None) is not None for value in array):
            raise ValueError(
                f"{name} must hold stamps without a time zone, got {array[0]}: "
                "convert them to UTC and drop the zone"
            )
        # By their text: numpy takes pandas' NaT in no other way.
        array = np.array([np.datetime64(str(value)) for value in array])
    if np.issubdtype(array.dtype, np.datetime64):
        if np.isnat(array).any():
            raise ValueError(
                f"{name} must hold dates, got NaT at position {_first(np.isnat(array))}"
            )
        beyond = np.abs(array.astype("datetime64[s]").astype(np.int64)) > _LAST_SECOND
        if beyond.any():
            raise ValueError(
                f"{name} must lie between the years 1678 and 2262, got {array[_first(beyond)]}: "
                "give numbers for what lies further away"
            )
        return array.astype("datetime64[ns]").astype(np.int64), True
    try:
        values = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must hold numbers or datetime64 stamps, got dtype {array.dtype}"
        ) from error
    if not np.isfinite(values).all():
        where = _first(~np.isfinite(values))
        raise ValueError(f"{name} must be finite, got {values[where]} at position {where}")
    return values, False


def as_points(x: Any, dim: int, like: Tensor) -> Tensor:
    """Inputs of several dimensions, shape (n, dim).

    Raises:
        ValueError: another shape, NaN or infinity.
    """
    points = _tensor(x, like, "x")
    if points.ndim != 2 or points.shape[-1] != dim:
        raise ValueError(
            f"x must have shape (n, {dim}), got {tuple(points.shape)}: "
            "the last dimension is the kernel's dim"
        )
    if not points.isfinite().all():
        raise ValueError(f"x must be finite, got {int((~points.isfinite()).sum())} NaN or infinite")
    return points


def as_targets(
    y: Any, count: int, mask: Tensor | None, like: Tensor, order: Tensor | None = None
) -> Tensor:
    """Targets of shape (*b, n), in the given order; those that the mask hides become zero.

    Raises:
        ValueError: another last dimension than ``count``, or NaN or infinity outside the mask.
    """
    targets = torch.atleast_1d(_tensor(y, like, "y"))
    if targets.shape[-1] != count:
        raise ValueError(
            f"y must have shape (..., {count}) for {count} inputs, got {tuple(targets.shape)}"
        )
    if order is not None:
        targets = targets[..., order]
    if mask is not None:
        targets = targets.masked_fill(~mask, 0.0)
    if not targets.isfinite().all():
        bad = int((~targets.isfinite()).sum())
        raise ValueError(
            f"y must be finite, got {bad} NaN or infinite values: pass mask= with False there, "
            'or missing="drop"'
        )
    return targets


def as_mask(mask: Any, y: Any, missing: str, like: Tensor) -> Tensor | None:
    """The mask that the user gave, or with missing="drop" the one that hides NaN; None for none.

    Raises:
        ValueError: both given, a mask that is not boolean or not of y's shape, another ``missing``.
    """
    if missing not in ("raise", "drop"):
        raise ValueError(f'missing must be "raise" or "drop", got {missing!r}')
    targets = torch.atleast_1d(_tensor(y, like, "y"))
    if mask is None:
        if missing == "raise":
            return None
        hidden = targets.isnan()
        return ~hidden if bool(hidden.any()) else None
    if missing == "drop":
        raise ValueError('mask and missing="drop" exclude each other: give one of them')
    chosen = torch.atleast_1d(torch.as_tensor(mask, device=like.device))
    if chosen.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True at points that count, got {chosen.dtype}")
    shape = targets.shape[targets.ndim - chosen.ndim :]
    if (
        chosen.ndim > targets.ndim
        or chosen.shape[-1:] != shape[-1:]
        or not all(own in (1, other) for own, other in zip(chosen.shape, shape, strict=True))
    ):
        raise ValueError(
            f"mask must have y's shape {tuple(targets.shape)}, got {tuple(chosen.shape)}"
        )
    return chosen


def check_sorted(times: Tensor) -> None:
    """Refuse stamps that go back.

    Raises:
        ValueError: names the first stamp that does.
    """
    back = times[1:] < times[:-1]
    if bool(back.any()):
        where = int(back.nonzero()[0, 0]) + 1
        raise ValueError(
            f"t must be sorted, got a stamp before its predecessor at position {where}: "
            "pass sort=True"
        )


def _tensor(value: Any, like: Tensor, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        try:
            value = torch.from_numpy(np.array(value, dtype=float))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be an array of numbers: {error}") from error
    return value.to(dtype=like.dtype, device=like.device)


def _first(flags: np.ndarray) -> int:
    return int(flags.argmax())
