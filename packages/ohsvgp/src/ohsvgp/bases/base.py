"""The seam of all inducing bases: how a set of inducing variables follows the stream."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.hippo.random_features import FeatureFunctional
from ohsvgp.inducing import Inducing, PointFunctional, continuous
from probseq.checks import check_counts
from probseq.kernels import Kernel

# What refusals of `fixed_hyperparameters` say.
CAN_FOLLOW = (
    "LegS, LegT, LagT, FouT, Cosine, UniformGrid and inducing points can follow them, and Path "
    'with memory="inputs"'
)


@dataclass(frozen=True, eq=False)
class Advance:
    """One step of the stream, as a basis sees it.

    Times are counted from the first stamp t0, in float64, before they become ``inputs``.
    """

    kernel: Kernel  # the prior covariance function, from ``Basis.prior``
    previous: Inducing | None  # the inducing set so far; None at the first step
    # new inputs in the order of the stream, shape (n, d); n may be zero
    inputs: Float[Tensor, "n d"]
    # end of the window minus t0. For paths: number of inputs seen, the new ones counted
    length: float
    origin: float = 0.0  # t0 (0 for paths)
    generator: torch.Generator | None = None  # source of randomness; None for torch's own


class Basis(ABC):
    """A rule that makes inducing variables follow the stream.

    M is ``num_inducing``.
    """

    num_inducing: int
    # whether the sets depend on the kernel's hyperparameters in a way that cannot be redone later,
    # so that these must stay once data have been absorbed
    fixed_hyperparameters: bool = False
    of_window: bool = False  # whether the window alone makes the set
    # of inputs (n, d), those (n, p) of a mean beside the process, whose weights are N(0, I) a
    # priori; None without
    features: Callable[[Tensor], Tensor] | None = None
    times_only: bool = False  # whether inputs must be times

    def __init__(self, num_inducing: int) -> None:
        check_counts(num_inducing=num_inducing)
        self.num_inducing = num_inducing

    @abstractmethod
    def advance(self, step: Advance) -> Inducing:
        """Return the inducing set after a step; ``step.previous`` itself if it stays as it was."""

    def prior(self, kernel: Kernel) -> Kernel:
        """Return the covariance function that all covariances come from: the kernel by default.

        A basis that replaces the kernel by random features returns that finite-rank kernel.
        """
        return kernel

    def bind(self, kernel: Kernel, generator: torch.Generator) -> None:
        """Attach the basis to a model's kernel: check compatibility and sample random features."""
        continuous(kernel)
        if self.times_only and kernel.dim != 1:
            raise ValueError(
                f"kernel must have dim=1 for {type(self).__name__}, got dim={kernel.dim}: "
                "use Path or points for inputs of several dimensions"
            )

    def refine(
        self, inducing: Inducing, objective: Callable[[Inducing], Tensor], step: Advance
    ) -> Inducing:
        """Optimise the set that ``advance`` made; by default return it as it is.

        The objective, the online bound of the new data in nats, summed over series, is
        differentiable in the set's tensors; the step made the set.
        """
        return inducing

    def without_learning(self) -> "Basis":
        """Return the rule with a ``refine`` that learns nothing, for fits of hyperparameters."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Return what ``bind`` drew, to be saved with the model's state."""
        return {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take what ``tensors`` of a saved model returned."""
        if tensors:
            raise ValueError(
                f"tensors must be empty for {type(self).__name__}, got {sorted(tensors)}"
            )

    def restore(self, tensors: dict[str, Tensor]) -> Inducing:
        """Return the inducing set that ``Inducing.tensors`` was called on."""
        if "coefficients" in tensors:
            return FeatureFunctional(tensors["coefficients"])
        return PointFunctional(tensors["nodes"], tensors.get("weights"))

    def functions(
        self, kernel: Kernel, x: Float[Tensor, "n 1"], length: float
    ) -> Float[Tensor, "*b m n"]:
        """Return orthogonal functions g_m of the basis at x, for f ≈ Σ u_m g_m (thesis C.2)."""
        raise ValueError(
            "basis must have orthogonal functions to rebuild f from its coefficients, "
            f"got {type(self).__name__}: use predict, or LegS, LegT, LagT, FouT or Cosine"
        )


@runtime_checkable
class PriorMean(Protocol):
    """A mean with Gaussian weights, such as ``ohsvgp.Trend``."""

    def beside(self, basis: Basis) -> Basis:
        """Return the basis with inducing variables that the weights have joined."""
        ...


class TimeBasis(Basis):
    """A basis whose inducing set depends on the window [t0, t0 + length] only."""

    of_window = True
    times_only = True

    @abstractmethod
    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        """Return the inducing set of the window [0, length]."""

    def advance(self, step: Advance) -> Inducing:
        """Return the set of the new window."""
        return self.inducing(step.kernel, step.length)
