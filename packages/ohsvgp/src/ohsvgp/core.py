"""Online sparse variational inference on whitened inducing variables, as pure functions.

Letters (thesis chapter 4, in whitened form): a is the old inducing set, b the new one. R_a and R_b
whiten them, v = R u. The posterior is kept as a Gaussian site on v beside its prior N(0, I),

    q(v) = N((I + G)⁻¹ h, (I + G)⁻¹),

so only the prior covariance of u is ever factorised with jitter; I + G needs none. With
Ψ = R_b K_bf and T = R_a K_ab R_bᵀ, new data with likelihood sites N(f; ỹ, 1/λ) give

    G_b = Tᵀ G_a T + Ψ diag(λ) Ψᵀ        h_b = Tᵀ h_a + Ψ (λ ỹ),

equal to the online bound's optimum of Bui et al. 2017, whatever the old hyperparameters were: R_a
and the site on v_a stay as they were, K_ab is that of the new ones.

Every function broadcasts over leading batch dimensions: with one kernel and one set of inputs for
all series, the covariances have none, and h has those of the targets.
"""

import math
from typing import Literal, NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.inducing import Inducing
from ohsvgp.whitening import Whitening
from probseq.gaussians import DiagonalGaussian, Gaussian
from probseq.kernels import Kernel
from probseq.linalg import safe_cholesky

__all__ = [
    "Bound",
    "Posterior",
    "Site",
    "carry",
    "features",
    "log_partition",
    "lost_information",
    "online_bound",
    "posterior",
    "predict",
    "transition",
    "uncollapsed_bound",
    "whitened_update",
]


class Site(NamedTuple):
    """Gaussian factor exp(−½ vᵀGv + hᵀv) that the data seen so far leave on v.

    Attributes:
        precision: G, positive semi-definite, shape (*b, M, M).
        shift: h, shape (*b, M).
    """

    precision: Float[Tensor, "*#b m m"]
    shift: Float[Tensor, "*#b m"]


class Posterior(NamedTuple):
    """Moments of q(v).

    Attributes:
        mean: (I + G)⁻¹ h, shape (*b, M).
        root: lower Cholesky factor C of the precision, C Cᵀ = I + G, shape (*b, M, M).
    """

    mean: Float[Tensor, "*b m"]
    root: Float[Tensor, "*#b m m"]


class Bound(NamedTuple):
    """The online bound of one batch of data.

    Attributes:
        value: F in nats, a lower bound of log p(y_new | old posterior) as long as the inducing
            set stays; shape (*b).
        lost_information: ½ tr(G_a [R_a K_aa R_aᵀ − T Tᵀ]) ≥ 0 in nats: what the old site knew of
            directions that the new inducing set does not span; shape (*b).
    """

    value: Float[Tensor, "*b"]
    lost_information: Float[Tensor, "*b"]


def features(
    kernel: Kernel,
    inducing: Inducing,
    R: Whitening | Float[Tensor, "*b m m"],
    x: Float[Tensor, "*#b n d"],
) -> Float[Tensor, "*b m n"]:
    """Ψ = R K_uf: covariance of the whitened inducing variables and f(x).

    Args:
        kernel: prior covariance function of f.
        inducing: u.
        R: its whitening, or any matrix with R K_uu Rᵀ = I.
        x: inputs.

    Returns:
        Ψ; diag(ΨᵀΨ) is the part of the prior variance that u explains.
    """
    return _whitened(R, inducing.cross(kernel, x))


def transition(
    R_a: Whitening | Float[Tensor, "*#b m m"],
    K_ab: Float[Tensor, "*#b m k"],
    R_b: Whitening | Float[Tensor, "*#b k k"],
) -> Float[Tensor, "*b m k"]:
    """T = R_a K_ab R_bᵀ: E[v_a | v_b] = T v_b, the carrier of the old site to the new set.

    Args:
        R_a: whitening of the old set, or a matrix.
        K_ab: covariance of the old set (rows) and the new one.
        R_b: whitening of the new set, or a matrix.
    """
    return _whitened(R_b, _whitened(R_a, K_ab).mT).mT


def _whitened(R: Whitening | Tensor, K: Tensor) -> Tensor:
    return R.apply(K) if isinstance(R, Whitening) else R @ K


def whitened_update(
    old: Site,
    T: Float[Tensor, "*#b m k"] | None,
    Psi: Float[Tensor, "*#b k n"],
    precision: Float[Tensor, "*#b n"],
    shift: Float[Tensor, "*#b n"],
) -> Site:
    """Carry the old site to the new inducing set and absorb new Gaussian likelihood sites.

    G_b = Tᵀ G_a T + Ψ diag(λ) Ψᵀ and h_b = Tᵀ h_a + Ψ s. A Gaussian likelihood has λ = 1/σ² and
    s = y/σ²; non-conjugate ones give local approximations. λ = 0 = s ignores a point.

    Args:
        old: the site on v_a.
        T: from ``transition``; None where the inducing set and its whitening stay (T = I).
        Psi: Ψ at the new inputs, from ``features``.
        precision: λ of every point; without batch dimensions G has none either.
        shift: s of every point.

    Returns:
        The site on v_b.
    """
    G, h = old if T is None else carry(old, T)
    scaled = Psi * precision[..., None, :]
    return Site(G + scaled @ Psi.mT, h + (Psi @ shift[..., None])[..., 0])


def carry(old: Site, T: Float[Tensor, "*#b m k"]) -> Site:
    """The old site as a site on v_b: Tᵀ G_a T and Tᵀ h_a."""
    return Site(T.mT @ old.precision @ T, (T.mT @ old.shift[..., None])[..., 0])


def posterior(site: Site) -> Posterior:
    """Moments of q(v) = N((I + G)⁻¹ h, (I + G)⁻¹).

    Args:
        site: G and h.

    Returns:
        The mean, and the Cholesky factor of I + G, whose eigenvalues are at least one. Jitter is
        added only where the round-off of a large G in float32 hides them.

    Raises:
        CholeskyError: G holds NaN or infinity, or is far from positive semi-definite.
    """
    eye = torch.eye(site.shift.shape[-1], dtype=site.precision.dtype, device=site.precision.device)
    root, info = torch.linalg.cholesky_ex(eye + site.precision)
    if bool((info != 0).any()):
        root = safe_cholesky(eye + site.precision)
    return Posterior(torch.cholesky_solve(site.shift[..., None], root)[..., 0], root)


def log_partition(site: Site, moments: Posterior) -> Float[Tensor, "*b"]:
    """Log of the site's integral against N(0, I): −½ log|I + G| + ½ hᵀ(I + G)⁻¹h."""
    log_det = 2 * moments.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * ((site.shift * moments.mean).sum(-1) - log_det)


def lost_information(
    old: Site, T: Float[Tensor, "*#b m k"] | None, prior_a: Float[Tensor, "*#b m m"] | None = None
) -> Float[Tensor, "*b"]:
    """½ tr(G_a [R_a K_aa R_aᵀ − T Tᵀ]), the information lost by changing the inducing set.

    Args:
        old: the site on v_a.
        T: from ``transition``; None where the inducing set stays.
        prior_a: R_a K_aa R_aᵀ with K_aa under the new hyperparameters; the identity if None
            (unchanged hyperparameters).

    Returns:
        The loss in nats.
    """
    if T is None:
        return torch.zeros_like(old.precision[..., 0, 0])
    carried = ((old.precision @ T) * T).sum((-2, -1))
    if prior_a is None:
        total = old.precision.diagonal(dim1=-2, dim2=-1).sum(-1)
    else:
        total = (old.precision * prior_a).sum((-2, -1))
    return 0.5 * (total - carried)


def online_bound(
    old: Site,
    T: Float[Tensor, "*#b m k"] | None,
    new: Site,
    Psi: Float[Tensor, "*#b k n"],
    K_ff: Float[Tensor, "*#b n"],
    y: Float[Tensor, "*#b n"],
    noise: Float[Tensor, "*#b"],
    *,
    prior_a: Float[Tensor, "*#b m m"] | None = None,
    mask: Tensor | None = None,
) -> Bound:
    """Collapsed online bound of Bui et al. 2017 for the Gaussian likelihood, whitened.

    F = −n/2 log(2πσ²) − [yᵀy + tr K_ff − ‖Ψ‖²_F]/(2σ²) − ½ log|I + G_b| + ½ h_bᵀ(I + G_b)⁻¹h_b
        + ½ log|I + G_a| − ½ h_aᵀ(I + G_a)⁻¹h_a − ½ tr(G_a [R_a K_aa R_aᵀ − T Tᵀ]).

    Sums over batches of data bound the log evidence only as long as the inducing set stays.

    Args:
        old: the site on v_a.
        T: from ``transition``; None where the inducing set stays.
        new: the updated site on v_b.
        Psi: Ψ at the new inputs.
        K_ff: prior variances k(x, x) there.
        y: targets.
        noise: σ².
        prior_a: R_a K_aa R_aᵀ under changed hyperparameters; None if they are unchanged.
        mask: True at points that count; all if None.

    Returns:
        F and its last term.
    """
    weight = torch.ones_like(y) if mask is None else mask.to(y.dtype)
    # What a point adds whatever u is: its normalisation, and the variance that u cannot explain.
    residual = y.square() + K_ff - Psi.square().sum(-2)
    local = (weight * (residual / noise[..., None] + (2 * math.pi * noise[..., None]).log())).sum(
        -1
    )
    lost = lost_information(old, T, prior_a)
    evidence = log_partition(new, posterior(new)) - log_partition(old, posterior(old))
    return Bound(evidence - 0.5 * local - lost, lost.expand(evidence.shape))


def uncollapsed_bound(
    expected_log_likelihood: Float[Tensor, "*b"],
    old: Site,
    T: Float[Tensor, "*#b m k"] | None,
    mean: Float[Tensor, "*b k"],
    covariance: Float[Tensor, "*#b k k"],
    *,
    prior_a: Float[Tensor, "*#b m m"] | None = None,
) -> Bound:
    """Online bound for any likelihood and any Gaussian q(v_b) = N(m, S) (thesis Eq. 4.6).

    F = Σ E_q[log p(y|f)] − KL(q(v_b) ‖ N(0, I)) + E_q[log q_a(u_a)/p_a(u_a)].

    Args:
        expected_log_likelihood: Σ_i E_q[log p(y_i | f_i)] over the new points.
        old: the site on v_a.
        T: from ``transition``; None where the inducing set stays.
        mean: m.
        covariance: S.
        prior_a: R_a K_aa R_aᵀ under changed hyperparameters; None if they are unchanged.

    Returns:
        F, and the part of the last expectation that no q(v_b) can recover.
    """
    dim = mean.shape[-1]
    # KL of N(m, S) from N(0, I): ½ (mᵀm + tr S − log|S| − dim).
    log_det = torch.linalg.slogdet(covariance).logabsdet
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    kl = 0.5 * (mean.square().sum(-1) + trace - log_det - dim)
    # E_q[−½ v_aᵀ G_a v_a + h_aᵀ v_a] of the carried site, minus what the new set cannot know.
    G, h = old if T is None else carry(old, T)
    quadratic = (mean * (G @ mean[..., None])[..., 0]).sum(-1) + (G * covariance).sum((-2, -1))
    lost = lost_information(old, T, prior_a)
    site = (h * mean).sum(-1) - 0.5 * quadratic - log_partition(old, posterior(old))
    value = expected_log_likelihood - kl + site - lost
    return Bound(value, lost.expand(value.shape))


@overload
def predict(
    moments: Posterior, P: Tensor, K_ss: Tensor, *, full_cov: Literal[False] = False
) -> DiagonalGaussian: ...
@overload
def predict(
    moments: Posterior, P: Tensor, K_ss: Tensor, *, full_cov: Literal[True]
) -> Gaussian: ...
def predict(
    moments: Posterior,
    P: Float[Tensor, "*#b m n"],
    K_ss: Float[Tensor, "*#b n"] | Float[Tensor, "*#b n n"],
    *,
    full_cov: bool = False,
) -> DiagonalGaussian | Gaussian:
    """Posterior of f at new inputs: mean Pᵀ(I + G)⁻¹h, variance k** − ΣP² + Σ(C⁻¹P)².

    Args:
        moments: of q(v), from ``posterior``.
        P: Ψ at the new inputs, from ``features``.
        K_ss: prior covariance there if ``full_cov``, else its diagonal.
        full_cov: whether to return the covariance of f or only its diagonal.

    Returns:
        ``Gaussian`` if ``full_cov``, else ``DiagonalGaussian``. Nothing is clamped: variances are
        above −1e-10 of the prior's by construction.
    """
    mean = (P.mT @ moments.mean[..., None])[..., 0]
    A = torch.linalg.solve_triangular(moments.root, P, upper=False)
    if full_cov:
        covariance = K_ss - P.mT @ P + A.mT @ A
        return Gaussian(mean, covariance.expand(*mean.shape, mean.shape[-1]))
    variance = K_ss - P.square().sum(-2) + A.square().sum(-2)
    return DiagonalGaussian(mean, variance.expand(mean.shape))
