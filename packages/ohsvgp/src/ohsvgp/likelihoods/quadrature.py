"""One-dimensional integrals over the latent value, and likelihoods that need them."""

from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.likelihoods.base import Expectations, Likelihood

# Exact to 1e-10 for log-concave links while f's standard deviation is below 2, to 1e-4 below 5.
NUM_NODES = 64
# Of the trapezoidal rule below, on either side of the centre.
_HALF_NODES = 64


class Derivatives(NamedTuple):
    """Log p(y | f) and its derivatives in f, elementwise."""

    value: Tensor  # log p
    first: Tensor  # d log p / df
    second: Tensor  # d² log p / df²


class QuadratureLikelihood(Likelihood):
    """Likelihood whose log p(y | f) is smooth and concave in f, with known derivatives."""

    @abstractmethod
    def derivatives(self, f: Float[Tensor, "*#n"], y: Float[Tensor, "*#n"]) -> Derivatives:
        """Return log p(y | f) and its first two derivatives in f."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return log p(y | f)."""
        return self.derivatives(f, y).value

    def expectations(self, mean: Tensor, variance: Tensor, y: Tensor) -> Expectations:
        """Integrate by Gauss-Hermite quadrature with ``NUM_NODES`` nodes."""
        nodes, weights = gauss_hermite(mean.dtype, mean.device)
        # Nodes go first, so that parameters of a series broadcast as they do in log_prob.
        shape = (-1, *(1,) * max(mean.ndim, variance.ndim))
        f = mean + positive_root(variance) * nodes.view(shape)
        value, first, second = (
            (values * weights.view(-1, *(1,) * (values.ndim - 1))).sum(0)
            for values in self.derivatives(f, y)
        )
        return Expectations(value, first, -second)


def log_integral(
    log_integrand: Callable[[Tensor], Tensor],
    centre: Tensor,
    scale: Tensor,
    reach: Tensor,
    half_nodes: int = _HALF_NODES,
) -> Tensor:
    """Return log ∫ exp(log_integrand(x)) dx, stable wherever the peak is and however low.

    Trapezoidal rule in s, x = centre + scale·sinh(s): steps are fine at the centre and grow
    outwards, so that one rule serves integrands that are much wider than their peak. It converges
    geometrically for analytic integrands.

    The integrand is elementwise, of x with one more leading dimension, of nodes; beyond the reach
    it is negligible.
    """
    limit = torch.asinh(reach / scale)
    steps = torch.arange(-half_nodes, half_nodes + 1, dtype=centre.dtype, device=centre.device)
    s = (steps / half_nodes).view(-1, *(1,) * centre.ndim) * limit
    log_step = (scale * limit / half_nodes * s.cosh()).log()
    return torch.logsumexp(log_integrand(centre + scale * s.sinh()) + log_step, 0)


@lru_cache(maxsize=16)
def gauss_hermite(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of E[φ(ε)] ≈ Σ w_k φ(x_k) for ε ~ N(0, 1)."""
    x, w = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    # Cached tensors made in inference mode could not be used where gradients are wanted later.
    with torch.inference_mode(False):
        nodes = torch.from_numpy(x).to(device, dtype)
        return nodes, torch.from_numpy(w / w.sum()).to(device, dtype)


def positive_root(variance: Tensor) -> Tensor:
    """Return standard deviations; below zero is round-off, and the root at zero is steep."""
    return variance.clamp_min(torch.finfo(variance.dtype).eps ** 2).sqrt()
