"""The thesis' own recipe: random Fourier features carried along by HiPPO's recurrences."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.base import Advance, Basis, TimeBasis
from ohsvgp.bases.fourier import FouT
from ohsvgp.bases.laguerre import LagT
from ohsvgp.bases.legendre import LegS, LegT
from ohsvgp.hippo.features import (
    fout_projections,
    lagt_projections,
    legs_projections,
    legt_projections,
)
from ohsvgp.hippo.random_features import FeatureFunctional, FeatureKernel, feature_kernel
from ohsvgp.hippo.steps import Method, evolve
from ohsvgp.hippo.transitions import System, fout_system, lagt_system, legs_system, legt_system
from ohsvgp.inducing import Inducing
from probseq.checks import check_counts, check_positive
from probseq.fourier import sample_frequencies
from probseq.kernels import Kernel

HiPPOBasis = LegS | LegT | LagT | FouT
"""The bases that have a recurrence."""


class RecurrentFeatures(TimeBasis):
    """HiPPO bases on a kernel of random Fourier features (thesis Eq. 4.11-4.17): a reference mode.

    The coefficients Z of every feature solve a linear ODE in the window's end. Use ``LegS`` and its
    like by themselves for results: they have the exact kernel's covariances and are faster.

    How this differs from the thesis:

    - All covariances come from the features. The thesis has the exact kernel in K_fu (Eq. 4.10)
      beside the features in K_uu (Eq. 4.16), which is no joint covariance: predictive variances
      come out negative.
    - One set of frequencies is drawn once and shared by all covariances and windows.
    - ``step="closed"`` replaces the recurrence by its closed-form solution.
    - LegS starts at c(0) = (f(0), 0, ..., 0), as its definition says; the others start with the
      closed form at t = 0, where their windows lie before t0.
    - LegT and FouT follow their closures (A.1, A.2; A.5, A.6 with the factor put right), which do
      not converge to the projections, however short the steps.

    Args:
        basis: LegS, LegT, LagT or FouT.
        num_features: F frequencies, a cosine and a sine each.
        step: "euler", "bilinear", "exact" or "closed".
        step_size: longest step in time units; one step for each new input if None, as the thesis
            has it. Euler steps of LegS from t to t + h need h < 2t/M: on a short window a step for
            each input is far too long, and predictions suffer for the whole stream.
    """

    def __init__(
        self,
        basis: Basis,
        *,
        num_features: int = 1000,
        step: Literal["euler", "bilinear", "exact", "closed"] = "euler",
        step_size: float | None = None,
    ) -> None:
        if not isinstance(basis, HiPPOBasis):
            raise ValueError(
                f"basis must be LegS, LegT, LagT or FouT, got {type(basis).__name__}: "
                "others have no recurrence"
            )
        check_counts(num_features=num_features)
        if step not in ("euler", "bilinear", "exact", "closed"):
            raise ValueError(f'step must be "euler", "bilinear", "exact" or "closed", got {step!r}')
        if step_size is not None:
            check_positive(step_size=step_size)
        self.basis = basis
        super().__init__(basis.num_inducing)
        self.num_features = num_features
        self.method: Method | None = None if step == "closed" else step
        self.step_size = step_size
        # What the recurrence went through under other hyperparameters cannot be gone through again.
        self.fixed_hyperparameters = step != "closed"
        if self.method is not None:
            hippo_system(basis, torch.empty(0))  # what has none is refused here
        self._frequencies: dict[str, Tensor] = {}

    def bind(self, kernel: Kernel, generator: torch.Generator) -> None:
        """Check the kernel and sample its frequencies."""
        super().bind(kernel, generator)
        frequencies = sample_frequencies(kernel, self.num_features, generator)
        self._frequencies = {"frequencies": frequencies}

    def prior(self, kernel: Kernel) -> FeatureKernel:
        """Return the kernel of finite rank that all covariances come from."""
        return FeatureKernel(kernel, self._frequencies["frequencies"])

    def advance(self, step: Advance) -> Inducing:
        """Carry the coefficients from the end of the last window to that of the new one."""
        if self.method is None:
            return self.inducing(step.kernel, step.length)
        old = step.previous
        if not isinstance(old, EvolvedFeatures):
            zero = torch.zeros((), dtype=torch.float64)
            old = EvolvedFeatures(closed_form(self.basis, step.kernel, 0.0), zero)
        start = float(old.end)
        if not step.length > start:
            return old
        features = feature_kernel(step.kernel).features
        coefficients = evolve(
            hippo_system(self.basis, old.coefficients),
            old.coefficients,
            lambda times: features(times[:, None]),
            start,
            step.length,
            num_steps=self._num_steps(step, start),
            method=self.method,
        )
        return EvolvedFeatures(coefficients, old.end.new_tensor(step.length))

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Return the set of the closed form, which the recurrences approximate."""
        return ProjectedFeatures(self.basis, torch.tensor(length, dtype=torch.float64))

    def _num_steps(self, step: Advance, start: float) -> int:
        if self.step_size is None:
            return max(1, step.inputs.shape[0])
        # A hair less, lest round-off adds a step to a whole number of them.
        return max(1, math.ceil((step.length - start) / self.step_size - 1e-9))

    def tensors(self) -> dict[str, Tensor]:
        """Return the frequencies."""
        return dict(self._frequencies)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take the frequencies of a saved model."""
        if sorted(tensors) != ["frequencies"]:
            raise ValueError(f"tensors must hold ['frequencies'], got {sorted(tensors)}")
        count = tensors["frequencies"].shape[-2]
        if count != self.num_features:
            raise ValueError(f"frequencies must be num_features={self.num_features}, got {count}")
        self._frequencies = dict(tensors)

    def restore(self, tensors: dict[str, Tensor]) -> Inducing:
        """Return the inducing set that ``Inducing.tensors`` was called on."""
        if "coefficients" in tensors:
            return EvolvedFeatures(tensors["coefficients"], tensors["end"])
        return ProjectedFeatures(self.basis, tensors["end"])

    def functions(
        self, kernel: Kernel, x: Float[Tensor, "n 1"], length: float
    ) -> Float[Tensor, "*b m n"]:
        """Return the functions of the basis that is followed."""
        return self.basis.functions(kernel, x, length)


@dataclass(frozen=True, eq=False)
class EvolvedFeatures(FeatureFunctional):
    """Coefficients from a recurrence, and the time until which it has gone."""

    end: Float[Tensor, ""]  # end of the window, float64, no dimensions


@dataclass(frozen=True, eq=False)
class ProjectedFeatures(Inducing):
    """Coefficients by the closed form, made for the kernel that asks: it may change."""

    basis: HiPPOBasis  # LegS, LegT, LagT or FouT
    end: Float[Tensor, ""]  # end of the window, float64, no dimensions

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
    """
    kernel = feature_kernel(kernel)
    w = kernel.frequencies[..., 0] / kernel.resolution[..., 0]
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
    """Return the linear system of a basis; of LegT and FouT the closure."""
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
