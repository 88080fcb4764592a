"""Densities and their gradients against torch's normal, and under padding finite differences."""

import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from cgpt.densities import block_log_density, expected_log_density


def covariance_of(root):
    return root @ root.mT + torch.eye(root.shape[-1], dtype=root.dtype)


def blocks(covariance):
    n = covariance.shape[-1] // 2
    return covariance[..., :n, :n], covariance[..., :n, n:], covariance[..., n:, n:]


def test_gradient_agrees_with_autograd_through_a_multivariate_normal(draw):
    root, values, weight = draw(2, 3, 8, 8), draw(2, 3, 8, 5, seed=1), draw(2, 3, seed=2)
    root.requires_grad_()
    values.requires_grad_()
    density = block_log_density(
        *blocks(covariance_of(root)), values[..., :4, :], values[..., 4:, :]
    )
    normal = MultivariateNormal(torch.zeros(8, dtype=root.dtype), covariance_of(root)[:, :, None])
    expected = normal.log_prob(values.mT).sum(-1)
    assert_close(density, expected)
    for actual, wanted in zip(
        torch.autograd.grad((weight * density).sum(), (root, values)),
        torch.autograd.grad((weight * expected).sum(), (root, values)),
        strict=True,
    ):
        assert_close(actual, wanted)


def test_gradient_agrees_with_finite_differences_under_padding(draw):
    mask = torch.tensor([[True, True, True], [True, False, True]])
    hidden = ~(mask[:, :, None] & mask[:, None, :])[:, None]

    def evaluate(root, values):
        covariances = [b.masked_fill(hidden, 0.0) for b in blocks(covariance_of(root))]
        values = [v.masked_fill(~mask[:, None, :, None], 0.0) for v in values.split(3, -2)]
        return block_log_density(*covariances, *values, mask)

    inputs = (draw(2, 1, 6, 6).requires_grad_(), draw(2, 1, 6, 2, seed=1).requires_grad_())
    assert torch.autograd.gradcheck(evaluate, inputs)


def test_expected_density_and_its_gradient_agree_with_autograd(draw):
    root, other = draw(2, 3, 4, 4).requires_grad_(), draw(2, 3, 4, 4, seed=3).requires_grad_()
    values, weight = draw(2, 3, 4, 5, seed=1).requires_grad_(), draw(2, 3, seed=2)
    for spread in (None, other @ other.mT):
        density = expected_log_density(covariance_of(root), spread, values)
        covariance = covariance_of(root)
        normal = MultivariateNormal(torch.zeros(4, dtype=root.dtype), covariance[:, :, None])
        expected = normal.log_prob(values.mT).sum(-1)
        inputs = (root, values)
        if spread is not None:
            ratio = torch.linalg.inv(covariance) @ spread
            expected = expected - 5 / 2 * ratio.diagonal(dim1=-2, dim2=-1).sum(-1)
            inputs = (*inputs, other)
        assert_close(density, expected)
        for actual, wanted in zip(
            torch.autograd.grad((weight * density).sum(), inputs, retain_graph=True),
            torch.autograd.grad((weight * expected).sum(), inputs, retain_graph=True),
            strict=True,
        ):
            assert_close(actual, wanted)


def test_expected_density_under_padding_agrees_with_finite_differences(draw):
    mask = torch.tensor([[True, True, True], [True, False, True]])
    hidden = ~(mask[:, :, None] & mask[:, None, :])[:, None]

    def evaluate(root, other, values):
        covariance, spread = (
            matrix.masked_fill(hidden, 0.0) for matrix in (covariance_of(root), other @ other.mT)
        )
        values = values.masked_fill(~mask[:, None, :, None], 0.0)
        return expected_log_density(covariance, spread, values, mask)

    inputs = [draw(2, 1, 3, n, seed=n).requires_grad_() for n in (3, 3, 2)]
    assert torch.autograd.gradcheck(evaluate, inputs)
