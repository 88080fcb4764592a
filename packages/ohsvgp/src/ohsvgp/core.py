"""Online sparse variational inference on whitened inducing variables, as pure functions.

Letters (thesis chapter 4, in whitened form): a is the old inducing set, b the new one. R_a and R_b
whiten them, v = R u. The posterior is stored as a Gaussian site on v beside its prior N(0, I),

    q(v) = N((I + G)⁻¹ h, (I + G)⁻¹),

so only the prior covariance of u is ever factorised with jitter; I + G needs none. With
Ψ = R_b K_bf and T = R_a K_ab R_bᵀ, new data with likelihood sites N(f; ỹ, 1/λ) give

    G_b = Tᵀ G_a T + Ψ diag(λ) Ψᵀ        h_b = Tᵀ h_a + Ψ (λ ỹ),

equal to the online bound's optimum of Bui et al. 2017, whatever the old hyperparameters were: R_a
and the site on v_a stay as they were, K_ab is that of the new ones. What the old variables hold
beyond the new ones, v_a | v_b ~ N(T v_b, C), the bound takes as known exactly; ``carry_site`` with
``alpha`` above 0 leaves it uncertain, as power EP does.

Every function broadcasts over leading batch dimensions: with one kernel and one set of inputs for
all series, the covariances have none, and h has those of the targets.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.inducing import Inducing
from ohsvgp.whitening import Whitening, whiten
from probseq.gaussians import DiagonalGaussian, JointGaussian
from probseq.kernels import Kernel
from probseq.linalg import safe_cholesky


class Site(NamedTuple):
    """Gaussian factor exp(−½ vᵀGv + hᵀv) that the data seen so far leave on v."""

    # G, positive semi-definite, shape (*b, M, M)
    precision: Float[Tensor, "*#b m m"]
    # h, shape (*b, M)
    shift: Float[Tensor, "*#b m"]


class Posterior(NamedTuple):
    """Moments of q(v)."""

    mean: Float[Tensor, "*b m"]  # (I + G)⁻¹ h, shape (*b, M)
    # lower Cholesky factor C of the precision, C Cᵀ = I + G, shape (*b, M, M)
    root: Float[Tensor, "*#b m m"]


class CarriedSite(NamedTuple):
    """The old site as a factor t_b of the new variables, log t_b(v) = −½ vᵀG_b v + h_bᵀv + c."""

    site: Site  # G_b and h_b
    # c in nats, with the old site normalised to integrate to one against its prior; shape (*b)
    log_scale: Float[Tensor, "*#b"]
    # what the old site knew of directions that the new inducing set does not span, in nats: ½
    # tr(G_a C), or (1/2α) log|I + α G_a C|; shape (*b)
    lost_information: Float[Tensor, "*#b"]


class OnlineBound(NamedTuple):
    """The online bound of one batch of data."""

    # F in nats: a lower bound of the log evidence of the new data beside the carried factor, and so
    # of log p(y_new | old posterior) as long as the inducing set stays. With a set that has moved
    # and alpha > 0 it is an energy of power EP, no lower bound; shape (*b).
    value: Float[Tensor, "*b"]
    lost_information: Float[Tensor, "*b"]  # of ``CarriedSite``; shape (*b)
    # What the new data lose because u does not explain all of f at them, in nats, at least 0: ½ Σ
    # λ_i (k(x_i, x_i) − |Ψ_i|²), λ_i the precision of their sites; shape (*b)
    unexplained: Float[Tensor, "*b"]


def features(
    kernel: Kernel,
    inducing: Inducing,
    R: Whitening | Float[Tensor, "*b m m"],
    x: Float[Tensor, "*#b n d"],
) -> Float[Tensor, "*b m n"]:
    """Return Ψ = R K_uf: covariance of the whitened inducing variables and f(x).

    R is the whitening of u, or any matrix with R K_uu Rᵀ = I; diag(ΨᵀΨ) is the share of the prior
    variance that u explains.
    """
    return _whitened(R, inducing.cross(kernel, x))


def transition(
    R_a: Whitening | Float[Tensor, "*#b m m"],
    K_ab: Float[Tensor, "*#b m k"],
    R_b: Whitening | Float[Tensor, "*#b k k"],
) -> Float[Tensor, "*b m k"]:
    """Return T = R_a K_ab R_bᵀ: E[v_a | v_b] = T v_b carries the old site to the new set.

    The rows of K_ab are the old set; R_a and R_b are whitenings, or matrices.
    """
    return _whitened(R_b, _whitened(R_a, K_ab).mT).mT


def _whitened(R: Whitening | Tensor, K: Tensor) -> Tensor:
    return R.apply(K) if isinstance(R, Whitening) else R @ K


def carry_site(
    old: Site,
    T: Float[Tensor, "*#b m k"] | None,
    C: Float[Tensor, "*#b m m"] | None = None,
    *,
    alpha: float = 0.0,
    moments: Posterior | None = None,
) -> CarriedSite:
    """Carry the old site to the new inducing set, v_a | v_b ~ N(T v_b, C).

    α = 0 takes the mean of the log, as the online bound does (thesis Eq. 4.6):

        log t_b(v_b) = E[log t_a(v_a) | v_b]:
        G_b = Tᵀ G_a T,   h_b = Tᵀ h_a,   c = −½ tr(G_a C).

    α > 0 is the power-EP form (Bui, Nguyen and Turner 2017), α = 1 the exact integral:

        log t_b(v_b) = (1/α) log E[t_a(v_a)^α | v_b]:
        G_b = Tᵀ (I + α G_a C)⁻¹ G_a T,   h_b = Tᵀ (I + α G_a C)⁻¹ h_a,
        c = −(1/2α) log|I + α G_a C| + (α/2) h_aᵀ (I + α C G_a)⁻¹ C h_a.

    Args:
        old: the site on v_a, without gradients if ``alpha`` is above 0.
        T: from ``transition``; None where the inducing set stays.
        C: covariance of v_a given v_b, R_a K_aa R_aᵀ − T Tᵀ under the kernel of now; None for 0.
        alpha: α in [0, 1].
        moments: ``posterior`` of ``old``, where it is known.

    Returns:
        The factor; its scale is that of t_a over the integral of t_a against N(0, I).
    """
    q = posterior(old) if moments is None else moments
    partition = log_partition(old, q)
    none = torch.zeros_like(old.precision[..., 0, 0])
    if T is None:
        return CarriedSite(old, -partition, none)
    if C is None or alpha == 0:
        # −c = ½ tr(G_a C).
        lost = none if C is None else 0.5 * (old.precision * C).sum((-2, -1))
        site = Site(T.mT @ old.precision @ T, (T.mT @ old.shift[..., None])[..., 0])
        return CarriedSite(site, -lost - partition, lost)
    # G_a = F Fᵀ and, since (I + G_a) m = h_a, h_a = F Fᵀ m + m: only S = I + α Fᵀ C F is inverted.
    F, m = _square_root(old.precision), q.mean[..., None]
    FCF = F.mT @ C @ F
    eye = torch.eye(F.shape[-1], dtype=F.dtype, device=F.device)
    root, info = torch.linalg.cholesky_ex(eye + alpha * FCF)
    if bool((info != 0).any()):
        # Round-off of C, which a large G_a multiplies.
        root = torch.linalg.cholesky(eye + alpha * nearest_psd(FCF))
    # (I + α G_a C)⁻¹ h_a = F S⁻¹ Fᵀ (m − α C m) + m, and (I + α G_a C)⁻¹ G_a = F S⁻¹ Fᵀ.
    right = F.mT @ (m - alpha * (C @ m))
    solved = torch.linalg.solve_triangular(root, right, upper=False)
    W = torch.linalg.solve_triangular(root, F.mT @ T, upper=False)
    site = Site(W.mT @ W, (W.mT @ solved + T.mT @ m)[..., 0])
    # log|I + α G_a C| = log|S|.
    lost = root.diagonal(dim1=-2, dim2=-1).log().sum(-1) / alpha
    # h_aᵀ (I + α C G_a)⁻¹ C h_a = h_aᵀ C (I + α G_a C)⁻¹ h_a.
    h = F @ torch.linalg.solve_triangular(root.mT, solved, upper=True) + m
    scale = 0.5 * alpha * (old.shift * (C @ h)[..., 0]).sum(-1) - lost
    return CarriedSite(site, scale - partition, lost)


def _square_root(G: Tensor) -> Tensor:
    """Return F with F Fᵀ = G, but for round-off of each variable's own information."""
    scaled, scale = _scaled(G)
    # Its own round-off makes a singular G regular, as a rule.
    shift = torch.finfo(G.dtype).eps * G.shape[-1] * scaled.diagonal(dim1=-2, dim2=-1)
    root, info = torch.linalg.cholesky_ex(scaled + torch.diag_embed(shift))
    if bool((info != 0).any()):
        values, vectors = torch.linalg.eigh(scaled)
        root = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return scale[..., None] * root


def _scaled(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return D⁻¹ A D⁻¹ of unit diagonal, and D: no variable is then the round-off of another.

    A row of no diagonal stays as it is.
    """
    variance = matrix.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(variance > 0, variance, 1).sqrt()
    return matrix / scale[..., None] / scale[..., None, :], scale


def whitened_update(
    carried: Site,
    Psi: Float[Tensor, "*#b k n"],
    precision: Float[Tensor, "*#b n"],
    shift: Float[Tensor, "*#b n"],
) -> Site:
    """Absorb new Gaussian likelihood sites beside the carried one.

    G_b = G + Ψ diag(λ) Ψᵀ and h_b = h + Ψ s. A Gaussian likelihood has λ = 1/σ² and s = y/σ²;
    non-conjugate ones give local approximations. λ = 0 = s ignores a point.

    Without batch dimensions of λ, G has none either.
    """
    # Ψ diag(λ) Ψᵀ and Ψ s.
    G = (Psi * precision[..., None, :]) @ Psi.mT
    h = (Psi @ shift[..., None])[..., 0]
    return Site(carried.precision + G, carried.shift + h)


def posterior(site: Site) -> Posterior:
    """Return the moments of q(v) = N((I + G)⁻¹ h, (I + G)⁻¹).

    The eigenvalues of I + G are at least one. Jitter is added only where the round-off of a large G
    hides them.

    Raises:
        CholeskyError: G holds NaN or infinity, or is far from positive semi-definite.
    """
    root = precision_root(site.precision)
    return Posterior(torch.cholesky_solve(site.shift[..., None], root)[..., 0], root)


def precision_root(G: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """Return the lower Cholesky factor C of the precision of q(v), C Cᵀ = I + G."""
    eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    root, info = torch.linalg.cholesky_ex(eye + G)
    if not bool((info != 0).any()):
        return root
    # Of variables in one unit: jitter of the largest would drown the others.
    scaled, scale = _scaled(eye + G)
    return scale[..., None] * safe_cholesky(scaled)


def nearest_psd(matrix: Float[Tensor, "*b k k"]) -> Float[Tensor, "*b k k"]:
    """Return the nearest positive semi-definite matrix: eigenvalues below zero become zero."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0)[..., None, :]) @ vectors.mT


def log_partition(site: Site, moments: Posterior) -> Float[Tensor, "*b"]:
    """Return the log of the site's integral against N(0, I): −½ log|I + G| + ½ hᵀ(I + G)⁻¹h."""
    # log|I + G| = 2 Σ log C_mm, C Cᵀ = I + G.
    log_det = 2 * moments.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * ((site.shift * moments.mean).sum(-1) - log_det)


def online_bound(
    carried: CarriedSite,
    new: Site,
    Psi: Float[Tensor, "*#b k n"],
    K_ff: Float[Tensor, "*#b n"],
    y: Float[Tensor, "*#b n"],
    noise: Float[Tensor, "..."],
    *,
    mask: Tensor | None = None,
    moments: Posterior | None = None,
    num_weights: int = 0,
) -> OnlineBound:
    """Return the collapsed online bound of Bui et al. 2017 for the Gaussian likelihood, whitened.

    F = −n/2 log(2πσ²) − [yᵀy + tr K_ff − ‖Ψ‖²_F]/(2σ²) − ½ log|I + G_b| + ½ h_bᵀ(I + G_b)⁻¹h_b + c;
    with α = 0, c = ½ log|I + G_a| − ½ h_aᵀ(I + G_a)⁻¹h_a − ½ tr(G_a [R_a K_aa R_aᵀ − T Tᵀ]).

    Sums over batches of data bound the log evidence only as long as the inducing set stays.

    The carried site, with c, is that of ``carry_site``, the new one is updated. The noise σ²
    broadcasts with y; points count where the mask is True, all if None; ``moments`` is the
    ``posterior`` of the new site, where it is known, and ``num_weights`` is of ``residual``.
    """

    def total(terms: Tensor) -> Tensor:
        return (terms if mask is None else terms * mask).sum(-1)

    # ½ Σ (k(x_i, x_i) − |Ψ_i|²)/σ².
    unexplained = 0.5 * total(residual(K_ff, Psi, num_weights) / noise)
    # −½ Σ [y_i²/σ² + log 2πσ²].
    local = -0.5 * total(y.square() / noise + (2 * math.pi * noise).log())
    # −½ log|I + G_b| + ½ h_bᵀ(I + G_b)⁻¹h_b.
    evidence = log_partition(new, posterior(new) if moments is None else moments)
    value = evidence + carried.log_scale + local - unexplained
    lost = carried.lost_information.expand(value.shape)
    return OnlineBound(value, lost, unexplained.expand(value.shape))


def uncollapsed_bound(
    expected_log_likelihood: Float[Tensor, "*b"],
    unexplained: Float[Tensor, "*b"],
    carried: CarriedSite,
    mean: Float[Tensor, "*b k"],
    covariance: Float[Tensor, "*#b k k"],
) -> OnlineBound:
    """Return the online bound for any likelihood and q(v_b) = N(m, S) (thesis Eq. 4.6).

    F = Σ E_q[log p(y|f)] − KL(q(v_b) ‖ N(0, I)) + E_q[log t_b(v_b)];
    with α = 0 the last term is E_q[log q_a(u_a)/p_a(u_a)].

    The first argument is Σ_i E_q[log p(y_i | f_i)] over the new points; ``unexplained`` is that of
    ``OnlineBound``, to be handed on; the carried site is that of ``carry_site``, with what was
    lost, which no q(v_b) can recover.
    """
    dim = mean.shape[-1]
    # KL of N(m, S) from N(0, I): ½ (mᵀm + tr S − log|S| − dim).
    log_det = torch.linalg.slogdet(covariance).logabsdet
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    kl = 0.5 * (mean.square().sum(-1) + trace - log_det - dim)
    # E_q[log t_b] = −½ (mᵀG_b m + tr(G_b S)) + h_bᵀm + c.
    G, h = carried.site
    quadratic = (mean * (G @ mean[..., None])[..., 0]).sum(-1) + (G * covariance).sum((-2, -1))
    factor = (h * mean).sum(-1) - 0.5 * quadratic + carried.log_scale
    value = expected_log_likelihood - kl + factor
    return OnlineBound(value, carried.lost_information.expand(value.shape), unexplained)


def predict(
    moments: Posterior,
    P: Float[Tensor, "*#b m n"],
    K_ss: Float[Tensor, "*#b n"],
    *,
    num_weights: int = 0,
) -> DiagonalGaussian:
    """Return the posterior of f at new inputs: mean Pᵀ(I + G)⁻¹h, variance k** − ΣP² + Σ(C⁻¹P)².

    The variances, without noise, are positive but for round-off, and stay above that of ``K_ss``.
    """
    mean = (P.mT @ moments.mean[..., None])[..., 0]
    # A = C⁻¹P: ΣA² is the variance that q(v) leaves, ΣP² what u explains of the prior's.
    A = torch.linalg.solve_triangular(moments.root, P, upper=False)
    variance = residual(K_ss, P, num_weights) + A.square().sum(-2)
    floor = torch.finfo(K_ss.dtype).eps * K_ss.detach()
    return DiagonalGaussian(mean, torch.maximum(variance, floor).expand(mean.shape))


def predict_joint(
    moments: Posterior,
    P: Float[Tensor, "*#b m n"],
    K_ss: Float[Tensor, "*#b n n"],
    *,
    num_weights: int = 0,
) -> JointGaussian:
    """Return the joint posterior of f at new inputs, with covariance K** − PᵀP + (C⁻¹P)ᵀ(C⁻¹P).

    Arguments are those of ``predict``, but ``K_ss`` the prior covariance.
    """
    mean = (P.mT @ moments.mean[..., None])[..., 0]
    A = torch.linalg.solve_triangular(moments.root, P, upper=False)
    U = P[..., : P.shape[-2] - num_weights, :]
    covariance = K_ss - U.mT @ U + A.mT @ A
    floor = torch.finfo(K_ss.dtype).eps * K_ss.detach().diagonal(dim1=-2, dim2=-1)
    short = (floor - covariance.diagonal(dim1=-2, dim2=-1)).clamp_min(0)
    covariance = covariance + torch.diag_embed(short)
    return JointGaussian(mean, covariance.expand(*mean.shape, mean.shape[-1]))


def residual(
    K_ff: Float[Tensor, "*#b n"], Psi: Float[Tensor, "*#b m n"], num_weights: int = 0
) -> Float[Tensor, "*b n"]:
    """Return the prior variance of f given u: k(x, x) − ΣΨ².

    The last ``num_weights`` variables are the weights of a mean, which leave nothing of it: K_ff is
    without s²φ², since s²φ² − s²φ² would be round-off of a wide prior.
    """
    return K_ff - Psi[..., : Psi.shape[-2] - num_weights, :].square().sum(-2)


def filter_stream(
    kernel: Kernel,
    noise: float,
    sets: Sequence[Inducing],
    batches: Sequence[tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]],
    x_new: Float[Tensor, "m d"],
) -> DiagonalGaussian:
    """Learn a stream batch by batch and predict: ``OnlineGP`` step by step, without its checks.

    There is one inducing set a batch, which it ends with; the noise is Gaussian and α is 0.

    Example:
        >>> import torch
        >>> from ohsvgp import Gaussian, LegS, OnlineGP
        >>> from ohsvgp.core import filter_stream
        >>> from probseq.kernels import RBF
        >>> kernel, basis, t = RBF(1).double(), LegS(10), torch.linspace(0, 4, 40).double()
        >>> gp = OnlineGP(kernel, Gaussian(torch.tensor(0.01).double()), basis, alpha=0.0)
        >>> batches = [(x[:, None], x.sin()) for x in t.chunk(4)]
        >>> sets = [basis.inducing(kernel, float(x[-1])) for x, _ in batches]
        >>> for x, y in batches:
        ...     info = gp.update(x[:, 0], y)
        >>> prediction = filter_stream(kernel, 0.01, sets, batches, t[:, None])
        >>> torch.allclose(prediction.mean, gp.predict(t).mean, atol=1e-6)
        True
    """
    # Before any data u is the first set and q(v) the prior N(0, I): G = 0 and h = 0.
    old, M = sets[0], sets[0].num_inducing
    R_a = whiten(old.covariance(kernel))
    site = Site(R_a.root.new_zeros(M, M), R_a.root.new_zeros(M))
    for inducing, (x, y) in zip(sets, batches, strict=True):
        # 1. The set moves from a to b, and what a knew is carried: G_b = Tᵀ G_a T, h_b = Tᵀ h_a.
        R_b = whiten(inducing.covariance(kernel))
        T = None if inducing is old else transition(R_a, old.cross_inducing(kernel, inducing), R_b)
        carried = carry_site(site, T)
        # 2. The batch is learned, λ = 1/σ²: G_b += Ψ λ Ψᵀ, h_b += Ψ λ y.
        Psi = features(kernel, inducing, R_b, x)
        precision = torch.ones_like(y) / noise
        site = whitened_update(carried.site, Psi, precision, precision * y)
        old, R_a = inducing, R_b
    # 3. Prediction: q(v) = N((I + G)⁻¹ h, (I + G)⁻¹), and f given v.
    P = features(kernel, old, R_a, x_new)
    return predict(posterior(site), P, kernel.diag(x_new))
