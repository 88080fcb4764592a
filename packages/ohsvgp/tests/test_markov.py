"""Sums of exponentials against the matrix of all pairs."""

import pytest
import torch

from ohsvgp.inducing import PointFunctional
from ohsvgp.markov import exponential_sums
from probseq.kernels import Matern12


def draw(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(weights, nodes, x):
    return weights @ (-(nodes[..., :, None] - x[..., None, :]).abs()).exp()


@pytest.mark.parametrize("Q", [1, 2, 31, 32, 33, 500])
@pytest.mark.parametrize("span", [0.01, 30.0, 1e5])
def test_sums_equal_those_over_all_pairs(Q, span):
    nodes = span * draw(Q)
    # Inside, at nodes, twice at one place, and beyond both ends.
    x = torch.cat([span * (3 * draw(200, seed=1) - 1), nodes[:20], nodes[:20]])
    weights = draw(7, Q, seed=2) - 0.5
    torch.testing.assert_close(
        exponential_sums(weights, nodes, x), dense(weights, nodes, x), rtol=0, atol=1e-13 * Q
    )


def test_coinciding_nodes_count_each():
    nodes = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    weights, x = draw(2, 4), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(exponential_sums(weights, nodes, x), dense(weights, nodes, x))


def test_gradients_are_those_of_finite_differences_and_finite_over_long_distances():
    nodes, x, weights = 20 * draw(70), 25 * draw(9, seed=1) - 2, draw(2, 70, seed=2)
    inputs = tuple(tensor.requires_grad_() for tensor in (weights, nodes, x))
    assert torch.autograd.gradcheck(exponential_sums, inputs)
    scale = torch.tensor(1e4, dtype=torch.float64, requires_grad=True)
    exponential_sums(weights, scale * nodes, scale * x).sum().backward()
    assert scale.grad is not None
    assert scale.grad.isfinite()


@pytest.mark.parametrize("n", [3, 200])
def test_projections_of_a_matern12_kernel_are_those_of_its_matrix(n):
    kernel = Matern12(
        1, batch_shape=(2,), lengthscale=torch.tensor([[[0.7]], [[1.9]]]), outputscale=1.3
    ).double()
    nodes, weights, x = 8 * draw(90, 1), draw(5, 90) - 0.5, 10 * draw(n, 1, seed=1)
    with torch.no_grad():
        found = PointFunctional(nodes, weights).cross(kernel, x)
        torch.testing.assert_close(found, weights @ kernel(nodes, x), rtol=0, atol=1e-12)
