"""Inducing variables of HiPPO bases on a kernel of Fourier features."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.fourier import FouT
from ohsvgp.bases.laguerre import LagT
from ohsvgp.bases.legendre import LegS, LegT
from ohsvgp.hippo.features import (
    fout_projections,
    lagt_projections,
    legs_projections,
    legt_projections,
)
from ohsvgp.hippo.random_features import FeatureFunctional, feature_kernel
from ohsvgp.hippo.transitions import (
    System,
    fout_system,
    lagt_system,
    legs_system,
    legt_system,
)
from ohsvgp.inducing import Inducing
from probseq.kernels import Kernel

HiPPOBasis = LegS | LegT | LagT | FouT
"""The bases that have a recurrence."""


@dataclass(frozen=True, eq=False)
class EvolvedFeatures(FeatureFunctional):
    """Coefficients from a recurrence, and the time until which it has gone.

    Attributes:
        end: end of the window, float64, no dimensions.
    """

    end: Float[Tensor, ""]

    def tensors(self) -> dict[str, Tensor]:
        """Return the coefficients and their time."""
        return {"coefficients": self.coefficients, "end": self.end}


@dataclass(frozen=True, eq=False)
class ProjectedFeatures(Inducing):
    """Coefficients by the closed form, made for the kernel that asks: it may change.

    Attributes:
        basis: LegS, LegT, LagT or FouT.
        end: end of the window, float64, no dimensions.
    """

    basis: HiPPOBasis
    end: Float[Tensor, ""]

    @property
    def num_inducing(self) -> int:
        """M."""
        return self.basis.num_inducing

    def covariance(self, kernel: Kernel) -> Float[Tensor, "*b m m"]:
        """Return K_uu = Z Zᵀ."""
        return self._under(kernel).covariance(kernel)

    def cross(self, kernel: Kernel, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b m n"]:
        """Return K_uf = Z φ(x)ᵀ."""
        return self._under(kernel).cross(kernel, x)

    def cross_inducing(self, kernel: Kernel, other: Inducing) -> Float[Tensor, "*b m k"]:
        """Return K_ab = Z_a Z_bᵀ."""
        if isinstance(other, ProjectedFeatures):
            other = other._under(kernel)
        return self._under(kernel).cross_inducing(kernel, other)

    def tensors(self) -> dict[str, Tensor]:
        """Return the end of the window."""
        return {"end": self.end}

    def _under(self, kernel: Kernel) -> FeatureFunctional:
        return FeatureFunctional(closed_form(self.basis, kernel, float(self.end)))


def closed_form(basis: HiPPOBasis, kernel: Kernel, t: float) -> Float[Tensor, "*b m g"]:
    """Return projections Z of all features on the window that ends at t, shape (*b, M, 2F).

    They are in the order of the features; at t = 0 LegS has (f(0), 0, ..., 0).

    Raises:
        TypeError: ``kernel`` has no features.
    """
    kernel = feature_kernel(kernel)
    w = kernel.frequencies[..., 0] / kernel.kernel.lengthscale[..., 0]
    M = basis.num_inducing
    match basis:
        case LegS():
            projected = legs_projections(M, w, t)
        case LegT():
            projected = legt_projections(M, w, t, basis.window)
        case LagT():
            projected = lagt_projections(M, w, t, basis.timescale)
        case FouT():
            projected = fout_projections(M, w, t, basis.window)
    # At x = 0 the cosines' features are their amplitudes.
    zero = kernel.like.new_zeros(1, 1)
    amplitude = kernel.features(zero)[..., : w.shape[-1]]
    return torch.cat([projected.real * amplitude, projected.imag * amplitude], dim=-1)


def hippo_system(basis: HiPPOBasis, like: Tensor) -> System:
    """Return the linear system of a basis, in the dtype of ``like``; of LegT and FouT the closure.

    Raises:
        ValueError: FouT with an even M, whose last cosine has no sine to turn into.
    """
    M = basis.num_inducing
    match basis:
        case LegS():
            return legs_system(M, like)
        case LegT():
            return legt_system(M, basis.window, like=like)
        case LagT():
            return lagt_system(M, basis.timescale, like=like)
        case FouT():
            return fout_system(M, basis.window, like=like)
