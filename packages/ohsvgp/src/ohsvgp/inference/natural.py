"""Natural-gradient updates of q(v) for likelihoods that are not Gaussian.

Conjugate-computation variational inference (Khan and Lin 2017): with q's marginals N(m, c) of f at
the new points, g = E[l'] and w = −E[l''], l = log p(y | f), a step of length one is

    G_b = G + Ψ diag(w) Ψᵀ        h_b = h + Ψ (w ∘ m + g),

G and h the carried site, and its fixed point is the optimum of the online bound over all Gaussian
q(v_b). Steps are taken relative to the carried posterior q̂ = N(m̂, (C Cᵀ)⁻¹), C Cᵀ = I + G: there
z = Cᵀ(v − m̂) is N(0, I), the data see the span of Φ = C⁻¹Ψ only, and so n points cost steps of
min(n, M) dimensions.

Where l is not concave, w may be negative and the information H that the data add in z indefinite.
Its eigenvalues are then cut at zero. With S = (I + H)⁻¹, which commutes with H, that fixed point
satisfies the conditions of an optimum among the q that are nowhere wider than q̂, and is the free
optimum wherever that one is no wider. The state stays positive semi-definite, as later changes of
the inducing set need it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.core import (
    CarriedSite,
    OnlineBound,
    Site,
    nearest_psd,
    posterior,
    predict,
    residual,
    uncollapsed_bound,
)
from ohsvgp.likelihoods import Likelihood
from probseq.checks import check_counts
from probseq.linalg import triangular_inverse

# Nats that a step must gain for another one to be worth its time.
_WORTHWHILE = 1e-10


def natural_update(
    likelihood: Likelihood,
    carried: CarriedSite,
    Psi: Float[Tensor, "*#b k n"],
    K_ff: Float[Tensor, "*#b n"],
    y: Float[Tensor, "*#b n"],
    *,
    mask: Tensor | None = None,
    iterations: int = 100,
    num_weights: int = 0,
) -> tuple[Site, OnlineBound]:
    """Absorb new data by natural-gradient steps on the online bound.

    Steps start from the carried posterior, or from sites at ``Likelihood.start`` where the bound
    is higher there. They have length one, and are halved for every series whose bound would fall.
    They end when no bound rises any more, which takes fewer than ten where the likelihood is
    log-concave.

    The carried site and Ψ are those of ``core``; y is any value in the support where it is masked.

    Returns:
        The site on v_b, without gradients, and the bound there. The bound is differentiable in the
        likelihood, the carried site, Ψ and K_ff at fixed q(v_b): at the optimum that is its total
        derivative.
    """
    check_counts(iterations=iterations)
    site = Site(carried.site.precision.detach(), carried.site.shift.detach())
    if y.shape[-1]:
        with torch.no_grad():
            site = _ascend(likelihood, site, Psi, K_ff, y, mask, iterations, num_weights)
    bound = site_bound(likelihood, carried, site, Psi, K_ff, y, mask=mask, num_weights=num_weights)
    return site, bound


def site_bound(
    likelihood: Likelihood,
    carried: CarriedSite,
    site: Site,
    Psi: Float[Tensor, "*#b k n"],
    K_ff: Float[Tensor, "*#b n"],
    y: Float[Tensor, "*#b n"],
    *,
    mask: Tensor | None = None,
    num_weights: int = 0,
) -> OnlineBound:
    """Return the online bound of new data at a site on v_b; see ``natural_update``."""
    q = posterior(site)
    f = predict(q, Psi, K_ff, num_weights=num_weights)
    log_prob, _, curvature = likelihood.expectations(f.mean, f.variance, y)
    # To second order, E[log p] falls by half its curvature times the variance beyond u.
    unexplained = 0.5 * curvature.clamp_min(0) * (residual(K_ff, Psi, num_weights))
    expected, unexplained = (
        masked(nats, mask).sum(-1) for nats in (log_prob, unexplained.detach())
    )
    covariance = torch.cholesky_inverse(q.root)
    return uncollapsed_bound(expected, unexplained, carried, q.mean, covariance)


class _Problem(NamedTuple):
    """New data as seen from the carried posterior; f = offset + Φᵀz + N(0, residual)."""

    likelihood: Likelihood
    Phi: Tensor
    offset: Tensor
    residual: Tensor
    y: Tensor
    mask: Tensor | None


class _Step(NamedTuple):
    """Q(z) ∝ N(z; 0, I) exp(−½ zᵀHz + bᵀz), with its expectations and the bound, ``value``."""

    H: Tensor
    b: Tensor
    mean: Tensor
    gradient: Tensor
    curvature: Tensor
    value: Tensor


def _ascend(
    likelihood: Likelihood,
    carried: Site,
    Psi: Tensor,
    K_ff: Tensor,
    y: Tensor,
    mask: Tensor | None,
    iterations: int,
    num_weights: int,
) -> Site:
    prior = posterior(carried)
    Phi = torch.linalg.solve_triangular(prior.root, Psi, upper=False)
    root = prior.root
    if y.shape[-1] < Phi.shape[-2]:
        Q, Phi = torch.linalg.qr(Phi)
        root = root @ Q
    offset = (Psi.mT @ prior.mean[..., None])[..., 0]
    problem = _Problem(likelihood, Phi, offset, residual(K_ff, Psi, num_weights), y, mask)
    # Not torch.broadcast_shapes, which imports sympy: seconds for the first update of a process.
    batch = torch.broadcast_tensors(offset, problem.residual, y)[0].shape[:-1]
    nothing = Phi.new_zeros(*batch, Phi.shape[-2], Phi.shape[-2])
    step = _evaluate(problem, nothing, nothing[..., 0])
    if (f := likelihood.start(y)) is not None:
        # A site of each point at f: w and w ∘ f + g, seen from the offset.
        _, gradient, curvature = likelihood.expectations(f, torch.zeros_like(f), y)
        w, g = masked(curvature, mask), masked(gradient, mask)
        b = (Phi @ (w * (f - offset) + g)[..., None])[..., 0]
        tried = _evaluate(problem, _information(Phi, w), b)
        higher = tried.value > step.value
        step = tried if bool(higher.all()) else _choose(higher, tried, step)
    rate, whole = torch.ones_like(step.value), True
    for _ in range(iterations):
        # Where the steps lead: with H = Φ diag(w) Φᵀ, b is Φ (w ∘ (m − offset) + g).
        H = _information(Phi, masked(step.curvature, mask))
        g = masked(step.gradient, mask)
        b = (H @ step.mean[..., None] + Phi @ g[..., None])[..., 0]
        if whole:
            tried = _evaluate(problem, H, b)
        else:
            between = step.H + rate[..., None, None] * (H - step.H)
            tried = _evaluate(problem, between, step.b + rate[..., None] * (b - step.b))
        gain = tried.value - step.value
        # NaN and minus infinity count as falls; round-off doesn't.
        better = gain >= -8 * torch.finfo(y.dtype).eps * step.value.abs()
        all_better = bool(better.all())
        step = tried if all_better else _choose(better, tried, step)
        least = (8 * torch.finfo(y.dtype).eps * step.value.abs()).clamp_min(_WORTHWHILE)
        if all_better and bool((gain <= least).all()):
            break
        if not (whole and all_better):
            rate = torch.where(better, (2 * rate).clamp_max(1), 0.5 * rate)
            whole = bool((rate == 1).all())
    # Back to v: z = rootᵀ(v − m̂).
    G = root @ step.H @ root.mT
    h = (root @ step.b[..., None] + G @ prior.mean[..., None])[..., 0]
    return Site(carried.precision + G, carried.shift + h)


def _information(Phi: Tensor, w: Tensor) -> Tensor:
    """Return Φ diag(w) Φᵀ, or its positive part."""
    H = (Phi * w[..., None, :]) @ Phi.mT
    return nearest_psd(H) if bool((w < 0).any()) else H


def _evaluate(problem: _Problem, H: Tensor, b: Tensor) -> _Step:
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    # NaN in H must fail this step, not the update.
    inverse = triangular_inverse(torch.linalg.cholesky_ex(eye + H).L)
    # Moments of q(z): (I + H)⁻¹ b, (I + H)⁻¹; then marginals N(m, c) of f at the points.
    mean = (inverse.mT @ (inverse @ b[..., None]))[..., 0]
    m = problem.offset + (problem.Phi.mT @ mean[..., None])[..., 0]
    c = problem.residual + (inverse @ problem.Phi).square().sum(-2)
    log_prob, gradient, curvature = problem.likelihood.expectations(m, c, problem.y)
    # KL of q(z) from N(0, I); −log|S|/2 is the sum of the logs of the factor's diagonal.
    log_det = inverse.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    kl = 0.5 * (mean.square().sum(-1) + inverse.square().sum((-2, -1)) - b.shape[-1]) - log_det
    value = masked(log_prob, problem.mask).sum(-1) - kl
    return _Step(H, b, mean, gradient, curvature, value)


def _choose(better: Tensor, tried: _Step, step: _Step) -> _Step:
    return _Step(
        *(
            torch.where(better.view(better.shape + (1,) * (new.ndim - better.ndim)), new, last)
            for new, last in zip(tried, step, strict=True)
        )
    )


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return values where the mask is True, zero elsewhere."""
    return values if mask is None else torch.where(mask, values, 0)
