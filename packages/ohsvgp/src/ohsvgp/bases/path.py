"""HiPPO-LegS along a path through inputs of several dimensions (thesis section 4.4).

The inputs are put in an order and strung into a path that stays at x_i during the i-th unit of
time, so that after T points

    u_m = (1/T) ∫_0^T f(x(s)) √(2m+1) P_m(2s/T − 1) ds = Σ_i W_mi f(x_i),

where W_mi is an integral of one polynomial over one cell, known in closed form. A batch that takes
the path from T1 to T2 points turns u into R(T1→T2) u + W_new f(x_new), with the exact propagator R
of LegS. This is the exact solution of the recurrence that thesis Eq. 4.18 takes in Euler steps, a
point at a time: its time step Δt cancels, and neither Euler's error nor its instability is left.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.bases.base import Advance, Basis
from ohsvgp.bases.legendre import scaled_legendre
from ohsvgp.hippo.covariance import block_covariance, legs_propagator
from ohsvgp.inducing import Inducing
from ohsvgp.ordering import ORDERS, Order, path_order
from ohsvgp.random_features import FeatureFunctional, FeatureKernel
from ohsvgp.state import hyperparameters
from probseq.fourier import sample_frequencies
from probseq.kernels import Kernel, StationaryKernel

__all__ = ["Path", "PathFeatures", "PathPoints", "cell_weights"]

# Entries of a kernel matrix held at once: 64 MB in float64.
_BLOCK_ENTRIES = 2**23


class Path(Basis):
    """LegS memory of inputs of several dimensions, in the order of a path through them.

    memory="features" keeps the path's random Fourier features, M × 2·num_features numbers however
    long the stream is. The whole model then lives under that kernel of finite rank, predictions
    included; its hyperparameters must stay once data have been absorbed.

    memory="inputs" keeps all inputs seen, O(n d), and uses the kernel as it is. An update by n_new
    points after n costs n·n_new kernel values and O(M n n_new) products, one with changed
    hyperparameters n²/2 of them. At n = 8611, d = 4, M = 256 the latter takes 2 s of one core and
    64 MB, where the kernel matrix has 0.6 GB.

    Args:
        num_inducing: M.
        memory: "features" or "inputs".
        num_features: frequencies F of memory="features"; each gives a cosine and a sine.
        order: how the points of a batch are ordered: "given", "kernel-max", "kernel-min" or
            "random"; see ``ordering.path_order``.

    Raises:
        ValueError: M or ``num_features`` below 1, or another ``memory`` or ``order``.
    """

    frequencies: Tensor

    def __init__(
        self,
        num_inducing: int,
        *,
        memory: Literal["features", "inputs"] = "features",
        num_features: int = 1000,
        order: Order = "given",
    ) -> None:
        if num_inducing < 1:
            raise ValueError(f"num_inducing must be at least 1, got {num_inducing}")
        if memory not in ("features", "inputs"):
            raise ValueError(f'memory must be "features" or "inputs", got {memory!r}')
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {num_features}")
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self.num_inducing = num_inducing
        self.memory = memory
        self.num_features = num_features
        self.order: Order = order
        self.fixed_hyperparameters = memory == "features"
        self.frequencies = torch.empty(0)

    def bind(self, kernel: Kernel, generator: torch.Generator) -> None:
        """Draw the frequencies.

        Args:
            kernel: the model's kernel.
            generator: of the frequencies.

        Raises:
            ValueError: the kernel is one of time alone, or has no Fourier features to remember.
        """
        super().bind(kernel, generator)
        if kernel.dim == 1:
            raise ValueError(
                "kernel must have dim of at least 2 for Path, got dim=1: use LegS for times"
            )
        if self.memory == "features":
            if not isinstance(kernel, StationaryKernel):
                raise ValueError(
                    f'kernel must be stationary for memory="features", got '
                    f'{type(kernel).__name__}: use memory="inputs"'
                )
            self.frequencies = sample_frequencies(kernel, self.num_features, generator)

    def prior(self, kernel: Kernel) -> Kernel:
        """The kernel of finite rank for memory="features", else the kernel."""
        return FeatureKernel(kernel, self.frequencies) if self.fixed_hyperparameters else kernel

    def advance(self, step: Advance) -> Inducing:
        """Lengthen the path by the new inputs.

        Raises:
            ValueError: there is no input yet.
        """
        old, added = step.previous, step.inputs.shape[0]
        if added == 0:
            if old is None:
                raise ValueError("x must hold at least one input at first, got none")
            return old
        last = old.last if isinstance(old, PathFeatures | PathPoints) else None
        # What is near is the model's own kernel to say, not its features.
        near = step.kernel.kernel if isinstance(step.kernel, FeatureKernel) else step.kernel
        x = step.inputs[path_order(self.order, near, step.inputs, last, step.generator)]
        if isinstance(step.kernel, FeatureKernel) and self.fixed_hyperparameters:
            seen = round(step.length)
            W = cell_weights(self.num_inducing, seen - added, seen).to(x)
            new = W @ step.kernel.features(x)
            if not isinstance(old, PathFeatures):
                return PathFeatures(new, x[-1].clone())
            R = legs_propagator(self.num_inducing, step.length - added, step.length, like=x)
            return PathFeatures(R @ old.coefficients + new, x[-1].clone())
        if not isinstance(old, PathPoints):
            return PathPoints.of(self.num_inducing, x, step.kernel)
        return old.extended(x, step.kernel)

    def tensors(self) -> dict[str, Tensor]:
        """The frequencies of memory="features"."""
        return {"frequencies": self.frequencies} if self.fixed_hyperparameters else {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take saved frequencies.

        Raises:
            ValueError: those of another memory or ``num_features``.
        """
        got = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        own = {name: tuple(tensor.shape) for name, tensor in self.tensors().items()}
        if got != own:
            raise ValueError(f"tensors must have shapes {own} for this Path, got {got}")
        self.frequencies = tensors.get("frequencies", self.frequencies)

    def restore(self, tensors: dict[str, Tensor]) -> Inducing:
        """The set that gave the tensors."""
        if "coefficients" in tensors:
            return PathFeatures(tensors["coefficients"], tensors["last"])
        nodes = tensors["nodes"]
        weights = cell_weights(self.num_inducing, 0, nodes.shape[0]).to(nodes)
        return PathPoints(nodes, weights, tensors["gram"], tensors["hyperparameters"])


@dataclass(frozen=True, eq=False)
class PathFeatures(FeatureFunctional):
    """Z of the path so far.

    Attributes:
        coefficients: Z of shape (*b, M, g).
        last: where the path ends, shape (d,).
    """

    last: Float[Tensor, " d"]

    def tensors(self) -> dict[str, Tensor]:
        """Coefficients and end."""
        return {"coefficients": self.coefficients, "last": self.last}


@dataclass(frozen=True, eq=False)
class PathPoints(Inducing):
    """u = W f(inputs of the path), without ever a kernel matrix of all of them in memory.

    Attributes:
        nodes: all inputs so far in the path's order, shape (n, d).
        weights: W of shape (M, n).
        gram: K_uu under ``hyperparameters``, so that the next batch only adds to it.
        hyperparameters: the kernel's raw parameters that ``gram`` belongs to.
    """

    nodes: Float[Tensor, "n d"]
    weights: Float[Tensor, "m n"]
    gram: Float[Tensor, "*b m m"]
    hyperparameters: Float[Tensor, " p"]

    @classmethod
    def of(cls, M: int, nodes: Float[Tensor, "n d"], kernel: Kernel) -> "PathPoints":
        """The first set of a stream."""
        weights = cell_weights(M, 0, nodes.shape[0]).to(nodes)
        return cls(nodes, weights, _gram(kernel, nodes, weights), hyperparameters(kernel))

    @property
    def num_inducing(self) -> int:
        """M."""
        return self.weights.shape[-2]

    @property
    def last(self) -> Float[Tensor, " d"]:
        """Where the path ends."""
        return self.nodes[-1]

    def extended(self, x: Float[Tensor, "n d"], kernel: Kernel) -> "PathPoints":
        """The set after new inputs: u_b = R u_a + W_new f(x)."""
        nodes = torch.cat([self.nodes, x])
        M, old = self.weights.shape
        weights = cell_weights(M, 0, nodes.shape[0]).to(nodes)
        new = weights[:, old:]
        R = legs_propagator(M, float(old), float(nodes.shape[0]), like=nodes)
        C = self.cross(kernel, x) @ new.mT
        gram = block_covariance(self.covariance(kernel), R, C, _gram(kernel, x, new))
        return PathPoints(nodes, weights, gram, hyperparameters(kernel))

    def covariance(self, kernel: Kernel) -> Float[Tensor, "*b m m"]:
        """K_uu, computed anew where hyperparameters changed or gradients must reach them."""
        wanted = torch.is_grad_enabled() and any(p.requires_grad for p in kernel.parameters())
        if not wanted and torch.equal(self.hyperparameters, hyperparameters(kernel)):
            return self.gram
        return _gram(kernel, self.nodes, self.weights)

    def cross(self, kernel: Kernel, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b m n"]:
        """K_uf = W k(nodes, x), a block of nodes at a time."""
        blocks = _blocks(self.nodes.shape[0], x.shape[-2], kernel)
        parts = (self.weights[:, rows] @ kernel(self.nodes[rows], x) for rows in blocks)
        return reduce(torch.add, parts)

    def cross_inducing(self, kernel: Kernel, other: Inducing) -> Float[Tensor, "*b m k"]:
        """K_ab; K_aa Rᵀ + cov(u_a, f(x_new)) W_newᵀ if the other set is this one, lengthened.

        Raises:
            TypeError: ``other`` is another kind of inducing set.
        """
        if not isinstance(other, PathPoints):
            raise TypeError(f"other must be a PathPoints like this set, got {type(other).__name__}")
        if not self._begins(other):
            return self.cross(kernel, other.nodes) @ other.weights.mT
        (M, old), n = self.weights.shape, other.nodes.shape[0]
        R = legs_propagator(M, float(old), float(n), like=self.nodes)
        new = self.cross(kernel, other.nodes[old:]) @ other.weights[:, old:].mT
        return self.covariance(kernel) @ R.mT + new

    def tensors(self) -> dict[str, Tensor]:
        """All but the weights, which follow from the number of nodes."""
        return {
            "nodes": self.nodes,
            "gram": self.gram,
            "hyperparameters": self.hyperparameters,
        }

    def _begins(self, other: "PathPoints") -> bool:
        shared = other.nodes[: self.nodes.shape[0]]
        return other.num_inducing == self.num_inducing and torch.equal(self.nodes, shared)


def cell_weights(M: int, start: int, stop: int) -> Float[Tensor, "m n"]:
    """W_mi = (1/T) ∫_{i−1}^i √(2m+1) P_m(2s/T − 1) ds for start < i ≤ stop = T, in float64.

    By (2m+1) ∫P_m = P_{m+1} − P_{m−1}.

    Args:
        M: number of polynomials.
        start: points of the path before these.
        stop: points of the path with these, T.
    """
    edges = 2 * torch.arange(start, stop + 1, dtype=torch.float64) / stop - 1
    root = (2 * torch.arange(M + 1, dtype=torch.float64) + 1).sqrt()[:, None]
    P = scaled_legendre(M + 1, edges) / root
    # The constant that ∫P_0 = P_1 + const leaves open cancels in the differences.
    below = torch.cat([torch.zeros_like(P[:1]), P[: M - 1]])
    return (P[1:] - below).diff(dim=-1) / (2 * root[:M])


def _gram(
    kernel: Kernel, nodes: Float[Tensor, "n d"], weights: Float[Tensor, "m n"]
) -> Float[Tensor, "*b m m"]:
    """W k(nodes, nodes) Wᵀ by blocks of rows, each off the diagonal once."""

    def part(rows: slice) -> Tensor:
        W, later = weights[:, rows], slice(rows.stop, None)
        within = W @ kernel(nodes[rows], nodes[rows]) @ W.mT
        if rows.stop == nodes.shape[0]:
            return within
        mixed = W @ kernel(nodes[rows], nodes[later]) @ weights[:, later].mT
        return within + mixed + mixed.mT

    return reduce(torch.add, map(part, _blocks(nodes.shape[0], nodes.shape[0], kernel)))


def _blocks(count: int, columns: int, kernel: Kernel) -> Iterator[slice]:
    """Slices of rows whose kernel values stay within the memory that a block may take."""
    heads = math.prod(kernel.batch_shape)
    size = max(1, _BLOCK_ENTRIES // max(1, columns * heads))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
