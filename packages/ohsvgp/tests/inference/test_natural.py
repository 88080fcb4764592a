"""Natural-gradient updates against optima, dense algebra and finite differences."""

import math

import pytest
import torch
from torch import Tensor

from ohsvgp import core
from ohsvgp.core import CarriedSite, Site
from ohsvgp.inducing import PointFunctional
from ohsvgp.inference.natural import natural_update
from ohsvgp.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from ohsvgp.whitening import whiten
from probseq.kernels import RBF

LIKELIHOODS = [
    Bernoulli(),
    Poisson(),
    NegativeBinomial(3.0).double(),
    StudentT(20.0, 2.0).double(),
    Gaussian(0.3).double(),
]


def _ids(likelihood: Likelihood) -> str:
    return type(likelihood).__name__


def _targets(likelihood: Likelihood, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    f = torch.randn(shape, generator=generator, dtype=torch.float64)
    return likelihood.sample(f, generator).detach()


def _carried(old: Site, T: Tensor | None) -> CarriedSite:
    """As the online bound does, under unchanged hyperparameters."""
    if T is None:
        return core.carry_site(old, None)
    return core.carry_site(old, T, torch.eye(len(T), dtype=T.dtype) - T @ T.mT)


def _problem(
    M: int, n: int, generator: torch.Generator, old_M: int | None = None
) -> tuple[CarriedSite, Tensor, Tensor]:
    """A carried site, Ψ and K_ff of a random joint Gaussian; no old data if ``old_M`` is None."""
    old, T, Psi, K_ff = _parts(M, n, generator, old_M)
    return _carried(old, T), Psi, K_ff


def _parts(
    M: int, n: int, generator: torch.Generator, old_M: int | None
) -> tuple[Site, Tensor | None, Tensor, Tensor]:
    """The old site, T, Ψ and K_ff."""
    a = 0 if old_M is None else old_M
    root = torch.randn(a + M + n, a + M + n + 5, generator=generator, dtype=torch.float64)
    K = root @ root.mT / (M + n)
    old, new, data = torch.arange(a + M + n).split([a, M, n])
    R_b = torch.linalg.inv(torch.linalg.cholesky(K[new][:, new]))
    Psi, K_ff = R_b @ K[new][:, data], K.diagonal()[data]
    if old_M is None:
        return Site(K.new_zeros(M, M), K.new_zeros(M)), None, Psi, K_ff
    R_a = torch.linalg.inv(torch.linalg.cholesky(K[old][:, old]))
    root = torch.randn(a, a, generator=generator, dtype=torch.float64)
    site = Site(root @ root.mT, 2 * torch.randn(a, generator=generator, dtype=torch.float64))
    return site, R_a @ K[old][:, new] @ R_b.mT, Psi, K_ff


def _bound_of_moments(
    likelihood: Likelihood,
    problem: tuple[CarriedSite, Tensor, Tensor],
    y: Tensor,
    mean: Tensor,
    covariance: Tensor,
) -> Tensor:
    """The online bound as a function of q's mean and covariance."""
    carried, Psi, K_ff = problem
    variance = K_ff - Psi.square().sum(-2) + (Psi * (covariance @ Psi)).sum(-2)
    expected = likelihood.expectations(Psi.mT @ mean, variance, y).log_prob.sum()
    nothing = torch.zeros_like(expected)
    return core.uncollapsed_bound(expected, nothing, carried, mean, covariance).value


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=_ids)
@pytest.mark.parametrize(("M", "n", "old_M"), [(6, 14, None), (9, 4, 5), (7, 7, 7), (8, 1, 6)])
def test_fixed_point_is_the_optimum_of_the_bound_over_all_gaussians(
    likelihood: Likelihood, M: int, n: int, old_M: int | None
) -> None:
    generator = torch.Generator().manual_seed(7 * M + n)
    problem = _problem(M, n, generator, old_M)
    y = _targets(likelihood, (n,), generator)
    site, bound = natural_update(likelihood, *problem, y, iterations=60)
    q = core.posterior(site)
    mean = q.mean.clone().requires_grad_()
    covariance = torch.cholesky_inverse(q.root).requires_grad_()
    value = _bound_of_moments(likelihood, problem, y, mean, covariance)
    torch.testing.assert_close(value, bound.value, rtol=1e-12, atol=1e-11)
    by_mean, by_covariance = torch.autograd.grad(value, (mean, covariance))
    # Steps end when they gain less than 1e-10 nats: a distance of about 1e-5.
    assert by_mean.abs().max() < 2e-5
    assert by_covariance.abs().max() < 2e-5
    # The default eight iterations are as good as there.
    eight = natural_update(likelihood, *problem, y)[1]
    assert 0 <= (bound.value - eight.value).item() + 1e-12 < 1e-6


def test_one_step_for_gaussian_noise_is_the_closed_form() -> None:
    generator = torch.Generator().manual_seed(0)
    for n in (3, 12):
        carried, Psi, K_ff = _problem(6, n, generator, 5)
        y = torch.randn(n, generator=generator, dtype=torch.float64)
        noise = torch.tensor(0.3, dtype=torch.float64)
        site, bound = natural_update(Gaussian(noise), carried, Psi, K_ff, y, iterations=1)
        expected = core.whitened_update(carried.site, Psi, (1 / noise).expand(n), y / noise)
        torch.testing.assert_close(site.precision, expected.precision, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(site.shift, expected.shift, rtol=1e-10, atol=1e-12)
        collapsed = core.online_bound(carried, expected, Psi, K_ff, y, noise)
        torch.testing.assert_close(bound.value.detach(), collapsed.value, rtol=1e-11, atol=0)
        torch.testing.assert_close(bound.lost_information, collapsed.lost_information)
        torch.testing.assert_close(bound.unexplained, collapsed.unexplained)


@pytest.mark.parametrize("likelihood", LIKELIHOODS[:3], ids=_ids)
def test_inducing_points_at_the_inputs_give_the_dense_variational_approximation(
    likelihood: Likelihood,
) -> None:
    generator = torch.Generator().manual_seed(2)
    kernel = RBF(1).double()
    x = torch.linspace(0, 4, 12, dtype=torch.float64)[:, None]
    y = _targets(likelihood, (12,), generator)
    K = kernel(x, x).detach() + 1e-8 * torch.eye(12, dtype=torch.float64)
    inducing = PointFunctional(x)
    R = whiten(K - 1e-8 * torch.eye(12, dtype=torch.float64)).matrix.detach()
    Psi = core.features(kernel, inducing, R, x).detach()
    empty = core.carry_site(Site(K.new_zeros(12, 12), K.new_zeros(12)), None)
    site, bound = natural_update(likelihood, empty, Psi, K.diagonal(), y, iterations=60)
    f = core.predict(core.posterior(site), Psi, K.diagonal())
    # Opper and Archambeau 2009: S = (K⁻¹ + diag(w))⁻¹ and mean K g solve the stationarity
    # conditions on f itself; no inducing variables, no whitening, damped by one half.
    w, mean = torch.ones(12, dtype=torch.float64), K.new_zeros(12)
    for _ in range(400):
        S = torch.linalg.inv(torch.linalg.inv(K) + torch.diag(w))
        found = likelihood.expectations(mean, S.diagonal(), y)
        w = 0.5 * (w + found.curvature.detach())
        mean = mean + 0.5 * S @ (found.gradient.detach() - torch.linalg.solve(K, mean))
    kl = 0.5 * (
        torch.trace(torch.linalg.solve(K, S))
        + mean @ torch.linalg.solve(K, mean)
        - 12
        + torch.logdet(K)
        - torch.logdet(S)
    )
    expected = likelihood.expectations(mean, S.diagonal(), y).log_prob.sum() - kl
    torch.testing.assert_close(f.mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(f.variance, S.diagonal(), rtol=1e-4, atol=1e-5)
    assert bound.value.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=_ids)
@pytest.mark.parametrize("n", [4, 15])
def test_masked_points_are_as_if_left_out(likelihood: Likelihood, n: int) -> None:
    generator = torch.Generator().manual_seed(5)
    carried, Psi, K_ff = _problem(6, n, generator, 5)
    y = _targets(likelihood, (n,), generator)
    mask = torch.arange(n) % 3 != 1
    site, bound = natural_update(likelihood, carried, Psi, K_ff, y * mask, mask=mask)
    less, its = natural_update(likelihood, carried, Psi[:, mask], K_ff[mask], y[mask])
    torch.testing.assert_close(site.precision, less.precision, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(site.shift, less.shift, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bound.value, its.value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bound.unexplained, its.unexplained, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("likelihood", LIKELIHOODS[1:3], ids=_ids)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_and_huge_counts_do_not_overflow(likelihood: Likelihood, dtype: torch.dtype) -> None:
    kernel = RBF(1, outputscale=4.0).to(dtype)
    x = torch.linspace(0, 10, 40, dtype=dtype)[:, None]
    inducing = PointFunctional(x[::4])
    R = whiten(inducing.covariance(kernel)).matrix.detach()
    Psi, K_ff = core.features(kernel, inducing, R, x).detach(), kernel.diag(x).detach()
    empty = core.carry_site(Site(R.new_zeros(10, 10), R.new_zeros(10)), None)
    for y in (torch.zeros(40), torch.full((40,), 1e6), 1e6 * (torch.arange(40) % 2)):
        counts = y.to(dtype)
        site, bound = natural_update(likelihood.to(dtype), empty, Psi, K_ff, counts)
        f = core.predict(core.posterior(site), Psi, K_ff)
        assert f.mean.isfinite().all()
        assert bound.value.isfinite()
        start = likelihood.expectations(torch.zeros_like(K_ff), K_ff, counts).log_prob.sum()
        assert bound.value > start
    likelihood.double()


def test_an_outlier_of_student_t_is_left_where_it_is() -> None:
    # One target far from what is known: the free optimum would widen q beyond it.
    nothing = core.carry_site(Site(torch.zeros(1, 1).double(), torch.zeros(1).double()), None)
    Psi, K_ff = torch.ones(1, 1).double(), torch.ones(1).double()
    likelihood = StudentT(4.0, 0.1).double()
    y = torch.tensor([10.0]).double()
    assert likelihood.expectations(torch.zeros(1).double(), K_ff, y).curvature < 0
    site, bound = natural_update(likelihood, nothing, Psi, K_ff, y, iterations=60)
    q = core.posterior(site)
    assert abs(q.mean.item()) < 1.0
    # Among the q no wider than before, and means on a grid, it is the best one.
    means, variances = torch.meshgrid(
        torch.linspace(-1, 11, 601).double(), torch.linspace(0.05, 1.0, 39).double(), indexing="ij"
    )
    expected = likelihood.expectations(means, variances, y).log_prob.detach()
    grid = expected - 0.5 * (means.square() + variances - variances.log() - 1)
    best = grid.flatten().argmax()
    assert q.mean.item() == pytest.approx(means.flatten()[best].item(), abs=0.02)
    assert 1 / q.root.item() ** 2 == pytest.approx(variances.flatten()[best].item(), abs=0.025)
    assert bound.value.item() == pytest.approx(grid.max().item(), abs=1e-3)


def test_cut_information_is_an_optimum_among_posteriors_that_are_nowhere_wider() -> None:
    generator = torch.Generator().manual_seed(11)
    problem = _problem(6, 9, generator)
    likelihood = StudentT(3.0, 0.2).double()
    y = 3 * torch.randn(9, generator=generator, dtype=torch.float64)
    site, bound = natural_update(likelihood, *problem, y, iterations=300)
    q = core.posterior(site)
    mean, covariance = q.mean, torch.cholesky_inverse(q.root)
    values, vectors = torch.linalg.eigh(site.precision)
    assert values.min() > -1e-9
    cut = vectors[:, values < 1e-9]
    assert cut.shape[-1] > 0
    leaf = covariance.clone().requires_grad_()
    value = _bound_of_moments(likelihood, problem, y, mean, leaf)
    (slope,) = torch.autograd.grad(value, leaf)
    # The slope in S vanishes but on the cut directions, where it asks for more than the prior.
    projector = cut @ cut.mT
    torch.testing.assert_close(slope, projector @ slope @ projector, rtol=0, atol=3e-5)
    assert torch.linalg.eigvalsh(cut.mT @ slope @ cut).min() > -3e-5
    torch.testing.assert_close(value, bound.value, rtol=1e-10, atol=0)


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("likelihood", LIKELIHOODS[1:4], ids=_ids)
def test_gradients_at_fixed_q_are_total_derivatives(likelihood: Likelihood, changed: bool) -> None:
    generator = torch.Generator().manual_seed(8)
    x = torch.linspace(0, 6, 14, dtype=torch.float64)[:, None]
    y = _targets(likelihood, (14,), generator)
    old_inducing = PointFunctional(x[::3] + 0.1)
    root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    old = Site(root @ root.mT, torch.randn(5, generator=generator, dtype=torch.float64))
    R_a = whiten(old_inducing.covariance(RBF(1).double())).matrix.detach()

    def bound(values: Tensor) -> Tensor:
        """Of log lengthscale, log outputscale, a shift of Z and the likelihood's parameters."""
        # Of a lengthscale by rescaled inputs, so that the graph reaches it.
        kernel, spread, scale = RBF(1).double(), values[0].exp(), values[1].exp()
        inducing = PointFunctional((x[::2] + values[2]) / spread)
        K_bb = scale * inducing.covariance(kernel)
        R_b = whiten(K_bb).matrix
        Psi = R_b @ (scale * inducing.cross(kernel, x / spread))
        K_ff = scale * kernel.diag(x / spread)
        moved = PointFunctional(old_inducing.nodes / spread)
        T = R_a @ (scale * moved.cross_inducing(kernel, inducing)) @ R_b.mT
        K_aa = scale * moved.covariance(kernel)
        prior_a = R_a @ K_aa @ R_a.mT if changed else torch.eye(5, dtype=torch.float64)
        carried = core.carry_site(old, T, prior_a - T @ T.mT)
        state = {
            name: value.reshape(parameter.shape)
            for (name, parameter), value in zip(
                likelihood.named_parameters(), values[3:], strict=True
            )
        }
        call = _Update(likelihood, (carried, Psi, K_ff, y))
        return torch.func.functional_call(call, {f"likelihood.{k}": v for k, v in state.items()})

    parameters = [p.detach().flatten() for p in likelihood.parameters()]
    at = torch.cat([torch.tensor([0.2, 0.3, 0.05], dtype=torch.float64), *parameters])
    at.requires_grad_()
    (slope,) = torch.autograd.grad(bound(at), at)
    with torch.no_grad():
        for k in range(len(at)):
            step = torch.zeros_like(at)
            step[k] = 1e-4
            difference = (bound(at + step) - bound(at - step)) / 2e-4
            assert slope[k].item() == pytest.approx(difference.item(), rel=1e-5, abs=1e-5)


class _Update(torch.nn.Module):
    """The bound at the update's result, as a module so that parameters can be replaced."""

    def __init__(self, likelihood: Likelihood, data: tuple[CarriedSite, Tensor, Tensor, Tensor]):
        super().__init__()
        self.likelihood, self.data = likelihood, data

    def forward(self) -> Tensor:
        return natural_update(self.likelihood, *self.data, iterations=60)[1].value


def test_a_bad_start_is_damped_until_the_bound_rises() -> None:
    class Blind(Poisson):
        """Starts from what was known, as likelihoods do by default."""

        start = Likelihood.start

    one = torch.ones(1, dtype=torch.float64)
    old, y = Site(0 * one[:, None], 0 * one), torch.tensor([300.0], dtype=torch.float64)
    data = core.carry_site(old, None), 1.5 * one[:, None], 2.3 * one, y
    good = natural_update(Poisson(), *data, iterations=30)[1].value
    # Its first step of length one leads to f of about 100, and the rate beyond all numbers.
    bounds = [natural_update(Blind(), *data, iterations=k)[1].value.item() for k in (1, 8, 60)]
    assert bounds[0] < bounds[1] <= bounds[2]
    assert bounds[2] == pytest.approx(good.item(), abs=1e-6)
    assert math.isfinite(bounds[1])


def test_one_step_from_the_peaks_of_the_counts_is_near_the_optimum() -> None:
    # What was known is 14 posterior standard deviations off, and not zero.
    one = torch.ones(1, dtype=torch.float64)
    old, y = Site(2 * one[:, None], 3 * one), torch.tensor([3000.0], dtype=torch.float64)
    data = core.carry_site(old, None), 1.5 * one[:, None], 2.25 * one, y
    first, best = (natural_update(Poisson(), *data, iterations=k)[1].value for k in (1, 60))
    assert 0 <= (best - first).item() < 0.05
