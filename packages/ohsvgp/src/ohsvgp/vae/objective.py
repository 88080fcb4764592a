"""Amortised posterior of latent processes and the bound that trains a GP-VAE, as pure functions.

The encoder turns every y_t into a Gaussian site N(f_t; ỹ_t, diag ṽ_t) on the latents. With the old
site carried along (InducingChange, ``core.whitened_update``) the posterior of every process is

    q(v) = N((I + G)⁻¹ h, (I + G)⁻¹),   G = TᵀG_aT + Ψ diag(1/ṽ) Ψᵀ,   h = Tᵀh_a + Ψ (ỹ/ṽ),

the whitened form of thesis Eq. C.12-C.13, plus what the stream has left before.

Two deviations from thesis Eq. C.14, which prints E_q[log p(y|f)] − log N(f|ỹ, ṽ) + L_H:

* log N(f|ỹ, ṽ) stands inside the expectation. Then it cancels against the same term in L_H, and
  what is left is E_q[log p(y|f)] − KL(q(u) ‖ p(u)).
* Old data come in by their site, as in the online bound (thesis Eq. 4.6). C.14 knows none, so that
  q(u) would be made from the newest task alone.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohsvgp import core
from ohsvgp.core import Posterior, Site
from ohsvgp.process import InducingChange
from probseq.gaussians import DiagonalGaussian


class Amortised(NamedTuple):
    """Posterior that the encoder's sites and the carried site make together."""

    site: Site  # on v, shape (L, M, M) and (L, M)
    moments: Posterior  # of q(v)
    latent: DiagonalGaussian  # q(f) at the task's times, shape (L, n)
    # KL(q(v) ‖ N(0, I)) − E_q[log of the normalised old site] in nats, shape (L,)
    complexity: Float[Tensor, " l"]
    lost_information: Float[Tensor, " l"]  # the part of it that no q(v) can undo, shape (L,)


def encoder_sites(
    encoder: nn.Module, y: Float[Tensor, "n d"], num_latents: int
) -> tuple[Float[Tensor, "l n"], Float[Tensor, "l n"]]:
    """Return precision 1/ṽ and shift ỹ/ṽ of the sites of all time points, latents first."""
    mean, variance = encoder(y)
    expected = (y.shape[0], num_latents)
    if mean.shape != expected or variance.shape != expected:
        raise ValueError(
            f"encoder must give mean and variance of shape {expected}, "
            f"got {tuple(mean.shape)} and {tuple(variance.shape)}"
        )
    if not bool((variance.detach() > 0).all()):
        raise ValueError(
            f"encoder must give variances above 0, got {float(variance.detach().min())}"
        )
    precision = variance.mT.reciprocal()
    return precision, precision * mean.mT


def amortised_posterior(
    step: InducingChange,
    Psi: Float[Tensor, "*#l m n"],
    K_ff: Float[Tensor, "*#l n"],
    precision: Float[Tensor, "l n"],
    shift: Float[Tensor, "l n"],
) -> Amortised:
    """Return the posterior of all latent processes, and what it costs beside the prior.

    With t_b the carried factor of scale c and Z_b the integral of all sites against N(0, I),
    q(v) = N(0, I)·(carried site)·(new sites)/Z_b, so

        KL(q ‖ N(0, I)) − E_q[log t_b] = E_q[log new sites] − log Z_b − c,

    which needs no factorisation beyond that of I + G.

    New sites have 1/ṽ and ỹ/ṽ of every latent and time; Ψ has no leading dimension if the latents
    share their kernel.
    """
    carried = step.carried
    site = core.whitened_update(carried.site, Psi, precision, shift)
    moments = core.posterior(site)
    mean = (Psi.mT @ moments.mean[..., None])[..., 0]
    # Ψᵀ(I + G)⁻¹Ψ, what q leaves along Ψ; the rest of the prior's variance is beyond u.
    spread = torch.linalg.solve_triangular(moments.root, Psi, upper=False).square().sum(-2)
    # Where the data pin f down, round-off would leave a variance of −1e-17.
    floor = torch.finfo(K_ff.dtype).eps * K_ff.detach()
    variance = torch.maximum(K_ff - Psi.square().sum(-2) + spread, floor)
    # E_q of the encoder's sites −½ λ (Ψᵀv)² + s Ψᵀv, summed over the task.
    expected = (shift * mean - 0.5 * precision * (mean.square() + spread)).sum(-1)
    # KL(q ‖ N(0, I)) − E_q[log t_b].
    complexity = expected - core.log_partition(site, moments) - carried.log_scale
    lost = carried.lost_information.expand(mean.shape[0])
    return Amortised(site, moments, DiagonalGaussian(mean, variance), complexity, lost)


def latent_samples(
    latent: DiagonalGaussian, num_samples: int, generator: torch.Generator | None = None
) -> Float[Tensor, "s n l"]:
    """Draw f_t from q(f), (L, n), independently over time: all that a sum over time needs."""
    # The square root of zero has no derivative.
    floor = torch.finfo(latent.mean.dtype).tiny
    safe = DiagonalGaussian(latent.mean, latent.variance.clamp_min(floor))
    return safe.rsample((num_samples,), generator=generator).mT


def gaussian_log_density(
    y: Float[Tensor, "*#b d"], mean: Float[Tensor, "*#b d"], noise: Float[Tensor, ""]
) -> Float[Tensor, "*b d"]:
    """Return log N(y; mean, σ²), elementwise: the likelihood below thesis Eq. C.10."""
    return -0.5 * ((y - mean).square() / noise + (2 * math.pi * noise).log())
