"""Online Gaussian processes as models of river (extra ``river``); experimental. Not in the papers.

Until ``warmup`` targets have come, predictions are mean and standard deviation of the targets so
far, 0 and 1 without any. These targets are the first batch, which y is scaled by. Hyperparameters
are fitted to them, and to as many latest ones whenever so many have come since, or one that is not
expected. None as a target or a feature is missing: nothing is learned.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Real
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from ohsvgp.bases import Fading
from ohsvgp.integrations.sklearn import OnlineGPRegressor, days
from probseq.checks import check_counts
from probseq.errors import CholeskyError, require

if TYPE_CHECKING:
    from river.base import Regressor
    from river.time_series.base import Forecaster
else:
    Regressor = require("river.base", extra="river", distribution="ohsvgp").Regressor
    Forecaster = require("river.time_series.base", extra="river", distribution="ohsvgp").Forecaster


class _OneByOne:
    """Learns rows one at a time, the first ones at once."""

    def __init__(self, regressor: OnlineGPRegressor | None = None, warmup: int = 50) -> None:
        check_counts(warmup=warmup)
        self.regressor, self.warmup = regressor, warmup
        self._names: list[Any] | None = None
        self._model: OnlineGPRegressor | None = None
        # Not yet learned, and since then those that no fit has had.
        self._latest: list[tuple[list[float], float]] = []

    def _learn(self, row: list[float], y: Any, default: OnlineGPRegressor) -> None:
        rows = [*self._latest, (row, _number("y", y))]
        full = len(rows) >= self.warmup
        if self._model is not None:
            self._model.partial_fit([row], [rows[-1][1]])
            if full:
                with suppress(CholeskyError):  # the row is learned in any case
                    self._model.fit_hyperparameters(*zip(*rows, strict=True))
        elif full:
            model = OnlineGPRegressor(**(self.regressor or default).get_params())
            self._model = model.partial_fit(*zip(*rows, strict=True))
        self._latest = [] if full else rows

    def _predict(self, rows: list[list[float]]) -> list[NormalDist]:
        if self._model is None:
            targets = [y for _, y in self._latest] or [0.0]
            centre = fmean(targets)
            spread = fmean([(y - centre) ** 2 for y in targets]) ** 0.5 or 1.0
            return [NormalDist(centre, spread)] * len(rows)
        pairs = zip(*self._model.predict(rows, return_std=True), strict=True)
        return [NormalDist(float(mean), float(std)) for mean, std in pairs]


class RiverRegressor(_OneByOne, Regressor):
    """Regressor on dicts of numbers, which all have the same names.

    ``regressor`` is copied before it learns; None for ``OnlineGPRegressor()``.
    """

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Learn the target at numbers by the names of features."""
        if y is not None and None not in x.values():
            self._learn(self._row(x), y, OnlineGPRegressor())
            self._names = sorted(x, key=str)

    def predict_one(self, x: Mapping[Any, Any], with_dist: bool = False) -> Any:
        """Return the mean of y, or its normal distribution, noise included."""
        y = self._predict([self._row(x)])[0]
        return y if with_dist else y.mean

    def _row(self, x: Mapping[Any, Any]) -> list[float]:
        names = sorted(x, key=str)
        if not names or names != (self._names or names):
            raise ValueError(f"x must have the features {self._names or ''}, got {names}")
        row = [_number(f"x[{name!r}]", x[name]) for name in names]
        # A column alone would be time, which has an order.
        of_time = self.regressor is not None and getattr(self.regressor.kernel, "dim", 2) == 1
        return row if len(row) > 1 or of_time else [*row, 0.0]


class RiverForecaster(_OneByOne, Forecaster):
    """Forecaster of a series whose i-th target is at time i, or at the date or number in its dict.

    ``regressor`` is copied before it learns; None for ``OnlineGPRegressor(basis=Fading(100))``. Its
    ``mean`` says what trends and seasons there are beyond the kernel's lengthscale.
    """

    _count = 0

    def learn_one(self, y: Any, x: Mapping[Any, Any] | None = None) -> None:
        """Learn the next target, at the stamp in x, of any name; None for equal steps."""
        time = self._time(x, self._count)
        if y is not None:
            self._learn([time], y, OnlineGPRegressor(basis=Fading(100)))
        self._count, self._names = self._count + 1, list(x or {})

    def forecast(
        self, horizon: int, xs: Sequence[Mapping[Any, Any]] | None = None, with_dist: bool = False
    ) -> list[float] | list[NormalDist]:
        """Return the means of the next targets, or their normal distributions, noise included."""
        check_counts(horizon=horizon)
        stamps = [{}] * horizon if xs is None else xs
        if len(stamps) != horizon:
            raise ValueError(f"xs must hold {horizon} stamps, got {len(stamps)}")
        ys = self._predict([[self._time(x, self._count + i)] for i, x in enumerate(stamps)])
        return ys if with_dist else [y.mean for y in ys]

    def _time(self, x: Mapping[Any, Any] | None, index: int) -> float:
        """Return days since 1970 of a date, the number in x, or the index without x."""
        names = list(x or {})
        if len(names) > 1 or names != (names if self._names is None else self._names):
            raise ValueError(f"x must be a stamp as before ({self._names}) and no more, got {x}")
        if not names:
            return float(index)
        ((name, value),) = (x or {}).items()
        date = not isinstance(value, Real)
        return _number(f"x[{name!r}]", days([value], f"x[{name!r}]")[0] if date else value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real | np.bool_) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)
