"""Moments of videos against many drawn videos."""

import pytest
import torch

from pseudovideo.corruptions import (
    CORRUPTIONS,
    PseudoVideoConfig,
    noise_coefficients,
    pseudo_videos,
    video_moments,
)


def random_moments(c, h, w, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = c * h * w
    factor = torch.randn(n, n, generator=generator, dtype=torch.float64) * 0.05 / n**0.5
    mean = 0.2 * torch.randn(c, h, w, generator=generator, dtype=torch.float64)
    return mean, factor


SIZES = {
    "blur": (1, 6, 6),
    "high-order-blur": (1, 6, 6),
    "blur-noise": (1, 6, 6),
    "pyramid": (1, 8, 8),
    "low-pass": (1, 6, 5),
    "colour": (3, 2, 2),
}


@pytest.mark.parametrize("kind", [kind for kind in CORRUPTIONS if kind != "patch-mask"])
def test_drawn_videos_have_these_moments(kind):
    size, draws = SIZES.get(kind, (2, 2, 1)), 20_000
    mean, factor = random_moments(*size)
    config = PseudoVideoConfig(num_frames=4, kind=kind, beta_min=0.01, beta_max=0.2)
    generator = torch.Generator().manual_seed(1)
    n = len(factor)
    images = torch.randn(draws, n, generator=generator, dtype=torch.float64) @ factor.mT
    videos = pseudo_videos(images.view(-1, *size) + mean, config, seed=2).flatten(2)
    moments = video_moments(mean, factor @ factor.mT, config)

    flat = videos.flatten(1)
    expected = moments.covariance.flatten(2).flatten(0, 1)
    spread = expected.diagonal().clamp_min(1e-12).sqrt()
    error = (flat.mean(0) - moments.mean.flatten()) / spread
    assert float(error.abs().max()) < 5 / draws**0.5
    scale = spread[:, None] * spread
    # The standard error of a covariance is at most sqrt(2/draws) of the deviations' product.
    assert float(((flat.mT.cov() - expected) / scale).abs().max()) < 5 * (2 / draws) ** 0.5


def test_first_order_covariance_of_two_frames_is_the_chains():
    """Cov(z_s, z_t) = √(ᾱ_s/ᾱ_t)·Cov(z_t) for s further from the image than t."""
    mean, factor = random_moments(1, 2, 2)
    covariance = factor @ factor.mT
    config = PseudoVideoConfig(num_frames=5, kind="first-order-noise", beta_max=0.3)
    moments = video_moments(mean, covariance, config)
    betas = torch.linspace(1e-4, 0.3, 4, dtype=torch.float64)
    kept = torch.cat([torch.ones(1).double(), (1 - betas).cumprod(0)]).flip(0)
    eye = torch.eye(4, dtype=torch.float64)
    for s in range(5):
        for t in range(s, 5):
            here = kept[t] * covariance + (1 - kept[t]) * eye
            expected = (kept[s] / kept[t]).sqrt() * here
            torch.testing.assert_close(moments.covariance[s, :, t], expected)


def test_a_covariance_of_other_pixels_is_refused():
    with pytest.raises(ValueError, match=r"shape \(4, 4\), got \(3, 3\)"):
        video_moments(torch.zeros(1, 2, 2), torch.eye(3), PseudoVideoConfig(kind="repeat"))


def test_masked_videos_have_these_moments_given_the_order_of_the_patches():
    """Two patches of 2x2 pixels in 2x6: the videos of many images with one order."""
    mean, factor = random_moments(1, 2, 6)
    config = PseudoVideoConfig(num_frames=3, kind="patch-mask", mask_patch=2)
    hidden = torch.tensor([0.3, -1.0, 0.9], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20_000, 12, generator=generator, dtype=torch.float64) @ factor.mT
    x = x.view(-1, 1, 2, 6) + mean
    first, second = x.clone(), x.clone()
    first[..., :2] = first[..., 4:] = 0  # the middle patch is the first to be seen
    second[..., 4:] = 0
    videos = torch.stack([first, second, x], dim=1).flatten(1)
    found = video_moments(mean, factor @ factor.mT, config, hidden=hidden)
    covariance = found.covariance.flatten(2).flatten(0, 1)
    spread = covariance.diagonal().clamp_min(1e-12).sqrt()
    scale = spread[:, None] * spread
    assert float(((videos.mT.cov() - covariance) / scale).abs().max()) < 0.05
    assert float(((videos.mean(0) - found.mean.flatten()) / spread).abs().max()) < 0.04
    with pytest.raises(ValueError, match=r"hidden must be given for config\.kind=patch-mask"):
        video_moments(mean, factor @ factor.mT, config)


def test_a_mixture_has_the_covariance_of_its_parts():
    """Cov(z_s, z_t) = a_s a_t A_s Σ A_tᵀ + (L Lᵀ)_st I."""
    mean, factor = random_moments(1, 6, 6)
    covariance = factor @ factor.mT

    def config(kind):
        return PseudoVideoConfig(num_frames=4, kind=kind, beta_min=0.01, beta_max=0.2)

    mixed, blurred = (
        video_moments(mean, covariance, config(kind)).covariance for kind in ("blur-noise", "blur")
    )
    a, L = noise_coefficients(config("first-order-noise"))
    eye = torch.eye(36, dtype=torch.float64)
    expected = torch.einsum("s,t,sitj->sitj", a, a, blurred)
    expected = expected + torch.einsum("st,ij->sitj", L @ L.mT, eye)
    torch.testing.assert_close(mixed, expected)
