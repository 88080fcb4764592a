"""Variational Fourier features on a fixed interval (Hensman et al. 2018): OVFF."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.base import Advance, Basis
from ohsvgp.inducing import Inducing
from probseq.kernels import Kernel, Matern12, Matern32, Matern52, StationaryKernel

# Round-off that a query at the edge may have, as a share of the interval; more in float32.
_EDGE = 1e-9

# White noise of (d/dx + rate)^p f in units of outputscale·rate^(2p−1), for p = 1, 2, 3.
_NOISE = {1: 2.0, 2: 4.0, 3: 16 / 3}


@dataclass(frozen=True, eq=False)
class FourierProjections(Inducing):
    """u_m = ⟨φ_m, f⟩/√α_m in the RKHS of a Matérn kernel on [start, end] (Hensman et al. 2018).

    φ are the cosines cos(ω_i(x − start)), i = 0, 1, ..., then the sines, i = 1, 2, ..., with
    ω_i = 2πi/(end − start); an even M has one sine less than an odd one would. The reproducing
    property makes K_uf = φ_m(x)/√α_m on the interval, and K_uu the identity plus the rank that
    the kernel's smoothness has.

    The authors leave √α_m out. Their K_uu has diagonal entries α_m of the order ω^(2ν+1), and
    jitter relative to the mean of them is far above the smallest: low frequencies would be lost.

    Times that users give count from ``origin``: x = 0 stands for it.
    """

    size: int  # M
    interval: Float[Tensor, "3"]  # start, end and origin, float64, shape (3)

    @property
    def num_inducing(self) -> int:
        """M."""
        return self.size

    @property
    def num_cosines(self) -> int:
        """Number of cosines, the constant counted."""
        return self.size // 2 + 1

    def covariance(self, kernel: Kernel) -> Float[Tensor, "*b m m"]:
        """Return K_uu = I + B P⁻¹ Bᵀ.

        B holds the derivatives of orders 0..ν−½ of φ_m/√α_m at the start, and P is the prior
        covariance of those of f. Hensman et al. write this out for each of the three kernels.
        """
        order, rate = _order(kernel), _rate(kernel)
        frequencies, cosine = self._frequencies(rate), self._cosines(rate)
        # At the start: φ, φ' and φ'' of cos ω(x − start), and of sin ω(x − start).
        derivatives = [cosine, ~cosine * frequencies, -frequencies.square() * cosine]
        at_start = torch.stack([column.to(rate) for column in derivatives[:order]], -1)
        B = self._scale(kernel)[..., None] * at_start
        P = _derivative_covariance(order, rate, _matern(kernel).outputscale)
        eye = torch.eye(self.size, dtype=B.dtype, device=B.device)
        # I + B P⁻¹ Bᵀ.
        return eye + B @ torch.linalg.solve(P, B.mT)

    def cross(self, kernel: Kernel, x: Float[Tensor, "*#b n 1"]) -> Float[Tensor, "*b m n"]:
        """Return K_uf = φ_m(x)/√α_m."""
        start, end, origin = self.interval.tolist()
        edge = max(_EDGE, 16 * torch.finfo(x.dtype).eps) * (end - start)
        position = x[..., 0] + (origin - start)
        outside = (position < -edge) | (position > end - start + edge)
        if bool(outside.any()):
            where = float(x[..., 0][outside][0]) + origin
            raise ValueError(
                f"t must lie in [{start:g}, {end:g}], the interval of VariationalFourier, "
                f"got {where:g}: its covariances hold inside only, choose a wider interval"
            )
        # cos ω_i(x − start) and sin ω_i(x − start).
        angle = self._frequencies(position)[:, None] * position[..., None, :]
        phi = torch.where(self._cosines(position)[:, None], angle.cos(), angle.sin())
        return self._scale(kernel)[..., None] * phi

    def cross_inducing(self, kernel: Kernel, other: Inducing) -> Float[Tensor, "*b m k"]:
        """Return K_uu, for the same set again."""
        if not isinstance(other, FourierProjections):
            raise TypeError(
                f"other must be FourierProjections like this set, got {type(other).__name__}"
            )
        if other.size != self.size or not torch.equal(other.interval, self.interval):
            raise ValueError(
                f"other must have M={self.size} and the interval "
                f"{self.interval[:2].tolist()}, got M={other.size} and "
                f"{other.interval[:2].tolist()}"
            )
        return self.covariance(kernel)

    def tensors(self) -> dict[str, Tensor]:
        """Return the interval."""
        return {"interval": self.interval}

    def _scale(self, kernel: Kernel) -> Tensor:
        """Return 1/√α_m, α = (end − start)/(2 S(ω)), S the spectral density, halved for φ = 1."""
        order, rate = _order(kernel), _rate(kernel)[..., None]
        frequencies = self._frequencies(rate)
        noise = _NOISE[order] * _matern(kernel).outputscale[..., None] * rate ** (2 * order - 1)
        density = noise / (rate.square() + frequencies.square()) ** order
        start, end, _ = self.interval.tolist()
        return (density * torch.where(frequencies == 0, 1.0, 2.0) / (end - start)).sqrt()

    def _frequencies(self, like: Tensor) -> Tensor:
        """Return ω of every feature, shape (M)."""
        start, end, _ = self.interval.tolist()
        cosines = torch.arange(self.num_cosines)
        sines = torch.arange(1, self.size - self.num_cosines + 1)
        return torch.cat([cosines, sines]).to(like) * (2 * math.pi / (end - start))

    def _cosines(self, like: Tensor) -> Tensor:
        """Return which features are cosines, shape (M)."""
        return torch.arange(self.size, device=like.device) < self.num_cosines


class VariationalFourier(Basis):
    """Projections of f on Fourier features in the RKHS of a Matérn kernel, on a fixed interval.

    The inducing set never moves, so that online updates lose nothing; but the interval must be
    known beforehand, queries outside are refused, and hyperparameters must stay once data have
    been absorbed: the projections themselves depend on them.

    The features are periodic. What f does differently at the two ends they never represent, so
    the variance there stays near the prior's for any M; it is the exact one, for large M, a few
    lengthscales inside. Let the interval reach that far beyond the data.

    M features are ⌊M/2⌋ + 1 cosines with the constant, and the rest sines. The interval is in the
    units of the time stamps; with calendar stamps in ``time_unit`` since t0.
    """

    fixed_hyperparameters = True
    times_only = True

    def __init__(self, num_inducing: int, start: float, end: float) -> None:
        super().__init__(num_inducing)
        if not (math.isfinite(start) and math.isfinite(end) and start < end):
            raise ValueError(f"start must lie before end, both finite, got {start} and {end}")
        self.start = float(start)
        self.end = float(end)

    def bind(self, kernel: Kernel, generator: torch.Generator) -> None:
        """Refuse, with a ``ValueError``, what is no Matérn kernel on time."""
        super().bind(kernel, generator)
        _order(kernel)

    def advance(self, step: Advance) -> Inducing:
        """Return the one set that there is."""
        if step.previous is not None:
            return step.previous
        interval = torch.tensor([self.start, self.end, step.origin], dtype=torch.float64)
        return FourierProjections(self.num_inducing, interval)

    def restore(self, tensors: dict[str, Tensor]) -> Inducing:
        """Return the set that ``tensors`` was called on."""
        return FourierProjections(self.num_inducing, tensors["interval"])


def _matern(kernel: Kernel) -> StationaryKernel:
    if not isinstance(kernel, Matern12 | Matern32 | Matern52):
        raise ValueError(
            "kernel must be Matern12, Matern32 or Matern52 for VariationalFourier, "
            f"got {type(kernel).__name__}: only their RKHS is known in closed form"
        )
    return kernel


def _order(kernel: Kernel) -> int:
    """Return the order p = ν + ½ of the differential equation that f solves."""
    return round(_matern(kernel).smoothness + 0.5)


def _rate(kernel: Kernel) -> Tensor:
    """Return √(2ν)/ℓ of shape (*b)."""
    return (2 * _order(kernel) - 1) ** 0.5 / _matern(kernel).lengthscale[..., 0, 0]


def _derivative_covariance(order: int, rate: Tensor, variance: Tensor) -> Tensor:
    """Return the covariance of f and its derivatives below ``order``, shape (*b, p, p)."""
    # −k''(0) and k''''(0): none of f' for p = 1, rate² for p = 2, rate²/3 and rate⁴ for p = 3.
    slope = rate.square() / (1 if order == 2 else 3)
    zero, unit = torch.zeros_like(rate), torch.ones_like(rate)
    rows = [[unit, zero, -slope], [zero, slope, zero], [-slope, zero, rate**4]]
    P = torch.stack([torch.stack(row[:order], -1) for row in rows[:order]], -2)
    return variance[..., None, None] * P
