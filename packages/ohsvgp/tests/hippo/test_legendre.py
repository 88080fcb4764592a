"""Legendre polynomials and their quadrature against numpy's and scipy's."""

import numpy as np
import pytest
import torch
from scipy.special import eval_legendre

from ohsvgp.hippo.legendre import gauss_legendre, scaled_legendre


@pytest.mark.parametrize("Q", [*range(1, 12), 50, 101, 208])
def test_nodes_and_weights_are_those_of_the_eigenvalues(Q: int) -> None:
    nodes, weights = gauss_legendre(Q)
    expected = np.polynomial.legendre.leggauss(Q)
    np.testing.assert_allclose(nodes.numpy(), expected[0], rtol=0, atol=4e-16)
    np.testing.assert_allclose(2 * weights.numpy(), expected[1], rtol=0, atol=3e-14)


@pytest.mark.parametrize("Q", [1, 2, 7, 40, 213, 600])
def test_polynomials_up_to_degree_2q_minus_2_are_integrated_exactly(Q: int) -> None:
    nodes, weights = gauss_legendre(Q)
    P = scaled_legendre(Q, nodes)
    product = (P * weights) @ P.mT
    torch.testing.assert_close(product, torch.eye(Q, dtype=P.dtype), rtol=0, atol=2e-13)


@pytest.mark.parametrize("panels", [1, 3])
def test_panels_integrate_on_the_whole_interval(panels: int) -> None:
    nodes, weights = gauss_legendre(6, panels)
    assert len(nodes) == 6 * panels
    assert float((weights * nodes**10).sum()) == pytest.approx(1 / 11, rel=1e-14)


@pytest.mark.parametrize("M", [1, 2, 30])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_polynomials_are_those_of_scipy(M: int, dtype: torch.dtype) -> None:
    s = torch.linspace(-1, 1, 57, dtype=dtype)
    found = scaled_legendre(M, s)
    m = np.arange(M)[:, None]
    expected = torch.from_numpy(np.sqrt(2 * m + 1) * eval_legendre(m, s.double().numpy()))
    torch.testing.assert_close(
        found, expected.to(dtype), rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-6
    )
