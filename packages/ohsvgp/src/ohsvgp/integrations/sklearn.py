"""Online Gaussian processes with scikit-learn's habits, which is not needed to use them.

Experimental. Not in the papers.
"""

import copy
import sys
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ohsvgp.bases import Cosine, PivotedCholesky
from ohsvgp.bases.base import Basis
from ohsvgp.beyond.means import Mean
from ohsvgp.hyperparameters import Refit
from ohsvgp.likelihoods import Gaussian, Likelihood, StudentT
from ohsvgp.online import OnlineGP
from ohsvgp.stream.arrays import as_array, as_targets, real_numbers
from ohsvgp.stream.clock import stamps
from probseq.checks import check_counts, check_whole
from probseq.kernels import RBF, Kernel, Walk


@dataclass(kw_only=True, eq=False)
class OnlineGPRegressor:
    """Regressor that learns batch by batch, as estimators of scikit-learn do (experimental).

    One column of X is time; several are points, in any order. Columns of dates count in days.
    Targets of shape (n, k) are k independent series under one prior. Arguments are stored as they
    are: ``fit`` copies them.

    Args:
        kernel: covariance of as many dimensions as X has columns; None for an RBF kernel with a
            lengthscale a column, which starts at the column's standard deviation, for times at a
            tenth of it, beside a ``Walk``.
        likelihood: observation model; None for Gaussian noise that starts at 0.1.
        basis: how inducing variables follow the data; None for ``Cosine(100)`` for times and for
            points ``PivotedCholesky(256)``, whose accuracy doesn't hang on the order of the rows.
        mean: of ``OnlineGP``.
        rebase: of ``OnlineGP``.
        alpha: of ``OnlineGP``, not the noise.
        normalize_y: whether y is centred and scaled by mean and standard deviation of the first
            batch, which ``kernel`` and ``likelihood`` then speak of.
        fit_steps: iterations at most of the fit of the hyperparameters to the first batch; 0 for
            none.
        random_state: seed of all that is random, a ``RandomState`` to draw it from, or None for
            another one each time.

    Attributes:
        gp_: the ``OnlineGP``, of normalised targets.
        n_features_in_: columns of X.
        feature_names_in_: their names; absent where X had none.
        y_mean_: what was taken from the targets, a number a series.
        y_scale_: what they were divided by then.

    Example:
        >>> import numpy as np
        >>> from ohsvgp import OnlineGPRegressor
        >>> X = np.linspace(0, 20, 200)[:, None]
        >>> y = np.sin(X[:, 0]) + np.random.default_rng(0).normal(scale=0.1, size=200)
        >>> model = OnlineGPRegressor().fit(X[:100], y[:100])
        >>> model.partial_fit(X[100:], y[100:]).score(X, np.sin(X[:, 0])) > 0.99
        True
    """

    kernel: Kernel | None = None
    likelihood: Likelihood | None = None
    basis: Basis | None = None
    mean: Mean | None = None
    rebase: str = "task"
    alpha: float = 0.1
    normalize_y: bool = True
    fit_steps: int = 50
    random_state: Any = 0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "OnlineGPRegressor":
        """Forget everything and learn a first batch.

        Args:
            X: inputs of shape (n, columns).
            y: targets of shape (n,) or (n, k).
            sample_weight: what the noise of each row is divided by, shape (n,), above 0; of
                Gaussian noise only.

        Raises:
            ValueError: bad shapes, NaN or infinity, ``normalize_y`` with a likelihood that is not
                of real targets, and what ``OnlineGP`` refuses. The model is then as it was before.
        """
        check_whole(fit_steps=self.fit_steps)
        seed = _seed(self.random_state)
        if self.fit_steps < 0:
            raise ValueError(f"fit_steps must be at least 0, got {self.fit_steps}")
        if self.normalize_y and not isinstance(self.likelihood, Gaussian | StudentT | None):
            kind = type(self.likelihood).__name__
            raise ValueError(f"normalize_y must be False with {kind}, got {self.normalize_y}")
        points = _points(X)
        targets = _targets(y, len(points))
        columns = points.shape[1]
        mean = targets.mean(dim=-1) if self.normalize_y else targets.new_zeros(targets.shape[:-1])
        deviation = _deviation("y", targets)
        scale = deviation.where((deviation > 0) & self.normalize_y, 1.0)
        spread = _deviation("X", points.T)
        spread = spread.where(spread > 0, 1.0)
        gp = OnlineGP(
            copy.deepcopy(self.kernel) or _kernel(points, spread),
            copy.deepcopy(self.likelihood) or Gaussian(0.1),
            self.basis or (Cosine(100) if columns == 1 else PivotedCholesky(256)),
            mean=copy.deepcopy(self.mean),
            rebase=self.rebase,
            alpha=self.alpha,
            # Equal targets say nothing of the hyperparameters.
            refit=Refit(steps=self.fit_steps) if self.fit_steps and deviation.any() else None,
            seed=seed,
        )
        _absorb(gp, points, (targets - mean[..., None]) / scale[..., None], sample_weight)
        self.gp_, self.y_mean_, self.y_scale_ = gp, mean.numpy(), scale.numpy()
        self.n_features_in_ = columns
        names = _names(X)
        if names is not None:
            self.feature_names_in_ = names
        else:
            vars(self).pop("feature_names_in_", None)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "OnlineGPRegressor":
        """Learn a batch beside those before; the first is ``fit``'s.

        Args:
            X: inputs of shape (n, columns); times not before the first.
            y: targets of shape (n,) or (n, k).
            sample_weight: as ``fit``'s.

        Raises:
            ValueError: as ``fit``, or X or y of another width than before.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, sample_weight)
        points = self._inputs(X)
        targets = _targets(y, len(points))
        if targets.shape[:-1] != self.y_mean_.shape:
            raise ValueError(
                f"y must have as many series as before, {self.y_mean_.size}, got shape "
                f"{np.shape(y)} and before {(len(points), *self.y_mean_.shape)}"
            )
        mean, scale = (torch.from_numpy(a)[..., None] for a in (self.y_mean_, self.y_scale_))
        _absorb(self.gp_, points, (targets - mean) / scale, sample_weight)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Return the mean of y, and if asked its standard deviation or covariance, noise included.

        Args:
            X: inputs of shape (n, columns).
            return_std: whether to return (mean, standard deviation), each of the mean's shape.
            return_cov: whether to return (mean, covariance), the latter of shape (n, n) or
                (n, n, k).

        Returns:
            Mean of shape (n,) or (n, k), or a pair.

        Raises:
            ValueError: not fitted, bad X, both options, or ``return_cov`` with a likelihood that is
                not of real targets.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other: ask for one of them")
        inputs = self._inputs(X)
        y = self.gp_.predict(_stamps(inputs), include_noise=True)
        mean = y.mean.numpy().T * self.y_scale_ + self.y_mean_
        if return_std:
            return mean, y.variance.sqrt().numpy().T * self.y_scale_
        if not return_cov:
            return mean
        if not isinstance(self.gp_.likelihood, Gaussian | StudentT):
            raise ValueError("return_cov must be False with a likelihood of other than real y")
        latent = self.gp_.predict(_stamps(inputs), full_cov=True).covariance
        # Cov y = Cov f + diag(Var y − Var f)
        noise = y.variance - latent.diagonal(dim1=-2, dim2=-1)
        covariance = latent + torch.diag_embed(noise)
        return mean, covariance.movedim((-2, -1), (0, 1)).numpy() * self.y_scale_**2

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Return draws of y, noise included, jointly over the inputs.

        Args:
            X: inputs of shape (n, columns).
            n_samples: S.
            random_state: as the model's.

        Returns:
            Draws of shape (n, S) or (n, k, S).

        Raises:
            ValueError: not fitted, bad X or S below 1.
        """
        check_counts(n_samples=n_samples)
        generator = torch.Generator().manual_seed(_seed(random_state))
        points = self._inputs(X)
        f = self.gp_.sample(_stamps(points), n_samples, generator)
        y = self.gp_.likelihood.sample(f, generator).movedim((-1, 0), (0, -1)).detach().numpy()
        return y * self.y_scale_[..., None] + self.y_mean_[..., None]

    def score(self, X: Any, y: Any) -> float:
        """Return R² = 1 − Σ(y − mean)² / Σ(y − ȳ)², averaged over series.

        Of a constant series 0, or 1 where it is predicted exactly, as scikit-learn has it.

        Args:
            X: inputs of shape (n, columns).
            y: targets of shape (n,) or (n, k).

        Raises:
            ValueError: not fitted, or bad X or y.
        """
        predicted = torch.from_numpy(self.predict(X).T.copy())
        targets = _targets(y, predicted.shape[-1])
        errors = (targets - predicted).square().sum(-1)
        spread = (targets - targets.mean(-1, keepdim=True)).square().sum(-1)
        constant = (targets == targets[..., :1]).all(-1)
        share = (errors / spread).where(~constant, (errors > 0).to(errors))
        return float((1 - share).mean())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments by name; ``deep`` changes nothing."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> "OnlineGPRegressor":
        """Replace arguments; what was learned stays until the next ``fit``.

        Raises:
            ValueError: a name that is no argument.
        """
        if unknown := params.keys() - self.get_params().keys():
            raise ValueError(f"params must be of {list(self.get_params())}, got {sorted(unknown)}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "gp_")

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn calls this: its classes are where it was loaded.
        utils = sys.modules["sklearn.utils"]
        return utils.Tags(
            estimator_type="regressor",
            target_tags=utils.TargetTags(required=True, multi_output=True),
            regressor_tags=utils.RegressorTags(),
        )

    def _inputs(self, X: Any) -> Tensor:
        if not self.__sklearn_is_fitted__():
            raise ValueError("X must come after fit or partial_fit: nothing has been learned yet")
        points = _points(X)
        # Columns in another order are other inputs, and nothing else would tell.
        names, expected = _names(X), getattr(self, "feature_names_in_", None)
        if names is not None and expected is not None and list(names) != list(expected):
            raise ValueError(
                f"X must have the columns {list(expected)} in this order, got {list(names)}"
            )
        if points.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {points.shape[1]} features, but OnlineGPRegressor is expecting "
                f"{self.n_features_in_} features as input"
            )
        return points


def _kernel(points: Tensor, spread: Tensor) -> Kernel:
    """Return the default, for times beside a level that wanders and that forecasts stay at."""
    if points.shape[1] > 1:
        return RBF(points.shape[1], lengthscale=spread)
    gaps = points[:, 0].unique().diff()
    step = gaps.median() if len(gaps) else spread[0]
    return RBF(1, lengthscale=spread / 10) + Walk(step=step, outputscale=0.1)


def _absorb(gp: OnlineGP, points: Tensor, targets: Tensor, sample_weight: Any) -> None:
    if sample_weight is None:
        gp.update(_stamps(points), targets, sort=gp.of_time)
        return
    weights = real_numbers(as_array(sample_weight, "sample_weight"), "sample_weight", "be numbers")
    if weights.shape != (len(points),):
        raise ValueError(f"sample_weight must have shape ({len(points)},), got {weights.shape}")
    if not (weights > 0).all():
        raise ValueError(f"sample_weight must be above zero, got {weights.min():g}: leave rows out")
    gp.update(_stamps(points), targets, sort=gp.of_time, weights=weights)


def _deviation(name: str, rows: Tensor) -> Tensor:
    """Return standard deviations of rows; 0 where they are round-off of equal numbers."""
    deviation = rows.std(dim=-1, correction=0)
    if not deviation.isfinite().all():
        raise ValueError(f"{name} must have a finite variance: give it in a larger unit")
    eps = torch.finfo(rows.dtype).eps * rows.shape[-1]
    return deviation.where(deviation > eps * rows.mean(dim=-1).abs(), 0.0)


def _stamps(points: Tensor) -> Tensor:
    """Return times of shape (n,) from one column, else the points."""
    return points[:, 0] if points.shape[1] == 1 else points


def _names(X: Any) -> np.ndarray | None:
    """Return names of a table's columns; None where it has none, or they are no texts."""
    names: list[Any] = list(getattr(X, "columns", ()))
    known = bool(names) and all(isinstance(name, str) for name in names)
    return np.asarray(names, dtype=object) if known else None


def _seed(random_state: Any) -> int:
    """Return a seed: the number, one drawn from a ``RandomState``, or another each time if None.

    Raises:
        ValueError: neither.
    """
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    check_whole(random_state=random_state)
    return int(random_state)


def days(column: Any, name: str) -> np.ndarray:
    """Return dates as days since 1970, shape (n,); numbers stay.

    Args:
        column: dates, of numpy, pandas or Python, or numbers.
        name: of the argument, for errors.

    Raises:
        ValueError: something else among them.
    """
    values, calendar = stamps(column, name=name)
    return values / 86_400e9 if calendar else values


def _points(X: Any) -> Tensor:
    wanted = "be a dense array of real numbers, not a sparse one"
    table = X
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        if any(getattr(kind, "kind", "") == "M" for kind in X.dtypes):
            table = np.stack([_numbers(X[name]) for name in X.columns], axis=-1)
    elif getattr(getattr(X, "dtype", None), "kind", "") == "M" and np.ndim(X) == 2:
        table = np.stack([days(column, "X") for column in np.asarray(X).T], axis=-1)
    points = torch.from_numpy(real_numbers(as_array(table, "X"), "X", wanted))
    if points.ndim != 2 or 0 in points.shape:
        raise ValueError(
            f"X must have shape (rows, columns), got {tuple(points.shape)}. Reshape your data with "
            "X.reshape(-1, 1) if it is times"
        )
    if not points.isfinite().all():
        raise ValueError(f"X must be finite, got {int((~points.isfinite()).sum())} NaN or infinite")
    return points


def _numbers(column: Any) -> np.ndarray:
    """Return a table's column as numbers: dates, with a zone too, as days."""
    return days(column, "X") if getattr(column.dtype, "kind", "") == "M" else column.to_numpy()


def _targets(y: Any, count: int) -> Tensor:
    """Return targets (n,) or (n, k) as series of shape (n,) or (k, n)."""
    array = real_numbers(as_array(y, "y"), "y", "be an array of real numbers")
    if array.ndim not in (1, 2) or len(array) != count or array.size == 0:
        raise ValueError(f"y must have shape ({count},) or ({count}, k), got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(
            f"y must be finite, got {int((~np.isfinite(array)).sum())} NaN or infinite"
        )
    return as_targets(
        np.ascontiguousarray(array.T), count, None, torch.empty(0, dtype=torch.float64)
    )
