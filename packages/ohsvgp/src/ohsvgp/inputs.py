"""Time stamps, targets and masks of users, as tensors that the algebra can trust."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Clock", "as_mask", "as_points", "as_targets"]

_NANOSECOND = np.timedelta64(1, "ns")


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
        if calendar != (self.unit is not None):
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
    return Clock(int(first), int(np.timedelta64(1, time_unit) / _NANOSECOND))


def stamps(t: Any, *, name: str) -> tuple[np.ndarray, bool]:
    """Stamps as float64, or as integer nanoseconds if they are calendar stamps, and which it is.

    Args:
        t: torch tensor, numpy array, pandas series or index, list, or a single stamp; shape (n,).
        name: the argument's name for errors.

    Raises:
        ValueError: another shape, NaN, NaT, infinity, or something that is no number or stamp.
    """
    array = np.atleast_1d(t.detach().cpu().numpy() if isinstance(t, Tensor) else np.asarray(t))
    if array.ndim != 1:
        raise ValueError(
            f"{name} must have shape (n,), got {array.shape}: all series share their time stamps"
        )
    if np.issubdtype(array.dtype, np.datetime64):
        if np.isnat(array).any():
            raise ValueError(
                f"{name} must hold dates, got NaT at position {_first(np.isnat(array))}"
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
    points = _tensor(x, like)
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
    targets = torch.atleast_1d(_tensor(y, like))
    if targets.shape[-1] != count:
        raise ValueError(
            f"y must have shape (..., {count}) for {count} inputs, got {tuple(targets.shape)}"
        )
    if order is not None:
        targets = targets[..., order]
    if mask is not None:
        shape = torch.broadcast_shapes(targets.shape, mask.shape)
        targets = targets.expand(shape).masked_fill(~mask.expand(shape), 0.0)
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
    targets = torch.atleast_1d(_tensor(y, like))
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
    if chosen.shape[-1:] != targets.shape[-1:] or chosen.ndim > targets.ndim:
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


def _tensor(value: Any, like: Tensor) -> Tensor:
    array = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value, dtype=float))
    return array.to(dtype=like.dtype, device=like.device)


def _first(flags: np.ndarray) -> int:
    return int(flags.argmax())
