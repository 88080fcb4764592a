"""Streams of several outputs with covariance between them: intrinsic coregionalisation.

Not in the papers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohsvgp.bases.base import Basis
from ohsvgp.beyond.forecasts import Forecast, forecast
from ohsvgp.exact import log_marginal_likelihood
from ohsvgp.fitting import MAX_EXACT
from ohsvgp.hyperparameters import FitInfo, Refit, fit
from ohsvgp.likelihoods import Gaussian
from ohsvgp.likelihoods.quantiles import probabilities
from ohsvgp.limits import Limits, data_limits
from ohsvgp.online import OnlineGP
from ohsvgp.state import OnlineState, UpdateInfo
from ohsvgp.stream.arrays import as_real
from probseq.errors import CholeskyError
from probseq.gaussians import Gaussian as JointGaussian
from probseq.kernels import Constant, Kernel, Product

# Of an output's mean square: noise that its prior keeps.
_NOISE_SHARE = 1e-6
# Of the precision of a series: what an output that says nothing of it adds.
_MIN_PRECISION = 1e-12


class MultiOutputGP:
    """Sparse Gaussian process with D outputs y(t) = f(t) + ε that learns from a stream.

    The prior is that of intrinsic coregionalisation, cov[f(s), f(t)] = B k(s, t), the noise is
    ε ~ N(0, Σ). With the eigenvalues d and eigenvectors U of L⁻¹BL⁻ᵀ, Σ = LLᵀ, and V = LU,

        B = V diag(d) Vᵀ,    Σ = V Vᵀ,    z = V⁻¹y,

    the z_j are independent series with prior d_j k(s, t) and noise of variance one: an ``OnlineGP``
    of D series learns them, in closed form and at their cost, O(D M³) a move of the window in place
    of the dense O(D³M³). Where some outputs of a stamp are missing, those that are there tell of
    several z at once: their posterior has the right means and variances, and is then taken
    for independent, by observations of each z whose noise leads to these (assumed density).

    Args:
        kernel: k, without batch dimensions; converted to float64 in place.
        covariance: B, shape (D, D), positive definite, e.g. AAᵀ + diag(v).
        noise: Σ, shape (D, D), or variances, one number or of shape (D,).
        basis: as in ``OnlineGP``, as are the options but ``mean``, ``inference`` and ``refit``.
        **options: of ``OnlineGP``.

    Raises:
        ValueError: as ``OnlineGP``; a kernel with batch dimensions, matrices of other shapes, or
            which are not symmetric and positive definite.

    Example:
        >>> import torch
        >>> from ohsvgp import LegS, MultiOutputGP
        >>> from probseq.kernels import RBF
        >>> t = torch.linspace(0.0, 10.0, 100)
        >>> y = torch.stack([t.sin(), t.sin() + 0.1 * t.cos()], dim=-1)  # (100, 2)
        >>> B = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
        >>> gp = MultiOutputGP(RBF(1), B, 0.01, LegS(20))
        >>> info = gp.update(t, y)
        >>> f = gp.predict(t[:5])
        >>> f.mean.shape, f.covariance.shape
        (torch.Size([5, 2]), torch.Size([5, 2, 2]))
    """

    def __init__(
        self,
        kernel: Kernel,
        covariance: Any,
        noise: Any,
        basis: Basis,
        **options: Any,
    ) -> None:
        if refused := sorted({"mean", "inference", "refit", "likelihood"} & options.keys()):
            raise ValueError(f"options must leave out what one output alone has, got {refused}")
        if kernel.batch_shape:
            raise ValueError(f"kernel must have no batch dimensions, got {kernel.batch_shape}")
        B = _positive_definite("covariance", as_real(covariance, kernel.like, "covariance"))
        Sigma = as_real(noise, kernel.like, "noise").double()
        if Sigma.ndim < 2:
            if Sigma.ndim and Sigma.shape != B.shape[:1]:
                raise ValueError(
                    f"noise must be a number, of shape ({len(B)},) or ({len(B)}, {len(B)}), "
                    f"got {tuple(Sigma.shape)}"
                )
            Sigma = torch.diag(Sigma.expand(len(B)))
        Sigma = _positive_definite("noise", Sigma)
        if Sigma.shape != B.shape:
            raise ValueError(
                f"noise must be of shape {tuple(B.shape)} like covariance, got {tuple(Sigma.shape)}"
            )
        # L⁻¹ B L⁻ᵀ = U diag(d) Uᵀ;   V⁻¹ = Uᵀ L⁻¹.
        L = torch.linalg.cholesky(Sigma)
        inner = torch.linalg.solve_triangular(L, B, upper=False)
        inner = torch.linalg.solve_triangular(L, inner.mT, upper=False)
        d, U = torch.linalg.eigh(0.5 * (inner + inner.mT))
        if not bool((d > 0).all()):
            raise ValueError(f"covariance must be positive definite, got eigenvalues {d.tolist()}")
        scales = Constant(kernel.dim, batch_shape=(len(B),), outputscale=d).to(B)
        self._mixed = _MixedNoise(torch.linalg.solve_triangular(L.mT, U, upper=True).mT)
        self.gp = OnlineGP(Product(scales, kernel), self._mixed, basis, **options)
        self._scales = scales

    @property
    def covariance(self) -> Float[Tensor, "d d"]:
        """Return B = V diag(d) Vᵀ."""
        V = self._mixed.mixing()
        return ((V * self._scales.outputscale) @ V.mT).detach()

    @property
    def noise(self) -> Float[Tensor, "d d"]:
        """Return Σ = V Vᵀ."""
        V = self._mixed.mixing()
        return (V @ V.mT).detach()

    @property
    def state(self) -> OnlineState | None:
        """Return what is remembered of the series z; None before the first update."""
        return self.gp.state

    def update(
        self, t: Any, y: Any, *, missing: Literal["raise", "drop"] = "raise", **options: Any
    ) -> UpdateInfo:
        """Absorb new observations; ``partial_fit`` is the same.

        Args:
            t: as in ``OnlineGP.update``.
            y: targets of shape (n, D).
            missing: what NaN in y means: an error, or a gap ("drop").
            **options: ``sort`` and ``t_end`` of ``OnlineGP.update``.

        Returns:
            The energy is that of y, summed over outputs, and what is lost is of each series z.

        Raises:
            ValueError: as ``OnlineGP.update``.
        """
        z, rows = self._series(y, missing)
        info = self.gp.update(t, z, mask=rows, **options)
        count = z.shape[-1] if rows is None else int(rows.sum())
        # log p(y) = Σ_j log p(z_j) − n log|V|.
        energy = info.energy.sum() - count * self._mixed.log_det().detach()
        for stamp, outputs in self._incomplete(t, y) if rows is not None else ():
            energy = energy + self._absorb_incomplete(stamp, outputs)
        return info._replace(energy=energy)

    partial_fit = update

    def _incomplete(self, t: Any, y: Any) -> Iterator[tuple[Any, Tensor]]:
        """Yield stamps of which some outputs are missing, and the outputs, NaN where they are."""
        outputs, x = as_real(y, self.gp.kernel.like, "y").double(), self.gp.inputs(t)
        some = outputs.isnan().any(-1) & ~outputs.isnan().all(-1)
        for index in some.nonzero()[:, 0].tolist():
            yield self.gp.user_inputs(x[index : index + 1]), outputs[index]

    def _absorb_incomplete(self, stamp: Any, y: Tensor) -> Tensor:
        """Learn a stamp with some outputs, and return their log density."""
        latent, V = self.gp.predict(stamp), self._mixed.mixing().detach()
        mean, variance = latent.mean[:, 0].double(), latent.variance[:, 0].double()
        observed = ~y.isnan()
        # The outputs observed are A z + ε, cov ε = A Aᵀ; S is their covariance.
        A = V[observed]
        S = (A * variance) @ A.mT + A @ A.mT
        error = y[observed] - A @ mean
        # Of z given these: gain cov z Aᵀ S⁻¹, variances of the posterior.
        gain = torch.linalg.solve(S, A * variance).mT
        new = variance - (gain * (A * variance).mT).sum(-1)
        # Observations of each z alone that lead to the same means and variances.
        precision = (1 / new - 1 / variance).clamp_min(_MIN_PRECISION / variance)
        target = mean + gain @ error / (new * precision)
        self.gp.update(stamp, target[:, None], weights=precision[:, None])
        return JointGaussian(y.new_zeros(len(error)), S).log_prob(error)

    def fit_hyperparameters(
        self,
        t: Any,
        y: Any,
        *,
        missing: Literal["raise", "drop"] = "raise",
        steps: int = 100,
        priors: Mapping[str, tuple[float, float]] | None = None,
        restarts: int = 0,
        limited: bool = True,
    ) -> FitInfo:
        """Fit kernel, B and Σ to data, without absorbing them; B and Σ only before the first.

        Before the first update by the exact evidence, over V, d and the kernel, of at most 2000
        stamps. Later by the online energy over d and the kernel: V stays, as what is remembered
        is of series that it defines. Only the product of B and k's variance is determined.

        Args:
            t: as in ``update``; so are y and missing.
            y: targets.
            missing: what NaN in y means; stamps of which some outputs are missing do not count.
            steps: of ``OnlineGP.fit_hyperparameters``, as are the next ones.
            priors: of parameters of the kernel, by their names in ``gp.gp.kernel``.
            restarts: further starts.
            limited: as in ``OnlineGP.fit_hyperparameters``. B and Σ of the first fit are then
                searched in units of the outputs' root mean squares, with a prior
                exp(−½ψ tr Σ⁻¹), ψ of n stamps n · 1e-6 there, which keeps the noise of outputs that
                are the same from vanishing.

        Raises:
            ValueError: as ``OnlineGP.fit_hyperparameters``; more than 2000 stamps before the first
                update.
        """
        z, rows = self._series(y, missing)
        if self.gp.state is not None:
            search: dict[str, Any] = {"steps": steps, "priors": priors, "restarts": restarts}
            return self.gp.fit_hyperparameters(t, z, mask=rows, limited=limited, **search)
        options = Refit(steps=steps, priors=priors, restarts=restarts)
        count = z.shape[-1] if rows is None else int(rows.sum())
        if count > MAX_EXACT:
            raise ValueError(f"t must hold at most {MAX_EXACT} stamps to fit first, got {count}")
        x, outputs = self.gp.inputs(t), self._mixed.mixing().detach() @ z
        if rows is not None:
            x, outputs = x[rows], outputs[:, rows]
        kernel, mixed, scales = self.gp.kernel, self._mixed, self._scales
        unit, ridge, limits = torch.ones_like(outputs[:, :1]), 0.0, None
        if limited:
            square = outputs.square().mean(-1, keepdim=True)
            unit = square.where(square > 0, self.covariance.diagonal()[:, None]).sqrt()
            ridge = _NOISE_SHARE * count
            limits = data_limits(kernel, mixed, x, outputs / unit)
            del limits["likelihood.unmixing"]  # no logarithm
            like = scales.outputscale.detach()
            ratios = Limits(torch.full_like(like, 1e-4), torch.full_like(like, 1e7))
            name = next(n for n, p in kernel.named_parameters() if p is scales.raw_outputscale)
            limits[f"kernel.{name}"] = Limits(
                torch.minimum(ratios.low, like), torch.maximum(ratios.high, like)
            )
        scaled = outputs / unit

        def evidence(ridge: float = ridge) -> Tensor:
            # Σ_j log N(z_j; 0, d_j K + I) − n log|V|, of outputs in their units: V there is V/unit.
            series = mixed.unmixing @ scaled
            log_prob = log_marginal_likelihood(kernel, mixed.noise, x, series).sum()
            log_det = mixed.log_det() + unit.log().sum()
            return log_prob - count * log_det - 0.5 * ridge * mixed.unmixing.square().sum()

        before, held = -math.inf, [*kernel.parameters(), mixed.unmixing]
        values = [parameter.detach().clone() for parameter in held]
        try:
            with torch.no_grad():
                mixed.unmixing.mul_(unit.mT)
                far = (mixed.unmixing @ scaled).square().mean(-1) / (1 + scales.outputscale)
                with suppress(CholeskyError):
                    before = float(evidence(0.0))
                if limited and bool(((far < 1e-3) | (far > 1e3)).any() | math.isinf(before)):
                    # In the data's units: signals ten times their noise.
                    mixed.unmixing.copy_(math.sqrt(10.0) * torch.eye(len(unit)))
                    scales.raw_outputscale.fill_(math.log(10.0))
                if limited and int(mixed.unmixing.count_nonzero()) == len(unit):
                    # From independent outputs searches end at long lengthscales of huge variances.
                    turn = torch.eye(len(unit)).index_fill(1, torch.tensor(0), 1.0).to(unit)
                    mixed.unmixing.copy_(torch.linalg.qr(turn).Q.mT @ mixed.unmixing)
            mixed.unmixing.requires_grad_(True)
            info = fit(
                kernel,
                mixed,
                evidence,
                targets=outputs,
                name="evidence",
                seed=self.gp.seed,
                limits=limits,
                options=options,
            )
            with torch.no_grad():
                info = info._replace(before=before, after=float(evidence(0.0)))
                mixed.unmixing.div_(unit.mT)
        except BaseException:
            with torch.no_grad():
                for parameter, value in zip(held, values, strict=True):
                    parameter.copy_(value)
            raise
        finally:
            mixed.unmixing.requires_grad_(False)
        return info

    def predict(self, t: Any, *, include_noise: bool = False) -> JointGaussian:
        """Return the posterior of all outputs of f, or of new y, at each input; the prior at first.

        Args:
            t: n inputs, anywhere and in any order.
            include_noise: add Σ.

        Returns:
            Mean of shape (n, D), covariance of shape (n, D, D), between the outputs of an input.

        Raises:
            ValueError: bad inputs.
        """
        z = self.gp.predict(t, include_noise=include_noise)
        # E y = V E z,   cov y = V diag(var z) Vᵀ.
        V = self._mixed.mixing().detach().to(z.mean)
        mean, variance = z.mean.mT @ V.mT, z.variance.mT
        return JointGaussian(mean, (V * variance[:, None, :]) @ V.mT)

    def forecast(self, t: Any, *, step: float | None = None) -> "OutputForecast":
        """Return the predictive distribution of new values of all outputs.

        Arguments, errors and warnings are those of ``ohsvgp.forecast``.
        """
        series = forecast(self.gp, t, step=step, stacklevel=3)
        return OutputForecast(series, self._mixed.mixing().detach())

    def sample(
        self, t: Any, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "s n d"]:
        """Draw f from the posterior, jointly over inputs and outputs.

        Arguments and errors are those of ``OnlineGP.sample``.
        """
        z = self.gp.sample(t, num_samples, generator)
        return z.mT @ self._mixed.mixing().detach().to(z).mT

    def log_prob(self, t: Any, y: Any) -> Float[Tensor, " n"]:
        """Return the log predictive density of all outputs of each stamp, noise included, in nats.

        Args:
            t: n inputs.
            y: targets of shape (n, D).

        Raises:
            ValueError: bad inputs or targets.
        """
        z, _ = self._series(y, "raise")
        log_prob = self.gp.log_prob(t, z)
        return log_prob.sum(-2) - self._mixed.log_det().detach().to(log_prob)

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that predictions and further updates need, as a flat dict of tensors."""
        return self.gp.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take over a saved state, B and Σ included, as ``OnlineGP.load_state_dict`` does."""
        self.gp.load_state_dict(tensors)

    def _series(self, y: Any, missing: str) -> tuple[Tensor, Tensor | None]:
        """Return z = V⁻¹y of shape (D, n), and True where a stamp has its outputs; None for all."""
        outputs = as_real(y, self.gp.kernel.like, "y")
        size = len(self._mixed.unmixing)
        if outputs.ndim != 2 or outputs.shape[-1] != size:
            raise ValueError(f"y must have shape (n, {size}), got {tuple(outputs.shape)}")
        if missing not in ("raise", "drop"):
            raise ValueError(f'missing must be "raise" or "drop", got {missing!r}')
        rows = ~outputs.isnan().any(-1)
        if missing == "raise" and not bool(rows.all()):
            raise ValueError(
                f'y must be finite, got {int((~rows).sum())} rows with NaN: pass missing="drop"'
            )
        z = self._mixed.unmixing.detach() @ outputs.mT
        return z, None if bool(rows.all()) else rows


@dataclass(frozen=True, eq=False)
class OutputForecast:
    """Predictive distribution of D outputs at n stamps; later updates do not change it."""

    series: Forecast  # that of z = V⁻¹y
    mixing: Tensor  # V, shape (D, D)

    @property
    def stamps(self) -> np.ndarray:
        """Return numbers or ``datetime64``, shape (n,)."""
        return self.series.stamps

    @property
    def mean(self) -> Float[Tensor, "n d"]:
        """Return the mean of y."""
        mean = self.series.mean
        return mean.mT @ self.mixing.to(mean).mT

    @property
    def covariance(self) -> Float[Tensor, "n d d"]:
        """Return the covariance of the outputs of a stamp, V diag(var z) Vᵀ, noise included."""
        variance = self.series.variance.mT
        V = self.mixing.to(variance)
        return (V * variance[:, None, :]) @ V.mT

    @property
    def variance(self) -> Float[Tensor, "n d"]:
        """Return the variance of each output, noise included."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def quantile(self, p: float | Sequence[float] | Tensor) -> Float[Tensor, "..."]:
        """Return the y with P(Y ≤ y) = p, of each stamp and output by itself.

        Args:
            p: a level, or q of them for a result of shape (q, n, D).

        Raises:
            ValueError: levels that are not above 0 and below 1.
        """
        mean = self.mean
        levels = probabilities(torch.as_tensor(p, dtype=mean.dtype), mean)
        z = torch.special.ndtri(levels).reshape(*levels.shape, 1, 1)
        return mean + z * self.variance.sqrt()

    def interval(self, level: float) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
        """Return the lower and upper end of what holds each output with a probability.

        Argument and error are those of ``Forecast.interval``.
        """
        low, high = self.quantile([0.5 * (1.0 - level), 0.5 * (1.0 + level)])
        return low, high

    def sample(
        self, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "s n d"]:
        """Draw y, jointly over stamps and outputs; arguments as ``Forecast.sample``'s."""
        z = self.series.sample(num_samples, generator)
        return z.mT @ self.mixing.to(z).mT


class _MixedNoise(Gaussian):
    """Unit noise of the series z = V⁻¹y, and V⁻¹."""

    def __init__(self, unmixing: Tensor) -> None:
        super().__init__(torch.ones(len(unmixing), dtype=torch.float64))
        self.raw_noise.requires_grad_(False)
        self.unmixing = nn.Parameter(unmixing.contiguous(), requires_grad=False)

    def mixing(self) -> Tensor:
        """Return V."""
        return torch.linalg.inv(self.unmixing)

    def log_det(self) -> Tensor:
        """Return log|det V|."""
        return -torch.linalg.slogdet(self.unmixing).logabsdet


def _positive_definite(name: str, matrix: Tensor) -> Tensor:
    matrix = matrix.double()
    size = matrix.shape[-1] if matrix.ndim else 0
    if matrix.shape != (size, size) or size < 1:
        raise ValueError(f"{name} must have shape (D, D), got {tuple(matrix.shape)}")
    symmetric = bool(matrix.isfinite().all()) and torch.allclose(matrix, matrix.mT)
    if not symmetric or int(torch.linalg.cholesky_ex(matrix).info):
        raise ValueError(
            f"{name} must be symmetric and positive definite, e.g. AAᵀ + diag(v), got "
            f"{matrix.tolist()}"
        )
    return matrix
