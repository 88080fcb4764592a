"""Inducing sets along a path: remembered by features of the inputs, or by the inputs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ohsvgp.hippo.covariance import block_covariance, legs_propagator
from ohsvgp.hippo.legendre import scaled_legendre
from ohsvgp.hippo.random_features import FeatureFunctional
from ohsvgp.inducing import Inducing, continuous, hyperparameters
from probseq.kernels import Kernel

# Rows and columns of a kernel matrix held at once: 2 MB in float64, which caches hold.
_TILE = 512


@dataclass(frozen=True, eq=False)
class PathFeatures(FeatureFunctional):
    """Z of the path so far."""

    last: Float[Tensor, " d"]  # where the path ends


class Recent(NamedTuple):
    """Covariances at the inputs that a path was lengthened by, in the order of their batch."""

    x: Float[Tensor, "n d"]  # the inputs, shape (n, d)
    # C W_newᵀ, C that of the set before and f(x), shape (*b, M, M); None at first
    mixed: Float[Tensor, "*b m m"] | None
    cross: Float[Tensor, "*b m n"]  # K_uf of the set with them and f(x), shape (*b, M, n)


@dataclass(frozen=True, eq=False)
class PathPoints(Inducing):
    """u = W f(inputs of the path), without ever a kernel matrix of all of them in memory."""

    nodes: Float[Tensor, "n d"]  # all inputs so far in the path's order, shape (n, d)
    weights: Float[Tensor, "m n"]  # W of shape (M, n)
    # K_uu under ``hyperparameters``, so that the next batch only adds to it
    gram: Float[Tensor, "*b m m"]
    # The kernel's raw parameters that ``gram`` and ``recent`` belong to
    hyperparameters: Float[Tensor, " p"]
    # What an update by the last batch asks for again; None where it was restored
    recent: Recent | None = None

    @classmethod
    def of(
        cls, M: int, x: Float[Tensor, "n d"], order: Int64[Tensor, " n"], kernel: Kernel
    ) -> "PathPoints":
        """Return the first set of a stream, of inputs x in an order."""
        nodes = x[order]
        weights = cell_weights(M, 0, nodes.shape[0]).to(nodes)
        K_uf = _cross(kernel, nodes, weights, nodes)
        recent = Recent(x, None, K_uf[..., order.argsort()])
        return cls(nodes, weights, K_uf @ weights.mT, hyperparameters(kernel), recent)

    @property
    def num_inducing(self) -> int:
        """M."""
        return self.weights.shape[-2]

    @property
    def last(self) -> Float[Tensor, " d"]:
        """The end of the path."""
        return self.nodes[-1]

    def extended(
        self, x: Float[Tensor, "n d"], order: Int64[Tensor, " n"], kernel: Kernel
    ) -> "PathPoints":
        """Return the set after new inputs x in an order: u_b = R u_a + W_new f(x)."""
        added = x[order]
        nodes = torch.cat([self.nodes, added])
        M, old = self.weights.shape
        weights = cell_weights(M, 0, nodes.shape[0]).to(nodes)
        new = weights[:, old:]
        R = legs_propagator(M, float(old), float(nodes.shape[0]), like=nodes)
        C = self.cross(kernel, added)
        within, mixed = _cross(kernel, added, new, added), C @ new.mT
        # K_bb = R K_aa Rᵀ + R C W_newᵀ + (R C W_newᵀ)ᵀ + W_new k(x_new, x_new) W_newᵀ.
        gram = block_covariance(self.covariance(kernel), R, mixed, within @ new.mT)
        recent = Recent(x, mixed, (R @ C + within)[..., order.argsort()])
        return PathPoints(nodes, weights, gram, hyperparameters(kernel), recent)

    def covariance(self, kernel: Kernel) -> Float[Tensor, "*b m m"]:
        """Return K_uu, computed anew where hyperparameters changed or gradients must reach them."""
        return self.gram if self._holds(kernel) else _gram(kernel, self.nodes, self.weights)

    def cross(self, kernel: Kernel, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b m n"]:
        """Return K_uf = W k(nodes, x), a tile of kernel values at a time."""
        if self.recent is not None and torch.equal(self.recent.x, x) and self._holds(kernel):
            return self.recent.cross
        return _cross(kernel, self.nodes, self.weights, x)

    def cross_inducing(self, kernel: Kernel, other: Inducing) -> Float[Tensor, "*b m k"]:
        """Return K_ab: K_aa Rᵀ + cov(u_a, f(x_new)) W_newᵀ if the other is this one, lengthened."""
        if not isinstance(other, PathPoints):
            raise TypeError(f"other must be a PathPoints like this set, got {type(other).__name__}")
        begins = torch.equal(self.nodes, other.nodes[: self.nodes.shape[0]])
        if not begins or other.num_inducing != self.num_inducing:
            return self.cross(kernel, other.nodes) @ other.weights.mT
        (M, old), n = self.weights.shape, other.nodes.shape[0]
        R = legs_propagator(M, float(old), float(n), like=self.nodes)
        return self.covariance(kernel) @ R.mT + self._mixed(kernel, other)

    def _mixed(self, kernel: Kernel, other: "PathPoints") -> Tensor:
        """Return the covariance of u_a and f(x_new), times W_newᵀ."""
        old = self.nodes.shape[0]
        recent = other.recent if other._holds(kernel) else None
        if recent is None or recent.mixed is None or old + len(recent.x) != len(other.nodes):
            return self.cross(kernel, other.nodes[old:]) @ other.weights[:, old:].mT
        return recent.mixed

    def tensors(self) -> dict[str, Tensor]:
        """Return all but the weights, which follow from the number of nodes."""
        return {"nodes": self.nodes, "gram": self.gram, "hyperparameters": self.hyperparameters}

    def _holds(self, kernel: Kernel) -> bool:
        """Return whether what is cached is that of the kernel, and no gradients must reach it."""
        wanted = torch.is_grad_enabled() and any(p.requires_grad for p in kernel.parameters())
        return not wanted and torch.equal(self.hyperparameters, hyperparameters(kernel))


def cell_weights(M: int, start: int, stop: int) -> Float[Tensor, "m n"]:
    """Return W_mi = (1/T) ∫_{i−1}^i √(2m+1) P_m(2s/T − 1) ds for start < i ≤ stop = T, in float64.

    By (2m+1) ∫P_m = P_{m+1} − P_{m−1}.

    The path has ``start`` points before these and ``stop``, T, with them.
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
    """Return W k(nodes, nodes) Wᵀ, tiles off the diagonal once."""

    def block(now: slice) -> Tensor:
        x, W = nodes[now], weights[:, now]
        within = _cross(kernel, x, W, x) @ W.mT
        if now.start == 0:
            return within
        mixed = _cross(kernel, nodes[: now.start], weights[:, : now.start], x) @ W.mT
        return within + mixed + mixed.mT

    return reduce(torch.add, map(block, _tiles(nodes.shape[0])))


def _cross(
    kernel: Kernel,
    nodes: Float[Tensor, "n d"],
    weights: Float[Tensor, "m n"],
    x: Float[Tensor, "*#b k d"],
) -> Float[Tensor, "*b m k"]:
    """Return W k(nodes, x), a tile of kernel values at a time."""
    kernel = continuous(kernel)
    columns = [
        reduce(
            torch.add,
            (weights[:, rows] @ kernel(nodes[rows], inputs) for rows in _tiles(nodes.shape[0])),
        )
        for inputs in x.split(_TILE, -2)
    ]
    return torch.cat(columns, -1)


def _tiles(count: int) -> Iterator[slice]:
    return (slice(start, min(start + _TILE, count)) for start in range(0, count, _TILE))
