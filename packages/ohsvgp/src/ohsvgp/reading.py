"""What a user hands to an online Gaussian process, checked before anything is done with it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ohsvgp.inputs import Clock, as_mask, as_points, as_targets, check_sorted, stamps, start_clock
from ohsvgp.step import Data
from ohsvgp.window import next_length

if TYPE_CHECKING:
    from ohsvgp.predictions import Predictions

__all__ = ["Batch", "read_batch", "read_inputs"]


@dataclass(frozen=True, eq=False)
class Batch:
    """New observations as a model takes them.

    Attributes:
        clock: what tells times since t0.
        data: inputs, targets and mask.
        length: of the window after them; for points of several dimensions, their count.
        count: number of inputs absorbed after them.
    """

    clock: Clock
    data: Data
    length: float
    count: int


def read_inputs(model: "Predictions", t: Any) -> Tensor:
    """Inputs of a prediction, shape (n, dim); times are told since t0.

    Args:
        model: the model.
        t: times or points, in any order.

    Raises:
        ValueError: bad inputs.
    """
    like = model.kernel.raw_lengthscale
    if not model.of_time:
        return as_points(t, model.kernel.dim, like)
    empty = model.clock is None and len(stamps(t, name="t")[0]) == 0
    clock = model.clock or (Clock(0.0) if empty else start_clock(t, model.time_unit))
    return clock.internal(t).to(like)[:, None]


def read_batch(
    model: "Predictions",
    t: Any,
    y: Any,
    mask: Any = None,
    missing: str = "raise",
    sort: bool = False,
    t_end: Any = None,
) -> Batch:
    """Check and convert the arguments of ``OnlineGP.update``.

    Args:
        model: the model; it is left as it is.
        t: times or points.
        y: targets.
        mask: False at targets to be ignored.
        missing: "raise" or "drop".
        sort: whether to sort by time.
        t_end: where the window shall end at least.

    Raises:
        ValueError: as ``OnlineGP.update``.
    """
    like = model.kernel.raw_lengthscale
    old = model.state
    chosen = as_mask(mask, y, missing, like)
    if not model.of_time:
        if t_end is not None:
            raise ValueError(f"t_end must be left out for points of dim {model.kernel.dim}")
        if sort:
            raise ValueError(
                f"sort must be False for points of dim {model.kernel.dim}, which have no order in "
                "time: Path has rules for one"
            )
        x = as_points(t, model.kernel.dim, like)
        count = x.shape[0] + (0 if old is None else old.count)
        return Batch(Clock(0.0), _data(model, x, y, chosen, None), float(count), count)
    clock = model.clock or start_clock(t, model.time_unit, sort=sort)
    times = clock.internal(t)
    order = torch.argsort(times, stable=True) if sort else None
    times = times if order is None else times[order]
    check_sorted(times)
    if times.numel() and float(times[0]) < 0:
        raise ValueError(
            f"t must not lie before t0={clock.user(0.0)}, got {clock.user(float(times[0]))}: "
            "give the earliest possible stamp as t0 when the model is made"
        )
    end = None if t_end is None else _end(clock, t_end)
    last = float(times[-1]) if times.numel() else None
    length = next_length(model.growth, None if old is None else old.length, last, end)
    data = _data(model, times.to(like)[:, None], y, chosen, order)
    return Batch(clock, data, length, times.numel() + (0 if old is None else old.count))


def _end(clock: Clock, t_end: Any) -> float:
    ends = clock.internal(t_end, name="t_end")
    if ends.numel() != 1:
        raise ValueError(f"t_end must be one stamp, got {ends.numel()}")
    return float(ends[0])


def _data(
    model: "Predictions", x: Tensor, y: Any, mask: Tensor | None, order: Tensor | None
) -> Data:
    if order is not None and mask is not None:
        mask = mask[..., order]
    targets = as_targets(y, x.shape[0], mask, x, order)
    model.likelihood.check_targets(targets if mask is None else targets[mask.expand_as(targets)])
    if model.state is not None and model.state.site.shift.ndim > 1:
        series = model.state.site.shift.shape[:-1]
        if targets.shape[:-1] not in (series, ()):
            raise ValueError(
                f"y must have shape {(*series, x.shape[0])} like the series before, "
                f"got {tuple(targets.shape)}"
            )
    return Data(x, targets, mask)
