"""Gaussian images with the covariance of others."""

import pytest
import torch

from pseudovideo.beyond.gaussian_images import gaussian_images, noise_like
from pseudovideo.corruptions import image_spectrum


@pytest.fixture
def images():
    """Smooth random images as bytes, whose pixels are correlated."""
    noise = torch.randn(500, 1, 10, 10, generator=torch.Generator().manual_seed(1))
    smooth = torch.nn.functional.avg_pool2d(noise, 3, stride=1)
    return (127.5 + 150 * smooth).clamp(0, 255).to(torch.uint8)


def test_their_correlations_are_those_of_the_others(images):
    drawn = gaussian_images(images, num_train=10)
    own, covariance = (images.flatten(1).double() / 127.5 - 1).T.cov(), drawn.covariance
    off = ~torch.eye(64, dtype=torch.bool)
    ratios = (covariance / own)[off & (own.abs() > 1e-3)]
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios), rtol=1e-9, atol=0)
    assert torch.equal(drawn.train, gaussian_images(images, num_train=10).train)
    assert [len(part) for part in drawn[:3]] == [10, 5000, 5000]
    assert drawn.train.shape[1:] == images.shape[1:]
    assert image_spectrum(drawn.test.float() / 127.5 - 1)[-1] > 1e-4


def test_they_have_the_covariance_that_they_come_with_and_few_are_cut(images):
    drawn = gaussian_images(images, num_train=20_000)
    rows = torch.cat([drawn.train, drawn.test]).flatten(1).double() / 127.5 - 1
    n, covariance = len(rows), drawn.covariance
    variance = covariance.diagonal()
    # Standard errors of means and of covariances of n Gaussian rows.
    assert ((rows.mean(0) / (variance / n).sqrt()).abs() < 5).all()
    spread = ((variance[:, None] * variance + covariance.square()) / n).sqrt()
    assert (((rows.T.cov() - covariance) / spread).abs() < 5).all()
    assert ((drawn.train == 0) | (drawn.train == 255)).double().mean() < 1e-3


def test_a_covariance_needs_two_images(images):
    for given in ((images[:1], 10), (images, 0)):
        with pytest.raises(ValueError, match="must be at least 2 and 1"):
            gaussian_images(*given)
    with pytest.raises(ValueError, match="images must differ, and all 7 are the same"):
        gaussian_images(images[:1].expand(7, -1, -1, -1))


def test_noise_has_mean_and_covariance_of_images_and_half_of_it_is_mixed_with_white(images):
    grey = images // 4 + 96  # so that next to nothing is cut
    noise = noise_like(grey, 40_000, seed=1).flatten(1).double()
    rows = grey.flatten(1).double()
    plain, mixed = noise.split(20_000)
    expected = rows.T.cov(correction=0) + torch.eye(rows.shape[1], dtype=torch.float64) / 12
    error = expected.diagonal().sqrt() / 20_000**0.5
    assert ((plain.mean(0) - rows.mean(0)).abs() < 5 * error).all()
    spread = ((error[:, None] * error).square() * 20_000 + expected.square() / 20_000).sqrt()
    assert ((plain.T.cov() - expected).abs() < 5 * spread).all()
    assert mixed.var(0).mean() > plain.var(0).mean() + 255**2 / 12 / 4
