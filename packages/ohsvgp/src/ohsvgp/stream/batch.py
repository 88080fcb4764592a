"""Inputs and targets of users, checked before anything is done with them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ohsvgp.stream.arrays import as_mask, as_points, as_targets, as_weights
from ohsvgp.stream.clock import Clock, sorted_times, stamps, start_clock
from ohsvgp.stream.window import next_length


class Data(NamedTuple):
    """New observations, checked."""

    x: Tensor  # inputs of shape (n, d), times counted from t0
    y: Tensor  # targets of shape (*b, n), zero where masked
    mask: Tensor | None = None  # True at points that count; None for all
    weights: Tensor | None = None  # what the noise of each target is divided by; None for one


@dataclass(frozen=True, eq=False)
class Batch:
    """New observations as a model takes them."""

    clock: Clock  # counts times from t0
    data: Data  # inputs, targets and mask
    length: float  # of the window after them; for points of several dimensions, their count
    count: int  # number of inputs absorbed after them

    def targets(self) -> Tensor:
        """Return the targets that count, in one dimension where some do not."""
        y, mask = self.data.y, self.data.mask
        return y if mask is None else y[mask.expand_as(y)]


@dataclass(frozen=True, eq=False)
class StreamReader:
    """Facts of a stream that the reading of its next inputs depends on."""

    dim: int  # dimensions of an input; inputs of one dimension are times
    like: Tensor  # gives dtype and device of the tensors
    time_unit: str  # unit of calendar stamps
    growth: float | None  # of the window, from ``ohsvgp.stream.window.growth_factor``
    clock: Clock | None  # counts times from t0; None before the first data
    length: float | None  # of the window; None before the first data
    count: int  # number of inputs absorbed
    series: tuple[int, ...]  # leading dimensions of the targets so far; () for one or none

    def inputs(self, t: Any) -> Tensor:
        """Return inputs of a prediction, times or points in any order: (n, dim), times from t0."""
        if self.dim != 1:
            return as_points(t, self.dim, self.like)
        empty = self.clock is None and len(stamps(t, name="t")[0]) == 0
        clock = self.clock or (Clock(0.0) if empty else start_clock(t, self.time_unit))
        return clock.internal(t).to(self.like)[:, None]

    def batch(
        self,
        t: Any,
        y: Any,
        *,
        mask: Any = None,
        missing: str = "raise",
        sort: bool = False,
        t_end: Any = None,
        weights: Any = None,
    ) -> Batch:
        """Check and convert the arguments of ``OnlineGP.update``; errors are said there."""
        chosen = as_mask(mask, y, missing, self.like)
        if self.dim != 1:
            if t_end is not None:
                raise ValueError(f"t_end must be left out for points of dim {self.dim}")
            if sort:
                raise ValueError(
                    f"sort must be False for points of dim {self.dim}, which have no order in "
                    "time: Path has rules for one"
                )
            x = as_points(t, self.dim, self.like)
            count = x.shape[0] + self.count
            return Batch(Clock(0.0), self._data(x, y, chosen, weights, None), float(count), count)
        clock = self.clock or start_clock(t, self.time_unit, sort=sort)
        times, order = sorted_times(clock, t, sort=sort)
        end = None if t_end is None else _end(clock, t_end)
        last = float(times[-1]) if times.numel() else None
        length = next_length(self.growth, self.length, last, end)
        data = self._data(times.to(self.like)[:, None], y, chosen, weights, order)
        return Batch(clock, data, length, times.numel() + self.count)

    def _data(
        self, x: Tensor, y: Any, mask: Tensor | None, weights: Any, order: Tensor | None
    ) -> Data:
        if order is not None and mask is not None:
            mask = mask[..., order]
        targets = as_targets(y, x.shape[0], mask, x, order)
        if self.series and targets.shape[:-1] not in (self.series, ()):
            raise ValueError(
                f"y must have shape {(*self.series, x.shape[0])} like the series before, "
                f"got {tuple(targets.shape)}"
            )
        if weights is not None:
            weights = as_weights(weights, targets, order)
        return Data(x, targets, mask, weights)


def _end(clock: Clock, t_end: Any) -> float:
    ends = clock.internal(t_end, name="t_end")
    if ends.numel() != 1:
        raise ValueError(f"t_end must be one stamp, got {ends.numel()}")
    return float(ends[0])
