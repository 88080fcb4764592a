"""Blur matrices against a convolution written as loops, and against their eigenvectors."""

import pytest
import torch

from pseudovideo.corruptions.blur import (
    blur_eigenvalues,
    blur_matrices,
    cosine_basis,
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
