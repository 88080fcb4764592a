"""The heat equation against scipy's cosine transforms and Gaussian filters."""

import math

import numpy as np
import pytest
import torch
from scipy import fft, ndimage

from pseudovideo.hvae import HVAEConfig, heat_blur
from pseudovideo.hvae.heat import heat_sigmas


def some_images(*shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.rand(shape, generator=g, dtype=torch.float64) * 2 - 1


def blur_all(images: torch.Tensor, sigma: float) -> torch.Tensor:
    return heat_blur(images, torch.full((len(images),), sigma, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(8, 8), (6, 11)])
@pytest.mark.parametrize("sigma", [0.5, 1.7, 20.0])
def test_a_blur_multiplies_the_cosine_spectrum(shape: tuple[int, int], sigma: float) -> None:
    images = some_images(2, 3, *shape)
    height, width = shape
    decay = np.empty(shape)
    for row in range(height):
        for column in range(width):
            squares = row**2 / height**2 + column**2 / width**2
            decay[row, column] = math.exp(-(math.pi**2) * squares * sigma**2 / 2)
    spectrum = fft.dctn(images.numpy(), type=2, norm="ortho", axes=(-2, -1)) * decay
    expected = fft.idctn(spectrum, type=2, norm="ortho", axes=(-2, -1))
    torch.testing.assert_close(
        blur_all(images, sigma), torch.as_tensor(expected), rtol=0, atol=1e-12
    )


def test_a_blur_is_the_convolution_with_a_gaussian_that_mirrors_the_border() -> None:
    images = some_images(2, 1, 12, 9)
    # scipy calls it "reflect" where the border pixel is mirrored too; samples of a Gaussian of
    # this width have the transform of the Gaussian itself, but for exp(−σ²π²/2) = 3e-9.
    expected = ndimage.gaussian_filter(
        images.numpy(), (0, 0, 2.0, 2.0), mode="reflect", truncate=10.0
    )
    torch.testing.assert_close(blur_all(images, 2.0), torch.as_tensor(expected), rtol=0, atol=2e-8)


def test_no_blur_is_the_image_bit_for_bit_and_little_blur_is_close_to_it() -> None:
    images = some_images(3, 1, 8, 8)
    assert torch.equal(blur_all(images, 0.0), images)
    assert torch.equal(blur_all(images.float(), 0.0), images.float())
    torch.testing.assert_close(blur_all(images, 1e-4), images, rtol=0, atol=1e-6)


def test_each_image_has_its_own_blur() -> None:
    images, sigmas = some_images(3, 2, 8, 8), torch.tensor([0.0, 0.7, 5.0], dtype=torch.float64)
    together = heat_blur(images, sigmas)
    for row, sigma in enumerate(sigmas.tolist()):
        torch.testing.assert_close(together[row : row + 1], blur_all(images[row : row + 1], sigma))


def test_autocast_does_not_blur_in_half_precision() -> None:
    images = some_images(2, 1, 8, 8).float()
    expected = blur_all(images, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(blur_all(images, 1.0), expected)


def test_levels_are_evenly_spaced_in_the_logarithm_after_the_image() -> None:
    sigmas = heat_sigmas(
        HVAEConfig(num_levels=18, sigma_min=0.5, sigma_max=20.0), torch.device("cpu")
    )
    assert sigmas[0] == 0
    assert len(sigmas) == 19
    expected = np.geomspace(0.5, 20.0, 18)
    torch.testing.assert_close(sigmas[1:], torch.as_tensor(expected))


def test_another_number_of_sigmas_than_images_is_refused(plain_calls: None) -> None:
    with pytest.raises(ValueError, match=r"sigmas must have shape \(3\), got \(2,\)"):
        heat_blur(some_images(3, 1, 8, 8), torch.ones(2))
