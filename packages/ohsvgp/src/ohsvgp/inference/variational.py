"""Updates of q(v) by Adam on the online bound, as the thesis trains it (section 4.6.1).

The natural-gradient steps of ``ohsvgp.inference.natural`` reach the same optimum in a handful of
iterations.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.core import CarriedSite, OnlineBound, Site, nearest_psd, posterior, residual
from ohsvgp.inference.natural import masked, site_bound
from ohsvgp.likelihoods import Likelihood
from probseq.checks import check_counts, check_positive
from probseq.gaussians import gauss_kl


def variational_update(
    likelihood: Likelihood,
    carried: CarriedSite,
    Psi: Float[Tensor, "*#b k n"],
    K_ff: Float[Tensor, "*#b n"],
    y: Float[Tensor, "*#b n"],
    *,
    mask: Tensor | None = None,
    steps: int = 5000,
    learning_rate: float = 0.01,
    num_weights: int = 0,
) -> tuple[Site, OnlineBound]:
    """Absorb new data by Adam on the mean and a lower triangular factor of the covariance.

    Steps start from the carried posterior q̂ = N(m̂, (C Cᵀ)⁻¹) and are taken on q(z) = N(μ, LLᵀ),
    z = Cᵀ(v − m̂), where q̂ is N(0, I): the thesis' parameters in better scaled coordinates. At the
    end (LLᵀ)⁻¹ − I is the information that the data added. Its eigenvalues below zero are cut, so
    that the state stays positive semi-definite; the optimum for a log-concave likelihood has none,
    and for another one see ``ohsvgp.inference.natural``.

    Arguments and result are those of ``natural_update``, but for the ``steps`` and the
    ``learning_rate`` of Adam; parameters of the likelihood stay as they are.
    """
    check_counts(steps=steps)
    check_positive(learning_rate=learning_rate)
    site = Site(carried.site.precision.detach(), carried.site.shift.detach())
    if y.shape[-1]:
        data = (Psi.detach(), K_ff.detach(), y, mask)
        site = _fit(likelihood, site, *data, steps, learning_rate, num_weights)
    bound = site_bound(likelihood, carried, site, Psi, K_ff, y, mask=mask, num_weights=num_weights)
    return site, bound


def _fit(
    likelihood: Likelihood,
    carried: Site,
    Psi: Tensor,
    K_ff: Tensor,
    y: Tensor,
    mask: Tensor | None,
    steps: int,
    learning_rate: float,
    num_weights: int,
) -> Site:
    prior = posterior(carried)
    Phi = torch.linalg.solve_triangular(prior.root, Psi, upper=False)
    offset = (Psi.mT @ prior.mean[..., None])[..., 0]
    unexplained = residual(K_ff, Psi, num_weights)
    batch = torch.broadcast_tensors(offset, unexplained, y)[0].shape[:-1]
    M = Psi.shape[-2]
    mean = Psi.new_zeros(*batch, M)
    factor = torch.eye(M, dtype=Psi.dtype, device=Psi.device).repeat(*batch, 1, 1)
    leaves = [mean.requires_grad_(), factor.requires_grad_()]
    optimiser = torch.optim.Adam(leaves, lr=learning_rate)
    for _ in range(steps):
        with torch.enable_grad():
            m = offset + (Phi.mT @ mean[..., None])[..., 0]
            c = unexplained + (factor.tril().mT @ Phi).square().sum(-2)
            log_prob = likelihood.expectations(m, c, y).log_prob
            # KL(q(z) ‖ N(0, I)) − Σ E_q[log p(y | f)].
            loss = gauss_kl(mean, factor).sum() - masked(log_prob, mask).sum()
        # Only of q: the likelihood's parameters may be leaves of a caller's graph.
        mean.grad, factor.grad = torch.autograd.grad(loss, leaves)
        optimiser.step()
    with torch.no_grad():
        eye = torch.eye(M, dtype=Psi.dtype, device=Psi.device)
        inverse = torch.linalg.solve_triangular(factor.tril(), eye.expand_as(factor), upper=False)
        # (LLᵀ)⁻¹ − I, the information of the data.
        H = nearest_psd(inverse.mT @ inverse - eye)
        b = mean + (H @ mean[..., None])[..., 0]
        # Back to v: z = Cᵀ(v − m̂).
        G = prior.root @ H @ prior.root.mT
        h = (prior.root @ b[..., None] + G @ prior.mean[..., None])[..., 0]
        return Site(carried.precision + G, carried.shift + h)
