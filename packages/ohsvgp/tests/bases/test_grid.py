"""The moving grid is sparse regression with inducing points on an even grid."""

import numpy as np
import pytest
import torch

from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.bases.grid import UniformGrid
from probseq.kernels import RBF


def test_points_span_the_window_evenly_and_a_single_one_lies_in_its_middle():
    kernel = RBF(1).double()
    nodes = UniformGrid(5).inducing(kernel, 8.0).nodes
    torch.testing.assert_close(nodes[:, 0], torch.tensor([0.0, 2, 4, 6, 8], dtype=torch.float64))
    assert UniformGrid(1).inducing(kernel, 8.0).nodes.tolist() == [[4.0]]


def test_two_updates_equal_the_dense_formula_of_streaming_sparse_regression():
    """Bui et al. 2017: the old posterior observes a with covariance (S_a⁻¹ − K_aa⁻¹)⁻¹."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0, 6, 40))
    y = np.sin(2 * x) + 0.1 * rng.standard_normal(40)
    noise, M = 0.02, 9
    gp = OnlineGP(RBF(1), Gaussian(noise), UniformGrid(M), t0=0.0, alpha=0.0, rel_jitter=1e-13)
    gp.update(x[:20], y[:20])
    gp.update(x[20:], y[20:])

    def k(a, b):
        return np.exp(-0.5 * (a[:, None] - b) ** 2)

    a, b, new = np.linspace(0, x[19], M), np.linspace(0, x[39], M), np.linspace(0, 6, 13)
    K_aa, K_ax = k(a, a), k(a, x[:20])
    # q(a): with D_a⁻¹ = S_a⁻¹ − K_aa⁻¹ = K_aa⁻¹ K_ax K_xa K_aa⁻¹/σ², of low rank where 20 < M.
    A = np.linalg.solve(K_aa, K_ax)
    D_inverse, shift = A @ A.T / noise, A @ y[:20] / noise
    K_bb, K_ba, K_bx, K_bs = k(b, b), k(b, a), k(b, x[20:]), k(b, new)
    P, Q = np.linalg.solve(K_bb, K_ba), np.linalg.solve(K_bb, K_bx)
    precision = np.linalg.inv(K_bb) + P @ D_inverse @ P.T + Q @ Q.T / noise
    mean_b = np.linalg.solve(precision, P @ shift + Q @ y[20:] / noise)
    B = np.linalg.solve(K_bb, K_bs)
    variance = 1 - np.sum(B * K_bs, 0) + np.sum(B * np.linalg.solve(precision, B), 0)
    predicted = gp.predict(new)
    np.testing.assert_allclose(predicted.mean, B.T @ mean_b, atol=1e-7)
    np.testing.assert_allclose(predicted.variance, variance, atol=1e-7)


@pytest.mark.parametrize("basis", [UniformGrid(6), LegS(4, num_nodes=9)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_covariances_of_two_sets_at_once_are_those_of_each(basis, batch):
    kernel = RBF(1, batch_shape=batch, lengthscale=0.7).double()
    old, new = basis.inducing(kernel, 3.0), basis.inducing(kernel, 4.0)
    for a, b in ((old, new), (UniformGrid(3).inducing(kernel, 1.0), new)):
        K_bb, K_ab = b.covariances(kernel, a)
        W_a, W_b = (np.eye(len(s.nodes)) if s.weights is None else s.weights for s in (a, b))
        for found, W, nodes in ((K_bb, W_b, b.nodes), (K_ab, W_a, a.nodes)):
            expected = torch.as_tensor(W) @ kernel(nodes, b.nodes) @ torch.as_tensor(W_b).mT
            torch.testing.assert_close(found, expected)
