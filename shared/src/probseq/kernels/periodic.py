"""Kernels of processes that repeat themselves, and white noise.

NaN and infinity in a tensor reach the result.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.kernels.base import (
    ARDKernel,
    Constant,
    DataUnits,
    Kernel,
    Limits,
    Spectrum,
    log_parameter,
)

__all__ = ["Periodic", "White"]


class Periodic(ARDKernel):
    """σ_f² exp(−2 Σ_j sin²(π(x_j − z_j)/p_j)/ℓ_j²): functions of period p (MacKay 1998).

    ℓ is counted in radians of the period: about pℓ/2π of the input is one RBF lengthscale. Times
    an ``RBF`` it is locally periodic: the pattern changes from period to period.

    Arguments are those of ``ARDKernel``, and ``period``, the initial value of p in units of the
    inputs, broadcast to (*batch_shape, 1, dim).
    """

    def __init__(
        self,
        dim: int,
        *,
        batch_shape: tuple[int, ...] = (),
        period: float | Tensor = 1.0,
        lengthscale: float | Tensor = 1.0,
        outputscale: float | Tensor = 1.0,
    ) -> None:
        super().__init__(
            dim, batch_shape=batch_shape, lengthscale=lengthscale, outputscale=outputscale
        )
        self.raw_period = log_parameter("period", period, (*batch_shape, 1, dim))

    @property
    def period(self) -> Float[Tensor, "*heads 1 d"]:
        """The period p, one per head and input dimension."""
        return self.raw_period.exp()

    def limits(self, units: DataUnits) -> dict[str, Limits]:
        """Return those of σ_f² and of a period known to a factor of ten."""
        period = self.period.detach()
        return super().limits(units) | {"raw_period": Limits(period / 10, period * 10)}

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """Return p ℓ/2π, and p/2π where ℓ is above one: then f is nearly a sine."""
        return self.period * self.lengthscale.clamp_max(1.0) / (2 * math.pi)

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return the band up to the harmonic n beyond which lines have less than the share.

        Line n has the weight e^(−a) I_n(a), a = ℓ^(−2): the law of a difference of two Poisson
        variables of mean a/2, whose tail is at most 2 exp(√(a² + n²) − a − n asinh(n/a)).
        """
        a = float(self.lengthscale.detach().min()) ** -2
        n = torch.arange(1, 20 + math.ceil(12 * math.sqrt(a)), dtype=torch.float64)
        tail = (a * a + n * n).sqrt() - a - n * torch.asinh(n / a)
        least = int((tail > math.log(share / 2)).sum()) + 1
        return [Spectrum(2 * math.pi * least / float(self.period.detach().min()))]

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        # One dimension at a time, so that no tensor of shape (n, m, d) is made.
        exponent = x.new_zeros(())
        phase, inverse = math.pi / self.period, self.lengthscale.square().reciprocal()
        for j in range(self.dim):
            # −2 sin²(π(x_j − z_j)/p_j)/ℓ_j²
            a, b = x[..., j] * phase[..., j], z[..., j] * phase[..., j]
            sine = (a[..., :, None] - b[..., None, :]).sin()
            exponent = exponent - 2 * sine.square() * inverse[..., j, None]
        return self.outputscale[..., None, None] * exponent.exp()


class White(Constant):
    """σ_f² where x = z, else 0: a value of its own at each input; see ``Constant``.

    Beside a Gaussian likelihood it is more noise. No inducing variable sees it: what it was at an
    input is not remembered, and each observation of one input has its own.
    """

    @property
    def continuous(self) -> Kernel | None:
        """Nothing."""
        return None

    def spectra(self, share: float) -> list[Spectrum] | None:
        """Return no terms: a quadrature has none to resolve."""
        return []

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        same = (x[..., :, None, :] == z[..., None, :, :]).all(-1)
        return self.outputscale[..., None, None] * same
