"""Inducing sets along a path: remembered by features of the inputs, or by the inputs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.hippo.covariance import block_covariance, legs_propagator
from ohsvgp.hippo.legendre import scaled_legendre
from ohsvgp.hippo.random_features import FeatureFunctional
from ohsvgp.inducing import Inducing, continuous, hyperparameters
from probseq.kernels import Kernel

__all__ = ["PathFeatures", "PathPoints", "cell_weights"]

# Entries of a kernel matrix held at once: 64 MB in float64.
_BLOCK_ENTRIES = 2**23


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
        kernel, blocks = continuous(kernel), _blocks(self.nodes.shape[0], x.shape[-2], kernel)
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
    kernel = continuous(kernel)

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
