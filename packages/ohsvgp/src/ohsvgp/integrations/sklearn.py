"""Online Gaussian processes as a scikit-learn estimator (extra ``sklearn``).

Experimental. Not in the papers.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ohsvgp.bases import Cosine, PivotedCholesky
from ohsvgp.bases.base import Basis
from ohsvgp.beyond.means import Mean
from ohsvgp.beyond.prior import make_mean
from ohsvgp.beyond.seasons import SeriesRow, choose_seasons, fixed_periods
from ohsvgp.hyperparameters import Refit
from ohsvgp.likelihoods import Gaussian, Likelihood, StudentT
from ohsvgp.online import OnlineGP
from ohsvgp.stream.clock import stamps
from probseq.checks import check_whole
from probseq.errors import require
from probseq.kernels import RBF, Kernel, Walk

if TYPE_CHECKING:
    from sklearn import base
    from sklearn.utils import validation
else:
    base = require("sklearn.base", extra="sklearn", distribution="ohsvgp")
    validation = require("sklearn.utils.validation", extra="sklearn", distribution="ohsvgp")


class OnlineGPRegressor(base.RegressorMixin, base.BaseEstimator):
    """Regressor that learns batch by batch (experimental).

    One column of X is time; several are points, in any order. Columns of dates count in days.
    Targets of shape (n, k) are k independent series under one prior.

    Args:
        kernel: covariance of as many dimensions as X has columns; None for an RBF kernel with a
            lengthscale a column, which starts at the column's standard deviation, for times at a
            tenth of it, beside a ``Walk``.
        likelihood: observation model; None for Gaussian noise that starts at 0.1.
        basis: how inducing variables follow the data; None for ``Cosine(100)`` for times and for
            points ``PivotedCholesky(256)``, whose accuracy doesn't hang on the order of the rows.
        seasons: periods that repeat beside the mean, in units of time, or "auto" for those of the
            first batch that ``LiveStream`` would choose; None for none.
        mean: of ``OnlineGP``, as are ``rebase`` and ``alpha``, which is not the noise.
        normalize_y: whether y is centred and scaled by mean and standard deviation of the first
            batch, which ``kernel`` and ``likelihood`` then speak of.
        fit_steps: iterations at most of a fit of the hyperparameters, to the first batch and to
            later ones that the model does not expect (``Refit("drift")``, but for bases that cannot
            follow); 0 for none.
        random_state: seed of all that is random, a ``RandomState`` to draw it from, or None for
            another one each time.

    Attributes:
        gp_: the ``OnlineGP``, of normalised targets.
        y_mean_: what was taken from the targets, a number a series.
        y_scale_: what they were divided by then.
    """

    def __init__(
        self,
        *,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
        basis: Basis | None = None,
        mean: Mean | None = None,
        seasons: Literal["auto"] | Sequence[float] | None = None,
        rebase: str = "task",
        alpha: float = 0.1,
        normalize_y: bool = True,
        fit_steps: int = 50,
        random_state: Any = 0,
    ) -> None:
        self.kernel, self.likelihood, self.basis, self.mean = kernel, likelihood, basis, mean
        self.rebase, self.alpha, self.normalize_y = rebase, alpha, normalize_y
        self.seasons, self.fit_steps, self.random_state = seasons, fit_steps, random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "OnlineGPRegressor":
        """Forget everything and learn a first batch; weights, above 0, divide Gaussian noise."""
        check_whole(fit_steps=self.fit_steps)
        if self.fit_steps < 0:
            raise ValueError(f"fit_steps must be at least 0, got {self.fit_steps}")
        if self.normalize_y and not isinstance(self.likelihood, Gaussian | StudentT | None):
            kind = type(self.likelihood).__name__
            raise ValueError(f"normalize_y must be False with {kind}, got {self.normalize_y}")
        points, targets, weights = self._read(X, y, sample_weight, reset=True)
        mean, deviation = targets.mean(-1, keepdim=True), _deviation("y", targets)
        scale = deviation.where((deviation > 0) & self.normalize_y, 1.0)[..., None]
        spread = _deviation("X", points.T)
        waves = make_mean(trend=False, season=_periods(points, targets, self.seasons))
        seed = self.random_state
        if not isinstance(seed, int):
            seed = int(validation.check_random_state(seed).randint(2**31 - 1))
        follows = self.basis is None or not self.basis.fixed_hyperparameters
        refit = Refit("drift" if follows else "first", self.fit_steps) if self.fit_steps else None
        gp = OnlineGP(
            copy.deepcopy(self.kernel) or _kernel(points, spread.where(spread > 0, 1.0)),
            copy.deepcopy(self.likelihood) or Gaussian(0.1),
            self.basis or (Cosine(100) if points.shape[1] == 1 else PivotedCholesky(256)),
            mean=copy.deepcopy(self.mean + waves if self.mean and waves else self.mean or waves),
            rebase=self.rebase,
            alpha=self.alpha,
            # Equal targets say nothing of the hyperparameters.
            refit=refit if deviation.any() else None,
            seed=seed,
        )
        mean = mean if self.normalize_y else torch.zeros_like(mean)
        gp.update(_times(points), (targets - mean) / scale, sort=gp.of_time, weights=weights)
        gp.refit = refit
        self.gp_, self.y_mean_, self.y_scale_ = gp, mean[..., 0].numpy(), scale[..., 0].numpy()
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "OnlineGPRegressor":
        """Learn a batch beside those before; the first is ``fit``'s, as are the arguments."""
        if not hasattr(self, "gp_"):
            return self.fit(X, y, sample_weight)
        points, targets, weights = self._read(X, y, sample_weight, reset=False)
        if targets.shape[:-1] != self.y_mean_.shape:
            raise ValueError(
                f"y must have as many series as before, {self.y_mean_.size}, got shape "
                f"{np.shape(y)}"
            )
        mean, scale = (torch.from_numpy(a)[..., None] for a in (self.y_mean_, self.y_scale_))
        gp = self.gp_
        gp.update(_times(points), (targets - mean) / scale, sort=gp.of_time, weights=weights)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the mean of y, and if asked its standard deviation, noise included."""
        validation.check_is_fitted(self)
        points = validation.validate_data(self, _numbers(X), reset=False, dtype=np.float64)
        y = self.gp_.predict(_times(torch.tensor(points)), include_noise=True)
        mean = y.mean.numpy().T * self.y_scale_ + self.y_mean_
        return (mean, y.variance.sqrt().numpy().T * self.y_scale_) if return_std else mean

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _read(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[Any, Tensor, Any]:
        """Return inputs (n, columns), targets as series (n,) or (k, n), and weights."""
        points, values = validation.validate_data(
            self, _numbers(X), y, reset=reset, dtype=np.float64, multi_output=True, y_numeric=True
        )
        targets = torch.tensor(np.asarray(values, np.float64).T)
        if sample_weight is not None:
            sample_weight = validation._check_sample_weight(sample_weight, points)  # pyright: ignore
            if not (sample_weight > 0).all():
                raise ValueError("sample_weight must be above zero: leave rows out")
        return torch.tensor(points), targets, sample_weight


def _kernel(points: Tensor, spread: Tensor) -> Kernel:
    """Return the default, for times beside a level that wanders and that forecasts stay at."""
    if points.shape[1] > 1:
        return RBF(points.shape[1], lengthscale=spread)
    gaps = points[:, 0].unique().diff()
    step = gaps.median() if len(gaps) else spread[0]
    return RBF(1, lengthscale=spread / 10) + Walk(step=step, outputscale=0.1)


def _periods(points: Tensor, targets: Tensor, seasons: Any) -> list[float]:
    """Return the periods of seasons, of "auto" those of greatest evidence in any series."""
    if (periods := fixed_periods(seasons)) is not None:
        return periods
    if points.shape[1] > 1:
        raise ValueError(f"seasons must be None for X of {points.shape[1]} columns, got 'auto'")
    times, order = points[:, 0].sort()
    step, choices = times.unique().diff().median(), [((), 0.0)]
    for y in targets.reshape(-1, len(times))[:, order]:
        rows = map(SeriesRow, ((times - times[0]) / step).tolist(), y.tolist())
        if (y > y.min()).any() and step > 0:
            floor = max(float(y.unique().diff().min()) ** 2 / 12, 1e-100)  # of rounding
            choices.append(choose_seasons([*rows], None, floor, None))
    return [float(step * period) for period in max(choices, key=lambda choice: choice[1])[0]]


def _deviation(name: str, rows: Tensor) -> Tensor:
    """Return standard deviations of rows; 0 where they are round-off of equal numbers."""
    deviation = rows.std(dim=-1, correction=0)
    if not deviation.isfinite().all():
        raise ValueError(f"{name} must have a finite variance: give it in a larger unit")
    eps = torch.finfo(rows.dtype).eps * rows.shape[-1]
    return deviation.where(deviation > eps * rows.mean(dim=-1).abs(), 0.0)


def _times(points: Tensor) -> Tensor:
    """Return times of shape (n,) from one column, else the points."""
    return points[:, 0] if points.shape[1] == 1 else points


def days(column: Any, name: str = "X") -> np.ndarray:
    """Return dates of numpy, pandas or Python, or as text, as days since 1970, shape (n,)."""
    values, calendar = stamps(column, name=name)
    return values / 86_400e9 if calendar else values


def _numbers(X: Any) -> Any:
    """Return a table or an array with days in place of dates."""
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        kinds = {name: X[name].dtype for name in X.columns}  # of pandas' periods with "freq"
        dates = [n for n, t in kinds.items() if getattr(t, "kind", "") == "M" or hasattr(t, "freq")]
        return X.assign(**{name: days(X[name]) for name in dates}) if dates else X
    if getattr(getattr(X, "dtype", None), "kind", "") == "M" and np.ndim(X) == 2:
        return np.stack([days(column) for column in np.asarray(X).T], axis=-1)
    return X
