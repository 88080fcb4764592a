"""The variational bound of a diffusion model in bits per dimension (Ho et al. 2020, section 3)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_floating, check_sizes
from pseudovideo.diffusion.gaussian import GaussianDiffusion, Times, split_output
from pseudovideo.diffusion.sampling import Network
from pseudovideo.pixels import check_pixels
from pseudovideo.sampling import at_least_float32, draw_noise, draw_seed

# 256 levels in −1..1: half the distance between two.
_HALF_BIN = 1 / 255


class BitsPerDim(NamedTuple):
    """The bound on −log₂ p(x_0), divided by the number of pixels and channels."""

    total: Tensor  # (b,), the sum of `prior` and all `terms`
    prior: Tensor  # (b,), KL(q(x_S | x_0) ‖ N(0, I))
    # (b, S), of step t: KL(q(x_{t−1} | x_t, x_0) ‖ p), and −log₂ p(x_0 | x_1) at t = 0
    terms: Tensor
    mse: Tensor  # (b, S), of the predicted noise


def normal_kl(
    mean: Float[Tensor, "*#n"],
    log_variance: Float[Tensor, "*#n"],
    other_mean: Float[Tensor, "*#n"],
    other_log_variance: Float[Tensor, "*#n"],
) -> Float[Tensor, "*n"]:
    """Return KL(N(m, s²) ‖ N(m', s'²)) = ½(log s'²/s² + s²/s'² − 1 + (m−m')²/s'²), in nats."""
    difference = log_variance - other_log_variance  # d = log s²/s'²
    mahalanobis = (mean - other_mean).square() * (-other_log_variance).exp()
    # expm1(d) − d: where the variances are close, e^d − 1 − d would be lost in rounding.
    return 0.5 * (torch.expm1(difference) - difference + mahalanobis)


def discretized_log_likelihood(
    images: Float[Tensor, "*n"], mean: Float[Tensor, "*n"], log_variance: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """Return the log mass, in nats, of a Gaussian on the bin of each pixel's level k/127.5 − 1.

    The bins of the lowest and of the highest level reach to infinity, so that the masses sum to 1.
    Improved DDPM takes a tanh for Φ and cuts masses off at 10⁻¹²; here Φ is exact, also far out,
    where a cut would leave no gradient.
    """
    centred, inverse = images - mean, (-log_variance / 2).exp()
    upper, lower = inverse * (centred + _HALF_BIN), inverse * (centred - _HALF_BIN)
    # Mirrored where the bin lies above the mean: differences of Φ keep their digits in its left
    # tail alone.
    above = centred > 0
    log_far = torch.special.log_ndtr(torch.where(above, -lower, upper))
    log_near = torch.special.log_ndtr(torch.where(above, -upper, lower))
    # log(e^far − e^near); never log 0, where the bin is nothing beside the Gaussian's width.
    gap = (log_near - log_far).clamp(max=-torch.finfo(images.dtype).eps)
    inside = log_far + torch.log(-torch.expm1(gap))
    lowest, highest = torch.special.log_ndtr(upper), torch.special.log_ndtr(-lower)
    return torch.where(
        images < -1 + _HALF_BIN, lowest, torch.where(images > 1 - _HALF_BIN, highest, inside)
    )


def vlb_terms(
    diffusion: GaussianDiffusion,
    output: Float[Tensor, "n channels h w"],
    x0: Float[Tensor, "n c h w"],
    x_t: Float[Tensor, "n c h w"],
    t: Times,
    *,
    limit: float | None,
) -> Float[Tensor, " n"]:
    """Return the bound's term of step t, in bits per dimension.

    The output is the network's for `x_t`, noisy states of the images; its image is kept within
    ±`limit`, if there is one.
    """
    mean, log_variance = diffusion.posterior(x0, x_t, t)
    reverse = diffusion.p_mean_variance(output, x_t, t, limit=limit)
    # L_{t−1} = KL(q(x_{t−1} | x_t, x_0) ‖ p(x_{t−1} | x_t))
    kl = normal_kl(mean, log_variance, reverse.mean, reverse.log_variance)
    # L_0 = −log p(x_0 | x_1)
    levels = x0.to(reverse.mean.dtype)
    nll = -discretized_log_likelihood(levels, reverse.mean, reverse.log_variance)
    first = torch.as_tensor(t, device=x0.device) == 0
    return torch.where(first, _bits(nll), _bits(kl))


def bits_per_dim(
    model: Network,
    x0: Float[Tensor, "b c h w"],
    diffusion: GaussianDiffusion,
    *,
    generator: torch.Generator | None = None,
    progress: Callable[[int], object] | None = None,
) -> BitsPerDim:
    """Return the whole bound of images, by one pass of the network for each step; no gradients.

    It bounds the likelihood of 8-bit images only: `x0` must hold levels k/127.5 − 1. One number is
    drawn of the generator; an image's noise depends on that number and on the image's place in
    `x0`. `progress` is called after each step with 1.
    """
    check_sizes("x0", x0, "b", "c", "h", "w")
    check_floating(x0=x0)
    if not (x0.numel() and (x0.is_meta or x0.isfinite().all())):
        raise ValueError("x0, the images, must be finite and not empty")
    check_pixels(x0=x0)
    seed = draw_seed(generator)
    numbers = torch.arange(len(x0), device=x0.device)
    terms: list[Tensor] = []
    errors: list[Tensor] = []
    with torch.no_grad():
        for t in range(diffusion.num_steps):
            noise = draw_noise(numbers, x0.shape[1:], seed=seed, step=t).to(at_least_float32(x0))
            x_t = diffusion.add_noise(x0, noise, t)
            times = diffusion.model_times(torch.full((len(x0),), t, device=x0.device))
            output = model(x_t, times)
            terms.append(vlb_terms(diffusion, output, x0, x_t, t, limit=1.0))
            predicted, _ = split_output(output, x_t)
            _, eps = diffusion.predict_x0_and_eps(predicted, x_t, t)
            errors.append((eps - noise).square().flatten(1).mean(1))
            if progress is not None:
                progress(1)
        prior = _prior(diffusion, x0)
    stacked = torch.stack(terms, dim=1)
    return BitsPerDim(stacked.sum(1) + prior, prior, stacked, torch.stack(errors, dim=1))


def _prior(diffusion: GaussianDiffusion, x0: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
    lifted = x0.to(at_least_float32(x0))
    # A float64 number, which leaves the precision and the device to the images.
    alpha_bar, standard = diffusion.alpha_bars[-1], lifted.new_zeros(1)
    # q(x_S | x_0) = N(√ᾱ_S x_0, 1 − ᾱ_S) against N(0, 1)
    return _bits(normal_kl(alpha_bar.sqrt() * lifted, torch.log1p(-alpha_bar), standard, standard))


def _bits(nats: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
    """Return nats of pixels as bits per dimension of each entry."""
    return nats.flatten(1).mean(1) / math.log(2)
