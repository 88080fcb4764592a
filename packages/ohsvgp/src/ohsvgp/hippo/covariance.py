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
from ohsvgp.hippo.transitions import legs_matrices
from ohsvgp.inducing import PointFunctional
from probseq.checks import check_counts
from probseq.kernels import Kernel


def legs_propagator(
    M: int, t1: float, t2: float, like: Tensor | None = None
) -> Float[Tensor, "{M} {M}"]:
    """R(t1→t2) = (t1/t2) G₂ diag(w/2) G₁ᵀ, the exact solution of thesis Eq. 2.14 without input.

    Both bases are taken at the M Gauss-Legendre nodes of [0, t1], which integrate products of two
    polynomials of degree below M without error. R is lower triangular.

    Args:
        M: number of basis functions.
        t1: end of the old window, counted from its start; zero gives R = 0.
        t2: end of the new window, at least t1.
        like: tensor whose dtype and device the result gets; float64 if None.

    Returns:
        R, of spectral norm at most √(t1/t2).

    Raises:
        ValueError: M below 1, or times not in 0 ≤ t1 ≤ t2 with t2 > 0.
    """
    _check(M, t1, t2)
    x, old = _old_basis(M)
    share = t1 / t2
    # Above the diagonal the exact value is zero: g_m is orthogonal to all of higher degree.
    R = (share * scaled_legendre(M, share * (1 + x) - 1) @ old).tril()
    return R if like is None else R.to(like)


def legs_increment(
    M: int, t1: float, t2: float, *, num_nodes: int | None = None, like: Tensor | None = None
) -> PointFunctional:
    """The functional v = (1/t2) ∫_{t1}^{t2} f(s) g^{(t2)}(s) ds that new time adds to R u(t1).

    Args:
        M: number of basis functions.
        t1: end of the old window.
        t2: end of the new window.
        num_nodes: Gauss-Legendre nodes on [t1, t2]; 4M if None.
        like: tensor whose dtype and device the result gets; float64 if None.

    Returns:
        Nodes of shape (Q, 1) and weights of shape (M, Q).

    Raises:
        ValueError: M below 1, times not in 0 ≤ t1 ≤ t2 with t2 > 0, or fewer nodes than one.
    """
    _check(M, t1, t2)
    count = 4 * M if num_nodes is None else num_nodes
    check_counts(num_nodes=count)
    x, w = gauss_legendre(count)
    s = t1 + 0.5 * (t2 - t1) * (1 + x)
    weights = scaled_legendre(M, 2 * s / t2 - 1) * (w * (t2 - t1) / t2)
    if like is None:
        return PointFunctional(s[:, None], weights)
    return PointFunctional(s[:, None].to(like), weights.to(like))


def block_covariance(
    K_aa: Float[Tensor, "*b m m"],
    R: Float[Tensor, "m m"],
    C: Float[Tensor, "*b m m"],
    N: Float[Tensor, "*b m m"],
) -> Float[Tensor, "*b m m"]:
    """K_bb = R K_aa Rᵀ + R C + Cᵀ Rᵀ + N, the exact step that replaces thesis C.5.

    Args:
        K_aa: covariance of u(t1).
        R: from ``legs_propagator``.
        C: covariance of u(t1), the rows, and the increment v, the columns.
        N: covariance of v.

    Returns:
        Covariance of u(t2).
    """
    RC = R @ C
    return R @ K_aa @ R.mT + RC + RC.mT + N


def covariance_rate(
    K_uu: Float[Tensor, "*b m m"], c: Float[Tensor, "*b m"], t: float
) -> Float[Tensor, "*b m m"]:
    """dK_uu/dt = A(t) K_uu + K_uu A(t)ᵀ + (c bᵀ + b cᵀ)/t (thesis C.5, corrected).

    Args:
        K_uu: covariance of u(t).
        c: covariance of u(t) and f(t) (thesis C.7).
        t: end of the window.
    """
    A, b = legs_matrices(K_uu.shape[-1], like=K_uu)
    half = A @ K_uu + c[..., :, None] * b
    return (half + half.mT) / t


def cross_rate(
    K_fu: Float[Tensor, "*b n m"], k_t: Float[Tensor, "*b n"], t: float
) -> Float[Tensor, "*b n m"]:
    """dK_fu/dt = K_fu A(t)ᵀ + k(X, t) B(t)ᵀ (thesis Eq. 4.10).

    Args:
        K_fu: covariance of f(X) and u(t).
        k_t: covariance of f(X) and f(t).
        t: end of the window.
    """
    A, b = legs_matrices(K_fu.shape[-1], like=K_fu)
    return (K_fu @ A.mT + k_t[..., None] * b) / t


def euler_covariance(
    kernel: Kernel, K_uu: Float[Tensor, "*b m m"], times: Float[Tensor, " s"]
) -> Float[Tensor, "*b m m"]:
    """K_uu carried by explicit Euler steps on the corrected C.5: a reference, not a method.

    A step from t to t + h multiplies K_uu by I + (h/t) A from both sides, of eigenvalues
    1 − (h/t) n, n = 1..M; where h/t is above 2/M, or a little below, round-off and step error
    explode. The boundary vector c of C.7 is by quadrature at every step.

    Args:
        kernel: the kernel.
        K_uu: covariance at ``times[0]``.
        times: increasing times above zero.

    Returns:
        Covariance at ``times[-1]``.
    """
    M = K_uu.shape[-1]
    for t, after in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
        end = K_uu.new_full((1, 1), t)
        c = legs_increment(M, 0.0, t, like=K_uu).cross(kernel, end)[..., 0]
        K_uu = K_uu + (after - t) * covariance_rate(K_uu, c, t)
    return K_uu


@lru_cache(maxsize=32)
def _old_basis(M: int) -> tuple[Tensor, Tensor]:
    """The M Gauss-Legendre nodes on [−1, 1], and diag(w/2) G₁ᵀ there."""
    x, w = gauss_legendre(M)
    return x, w[:, None] * scaled_legendre(M, x).mT


def _check(M: int, t1: float, t2: float) -> None:
    check_counts(M=M)
    if not (0 <= t1 <= t2 and t2 > 0):
        raise ValueError(f"times must satisfy 0 <= t1 <= t2 and t2 > 0, got t1={t1}, t2={t2}")
