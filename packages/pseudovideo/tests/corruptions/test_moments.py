"""Moments of videos against many drawn videos."""

import pytest
import torch

from pseudovideo.corruptions import CORRUPTIONS, PseudoVideoConfig, pseudo_videos, video_moments


def random_moments(c, h, w, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = c * h * w
    factor = torch.randn(n, n, generator=generator, dtype=torch.float64) * 0.05 / n**0.5
    mean = 0.2 * torch.randn(c, h, w, generator=generator, dtype=torch.float64)
    return mean, factor


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_drawn_videos_have_these_moments(kind):
    blurred = kind.endswith("blur")
    size, draws = ((1, 6, 6) if blurred else (2, 2, 1)), 20_000
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
