"""Inducing covariances of HiPPO-LegS carried from one window to the next.

LegS inducing variables are u(t) = (1/t) ∫_0^t f(s) g^{(t)}(s) ds, where
g_m^{(t)}(s) = √(2m+1) P_m(2s/t − 1). From t1 to t2 they change by a matrix and by what f adds
on [t1, t2]:

    u(t2) = R u(t1) + v,   v = (1/t2) ∫_{t1}^{t2} f(s) g^{(t2)}(s) ds.

This holds for every f, not only for polynomials, since g_m^{(t2)} on [0, t1] is a polynomial of
degree m < M. So K_uu has an exact block update, where thesis C.1 integrates an ODE.

Deviations from the thesis: C.5/C.6 have the boundary term c 1ᵀ + 1 cᵀ; it is c bᵀ + b cᵀ with
b_m = √(2m+1), since the delta of C.4 is multiplied by g_m(t) = b_m. The instability that C.1
reports is that of explicit Euler steps, not of the equation: R has norm at most √(t1/t2) ≤ 1.
"""

from functools import lru_cache

from jaxtyping import Float
from torch import Tensor

from ohsvgp.hippo.legendre import gauss_legendre, scaled_legendre
from ohsvgp.hippo.transitions import FLOAT64
from probseq.checks import check_counts


def legs_propagator(
    M: int, t1: float, t2: float, like: Tensor = FLOAT64
) -> Float[Tensor, "{M} {M}"]:
    """Return R(t1→t2) = (t1/t2) G₂ diag(w/2) G₁ᵀ, the solution of thesis Eq. 2.14 without input.

    Both bases are taken at the M Gauss-Legendre nodes of [0, t1], which integrate products of two
    polynomials of degree below M without error. R is lower triangular, of spectral norm at most
    √(t1/t2).

    Windows end at t1, where zero gives R = 0, and at t2; R gets the dtype and device of ``like``.
    """
    check_counts(M=M)
    if not (0 <= t1 <= t2 and t2 > 0):
        raise ValueError(f"times must satisfy 0 <= t1 <= t2 and t2 > 0, got t1={t1}, t2={t2}")
    x, old = _old_basis(M)
    share = t1 / t2
    # Above the diagonal the exact value is zero: g_m is orthogonal to all of higher degree.
    return (share * scaled_legendre(M, share * (1 + x) - 1) @ old).tril().to(like)


def block_covariance(
    K_aa: Float[Tensor, "*b m m"],
    R: Float[Tensor, "m m"],
    C: Float[Tensor, "*b m m"],
    N: Float[Tensor, "*b m m"],
) -> Float[Tensor, "*b m m"]:
    """Return K_bb = R K_aa Rᵀ + R C + Cᵀ Rᵀ + N, the exact step that replaces thesis C.5.

    K_aa is the covariance of u(t1), C that of u(t1) (rows) and the increment v, N that of v.
    """
    RC = R @ C
    return R @ K_aa @ R.mT + RC + RC.mT + N


@lru_cache(maxsize=32)
def _old_basis(M: int) -> tuple[Tensor, Tensor]:
    """Return the M Gauss-Legendre nodes on [−1, 1], and diag(w/2) G₁ᵀ there."""
    x, w = gauss_legendre(M)
    return x, w[:, None] * scaled_legendre(M, x).mT
