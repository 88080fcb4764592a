"""Fits of hyperparameters: against scipy, on generated data, on the online bound, and failures."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from ohsvgp import Gaussian, LegS, OnlineGP, Poisson
from ohsvgp.hyperparameters import _Objective
from probseq.errors import CholeskyError, JitterWarning
from probseq.kernels import RBF
from probseq.kernels.base import Limits


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def draw(t: Tensor, lengthscale: float, variance: float, noise: float, seed: int = 0) -> Tensor:
    """Targets from the prior, by NumPy's formulas."""
    d = t[:, None] - t
    K = variance * (-0.5 * (d / lengthscale) ** 2).exp() + noise * torch.eye(len(t))
    return torch.linalg.cholesky(K) @ normal(len(t), seed=seed)


def model(noise: float = 0.5, **options: float) -> OnlineGP:
    return OnlineGP(RBF(1, **options), Gaussian(noise), LegS(25))


def settings(gp: OnlineGP) -> Tensor:
    assert isinstance(gp.likelihood, Gaussian)
    parts = [gp.kernel.lengthscale.flatten(), gp.kernel.outputscale[None]]
    return torch.cat([*parts, gp.likelihood.noise[None]]).detach()


def test_evidence_fit_is_that_of_scipy() -> None:
    t = torch.linspace(0.0, 10.0, 50, dtype=torch.float64)
    y = draw(t, 0.8, 1.5, 0.05)
    gp = model()
    info = gp.fit_hyperparameters(t, y)

    def loss(z: np.ndarray) -> float:
        d = (t[:, None] - t).numpy() / math.exp(z[0])
        K = math.exp(z[1]) * np.exp(-0.5 * d**2) + math.exp(z[2]) * np.eye(50)
        return -multivariate_normal(np.zeros(50), K).logpdf(y.numpy())

    best = minimize(loss, np.log([0.8, 1.5, 0.05]), method="Nelder-Mead")
    assert info.objective == "evidence"
    assert info.after == pytest.approx(-best.fun, abs=1e-3)
    assert info.before == pytest.approx(-loss(np.log([1.0, 1.0, 0.5])), abs=1e-6)
    np.testing.assert_allclose(settings(gp).numpy(), np.exp(best.x), rtol=0.02)
    assert gp.state is None
    assert gp.kernel.raw_lengthscale.grad is None


def test_known_hyperparameters_come_back_from_many_data() -> None:
    t = torch.linspace(0.0, 60.0, 300, dtype=torch.float64)
    gp = model(lengthscale=3.0)
    # Twenty series that share the hyperparameters.
    y = torch.stack([draw(t, 0.7, 2.0, 0.1, seed) for seed in range(20)])
    gp.fit_hyperparameters(t, y)
    truth = torch.tensor([0.7, 2.0, 0.1], dtype=torch.float64)
    # About 700 independent values: 5% is one standard deviation of the variance.
    torch.testing.assert_close(settings(gp), truth, rtol=0.12, atol=0)


def test_masked_targets_do_not_count() -> None:
    t = torch.linspace(0.0, 10.0, 40, dtype=torch.float64)
    y = draw(t, 0.8, 1.5, 0.05)
    mask = torch.arange(40) % 3 > 0
    whole, part = model(), model()
    spoilt = torch.where(mask, y, math.nan)
    info = whole.fit_hyperparameters(t, spoilt, mask=mask)
    expected = part.fit_hyperparameters(t[mask], y[mask])
    assert info.after == pytest.approx(expected.after, abs=1e-5)
    torch.testing.assert_close(settings(whole), settings(part), rtol=1e-2, atol=0)


def test_refit_between_batches_raises_the_energy_and_absorbs_nothing() -> None:
    t = torch.linspace(0.0, 12.0, 120, dtype=torch.float64)
    y = draw(t, 0.8, 1.5, 0.05)
    gp = model()
    gp.update(t[:60], y[:60])
    before = float(gp.energy(t[60:], y[60:]).detach())
    info = gp.fit_hyperparameters(t[60:], y[60:], steps=20)
    assert info.objective == "energy"
    assert info.before == pytest.approx(before)
    assert info.after > before + 10
    assert info.after == pytest.approx(float(gp.energy(t[60:], y[60:]).detach()), abs=1e-6)
    assert gp.state is not None
    assert gp.state.count == 60
    found = settings(gp)
    torch.testing.assert_close(
        found, torch.tensor([0.8, 1.5, 0.05], dtype=torch.float64), rtol=0.6, atol=0
    )
    # The update then has exactly the energy that was maximised.
    assert float(gp.update(t[60:], y[60:]).energy) == pytest.approx(info.after, abs=1e-6)


def test_other_likelihoods_are_fitted_by_the_energy_of_the_first_batch() -> None:
    t = torch.linspace(0.0, 10.0, 60, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    y = torch.poisson((1.5 * (1.3 * t).sin()).exp(), generator=generator)
    gp = OnlineGP(RBF(1, lengthscale=3.0), Poisson(), LegS(20))
    info = gp.fit_hyperparameters(t, y)
    assert info.objective == "energy"
    assert info.after > info.before + 5
    assert float(gp.update(t, y).energy) == pytest.approx(info.after, abs=1e-5)


def test_noise_of_targets_without_noise_stops_at_its_floor() -> None:
    # The more the noise shrinks, the larger the evidence of a noiseless curve.
    t = torch.linspace(0.0, 6.0, 12, dtype=torch.float64)
    gp = model(noise=0.1)
    y = 3 * (2.5 * t).sin()
    gp.fit_hyperparameters(t, y)
    assert isinstance(gp.likelihood, Gaussian)
    noise, floor = gp.likelihood.noise.item(), 1e-6 * float(y.square().mean())
    assert floor <= noise * (1 + 1e-9)
    assert noise < 100 * floor


def test_the_floor_of_the_noise_is_no_floor_of_the_kernel() -> None:
    # In these units the lengthscale lies far below a variance of the targets' round-off.
    t = torch.linspace(0.0, 1.0, 30, dtype=torch.float64)
    y = 1e4 * draw(t, 0.1, 1.0, 0.01)
    gp = model(noise=1e6, lengthscale=0.3, outputscale=1e8)
    info = gp.fit_hyperparameters(t, y)
    assert info.failures == 0
    assert info.after > info.before + 1
    assert float(gp.kernel.lengthscale.detach()) < 0.3


def test_noise_that_is_already_below_the_floor_may_stay() -> None:
    t = torch.linspace(0.0, 6.0, 12, dtype=torch.float64)
    gp = model(noise=1e-9)
    info = gp.fit_hyperparameters(t, 3 * (2.5 * t).sin(), steps=1)
    assert math.isfinite(info.before)
    assert info.after >= info.before


def test_the_slope_in_free_coordinates_is_that_of_the_loss_above_a_floor() -> None:
    parameter = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
    floor = torch.tensor(0.8, dtype=torch.float64)
    objective = _Objective(
        lambda: -(parameter - 2.0).square(),
        [parameter],
        [Limits(floor, torch.full_like(floor, torch.inf))],
        5,
    )
    z = objective.start()[0]
    # exp(0.3) = 0.8 + exp(z).
    assert math.isclose(float(z), math.log(math.exp(0.3) - 0.8), rel_tol=1e-12)
    losses = [float(objective.loss([z + shift])) for shift in (1e-5, -1e-5)]
    objective.loss([z])
    assert z.grad is not None
    assert math.isclose(float(z.grad), (losses[0] - losses[1]) / 2e-5, rel_tol=1e-7)


class Trap(RBF):
    """A kernel that cannot be computed at lengthscales below a limit."""

    limit: float = 0.9
    error: Callable[[], Tensor]

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        if self.lengthscale.detach().item() < self.limit:
            return self.error()
        return super()._covariance(x, z)


def indefinite() -> Tensor:
    raise CholeskyError("matrix is not positive definite")


def not_a_number() -> Tensor:
    return torch.full((40, 40), math.nan, dtype=torch.float64)


@pytest.mark.parametrize("error", [indefinite, not_a_number])
def test_hyperparameters_that_fail_are_left_and_reported(error: Callable[[], Tensor]) -> None:
    t = torch.linspace(0.0, 10.0, 40, dtype=torch.float64)
    y = draw(t, 0.3, 1.0, 0.05)
    kernel = Trap(1, lengthscale=2.0)
    kernel.error = error
    gp = OnlineGP(kernel, Gaussian(0.5), LegS(10))
    info = gp.fit_hyperparameters(t, y)
    assert info.failures > 0
    assert info.after > info.before
    assert kernel.lengthscale.item() >= 0.9
    # At the start there is nothing to go back to.
    kernel.limit = 100.0
    before = settings(gp)
    with pytest.raises(CholeskyError):
        gp.fit_hyperparameters(t, y)
    assert torch.equal(settings(gp), before)


def test_interrupted_fit_leaves_the_best_hyperparameters() -> None:
    t = torch.linspace(0.0, 10.0, 40, dtype=torch.float64)

    def interrupt() -> Tensor:
        raise KeyboardInterrupt

    kernel = Trap(1, lengthscale=2.0)
    kernel.error = interrupt
    gp = OnlineGP(kernel, Gaussian(0.5), LegS(10))
    with pytest.raises(KeyboardInterrupt):
        gp.fit_hyperparameters(t, draw(t, 0.3, 1.0, 0.05))
    assert kernel.lengthscale.item() >= 0.9


def test_no_warning_about_jitter_on_the_way() -> None:
    t = torch.linspace(0.0, 10.0, 40, dtype=torch.float64)
    kernel = Trap(1, lengthscale=2.0)
    warned: list[float] = []

    def warn() -> Tensor:
        warned.append(kernel.lengthscale.item())
        warnings.warn("more jitter", JitterWarning, stacklevel=1)
        scaled = t / kernel.lengthscale.squeeze()
        return kernel.outputscale * torch.exp(-0.5 * (scaled[:, None] - scaled).square())

    kernel.error = warn
    gp = OnlineGP(kernel, Gaussian(0.5), LegS(10))
    # Warnings are errors in these tests.
    gp.fit_hyperparameters(t, draw(t, 0.3, 1.0, 0.05))
    assert warned
    assert kernel.lengthscale.item() < 0.9
