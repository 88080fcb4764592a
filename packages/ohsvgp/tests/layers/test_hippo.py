"""The HiPPO layer: against the exact filter, ``OnlineGP``, dense divergences and a loop."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from ohsvgp import Gaussian, OnlineGP, core
from ohsvgp.bases import Cosine, FouT, LagT, LegS, LegT, RecurrentFeatures, UniformGrid
from ohsvgp.core import Site
from ohsvgp.layers import HiPPOLayer
from ohsvgp.layers.base import absorbed
from ohsvgp.whitening import whiten
from probseq.kernels import RBF
from probseq.testing.attention import AttentionSuite

DOUBLE = torch.float64


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def layer(basis, *lengthscales, dim=None):
    heads = len(lengthscales)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = HiPPOLayer(
            heads if dim is None else dim,
            heads,
            basis,
            lengthscale=torch.tensor(lengthscales, dtype=DOUBLE),
        )
    return made.double()


def filtered(module, times, y, lam):
    """Posterior of one sequence whose heads have one channel each, of shape (t, heads)."""
    y, lam = y[None, :, :, None], lam[None]
    law = absorbed(module.forecast(times, y, lam), y, lam)
    return law.mean[0, ..., 0], law.variance[0]


def exact_filter(ell, times, y, lam):
    """Mean and variance of f(t) of a dense GP with kernel exp(−(t − s)²/2ℓ²), prefix by prefix."""
    K = (-0.5 * ((times[:, None] - times) / ell).square()).exp()
    means, variances = [], []
    for n in range(1, len(times) + 1):
        A, k = K[:n, :n] + (1 / lam[:n]).diag(), K[:n, n - 1]
        means.append(k @ torch.linalg.solve(A, y[:n]))
        variances.append(1 - k @ torch.linalg.solve(A, k))
    return torch.stack(means), torch.stack(variances)


def noisy_draw(count, ell):
    """Times on [0, 1], a draw of the prior there with uneven noise, and its precisions."""
    times = torch.arange(1, count + 1, dtype=DOUBLE) / count
    times = times - times[0]
    K = (-0.5 * ((times[:, None] - times) / ell).square()).exp()
    f = torch.linalg.cholesky(K + 1e-8 * torch.eye(count)) @ draw(1, count)
    lam = 2 * (4 * draw(2, count).sigmoid()).exp()
    return times, f + draw(3, count) / lam.sqrt(), lam


class TestAttention(AttentionSuite):
    """The suite of attention modules; tokens are times apart of 1."""

    permuted_noises = ()

    def make(self, dim, num_heads):
        return HiPPOLayer(dim, num_heads, LegS(6, num_nodes=12), lengthscale=3.0)


# Three times the errors of the check that the design rests on, of another draw.
@pytest.mark.parametrize(
    ("M", "of_mean", "of_sd"),
    [(4, 1.6, 0.78), (8, 4.2e-2, 1.53e-2), (12, 2.9e-4, 2e-4), (16, 7.8e-6, 1.8e-6)],
)
def test_the_filter_comes_near_the_exact_one_as_m_grows(M, of_mean, of_sd):
    times, y, lam = noisy_draw(64, 0.15)
    mean, variance = filtered(layer(LegS(M), 0.15), times, y[:, None], lam[:, None])
    exact_mean, exact_variance = exact_filter(0.15, times, y, lam)
    assert (mean[:, 0] - exact_mean).square().mean().sqrt() < of_mean
    assert (variance[:, 0].sqrt() - exact_variance.sqrt()).abs().max() < of_sd


@pytest.mark.parametrize("ell", [0.2, 0.3])
def test_with_more_variables_than_needed_it_is_the_exact_filter_up_to_jitter(ell):
    times, y, lam = noisy_draw(64, ell)
    mean, variance = filtered(layer(LegS(16), ell), times, y[:, None], lam[:, None])
    exact_mean, exact_variance = exact_filter(ell, times, y, lam)
    assert_close(mean[:, 0], exact_mean, rtol=0, atol=1e-5)
    assert_close(variance[:, 0], exact_variance, rtol=0, atol=1e-5)


# More stamps than are worked on at once, irregular, with repeated ones; a lengthscale so short
# that windows differ in the number of their nodes. Four cosines: six are so nearly dependent on the
# first windows that the order of sums shows in the tenth digit.
@pytest.mark.slow
@pytest.mark.parametrize(("basis", "ell"), [(LegS(8), 3.0), (LegS(5), 0.02), (Cosine(4), 2.0)])
def test_it_equals_the_online_process_updated_point_by_point(basis, ell):
    gaps = draw(4, 70).abs()
    gaps[[0, 1, 20, 64, 65]] = 0
    times, y, noise = gaps.cumsum(0) / 4, draw(5, 70), 0.3
    module = layer(basis, ell)
    found = filtered(module, times, y[:, None], torch.full((70, 1), 1 / noise, dtype=DOUBLE))
    gp = OnlineGP(
        RBF(1, lengthscale=torch.tensor(ell, dtype=DOUBLE)),
        Gaussian(torch.tensor(noise, dtype=DOUBLE)),
        basis,
        alpha=0.0,
        rel_jitter=module.recurrence.rel_jitter,
    )
    for i in range(70):
        gp.update(times[i : i + 1], y[i : i + 1])
        law = gp.predict(times[i : i + 1])
        assert_close(found[0][i], law.mean, rtol=0, atol=1e-10)
        assert_close(found[1][i], law.variance, rtol=0, atol=1e-10)


def test_heads_and_sequences_and_channels_are_independent():
    module, x, times = layer(LegS(7), 2.0, 5.0, dim=6), draw(6, 3, 12, 6), draw(7, 12).sort().values
    whole = module.posterior(x, times=times)
    y, lam = module.sites(x, None)
    for head, ell in enumerate((2.0, 5.0)):
        for b in range(3):
            for s in range(3):
                mean, variance = filtered(
                    layer(LegS(7), ell), times - times[0], y[b, :, head, s, None], lam[b, :, [head]]
                )
                assert_close(whole.mean[b, :, head, s], mean[:, 0])
                assert_close(whole.variance[b, :, head], variance[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "basis",
    [
        LegS(16),
        LegT(16, 5.0),
        # All windows' covariances of nodes are held at once: those of its default take gigabytes.
        LagT(16, 2.0, num_nodes=200),
        FouT(15, 5.0),
        Cosine(16),
        UniformGrid(16),
        LegS(1),
    ],
    ids=lambda basis: f"{type(basis).__name__}({basis.num_inducing})",
)
def test_no_variance_is_negative_before_round_off_is_cut(basis):
    module = layer(basis, 0.1, 1.0, 30.0, dim=3)
    times = draw(10, 80).abs().cumsum(0) * 0.3
    windows = module.recurrence.windows(times - times[0])
    assert windows.unexplained.min() > -1e-10
    assert windows.unexplained.max() < 1 + 1e-10
    assert torch.linalg.matrix_norm(windows.transition, 2).max() < 1 + 1e-6
    law = module.posterior(draw(11, 2, 80, 3), times=times)
    assert law.variance.min() > 0
    assert law.variance.max() < 1 + 1e-10


def test_the_gradient_in_the_lengthscale_is_that_of_the_exact_filter():
    times, y, lam = noisy_draw(24, 0.3)
    module = layer(LegS(16), 0.3)
    mean, variance = filtered(module, times, y[:, None], lam[:, None])
    (found,) = torch.autograd.grad(
        mean.sum() + variance.sum(), [module.recurrence.kernel.raw_lengthscale]
    )
    raw = torch.tensor(0.3, dtype=DOUBLE).log().requires_grad_()
    mean, variance = exact_filter(raw.exp(), times, y, lam)
    (expected,) = torch.autograd.grad(mean.sum() + variance.sum(), [raw])
    assert abs(expected) > 1
    # What jitter leaves, as of the values themselves.
    assert_close(found.squeeze(), expected, rtol=1e-4, atol=0)


def loop(module, times, y, lam):
    """Sites of one head and sequence, carried and updated by the functions of ``OnlineGP``."""
    kernel, basis = module.recurrence.kernel, module.recurrence.basis
    site, old = Site(torch.zeros(5, 5, dtype=DOUBLE), torch.zeros(2, 5, dtype=DOUBLE)), None
    for i in range(len(times)):
        new = basis.inducing(kernel, float(times[i]))
        R = whiten(new.covariance(kernel)[0], rel_jitter=1e-9)
        lost = torch.zeros((), dtype=DOUBLE)
        if old is not None:
            T = core.transition(old[1], old[0].cross_inducing(kernel, new)[0], R)
            carried = core.carry_site(site, T, torch.eye(5, dtype=DOUBLE) - T @ T.mT)
            site, lost = carried.site, carried.lost_information
        Psi = core.features(kernel, new, R, times[i : i + 1, None])[0]
        updated = core.whitened_update(site, Psi, lam[i : i + 1], lam[i] * y[i, :, None])
        yield site, updated, lost
        site, old = updated, (new, R)


def test_divergence_and_lost_information_are_those_of_the_states():
    module, x = layer(LegS(5), 1.5, dim=2), draw(13, 1, 12, 2)
    times = draw(14, 12).abs().cumsum(0)
    law = module.posterior(x, times=times)
    (y,), (lam,) = module.sites(x, None)
    times = times - times[0]
    states = list(loop(module, times, y[:, 0].detach(), lam[:, 0].detach()))
    eye = torch.eye(5, dtype=DOUBLE)
    for i, (before, after, lost) in enumerate(states):
        q, p = (
            MultivariateNormal(
                torch.linalg.solve(eye + G, h.mT).mT, precision_matrix=(eye + G).expand(2, 5, 5)
            )
            for G, h in (after, before)
        )
        assert_close(law.kl[0, i, 0], kl_divergence(q, p).sum(), rtol=0, atol=1e-10)
        assert_close(law.lost_information[0, i].sum(), lost.squeeze(), rtol=0, atol=1e-7)
    # The last one is large enough to be seen.
    assert law.lost_information.max() > 1e-3


def test_float32_parameters_give_the_relations_of_float64():
    low = layer(LegS(16), 4.0).float()
    high = layer(LegS(16), 4.0)
    high.load_state_dict(low.state_dict())
    times = torch.arange(40, dtype=DOUBLE)
    for found, expected in zip(
        low.recurrence.windows(times), high.recurrence.windows(times), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("plain_calls")
class TestRefusals:
    def test_other_bases_are_refused(self):
        with pytest.raises(ValueError, match="basis must lie on points of time"):
            layer(RecurrentFeatures(LegS(4), num_features=5), 1.0)
