"""Online Gaussian processes with river's habits, which is not needed to use them.

river's pipelines and evaluations take models of its classes: ``class Regressor(RiverRegressor,
river.base.Regressor): "Ours"`` makes one, and ``river.time_series.base.Forecaster`` likewise.

Experimental. Not in the papers.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from datetime import date
from numbers import Real
from statistics import NormalDist, fmean
from typing import Any

import numpy as np

from ohsvgp.bases import Fading
from ohsvgp.integrations.sklearn import OnlineGPRegressor, days
from probseq.checks import check_counts


class _FromFirsts:
    """Learns one row at a time; the first ones are kept until there are enough to fit to."""

    def __init__(self, regressor: OnlineGPRegressor | None, warmup: int) -> None:
        check_counts(warmup=warmup)
        self.regressor = regressor
        self.warmup = warmup
        self._model: OnlineGPRegressor | None = None
        self._firsts: list[tuple[list[float], float]] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}(regressor={self.regressor!r}, warmup={self.warmup})"

    def _make(self) -> OnlineGPRegressor:
        return OnlineGPRegressor() if self.regressor is None else self.regressor

    def _learn(self, row: list[float], y: Any) -> None:
        rows = [*self._firsts, (row, _number("y", y))]
        if self._model is None and len(rows) < self.warmup:
            self._firsts = rows
            return
        model = self._model or OnlineGPRegressor(**self._make().get_params())
        model.partial_fit([row for row, _ in rows], [y for _, y in rows])
        self._model, self._firsts = model, []

    def _predict(self, rows: list[list[float]]) -> list[NormalDist]:
        if self._model is None:
            seen = [y for _, y in self._firsts] or [0.0]
            centre = fmean(seen)
            spread = fmean([(y - centre) ** 2 for y in seen]) ** 0.5 or 1.0
            return [NormalDist(centre, spread)] * len(rows)
        pairs = zip(*self._model.predict(rows, return_std=True), strict=True)
        return [NormalDist(float(mean), float(std)) for mean, std in pairs]


class RiverRegressor(_FromFirsts):
    """Regressor on dicts of features, one at a time, like those of river (experimental).

    The features of the first dict, in the order of their names, are the columns of X, and every
    later dict has the same; they come in any order, a single one too, unless the regressor's
    ``kernel`` is one of times. Until ``warmup`` rows have come, predictions are mean and standard
    deviation of the targets so far, 0 and 1 without any.

    Args:
        regressor: what learns, copied before; None for ``OnlineGPRegressor()``.
        warmup: rows of the first batch, which y is scaled by and the hyperparameters are fitted to.

    Raises:
        ValueError: ``warmup`` below 1.

    Example:
        >>> from random import Random
        >>> from ohsvgp import RiverRegressor
        >>> model, random = RiverRegressor(warmup=30), Random(0)
        >>> for i in range(60):
        ...     a, b = random.gauss(0, 1), random.gauss(0, 1)
        ...     model.learn_one({"a": a, "b": b}, a + b + random.gauss(0, 0.1))
        >>> abs(model.predict_one({"a": 0.5, "b": 1.0}) - 1.5) < 0.2
        True
    """

    def __init__(self, regressor: OnlineGPRegressor | None = None, warmup: int = 50) -> None:
        super().__init__(regressor, warmup)
        self._features: list[Hashable] | None = None

    def learn_one(self, x: Mapping[Hashable, Any], y: Any) -> None:
        """Learn one observation.

        Args:
            x: numbers by the names of features.
            y: target; nothing is learned where it or a feature is None, which is missing.

        Raises:
            ValueError: no features, others than before, or values that are no finite numbers. The
                model is then as it was before.
        """
        features = self._ordered(x)
        if y is None or None in x.values():
            return
        self._learn(self._columns(_row(features, x)), y)
        self._features = features

    def predict_one(self, x: Mapping[Hashable, Any], with_dist: bool = False) -> float | NormalDist:
        """Return the mean of y, or its normal distribution, noise included.

        Args:
            x: numbers by the names of features.
            with_dist: whether to return the distribution.

        Raises:
            ValueError: other features than learned, or values that are no finite numbers.
        """
        y = self._predict([self._columns(_row(self._ordered(x), x))])[0]
        return y if with_dist else y.mean

    def _columns(self, row: list[float]) -> list[float]:
        """Return the columns of X: one alone would be time, and have an order."""
        of_time = self.regressor is not None and getattr(self.regressor.kernel, "dim", 2) == 1
        return row if len(row) > 1 or of_time else [*row, 0.0]

    def _ordered(self, x: Mapping[Hashable, Any]) -> list[Hashable]:
        return sorted(x, key=str) if self._features is None else self._features


class RiverForecaster(_FromFirsts):
    """Forecaster of a series, like those of river (experimental).

    The i-th target is at time i, or at the date or number in its dict, as river's evaluations hand
    it. Until ``warmup`` targets have come, forecasts are mean and
    standard deviation of the targets so far, 0 and 1 without any.

    Args:
        regressor: what learns, copied before; None for ``OnlineGPRegressor(basis=Fading(100))``.
            Its ``mean`` says what trends and seasons there are beyond the kernel's lengthscale.
        warmup: targets of the first batch, which y is scaled by and the hyperparameters are fitted
            to.

    Raises:
        ValueError: ``warmup`` below 1.

    Example:
        >>> from math import sin
        >>> from random import Random
        >>> from ohsvgp import RiverForecaster
        >>> model, random = RiverForecaster(warmup=60), Random(0)
        >>> for i in range(100):
        ...     model.learn_one(sin(i / 5) + random.gauss(0, 0.1))
        >>> abs(model.forecast(2)[1] - sin(101 / 5)) < 0.2
        True
    """

    def __init__(self, regressor: OnlineGPRegressor | None = None, warmup: int = 50) -> None:
        super().__init__(regressor, warmup)
        self._count = 0
        self._key: Hashable = None

    def learn_one(self, y: Any, x: Mapping[Hashable, Any] | None = None) -> None:
        """Learn the target of the next step.

        Args:
            y: target; None for a gap.
            x: its stamp by any name, a date or a number; None for equal steps.

        Raises:
            ValueError: y is no finite number, x holds no stamp, or other variables, from which
                nothing is learned, or some targets have a stamp and some none. The model is then as
                it was before.
        """
        time = self._time(x, self._count)
        if y is not None:
            self._learn([time], y)
        self._count += 1
        self._key = next(iter(x), None) if x else None

    def forecast(
        self,
        horizon: int,
        xs: Sequence[Mapping[Hashable, Any]] | None = None,
        with_dist: bool = False,
    ) -> list[float] | list[NormalDist]:
        """Return the means of the next targets, or their normal distributions, noise included.

        Args:
            horizon: number of steps ahead.
            xs: their stamps, where targets have some; else None.
            with_dist: whether to return the distributions.

        Raises:
            ValueError: ``horizon`` below 1, or xs that are not as many, or no stamps as before.
        """
        check_counts(horizon=horizon)
        if xs is not None and len(xs) != horizon:
            raise ValueError(f"xs must hold {horizon} stamps, got {len(xs)}")
        ahead = [None if xs is None else xs[i] for i in range(horizon)]
        ys = self._predict([[self._time(x, self._count + i)] for i, x in enumerate(ahead)])
        return ys if with_dist else [y.mean for y in ys]

    def _make(self) -> OnlineGPRegressor:
        return OnlineGPRegressor(basis=Fading(100)) if self.regressor is None else self.regressor

    def _time(self, x: Mapping[Hashable, Any] | None, index: int) -> float:
        """Return days since 1970 of a date, the number in x, or the index without x."""
        if self._count and (self._key is not None) != bool(x):
            wanted = "a stamp" if self._key is not None else "None"
            raise ValueError(f"x must be {wanted} as before, got {x}")
        if not x:
            return float(index)
        if len(x) > 1 or self._key not in (None, *x):
            raise ValueError(
                f"x must hold a stamp{'' if self._key is None else f' {self._key!r}'} alone, got "
                f"{dict(x)}: other variables are not learned from"
            )
        ((name, value),) = x.items()
        if isinstance(value, date | np.datetime64 | str):
            return float(days([value], f"x[{name!r}]")[0])
        return _number(f"x[{name!r}]", value)


def _row(features: list[Hashable], x: Mapping[Hashable, Any]) -> list[float]:
    if not features:
        raise ValueError("x must have features, got none")
    if set(x) != set(features):
        raise ValueError(f"x must have the features {features}, got {list(x)}")
    return [_number(f"x[{name!r}]", x[name]) for name in features]


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real | np.bool_) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)
