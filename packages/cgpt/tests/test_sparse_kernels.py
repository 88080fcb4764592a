"""Kernel sums against explicit matrices, and their gradients by hand against finite differences."""

import pytest
import torch
from torch.testing import assert_close

from cgpt import sparse_kernels
from cgpt.sparse_kernels import kernel_form, whitened_features


def dense_kernel(x, z):
    return torch.exp(-0.5 * (x[:, :, None] - z[:, None]).square().sum(-1))


def test_features_are_the_kernel_times_the_whitener(draw):
    x, z, whitener = draw(2, 7, 3), draw(2, 4, 3, seed=1), draw(2, 4, 4, seed=2)
    assert_close(whitened_features(x, z, whitener), dense_kernel(x, z) @ whitener)


@pytest.mark.parametrize("side", [1, 3, 256])
def test_the_form_is_that_of_the_whole_matrix_whatever_the_tiles(draw, monkeypatch, side):
    monkeypatch.setattr(sparse_kernels, "_SMALLEST_SIDE", side)
    monkeypatch.setattr(sparse_kernels, "_CPU_ELEMENTS", 2 * side**2)
    x, features = draw(5, 7, 3).requires_grad_(), draw(5, 7, 4, seed=1).requires_grad_()
    weights = draw(5, 4, 4, seed=2)
    found = kernel_form(x, features)
    expected = features.mT @ dense_kernel(x, x) @ features
    assert_close(found, expected)
    gradients, expected_gradients = (
        torch.autograd.grad((weights * form).sum(), (x, features)) for form in (found, expected)
    )
    assert_close(gradients, expected_gradients)


def test_gradients_agree_with_finite_differences(draw):
    x, z = draw(2, 5, 3).requires_grad_(), draw(2, 4, 3, seed=1).requires_grad_()
    whitener = draw(2, 4, 4, seed=2).requires_grad_()
    features = draw(2, 5, 2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(whitened_features, (x, z, whitener))
    assert torch.autograd.gradcheck(kernel_form, (x, features))


def test_far_inputs_give_zeros_and_no_denormal_numbers():
    x = torch.tensor([[[0.0], [9.0], [14.0]]])
    features = whitened_features(x, x, torch.eye(3)[None])
    assert ((features == 0) | (features.abs() > 1e-30)).all()
    assert features[0, 0, 2] == 0


@pytest.mark.slow
def test_a_long_sum_of_tiles_keeps_float32_s_digits(draw):
    """Two and not twenty units of round-off: what is factorised next has a small floor."""
    x, features = 0.3 * draw(1, 20_000, 2).float(), draw(1, 20_000, 3, seed=1).float().abs()
    found, expected = kernel_form(x, features), kernel_form(x.double(), features.double())
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < 2 * torch.finfo(torch.float32).eps
