"""The whitened algebra against Bui et al. 2017 written out with D_a = (S_a⁻¹ − K'_aa⁻¹)⁻¹.

The old posterior enters theirs as M pseudo-observations ŷ_a = D_a S_a⁻¹ m_a of a with noise D_a,
and in power EP with noise D_a + α (K_aa − Q_aa): dense matrices, no whitening. Hyperparameters
change from update to update.
"""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from ohsvgp import Gaussian, OnlineGP
from ohsvgp.bases.base import Advance, Basis
from ohsvgp.core import (
    CarriedSite,
    Site,
    carry_site,
    features,
    online_bound,
    posterior,
    predict_joint,
    transition,
    uncollapsed_bound,
    whitened_update,
)
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.kernels import Kernel, Matern32

NOISE = 0.05
LENGTHSCALES = [1.0, 0.6, 1.5]
OUTPUTSCALES = [1.0, 2.0, 0.7]
BATCHES = [torch.arange(0, 14), torch.arange(14, 26), torch.arange(26, 40)]


class Old(NamedTuple):
    """q(a) = N(mean, covariance), and the prior covariance that it was learned under."""

    points: Tensor
    mean: Tensor
    covariance: Tensor
    prior: Tensor


def kernel_of(step: int) -> Matern32:
    kernel = Matern32(1, lengthscale=LENGTHSCALES[step], outputscale=OUTPUTSCALES[step])
    return kernel.double().requires_grad_(False)


def stream() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.linspace(0.0, 8.0, 40, dtype=torch.float64)[:, None]
    noise = torch.randn(40, dtype=torch.float64, generator=generator)
    return x, x[:, 0].sin() + 0.2 * noise


def points_of(step: int) -> Tensor:
    return torch.linspace(0.1, [2.5, 5.0, 7.8][step], 6, dtype=torch.float64)[:, None]


def inverse(A: Tensor) -> Tensor:
    return torch.linalg.inv(A)


def log_normal(y: Tensor, covariance: Tensor) -> Tensor:
    return MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


def explicit_site(old: Old) -> tuple[Tensor, Tensor, Tensor]:
    """D_a, the pseudo-observations, and the log of q(a)/p'(a) over N(a; ŷ_a, D_a)."""
    S, K, m = old.covariance, old.prior, old.mean
    D = inverse(inverse(S) - inverse(K))
    shift = inverse(S) @ m
    constant = 0.5 * (
        len(m) * math.log(2 * math.pi)
        + torch.logdet(D)
        - torch.logdet(S)
        + torch.logdet(K)
        + shift @ D @ shift
        - m @ shift
    )
    return D, D @ shift, constant


class Explicit(NamedTuple):
    """New q(b), the objective, the information lost, and what b does not explain of the data."""

    q: Old
    bound: Tensor
    lost: Tensor
    unexplained: Tensor


def explicit_update(
    kernel: Kernel, old: Old | None, b: Tensor, x: Tensor, y: Tensor, alpha: float = 0.0
) -> Explicit:
    """As Bui et al. write it; 2017a for the bound, Bui, Yan and Turner 2017 for powers of a."""
    K_bb, K_fb = kernel(b, b), kernel(x, b)
    Sigma, cross, targets = NOISE * torch.eye(len(y), dtype=y.dtype), K_fb, y
    lost = constant = torch.zeros((), dtype=y.dtype)
    if old is not None:
        D, pseudo, constant = explicit_site(old)
        K_ab = kernel(old.points, b)
        rest = kernel(old.points, old.points) - K_ab @ inverse(K_bb) @ K_ab.T
        Sigma = torch.block_diag(Sigma, D + alpha * rest)
        cross = torch.cat([K_fb, K_ab])
        targets = torch.cat([y, pseudo])
        # E[N(ŷ; a, D)^α | b]^(1/α) is N(ŷ; A b, D + α rest) times exp(−(1 − α) lost).
        if alpha > 0:
            lost = (torch.logdet(D + alpha * rest) - torch.logdet(D)) / (2 * alpha)
        else:
            lost = 0.5 * torch.trace(inverse(D) @ rest)
    Q = cross @ inverse(K_bb) @ cross.T
    unexplained = (kernel.diag(x).sum() - torch.trace(Q[: len(y), : len(y)])) / (2 * NOISE)
    bound = log_normal(targets, Q + Sigma) - unexplained - (1 - alpha) * lost + constant
    # Regression of b on all observations, pseudo-observations among them.
    gain = cross.T @ inverse(Q + Sigma)
    covariance = K_bb - gain @ cross
    return Explicit(Old(b, gain @ targets, covariance, K_bb), bound, lost, unexplained)


def explicit_prediction(kernel: Kernel, q: Old, x: Tensor) -> tuple[Tensor, Tensor]:
    A = kernel(x, q.points) @ inverse(q.prior)
    return A @ q.mean, kernel(x, x) - A @ (q.prior - q.covariance) @ A.T


def root(K: Tensor) -> Tensor:
    """A whitening R with R K Rᵀ = I."""
    return inverse(torch.linalg.cholesky(K))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_update_bound_and_loss_equal_the_explicit_form_under_changing_hyperparameters(
    alpha: float,
) -> None:
    x, y = stream()
    x_new = torch.linspace(-1.0, 9.0, 11, dtype=torch.float64)[:, None]
    old, site, R_a, set_a = None, Site(x.new_zeros(6, 6), x.new_zeros(6)), None, None
    for step, batch in enumerate(BATCHES):
        kernel, inducing = kernel_of(step), PointFunctional(points_of(step))
        explicit = explicit_update(kernel, old, inducing.nodes, x[batch], y[batch], alpha)
        R_b = root(inducing.covariance(kernel))
        carried = carry_site(site, None)
        if R_a is not None and set_a is not None:
            T = transition(R_a, set_a.cross_inducing(kernel, inducing), R_b)
            prior_a = R_a @ set_a.covariance(kernel) @ R_a.mT
            carried = carry_site(site, T, prior_a - T @ T.mT, alpha=alpha)
        Psi = features(kernel, inducing, R_b, x[batch])
        precision = torch.full_like(y[batch], 1 / NOISE)
        new = whitened_update(carried.site, Psi, precision, precision * y[batch])
        K_ff = kernel.diag(x[batch])
        found = online_bound(carried, new, Psi, K_ff, y[batch], y.new_tensor(NOISE))
        torch.testing.assert_close(found.value, explicit.bound, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(found.lost_information, explicit.lost, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(found.unexplained, explicit.unexplained, rtol=1e-7, atol=1e-8)
        P = features(kernel, inducing, R_b, x_new)
        law = predict_joint(posterior(new), P, kernel(x_new, x_new))
        mean, covariance = explicit_prediction(kernel, explicit.q, x_new)
        torch.testing.assert_close(law.mean, mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(law.covariance, covariance, rtol=0, atol=1e-8)
        # The loss is no rounding error here, and hyperparameters do matter.
        assert step == 0 or float(explicit.lost) > 0.01
        old, site, R_a, set_a = explicit.q, new, R_b, inducing


class GivenPoints(Basis):
    """The inducing points of every step, given beforehand; batches end in (2, 3], (5, 6], 8."""

    def __init__(self) -> None:
        self.num_inducing = 6

    def advance(self, step: Advance) -> Inducing:
        return PointFunctional(points_of([3, 6, 8].index(math.ceil(step.length))))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_model_equals_the_explicit_form_under_changing_hyperparameters(alpha: float) -> None:
    x, y = stream()
    kernel = kernel_of(0)
    gp = OnlineGP(kernel, Gaussian(NOISE), GivenPoints(), t0=0.0, alpha=alpha)
    old = None
    for step, batch in enumerate(BATCHES):
        kernel.load_state_dict(kernel_of(step).state_dict())
        info = gp.update(x[batch, 0], y[batch])
        explicit = explicit_update(kernel, old, points_of(step), x[batch], y[batch], alpha)
        old = explicit.q
        found = gp.predict(x[:, 0], full_cov=True)
        mean, covariance = explicit_prediction(kernel, old, x)
        # The model's jitter is 1e-8 of the prior variance.
        torch.testing.assert_close(info.energy, explicit.bound, rtol=0, atol=1e-4)
        torch.testing.assert_close(info.lost_information, explicit.lost, rtol=0, atol=1e-4)
        torch.testing.assert_close(info.unexplained, explicit.unexplained, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.covariance, covariance, rtol=0, atol=1e-5)


def test_prediction_under_new_hyperparameters_keeps_the_old_site() -> None:
    # Only the prior of a changes; what the data said of a, N(ŷ_a; a, D_a), does not.
    x, y = stream()
    batch, kernel = BATCHES[0], kernel_of(0)
    gp = OnlineGP(kernel, Gaussian(NOISE), GivenPoints(), t0=0.0)
    gp.update(x[batch, 0], y[batch])
    old = explicit_update(kernel, None, points_of(0), x[batch], y[batch]).q
    D, pseudo, _ = explicit_site(old)
    kernel.load_state_dict(kernel_of(1).state_dict())
    K_aa, K_sa = kernel(old.points, old.points), kernel(x, old.points)
    gain = K_sa @ inverse(K_aa + D)
    found = gp.predict(x[:, 0])
    torch.testing.assert_close(found.mean, gain @ pseudo, rtol=0, atol=1e-5)
    variance = kernel.diag(x) - (gain * K_sa).sum(-1)
    torch.testing.assert_close(found.variance, variance, rtol=0, atol=1e-5)


@pytest.fixture
def second_step() -> tuple[Kernel, Old, CarriedSite, Tensor, Tensor]:
    """Everything about the second update: kernel, q(a), its carried site, R_b and b."""
    x, y = stream()
    first, kernel = kernel_of(0), kernel_of(1)
    set_a, set_b = PointFunctional(points_of(0)), PointFunctional(points_of(1))
    R_a, R_b = root(set_a.covariance(first)), root(set_b.covariance(kernel))
    Psi = features(first, set_a, R_a, x[BATCHES[0]])
    precision = torch.full_like(y[BATCHES[0]], 1 / NOISE)
    empty = Site(x.new_zeros(6, 6), x.new_zeros(6))
    site = whitened_update(empty, Psi, precision, precision * y[BATCHES[0]])
    old = explicit_update(first, None, set_a.nodes, x[BATCHES[0]], y[BATCHES[0]]).q
    T = transition(R_a, set_a.cross_inducing(kernel, set_b), R_b)
    carried = carry_site(site, T, R_a @ set_a.covariance(kernel) @ R_a.mT - T @ T.mT)
    return kernel, old, carried, R_b, set_b.nodes


def test_uncollapsed_bound_is_the_sum_of_its_divergences(
    second_step: tuple[Kernel, Old, CarriedSite, Tensor, Tensor],
) -> None:
    # Thesis Eq. 4.6 with densities of torch.distributions, at an arbitrary q(b).
    kernel, old, carried, R_b, b = second_step
    generator = torch.Generator().manual_seed(1)
    m = torch.randn(6, dtype=torch.float64, generator=generator)
    root_S = 0.3 * torch.randn(6, 6, dtype=torch.float64, generator=generator)
    S = root_S @ root_S.mT + 0.1 * torch.eye(6)
    back = inverse(R_b)
    q_b = MultivariateNormal(back @ m, back @ S @ back.mT)
    p_b = MultivariateNormal(torch.zeros_like(m), kernel(b, b))
    A = kernel(old.points, b) @ inverse(kernel(b, b))
    spread = kernel(old.points, old.points) - A @ (kernel(b, b) - q_b.covariance_matrix) @ A.mT
    q_tilde = MultivariateNormal(A @ q_b.mean, 0.5 * (spread + spread.mT))
    q_a = MultivariateNormal(old.mean, 0.5 * (old.covariance + old.covariance.mT))
    p_a = MultivariateNormal(torch.zeros_like(m), old.prior)
    expected = kl_divergence(q_tilde, p_a) - kl_divergence(q_tilde, q_a) - kl_divergence(q_b, p_b)
    nothing = torch.zeros((), dtype=torch.float64)
    found = uncollapsed_bound(nothing, nothing, carried, m, S)
    torch.testing.assert_close(found.value, expected, rtol=1e-8, atol=1e-8)


def test_information_is_lost_only_where_the_new_set_does_not_span_the_old_one() -> None:
    x, y = stream()
    kernel, batch = kernel_of(0), BATCHES[0]
    old, other = PointFunctional(points_of(0)), PointFunctional(points_of(1))
    R_a = root(old.covariance(kernel))
    Psi = features(kernel, old, R_a, x[batch])
    precision = torch.full_like(y[batch], 1 / NOISE)
    empty = Site(x.new_zeros(6, 6), x.new_zeros(6))
    site = whitened_update(empty, Psi, precision, precision * y[batch])

    def lost(b: PointFunctional, alpha: float) -> Tensor:
        T = transition(R_a, old.cross_inducing(kernel, b), root(b.covariance(kernel)))
        C = torch.eye(6, dtype=x.dtype) - T @ T.mT
        return carry_site(site, T, C, alpha=alpha).lost_information

    # A new set that contains the old one loses nothing.
    both = PointFunctional(torch.cat([old.nodes, other.nodes + 0.3]))
    for alpha in (0.0, 0.5, 1.0):
        assert float(lost(other, alpha)) > 0.01
        assert abs(float(lost(both, alpha))) < 1e-9
