"""The Matérn layer against dense Gaussian process conditioning on every prefix."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from ohsvgp import MaternLayer
from ohsvgp.layers.matern import matern_system
from probseq.testing.attention import AttentionSuite

DOUBLE = torch.float64
SMOOTHNESS = pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def layer(nu, *lengthscales):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = MaternLayer(
            4, 2, lengthscale=torch.tensor(lengthscales, dtype=DOUBLE), smoothness=nu
        )
    made = made.double()
    with torch.no_grad():
        made.kernel.raw_outputscale.copy_(torch.tensor([0.7, 2.5], dtype=DOUBLE).log())
    return made


def covariance(nu, ell, t):
    """Matérn kernel of unit variance as in Rasmussen and Williams (2006), Eq. 4.17."""
    r = math.sqrt(2 * nu) * (t[:, None] - t).abs() / ell
    polynomial = {0.5: 1, 1.5: 1 + r, 2.5: 1 + r + r.square() / 3}[nu]
    return polynomial * (-r).exp()


class TestAttention(AttentionSuite):
    """The suite of attention modules; tokens are times apart of 1."""

    permuted_noises = ()

    def make(self, dim, num_heads):
        return MaternLayer(dim, num_heads, lengthscale=3.0)


@SMOOTHNESS
def test_it_is_dense_conditioning_on_every_prefix(nu):
    module, x = layer(nu, 0.5, 4.0), 3 * draw(1, 2, 25, 4)
    times = 5.0 + draw(2, 25).square().cumsum(0)
    times[[7, 8]] = times[6].clone()
    mask = torch.ones(2, 25, dtype=torch.bool)
    mask[0, [0, 3, 4]] = mask[1, 10:20] = False
    law = module.posterior(x, mask, times=times)
    y, lam = module.sites(x, mask)
    for b in range(2):
        for head, (ell, scale) in enumerate(((0.5, 0.7), (4.0, 2.5))):
            K = scale * covariance(nu, ell, times)
            for t in range(25):
                seen = [i for i in range(t + 1) if mask[b, i]]
                k = K[t, seen]
                A = K[seen][:, seen] + (1 / lam[b, seen, head]).diag()
                weights = torch.linalg.solve(A, k)
                assert_close(law.mean[b, t, head], weights @ y[b, seen, head], rtol=0, atol=1e-10)
                assert_close(law.variance[b, t, head], K[t, t] - weights @ k, rtol=0, atol=1e-10)


@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_the_divergence_is_that_of_the_whole_process(nu):
    module, x, times = layer(nu, 0.5, 2.0), draw(3, 1, 8, 4), draw(4, 8).abs().cumsum(0)
    law = module.posterior(x, times=times)
    (y,), (lam,) = module.sites(x, None)
    K = 0.7 * covariance(nu, 0.5, times)

    def process(count):
        """The values at all times given the first sites."""
        A = K[:count, :count] + (1 / lam[:count, 0]).diag()
        weights = torch.linalg.solve(A, K[:count]).mT
        return MultivariateNormal((weights @ y[:count, 0]).mT, K - weights @ K[:count])

    for t in range(8):
        expected = kl_divergence(process(t + 1), process(t)).sum()
        assert_close(law.kl[0, t, 0], expected, rtol=0, atol=1e-10)


@SMOOTHNESS
def test_the_transition_is_the_exponential_of_the_equation(nu):
    F = {
        0.5: [[-1.0]],
        1.5: [[0.0, 1.0], [-1.0, -2.0]],
        2.5: [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -3.0, -3.0]],
    }[nu]
    steps = torch.tensor([0.0, 1e-3, 0.7, 30.0], dtype=DOUBLE)
    A, P = matern_system(nu, steps)
    expected = torch.linalg.matrix_exp(steps[:, None, None] * torch.tensor(F, dtype=DOUBLE))
    assert_close(A, expected, rtol=0, atol=1e-12)
    # Stationary: F P + P Fᵀ is the white noise of the last derivative alone.
    F = torch.tensor(F, dtype=DOUBLE)
    noise = F @ P + P @ F.mT
    assert noise[-1, -1] < 0
    noise[-1, -1] = 0
    assert noise.abs().max() < 1e-15
    assert P[0, 0] == 1


def test_the_gradient_in_lengthscale_and_variance_is_that_of_dense_conditioning():
    module, x, times = layer(1.5, 0.5, 2.0), draw(5, 1, 12, 4), draw(6, 12).abs().cumsum(0)
    (y,), (lam,) = (each.detach() for each in module.sites(x, None))
    law = module.posterior(x, times=times)
    found = torch.autograd.grad(
        law.mean[0, -1, 0].sum() + law.variance[0, -1, 0],
        [module.kernel.raw_lengthscale, module.kernel.raw_outputscale],
    )
    raw = torch.tensor([0.5, 0.7], dtype=DOUBLE).log().requires_grad_()
    ell, scale = raw.exp()
    K = scale * covariance(1.5, ell, times)
    weights = torch.linalg.solve(K + (1 / lam[:, 0]).diag(), K[-1])
    loss = (weights @ y[:, 0]).sum() + K[-1, -1] - weights @ K[-1]
    (expected,) = torch.autograd.grad(loss, [raw])
    assert_close(torch.stack([found[0][0, 0, 0], found[1][0]]), expected, rtol=1e-8, atol=0)
    assert found[0][1].abs().max() == 0


@SMOOTHNESS
def test_precise_observations_close_together_keep_their_digits(nu):
    module, x, times = (
        layer(nu, 1.0, 1.0),
        draw(7, 1, 100, 4),
        torch.arange(100, dtype=DOUBLE) / 100,
    )
    with torch.no_grad():
        module.to_precision.bias.fill_(1e6)
    law = module.posterior(x, times=times)
    (y,), (lam,) = module.sites(x, None)
    K = 0.7 * covariance(nu, 1.0, times)
    weights = torch.linalg.solve(K + (1 / lam[:, 0]).diag(), K[-1])
    assert_close(law.variance[0, -1, 0], K[-1, -1] - weights @ K[-1], rtol=1e-6, atol=0)
    assert_close(law.mean[0, -1, 0], weights @ y[:, 0], rtol=0, atol=1e-6)
    assert law.variance.min() > 0


@pytest.mark.parametrize("nu", [0.0, 1.0, 2.0, float("nan")])
def test_other_processes_are_refused(nu):
    with pytest.raises(ValueError, match=r"smoothness must be one of \(0.5, 1.5, 2.5\), got"):
        MaternLayer(4, 2, lengthscale=1.0, smoothness=nu)
