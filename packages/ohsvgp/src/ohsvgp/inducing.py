"""Inducing variables as linear functionals of the process, and their covariances.

Every set is u = W f(nodes), so that all covariances of one set, of two sets and of function values
come from one joint Gaussian: no predictive variance can be negative, whatever the quadrature.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.whitening import Whitening, whiten
from probseq.kernels import Kernel


class Inducing(ABC):
    """A set of M inducing variables u, jointly Gaussian with the process f."""

    @property
    @abstractmethod
    def num_inducing(self) -> int:
        """Return M."""

    @property
    def num_weights(self) -> int:
        """Return how many of them, at the end, are weights of a mean; see ``core.residual``."""
        return 0

    def process(self, kernel: Kernel) -> Kernel:
        """Return the covariance of what f is beside a mean with weights: of all of f without."""
        return kernel

    @abstractmethod
    def covariance(self, kernel: Kernel) -> Float[Tensor, "*b m m"]:
        """Return the prior covariance K_uu."""

    @abstractmethod
    def cross(self, kernel: Kernel, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b m n"]:
        """Return the prior covariance K_uf of u and f(x)."""

    @abstractmethod
    def cross_inducing(self, kernel: Kernel, other: "Inducing") -> Float[Tensor, "*b m k"]:
        """Return K_ab of this set (rows) and another one of the same kind (columns)."""

    def covariances(
        self, kernel: Kernel, old: "Inducing"
    ) -> tuple[Float[Tensor, "*b m m"], Float[Tensor, "*b k m"]]:
        """Return K_bb of this set b, and K_ab of the set a before it (rows) and this one."""
        return self.covariance(kernel), old.cross_inducing(kernel, self)

    def whitened(self, K: Float[Tensor, "*b m m"], *, rel_jitter: float | None) -> Whitening:
        """Return ``whiten`` of K_uu."""
        return whiten(K, rel_jitter=rel_jitter)

    def noise(self, jitter: Float[Tensor, "*b"]) -> Float[Tensor, "*b m"]:
        """Return what the jitter of a whitening adds to the variance of each variable."""
        return jitter[..., None].expand(*jitter.shape, self.num_inducing)

    @property
    def points(self) -> Tensor | None:
        """Return z where u = f(z), shape (*b, M, d); None where variables are no values of f."""
        return None

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return what defines the set, by field name: enough to build it again."""


@dataclass(frozen=True, eq=False)
class PointFunctional(Inducing):
    """u = W f(nodes), or u = f(nodes) where W is None."""

    nodes: Float[Tensor, "*b q d"]  # inputs of shape (*b, Q, d)
    # W of shape (*b, M, Q); None stands for the identity
    weights: Float[Tensor, "*b m q"] | None = None

    @property
    def num_inducing(self) -> int:
        """Return M."""
        return (self.nodes if self.weights is None else self.weights).shape[-2]

    def covariance(self, kernel: Kernel) -> Float[Tensor, "*b m m"]:
        """Return K_uu = W k(nodes, nodes) Wᵀ."""
        return self.cross_inducing(kernel, self)

    def cross(self, kernel: Kernel, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b m n"]:
        """Return K_uf = W k(nodes, x)."""
        kernel = continuous(kernel)
        if self.weights is None:
            return kernel(self.nodes, x)
        return self.weights @ kernel(self.nodes, x)

    def cross_inducing(self, kernel: Kernel, other: Inducing) -> Float[Tensor, "*b m k"]:
        """Return K_ab = W_a k(nodes_a, nodes_b) W_bᵀ, which thesis chapter 4 leaves out."""
        if not isinstance(other, PointFunctional):
            raise TypeError(
                f"other must be a PointFunctional like this set, got {type(other).__name__}"
            )
        return _weighted(self.cross(kernel, other.nodes), other.weights)

    def covariances(
        self, kernel: Kernel, old: Inducing
    ) -> tuple[Float[Tensor, "*b m m"], Float[Tensor, "*b k m"]]:
        """Return W_b k(nodes_b, nodes) by one call of the kernel for the nodes of both sets."""
        if not isinstance(old, PointFunctional) or self.nodes.ndim + old.nodes.ndim > 4:
            return super().covariances(kernel, old)
        nodes = torch.cat([self.nodes, old.nodes])
        K_b, K_a = self.cross(kernel, nodes).split([len(self.nodes), len(old.nodes)], -1)
        return _weighted(K_b, self.weights), _weighted(K_a, old.weights).mT

    @property
    def points(self) -> Tensor | None:
        """Return the nodes where there are no weights."""
        return self.nodes.detach() if self.weights is None else None

    def tensors(self) -> dict[str, Tensor]:
        """Return the nodes, and the weights if there are any."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


def _weighted(K: Tensor, weights: Tensor | None) -> Tensor:
    """Return K Wᵀ."""
    return K if weights is None else K @ weights.mT


def continuous(kernel: Kernel) -> Kernel:
    """Return the kernel without its white noise, of which inducing variables know nothing."""
    if (smooth := kernel.continuous) is None:
        raise ValueError("kernel must be more than white noise, of which nothing can be remembered")
    return smooth


def hyperparameters(kernel: Kernel) -> Tensor:
    """Return the kernel's raw parameters as one vector, detached."""
    return torch.cat([parameter.detach().flatten() for parameter in kernel.parameters()])
