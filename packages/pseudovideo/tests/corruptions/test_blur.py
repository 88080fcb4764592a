"""Blur matrices against a convolution written as loops, and against their eigenvectors."""

import math

import pytest
import torch

from pseudovideo.corruptions.blur import (
    blur_eigenvalues,
    blur_matrices,
    cosine_basis,
    high_order_multipliers,
)


def random_image(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(height, width, generator=generator, dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("size", [6, 11, 32])
def test_every_step_is_diagonal_in_the_dct_of_type_one(size):
    matrices = blur_matrices(size, 8, 0.05)
    V, V_inv = cosine_basis(size)
    torch.testing.assert_close(V @ V_inv, torch.eye(size).double(), rtol=0, atol=1e-12)
    products = blur_eigenvalues(size, 7, 0.05).cumprod(0).flip(0)
    torch.testing.assert_close(
        V_inv @ matrices[:-1] @ V, torch.diag_embed(products), rtol=0, atol=1e-12
    )


def test_the_cosine_basis_is_scipys_dct_of_type_one():
    from scipy.fft import dct

    image = random_image(10, 3)[:, 0]
    # scipy's sum counts the inner pixels twice: 2(N−1)·D⁻¹ V⁻¹ with D's halves at the borders.
    inverse = cosine_basis(10)[1] @ image * 9
    inverse[[0, -1]] *= 2
    torch.testing.assert_close(inverse, torch.as_tensor(dct(image.numpy(), type=1)))


@pytest.mark.parametrize(
    "make", [lambda n: blur_matrices(n, 3, 0.1), lambda n: blur_eigenvalues(n, 2, 0.1)]
)
def test_images_smaller_than_the_reflection_are_refused(make):
    make(6)
    with pytest.raises(ValueError, match=r"at least 6 pixels on each side.*, got 5"):
        make(5)


def slow_blur(image, sigma):
    """11×11 Gaussian, outer product, reflect padding: pixel by pixel, tap by tap."""
    taps = [math.exp(-(k**2) / (2 * sigma**2)) for k in range(-5, 6)]
    total = sum(taps)
    height, width = image.shape

    def reflect(place, size):
        if place < 0:
            return -place
        return 2 * (size - 1) - place if place >= size else place

    pixels = image.tolist()
    out = [[0.0] * width for _ in range(height)]
    for i in range(height):
        for j in range(width):
            for p in range(11):
                for q in range(11):
                    value = pixels[reflect(i + p - 5, height)][reflect(j + q - 5, width)]
                    out[i][j] += taps[p] * taps[q] / total**2 * value
    return torch.tensor(out, dtype=torch.float64)


def slow_video(image, num_frames, rate, *, high_order=False):
    frames = [image]
    for i in range(num_frames - 1):
        source = torch.stack(frames).mean(0) if high_order else frames[0]
        frames.insert(0, slow_blur(source, math.exp(rate * i)))
    return torch.stack(frames)


def test_matrices_are_the_recursive_convolution_on_an_image_that_is_not_square():
    image, rate = random_image(6, 9), 0.3
    rows, columns = (blur_matrices(size, 4, rate) for size in image.shape)
    frames = rows @ image @ columns.mT
    torch.testing.assert_close(frames, slow_video(image, 4, rate), rtol=0, atol=1e-12)


def test_high_order_multipliers_are_the_convolution_of_the_mean_of_all_cleaner_frames():
    image, rate = random_image(7, 6, seed=1), 0.3
    (V, V_inv), (U, U_inv) = (cosine_basis(size) for size in image.shape)
    multipliers = high_order_multipliers(*image.shape, 4, rate)
    frames = V @ (multipliers * (V_inv @ image @ U_inv.mT)) @ U.mT
    expected = slow_video(image, 4, rate, high_order=True)
    torch.testing.assert_close(frames, expected, rtol=0, atol=1e-12)
    assert (expected - slow_video(image, 4, rate))[0].abs().max() > 1e-2
