"""Legendre polynomials and their quadrature."""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@lru_cache(maxsize=64)
def gauss_legendre(Q: int, panels: int = 1) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    """Return nodes on [−1, 1] and weights of the uniform probability measure there, float64.

    Each of the equal panels of [−1, 1] has Q nodes: exact for polynomials of degree 2Q − 1.
    """
    nodes, weights = _rule(Q)
    if panels > 1:
        middles = (np.arange(1 - panels, panels, 2) / panels)[:, None]
        nodes, weights = (middles + nodes / panels).ravel(), np.tile(weights / panels, panels)
    # Copied, so that their addresses are aligned in each process.
    return torch.tensor(nodes), torch.tensor(weights / 2)


def scaled_legendre(M: int, s: Float[Tensor, " n"]) -> Float[Tensor, "m n"]:
    """Return √(2m+1) P_m(s) for m < M, orthonormal under the uniform measure on [−1, 1]."""
    x = s.detach().cpu().double().numpy()
    P = np.empty((max(M, 2), len(x)))
    P[0], P[1] = 1.0, x
    product = np.empty_like(x)
    for m in range(1, M - 1):
        # P_{m+1} = s P_m + m/(m+1) (s P_m − P_{m−1}).
        np.multiply(x, P[m], out=product)
        np.subtract(product, P[m - 1], out=P[m + 1])
        P[m + 1] *= m / (m + 1)
        P[m + 1] += product
    scaled = np.sqrt(2 * np.arange(M) + 1)[:, None] * P[:M]
    # Copied, as above.
    return torch.tensor(scaled).to(s)


def _rule(Q: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes and weights on [−1, 1], by Newton steps on P_Q(cos θ).

    numpy finds them as eigenvalues in O(Q³): 3 ms for 200 nodes, as long as an update by them.
    """
    # The k-th zero of the Bessel function J_0 (McMahon), and of P_Q beside it (Olver).
    b = 8 * math.pi * (np.arange(1, (Q + 1) // 2 + 1) - 0.25)
    psi = (b / 8 + 1 / b - 124 / (3 * b**3) + 120928 / (15 * b**5)) / (Q + 0.5)
    theta = psi + (psi / np.tan(psi) - 1) / (8 * psi * (Q + 0.5) ** 2)
    x, slope = np.cos(theta), theta
    # From errors below 1e-3, quadratic: below 1e-7 and below round-off.
    for _ in range(3):
        sine, below, value, product = np.sin(theta), np.ones_like(x), x.copy(), np.empty_like(x)
        for m in range(1, Q):
            np.multiply(x, value, out=product)
            np.subtract(product, below, out=below)
            below *= m / (m + 1)
            below += product
            below, value = value, below
        # dP_Q/dθ = −sin θ P_Q' = Q (cos θ P_Q − P_{Q−1})/sin θ.
        slope = Q * (x * value - below) / sine
        theta = theta - value / slope
        x = np.cos(theta)
    # w = 2/((1 − x²) P_Q'²).
    weights = 2 / slope**2
    if Q % 2:
        x[-1] = 0.0
    nodes = np.concatenate([-x, x[::-1][Q % 2 :]])
    weights = np.concatenate([weights, weights[::-1][Q % 2 :]])
    return nodes, weights * (2 / weights.sum())
