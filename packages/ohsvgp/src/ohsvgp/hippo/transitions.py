"""Linear systems of HiPPO, dc/dt = A(t) c + B(t) f(t).

Coefficients are c_m(t) = ∫ f(x) g_m^{(t)}(x) ω^{(t)}(x) dx.

Deviations from the thesis:

- LegT (A.1, A.2) and FouT (A.5, A.6) are closures: the window's lost end f(t − θ) is replaced by
  what the M coefficients say of it. The exact systems have an input f(t − θ) beside f(t).
- FouT's closure has the factor 2/θ where A.5 and A.6 have 1/θ. At the seam, the Fourier series
  gives the mean of both ends: Σ_k c_k = (f(t) + f(t − θ))/2, so f(t − θ) = 2 Σ_k c_k − f(t).
- FouT is in real pairs: g = 1, then √2 cos(2πj(t − x)/θ), √2 sin(2πj(t − x)/θ) for j = 1, 2, ...,
  in this order, cut after M.
- LagT (A.3, A.4) is in time units of the thesis; here it has a time scale τ.
- At t = 0, where LegS has the rate 0/0, c(0) = (f(0), 0, ..., 0).

All take the number M of coefficients, in the units of time the length θ = ``window`` or the scale
τ = ``timescale``, and ``like``, whose dtype and device the matrices get. They refuse, with a
``ValueError``, M below 1 and a θ or τ that is not positive.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts, check_positive

FLOAT64 = torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class System:
    """dc/dt = A c + B f(t), all over t if the window grows."""

    A: Float[Tensor, "m m"]  # shape (M, M)
    B: Float[Tensor, " m"]  # shape (M,)
    growing: bool = False  # whether the right side is divided by t (LegS)

    def rate(self, t: float) -> float:
        """Return the factor of A and B at time t: 1/t or 1; 0 at t = 0, where c(0) is at rest."""
        if not self.growing:
            return 1.0
        return 1 / t if t > 0 else 0.0


def legs_system(M: int, like: Tensor = FLOAT64) -> System:
    """Return that of scaled Legendre polynomials, uniform on [0, t] (thesis Eq. 2.14, 2.15)."""
    check_counts(M=M)
    b = _sqrt_odd(M, like)
    degree = torch.arange(1, M + 1, dtype=like.dtype, device=like.device)
    return System(-(b[:, None] * b).tril(-1) - degree.diag(), b, growing=True)


def legt_system(M: int, window: float, *, like: Tensor = FLOAT64) -> System:
    """Return the closure of Legendre polynomials, uniform on [t − θ, t] (thesis A.1, A.2).

    A_mk = −b_m b_k/θ, times (−1)^(m−k) above the diagonal, B = b/θ, b_m = √(2m+1). The exact system
    has A + b̃ b̃ᵀ/θ and the input −b̃ f(t − θ)/θ, with b̃_m = (−1)^m √(2m+1) = g_m(t − θ).
    """
    check_counts(M=M)
    check_positive(window=window)
    b = _sqrt_odd(M, like)
    far = b.clone()
    far[1::2] *= -1
    return System(-((b[:, None] * b).tril() + (far[:, None] * far).triu(1)) / window, b / window)


def lagt_system(M: int, timescale: float, *, like: Tensor = FLOAT64) -> System:
    """Return that of Laguerre polynomials under exp(−(t − x)/τ)/τ on (−∞, t] (thesis A.3, A.4).

    A_mk = −1/τ for m ≥ k, B = 1/τ; the thesis has τ = 1.
    """
    check_counts(M=M)
    check_positive(timescale=timescale)
    ones = torch.ones(M, dtype=like.dtype, device=like.device)
    return System(-torch.tril(ones[:, None] * ones) / timescale, ones / timescale)


def fout_system(M: int, window: float, *, like: Tensor = FLOAT64) -> System:
    """Return the closure of Fourier pairs on [t − θ, t] (thesis A.5, A.6, factor corrected).

    With b = g(t) = (1, √2, 0, √2, 0, ...) and the rotation Ω of every pair at 2πj/θ:
    A = Ω − 2 b bᵀ/θ, B = 2b/θ. The exact system has A = Ω, B = b/θ and the input −b f(t − θ)/θ.
    M is odd: the constant and (M − 1)/2 pairs.
    """
    check_counts(M=M)
    check_positive(window=window)
    if M % 2 == 0:
        raise ValueError(f"M must be odd for the constant and whole pairs, got {M}")
    b = torch.zeros(M, dtype=like.dtype, device=like.device)
    b[0] = 1.0
    b[1::2] = 2**0.5
    rotation = torch.zeros(M, M, dtype=like.dtype, device=like.device)
    cosine = torch.arange(1, M, 2, device=like.device)
    speed = torch.pi * (cosine + 1).to(like.dtype) / window
    rotation[cosine, cosine + 1] = -speed
    rotation[cosine + 1, cosine] = speed
    return System(rotation - 2 * b[:, None] * b / window, 2 * b / window)


def _sqrt_odd(M: int, like: Tensor) -> Tensor:
    return torch.arange(1, 2 * M, 2, dtype=like.dtype, device=like.device).sqrt()
