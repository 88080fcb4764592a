"""Live streams as forecasters of river (extra ``river``); experimental. Not in the papers.

Its ``compat.convert_sklearn_to_river`` takes an ``OnlineGPRegressor`` as a regressor.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from statistics import NormalDist, fmean, pstdev
from typing import TYPE_CHECKING, Any, Literal

from ohsvgp.integrations.live import LiveStream
from probseq.checks import check_counts
from probseq.errors import require

if TYPE_CHECKING:
    from river.time_series.base import Forecaster
else:
    Forecaster = require("river.time_series.base", extra="river", distribution="ohsvgp").Forecaster


class RiverForecaster(Forecaster):
    """Forecaster by a ``LiveStream`` in memory, which finds seasons and does not believe outliers.

    The i-th target is at time i, or at the date or number in its dict; None is a missing one. Until
    ``warmup`` lines have come forecasts have mean and standard deviation of the targets so far, 0
    and 1 without any. Its models are weighed by forecasts of up to 24 steps before.
    """

    def __init__(
        self,
        likelihood: Literal["gaussian", "poisson", "negative-binomial"] = "gaussian",
        seasons: Literal["auto"] | Sequence[float] | None = "auto",
        warmup: int = 20,
    ) -> None:
        self.likelihood, self.seasons, self.warmup = likelihood, seasons, warmup
        self._stream = LiveStream(likelihood=likelihood, seasons=seasons, warmup=warmup, horizon=24)
        self._count = 0
        self._names: list[Any] | None = None

    def learn_one(self, y: Any, x: Mapping[Any, Any] | None = None) -> None:
        """Learn the next target, at the stamp in x, of any name; None for equal steps."""
        value = "" if y is None else repr(_number("y", y))
        answer = self._stream.answer(f"{self._stamp(x, self._count)},{value}") or {}
        if "refused" in answer:
            raise ValueError(f"x and y must make a line of a stream: {answer['refused']}")
        self._count, self._names = self._count + 1, list(x or {})

    def forecast(
        self, horizon: int, xs: Sequence[Mapping[Any, Any]] | None = None, with_dist: bool = False
    ) -> list[float] | list[NormalDist]:
        """Return the means of the next targets, or their normal distributions, noise included."""
        check_counts(horizon=horizon)
        rows = [{}] * horizon if xs is None else xs
        if len(rows) != horizon:
            raise ValueError(f"xs must hold {horizon} stamps, got {len(rows)}")
        stamps = [self._stamp(x, self._count + i) for i, x in enumerate(rows)]
        targets = [y for _, y in self._stream.state.first_lines] or [0.0]
        early = [(fmean(targets), pstdev(targets) or 1.0)] * horizon
        ys = [NormalDist(*moments) for moments in self._stream.predict(stamps) or early]
        return ys if with_dist else [y.mean for y in ys]

    def _stamp(self, x: Mapping[Any, Any] | None, index: int) -> str:
        """Return the date or number in x as text, or the index without x."""
        names = list(x or {})
        if len(names) > 1 or names != (names if self._names is None else self._names):
            raise ValueError(f"x must be a stamp as before ({self._names}) and no more, got {x}")
        (value,) = (x or {"": index}).values()
        return repr(_number("x", value)) if isinstance(value, Real) else str(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)
