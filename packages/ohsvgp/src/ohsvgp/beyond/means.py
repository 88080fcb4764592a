"""Trends and seasons beside the process: weights that are learned exactly, however long the stream.

f(t) = g(t) + φ(t)ᵀβ with g the process of the kernel and β ~ N(0, diag(s²)), so that f has the
kernel k(t, t') + φ(t)ᵀ diag(s²) φ(t'). The weights, in units of s, join the inducing variables:
b = β/s is independent of u a priori, has covariance I and cov(b, f(x)) = s φ(x). What the data say
of them is therefore in the same site as what they say of u, never lost when the window moves, and
their uncertainty is in each forecast. Not in the thesis.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.base import Advance, Basis
from ohsvgp.inducing import Inducing
from ohsvgp.whitening import Whitening
from probseq.checks import check_counts, check_positive
from probseq.kernels import Kernel


class Mean(ABC):
    """Features φ of the inputs with weights β ~ N(0, diag(s²)); means are added with ``+``."""

    times_only: ClassVar[bool] = False

    @property
    @abstractmethod
    def num_weights(self) -> int:
        """Return the number of features p."""

    @abstractmethod
    def scaled(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n p"]:
        """Return s φ(x): the features times the deviations of their weights.

        Times are counted from t0 in the model's ``time_unit``.
        """

    @property
    def terms(self) -> "tuple[Mean, ...]":
        """Return the means that this is a sum of."""
        return (self,)

    def beside(self, basis: Basis) -> Basis:
        """Return the basis with inducing variables that the weights have joined."""
        return WithMean(basis, self)

    def __add__(self, other: "Mean") -> "Mean":
        return _MeanSum((*self.terms, *other.terms))


@dataclass(frozen=True)
class Level(Mean):
    """A constant β ~ N(0, s²), s the deviation in units of y."""

    deviation: float = 10.0

    def __post_init__(self) -> None:
        check_positive(deviation=self.deviation)

    @property
    def num_weights(self) -> int:
        """Return p = 1."""
        return 1

    def scaled(self, x: Tensor) -> Tensor:
        """Return the constant s."""
        return x.new_full((*x.shape[:-1], 1), self.deviation)


@dataclass(frozen=True)
class Trend(Mean):
    """A line β_0 + β_1 t through the window's start t0.

    ``level`` and ``slope`` are the deviations of β_0, in units of y, and β_1, per unit of time.
    """

    level: float = 10.0
    slope: float = 1.0
    times_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(level=self.level, slope=self.slope)

    @property
    def num_weights(self) -> int:
        """Return p = 2."""
        return 2

    def scaled(self, x: Tensor) -> Tensor:
        """Return 1 and t, each times its deviation."""
        return torch.cat([torch.full_like(x, self.level), self.slope * x], -1)


@dataclass(frozen=True)
class Seasonal(Mean):
    """A periodic function Σ_k a_k cos(2πkt/p) + b_k sin(2πkt/p), the same in each period."""

    period: float  # p, in units of time
    harmonics: int = 3  # number of waves k = 1, 2, …
    deviation: float = 1.0  # of each a_k and b_k, in units of y
    times_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(period=self.period, deviation=self.deviation)
        check_counts(harmonics=self.harmonics)

    @property
    def num_weights(self) -> int:
        """Return p, twice the harmonics."""
        return 2 * self.harmonics

    def scaled(self, x: Tensor) -> Tensor:
        """Return cosines and sines times their deviation."""
        k = torch.arange(1, self.harmonics + 1, dtype=x.dtype, device=x.device)
        phase = 2 * math.pi / self.period * x * k
        return self.deviation * torch.cat([phase.cos(), phase.sin()], -1)


@dataclass(frozen=True)
class Regressors(Mean):
    """Features of the user's own: holidays, temperatures, an intervention.

    The function gives features (*b, n, p) of inputs (*b, n, d), those of a forecast too; times are
    counted from t0 in the model's ``time_unit``. It is not in a saved state: give the same one to
    the model that loads it.
    """

    function: Callable[[Tensor], Tensor] = field(repr=False)
    count: int  # p
    deviation: float = 1.0  # of each weight, in units of y

    def __post_init__(self) -> None:
        check_positive(deviation=self.deviation)
        check_counts(count=self.count)

    @property
    def num_weights(self) -> int:
        """Return p."""
        return self.count

    def scaled(self, x: Tensor) -> Tensor:
        """Return the features times their deviation."""
        features = self.function(x)
        finite = bool(features.isfinite().all())
        if features.shape != (*x.shape[:-1], self.count) or not finite:
            raise ValueError(
                f"function must give finite features of shape {(*x.shape[:-1], self.count)}, got "
                f"{tuple(features.shape)}{'' if finite else ' with NaN or infinity'}"
            )
        return self.deviation * features.to(x)


@dataclass(frozen=True)
class _MeanSum(Mean):
    """The sum of means."""

    means: tuple[Mean, ...]

    @property
    def num_weights(self) -> int:
        return sum(mean.num_weights for mean in self.means)

    @property
    def terms(self) -> tuple[Mean, ...]:
        return self.means

    def scaled(self, x: Tensor) -> Tensor:
        return torch.cat([mean.scaled(x) for mean in self.means], -1)


class MeanKernel(Kernel):
    """k(x, z) + φ(x)ᵀ diag(s²) φ(z): the process and the mean together."""

    def __init__(self, kernel: Kernel, mean: Mean) -> None:
        super().__init__(kernel.dim, batch_shape=kernel.batch_shape)
        self.process = kernel
        self.mean = mean

    @property
    def resolution(self) -> Float[Tensor, "*heads 1 d"]:
        """Return the resolution of the process."""
        return self.process.resolution

    @property
    def continuous(self) -> Kernel | None:
        """Return the mean beside the process' continuous part."""
        smooth = self.process.continuous
        return self if smooth in (self.process, None) else MeanKernel(smooth, self.mean)

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return self.process(x, z) + self.mean.scaled(x) @ self.mean.scaled(z).mT

    def _variance(self, x: Tensor) -> Tensor:
        return self.process.diag(x) + self.mean.scaled(x).square().sum(-1)


@dataclass(frozen=True, eq=False)
class BesideMean(Inducing):
    """Inducing variables u of the process, then the weights b of the mean in units of s.

    The kernels that the methods take are a ``MeanKernel``, or its process alone.
    """

    variables: Inducing  # u
    mean: Mean  # φ and s

    @property
    def num_inducing(self) -> int:
        """Return M + p."""
        return self.variables.num_inducing + self.mean.num_weights

    @property
    def num_weights(self) -> int:
        """Return p."""
        return self.mean.num_weights

    def process(self, kernel: Kernel) -> Kernel:
        """Return the covariance of the process without the mean."""
        return process_of(kernel)

    @property
    def points(self) -> Tensor | None:
        """Return the inputs z of u = f(z); None where u are no values of f."""
        return self.variables.points

    def covariance(self, kernel: Kernel) -> Float[Tensor, "*b m m"]:
        """Return K_uu and I, in blocks."""
        K = self.variables.covariance(process_of(kernel))
        return _blocks(K, self._eye(K))

    def whitened(self, K: Tensor, *, rel_jitter: float | None) -> Whitening:
        """Return R_u and I, in blocks: the weights need no jitter."""
        M = self.variables.num_inducing
        R = self.variables.whitened(K[..., :M, :M], rel_jitter=rel_jitter)
        return R._replace(root=_blocks(R.root, self._eye(K)))

    def noise(self, jitter: Tensor) -> Float[Tensor, "*b m"]:
        """Return the jitter of u, and none of the weights."""
        return torch.nn.functional.pad(self.variables.noise(jitter), (0, self.mean.num_weights))

    def cross(self, kernel: Kernel, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b m n"]:
        """Return K_uf, then s φ(x): cov(b, f(x)) = s φ(x) with b = β/s."""
        K = self.variables.cross(process_of(kernel), x)
        if isinstance(kernel, MeanKernel):
            b = self.mean.scaled(x).mT
        else:
            b = K.new_zeros(self.mean.num_weights, K.shape[-1])
        return torch.cat([K, b.expand(*K.shape[:-2], *b.shape[-2:])], -2)

    def cross_inducing(self, kernel: Kernel, other: Inducing) -> Float[Tensor, "*b m k"]:
        """Return K_ab and I, in blocks."""
        if not isinstance(other, BesideMean):
            raise TypeError(f"other must have weights like this set, got {type(other).__name__}")
        K = self.variables.cross_inducing(process_of(kernel), other.variables)
        return _blocks(K, self._eye(K))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define u."""
        return self.variables.tensors()

    def _eye(self, like: Tensor) -> Tensor:
        return torch.eye(self.mean.num_weights, dtype=like.dtype, device=like.device)


class WithMean(Basis):
    """A basis for the process beside a mean, whose weights join its inducing variables."""

    def __init__(self, basis: Basis, mean: Mean) -> None:
        self.basis, self.mean = basis, mean
        self.num_inducing = basis.num_inducing + mean.num_weights
        self.fixed_hyperparameters = basis.fixed_hyperparameters
        self.of_window = basis.of_window
        self.features = mean.scaled
        self.described = repr(mean)

    def bind(self, kernel: Kernel, generator: torch.Generator) -> None:
        """Refuse trends of points that are no times, and what the basis refuses."""
        if kernel.dim != 1 and any(mean.times_only for mean in self.mean.terms):
            raise ValueError(
                f"mean must be Level or Regressors for points of dim {kernel.dim}, got "
                f"{self.mean}: trends and seasons are of times"
            )
        self.basis.bind(kernel, generator)

    def prior(self, kernel: Kernel) -> MeanKernel:
        """Return the kernel of the sum."""
        return MeanKernel(self.basis.prior(kernel), self.mean)

    def advance(self, step: Advance) -> Inducing:
        """Return the basis' set beside the weights; the set itself if it stays."""
        inner = self.basis.advance(self._step(step))
        old = step.previous
        if isinstance(old, BesideMean) and inner is old.variables:
            return old
        return BesideMean(inner, self.mean)

    def refine(
        self, inducing: Inducing, objective: Callable[[Inducing], Tensor], step: Advance
    ) -> Inducing:
        """Optimise the set as the basis does."""
        if not isinstance(inducing, BesideMean) or inducing is step.previous:
            return inducing
        start = inducing.variables
        refined = self.basis.refine(
            start, lambda candidate: objective(BesideMean(candidate, self.mean)), self._step(step)
        )
        return inducing if refined is start else BesideMean(refined, self.mean)

    def without_learning(self) -> Basis:
        """Return the rule around the basis that does not learn."""
        copied = copy.copy(self)
        copied.basis = self.basis.without_learning()
        return copied

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the basis."""
        return self.basis.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Hand them to the basis."""
        self.basis.load_tensors(tensors)

    def restore(self, tensors: dict[str, Tensor]) -> Inducing:
        """Return the set that gave the tensors."""
        return BesideMean(self.basis.restore(tensors), self.mean)

    def functions(
        self, kernel: Kernel, x: Float[Tensor, "n 1"], length: float
    ) -> Float[Tensor, "*b m n"]:
        """Return the functions of the basis, then s φ(x)."""
        g = self.basis.functions(kernel, x, length)
        b = self.mean.scaled(x).mT
        return torch.cat([g, b.expand(*g.shape[:-2], *b.shape)], -2)

    def _step(self, step: Advance) -> Advance:
        old = step.previous
        return Advance(
            process_of(step.kernel),
            old.variables if isinstance(old, BesideMean) else old,
            step.inputs,
            step.length,
            step.origin,
            step.generator,
        )


def process_of(kernel: Kernel) -> Kernel:
    """Return the kernel of the process in a ``MeanKernel``; any other one is that itself."""
    return kernel.process if isinstance(kernel, MeanKernel) else kernel


def _blocks(a: Tensor, b: Tensor) -> Tensor:
    """Return the block diagonal matrix of a, which may have batch dimensions, and b."""
    pad = torch.nn.functional.pad
    rows, columns = a.shape[-2:]
    return pad(a, (0, b.shape[-1], 0, b.shape[-2])) + pad(b, (columns, 0, rows, 0))
