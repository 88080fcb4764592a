"""What an online Gaussian process does with a stream, against dense algebra and itself."""

import copy
import math
import pickle
import threading
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from ohsvgp import (
    Bernoulli,
    Cosine,
    Gaussian,
    LegS,
    Level,
    OnlineGP,
    Poisson,
    RandomSubset,
    Refit,
    UniformGrid,
    exact_posterior,
    fitting,
)
from ohsvgp.bases import Basis, RecurrentFeatures
from ohsvgp.beyond.means import MeanKernel
from ohsvgp.exact import log_marginal_likelihood
from ohsvgp.information_loss import LostInformationWarning
from ohsvgp.likelihoods import Likelihood
from probseq.kernels import RBF, Kernel, White

NOISE = 0.02
GRID = torch.linspace(-1, 12, 40, dtype=torch.float64)


def stream(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    t = (10 * torch.rand(n, generator=generator, dtype=torch.float64)).sort().values
    return t, t.sin() + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


def rbf(lengthscale: float = 0.8) -> Kernel:
    return RBF(1, lengthscale=torch.tensor(lengthscale, dtype=torch.float64))


def model(basis: Basis | None = None, kernel: Kernel | None = None, **options: Any) -> OnlineGP:
    noise = torch.tensor(NOISE, dtype=torch.float64)
    return OnlineGP(kernel or rbf(), Gaussian(noise), basis or LegS(9), **options)


def assert_equal_laws(a: OnlineGP, b: OnlineGP, tolerance: float = 1e-9) -> None:
    one, other = a.predict(GRID), b.predict(GRID)
    torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(one.variance, other.variance, rtol=0, atol=tolerance)


def dense(gp: OnlineGP, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Conditioning on all data at once through the model's inducing set, without whitening."""
    assert gp.state is not None
    u, kernel, jitter = gp.state.inducing, gp.kernel, gp.state.whitening.jitter
    with torch.no_grad():
        K_uu = u.covariance(kernel)
        K_uu = K_uu + jitter * torch.eye(len(K_uu), dtype=torch.float64)
        K_uf, K_us = u.cross(kernel, t[:, None]), u.cross(kernel, GRID[:, None])
        A = K_uu + K_uf @ K_uf.mT / NOISE
        mean = K_us.mT @ torch.linalg.solve(A, K_uf @ y) / NOISE
        explained = (K_us * torch.linalg.solve(K_uu, K_us)).sum(0)
        left = (K_us * torch.linalg.solve(A, K_us)).sum(0)
        return mean, kernel.diag(GRID[:, None]) - explained + left


@pytest.mark.parametrize("basis", [LegS(9), Cosine(9), UniformGrid(9)])
def test_late_and_repeated_stamps_inside_the_window_are_exact(basis: Basis) -> None:
    t, y = stream(40)
    generator = torch.Generator().manual_seed(1)
    t = t.clone()
    t[5:9] = t[5]
    gp = model(basis, t0=0.0, rebase="manual")
    gp.rebase(10.0)
    for part in torch.randperm(40, generator=generator).split([1, 7, 20, 12]):
        info = gp.update(t[part], y[part], sort=True)
        assert info.t_end == 10.0
        assert float(info.lost_information) == 0.0
    mean, variance = dense(gp, t, y)
    law = gp.predict(GRID)
    torch.testing.assert_close(law.mean, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(law.variance, variance, rtol=0, atol=1e-8)


def test_the_end_of_the_window_never_moves_back() -> None:
    gp = model(t0=0.0)
    ends = [
        gp.update([1.0, 4.0], [0.0, 0.1]).t_end,
        gp.update([2.0], [0.3]).t_end,
        gp.rebase(3.0).t_end,
        gp.update([2.0], [0.3], t_end=1.0).t_end,
        gp.rebase(6.0).t_end,
        gp.update([5.0], [0.3]).t_end,
        gp.update([6.5], [0.3]).t_end,
    ]
    assert ends == [4.0, 4.0, 4.0, 4.0, 6.0, 6.0, 6.5]


def test_policies_move_the_window_as_they_say() -> None:
    growing, manual = model(rebase="grow:1.5"), model(rebase="manual")
    for gp, expected in (
        (growing, [13.0, 13.0, 16.75, 16.75, 20.0]),
        (manual, [12.0, 12.0, 12.0, 12.0, 20.0]),
    ):
        steps = [([10.0, 12.0], None), ([13.0], None), ([14.5], None), ([15.0], None), ([], 20.0)]
        ends = [gp.update(t, [0.1] * len(t), t_end=end).t_end for t, end in steps]
        assert ends == expected


def test_gaps_equal_leaving_the_points_out() -> None:
    t, y = stream(30)
    kept = torch.rand(30, generator=torch.Generator().manual_seed(2)) < 0.6
    kept[-1] = kept[0] = True
    holed = y.masked_fill(~kept, math.nan)
    by_mask, by_drop, short = model(), model(), model()
    a, b = by_mask.update(t, holed, mask=kept), by_drop.update(t, holed, missing="drop")
    c = short.update(t[kept], y[kept])
    torch.testing.assert_close(a.energy, c.energy)
    torch.testing.assert_close(b.energy, c.energy)
    assert_equal_laws(by_mask, short)
    assert_equal_laws(by_drop, short)


def test_every_series_of_a_batch_has_its_own_gaps() -> None:
    t, y = stream(30)
    y = torch.stack([y, y.cos(), -y])
    kept = torch.rand(3, 30, generator=torch.Generator().manual_seed(2)) < 0.6
    kept[:, [0, 9, 29]] = True
    batch = model()
    for part in (slice(0, 10), slice(10, 30)):
        batch.update(t[part], y[:, part].masked_fill(~kept[:, part], math.nan), missing="drop")
    for series in range(3):
        single = model()
        for part in (slice(0, 10), slice(10, 30)):
            chosen = kept[series, part]
            single.update(t[part][chosen], y[series, part][chosen])
        torch.testing.assert_close(batch.predict(GRID).mean[series], single.predict(GRID).mean)
        torch.testing.assert_close(
            batch.predict(GRID).variance[series], single.predict(GRID).variance
        )


@pytest.mark.parametrize("own", ["nothing", "kernel", "noise", "both"])
def test_a_batch_of_series_is_a_stack_of_models(own: str) -> None:
    t, y = stream(30)
    y = torch.stack([y, y.cos()])
    scales = torch.tensor([0.6, 1.1], dtype=torch.float64)[:, None, None]
    noises = torch.tensor([0.01, 0.05], dtype=torch.float64)
    kernel = rbf()
    if own in ("kernel", "both"):
        kernel = RBF(1, batch_shape=(2,), lengthscale=scales)
    noise = noises if own in ("noise", "both") else torch.tensor(NOISE, dtype=torch.float64)
    batch = OnlineGP(kernel, Gaussian(noise), LegS(9))
    infos = [batch.update(t[part], y[:, part]) for part in torch.arange(30).split(10)]
    law = batch.predict(GRID, full_cov=True)
    scores = batch.log_prob(t, y)
    for i in range(2):
        single = OnlineGP(
            RBF(1, lengthscale=scales[i]) if own in ("kernel", "both") else rbf(),
            Gaussian(noise.expand(2)[i]),
            LegS(9),
        )
        for info, part in zip(infos, torch.arange(30).split(10), strict=True):
            torch.testing.assert_close(info.energy[i], single.update(t[part], y[i, part]).energy)
        alone = single.predict(GRID, full_cov=True)
        torch.testing.assert_close(law.mean[i], alone.mean)
        torch.testing.assert_close(law.covariance[i], alone.covariance)
        torch.testing.assert_close(scores[i], single.log_prob(t, y[i]))


def test_calendar_stamps_are_times_in_the_chosen_unit() -> None:
    days = pd.date_range("2024-01-01", periods=30, freq="6h")
    y = stream(30)[1]
    numbers, calendar = model(), model(time_unit="h")
    numbers.update(6.0 * torch.arange(30), y)
    info = calendar.update(pd.Series(days), y)
    assert info.t_end == np.datetime64("2024-01-08T06:00")
    new = pd.date_range("2024-01-03", periods=5, freq="h")
    expected = numbers.predict(48.0 + torch.arange(5))
    for stamps in (new, new.to_numpy(), list(new)):
        torch.testing.assert_close(calendar.predict(stamps).mean, expected.mean)
    later = calendar.rebase(pd.Timestamp("2024-02-01"))
    assert later.t_end == np.datetime64("2024-02-01")


@pytest.mark.parametrize("basis", [LegS(9), RandomSubset(9)])
def test_updated_equals_update_and_leaves_the_old_model_alone(basis: Basis) -> None:
    t, y = stream(30)
    gp, twin = model(basis), model(basis)
    for part in torch.arange(20).split(10):
        gp.update(t[part], y[part])
        twin.update(t[part], y[part])
    before = gp.state_dict()
    new = gp.updated(t[20:], y[20:])
    after = gp.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before | after)
    twin.update(t[20:], y[20:])
    expected, got = twin.state_dict(), new.state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected | got)
    assert not torch.equal(gp.predict(GRID).mean, new.predict(GRID).mean)
    first = model(basis)
    first.updated(t, y)
    assert first.state is None
    assert first.clock is None


def test_the_energy_is_that_of_an_update_and_absorbs_nothing() -> None:
    t, y = stream(30)
    gp = model()
    gp.update(t[:15], y[:15])
    before = gp.state_dict()
    value = gp.energy(t[15:], y[15:])
    value.sum().backward()
    assert gp.kernel.raw_lengthscale.grad is not None
    assert gp.likelihood.raw_noise.grad is not None
    after = gp.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before | after)
    torch.testing.assert_close(value.detach(), gp.update(t[15:], y[15:]).energy)


@pytest.mark.parametrize(
    "basis",
    [
        *(LegS(7), Cosine(7), RandomSubset(7), RecurrentFeatures(LegS(7), num_features=30)),
        RecurrentFeatures(LegS(7), num_features=30, step="closed"),
    ],
    ids=lambda basis: type(basis).__name__,
)
def test_the_gradient_of_the_energy_is_its_slope(basis: Basis) -> None:
    """Also where the inducing variables depend on hyperparameters themselves."""
    t, y = stream(30)

    def energy(shift: float) -> tuple[Tensor, Tensor]:
        gp = model(basis, rbf(), t0=0.0)
        if not basis.fixed_hyperparameters:
            gp.update(t[:15], y[:15])
        with torch.no_grad():
            gp.kernel.raw_lengthscale.add_(shift)
        value = gp.energy(t[15:], y[15:])
        return value.detach(), torch.autograd.grad(value, gp.kernel.raw_lengthscale)[0].sum()

    slope = (energy(1e-5)[0] - energy(-1e-5)[0]) / 2e-5
    torch.testing.assert_close(energy(0.0)[1], slope, rtol=1e-5, atol=0)


def test_information_is_lost_when_the_window_outgrows_the_basis_and_told() -> None:
    t, y = stream(40)
    gp = model(LegS(5))
    first = gp.update(t[:10], y[:10])
    later = gp.update(t[10:], y[10:])
    assert float(first.lost_information) == 0.0
    assert gp.state is not None
    # ½ Σ (k(x, x) − k(x, u) K_uu⁻¹ k(u, x))/σ².
    x, u = t[10:, None] - t[0], gp.state.inducing
    with torch.no_grad():
        K_uu, K_uf = u.covariance(gp.kernel), u.cross(gp.kernel, x)
        beyond = gp.kernel.diag(x) - (K_uf * torch.linalg.solve(K_uu, K_uf)).sum(0)
    expected = 0.5 * beyond.sum() / NOISE
    torch.testing.assert_close(later.unexplained, expected, rtol=1e-5, atol=1e-5)
    assert float(later.lost_information) > 0.1
    assert later.n_new == 30
    assert math.isclose(later.jitter_used, 1e-8, rel_tol=1e-3)
    assert later.t_end == float(t[-1])


def test_too_few_inducing_variables_are_warned_of_once() -> None:
    t, y = stream(40)
    few, enough = model(LegS(3)), model(LegS(30))
    with pytest.warns(LostInformationWarning, match="3 inducing variables cannot hold"):
        few.update(t[:20], y[:20])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few.update(t[20:], y[20:])
        for part in torch.arange(40).split(20):
            enough.update(t[part], y[part])


def test_a_warning_that_is_an_error_comes_once_too_and_the_data_are_absorbed() -> None:
    t, y = stream(40)
    gp = model(LegS(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LostInformationWarning):
            gp.update(t[:20], y[:20])
        gp.update(t[20:], y[20:])
    assert gp.state is not None
    assert gp.state.count == 40


def test_a_move_without_data_costs_the_full_power_nothing() -> None:
    """The integral of the old posterior stays one, under the marginal law of the new variables."""
    t, y = stream(40)
    energies, variances = [], []
    for alpha in (0.0, 0.5, 1.0):
        gp = model(LegS(5), alpha=alpha)
        gp.update(t[:20], y[:20])
        energies.append(float(gp.rebase(10.0).energy))
        variances.append(gp.predict(GRID).variance)
    assert energies[0] < energies[1] - 0.1 < energies[2] - 0.2
    assert abs(energies[2]) < 1e-9
    # The larger the power, the less the model claims to know.
    for one, other in pairwise(variances):
        assert float((other - one).min()) > -1e-9
        assert float((other - one).max()) > 1e-3


@pytest.mark.parametrize("likelihood", [Gaussian(NOISE), Bernoulli()])
def test_a_set_that_stays_loses_nothing_under_other_hyperparameters(likelihood: Likelihood) -> None:
    """It knows itself, jitter and all, whatever the kernel."""
    t, y = stream(40)
    gp = OnlineGP(rbf(), likelihood, LegS(9), t0=0.0, rebase="manual", rel_jitter=1e-4)
    gp.update(t, (y > 0).double(), t_end=10.0)
    with torch.no_grad():
        gp.kernel.raw_lengthscale.add_(0.3)
        gp.kernel.raw_outputscale.add_(0.5)
    info = gp.update([], [])
    assert abs(float(info.lost_information)) < 1e-9


def test_cosines_follow_a_lengthscale_that_changed_inside_the_window() -> None:
    t, y = stream(30)
    gp = model(Cosine(9), t0=0.0)
    gp.update(t[:20], y[:20], t_end=10.0)
    with torch.no_grad():
        gp.kernel.raw_lengthscale.add_(0.3)
    gp.update(t[20:], y[20:])
    assert gp.state is not None
    expected = Cosine(9).inducing(gp.kernel, 10.0).tensors()
    torch.testing.assert_close(gp.state.inducing.tensors(), expected, rtol=0, atol=0)


def test_inducing_points_stay_while_a_manual_window_does() -> None:
    t, y = stream(30)
    gp = model(RandomSubset(9), t0=0.0, rebase="manual")
    gp.update(t[:15], y[:15], t_end=10.0)
    assert gp.state is not None
    first = gp.state.inducing.tensors()["nodes"]
    info = gp.update(t[15:], y[15:])
    assert torch.equal(gp.state.inducing.tensors()["nodes"], first)
    assert float(info.lost_information) == 0.0
    mean, variance = dense(gp, t, y)
    # As good as the dense solution: some of the points lie close together.
    torch.testing.assert_close(gp.predict(GRID).mean, mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(gp.predict(GRID).variance, variance, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mean", [None, Level(2.0)])
def test_white_noise_of_the_kernel_is_noise_of_the_observations(mean) -> None:
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 8, 60, dtype=torch.float64)
    y = t.sin() + 0.8 * torch.randn(60, generator=generator, dtype=torch.float64)
    kernel = (RBF(1) + White(1, outputscale=0.5)).double()
    gp = OnlineGP(copy.deepcopy(kernel), Gaussian(0.1), UniformGrid(40), mean=mean, alpha=0.0)
    energy = sum(float(gp.update(t[p], y[p], t_end=8.0).energy) for p in torch.arange(60).split(9))
    prior = kernel if mean is None else MeanKernel(kernel, mean)
    noise, X, new = gp.likelihood.noise.detach(), t[:, None], t[::7] + 0.05
    exact = exact_posterior(prior, noise, X, y, new[:, None])
    law = gp.predict(new)
    torch.testing.assert_close(law.mean, exact.mean.detach(), rtol=0, atol=1e-4)
    torch.testing.assert_close(law.variance, exact.variance.detach(), rtol=0, atol=1e-4)
    evidence = float(log_marginal_likelihood(prior, noise, X, y).detach())
    assert evidence - 1e-3 < energy <= evidence
    with pytest.raises(ValueError, match="no white noise beside another likelihood"):
        OnlineGP(copy.deepcopy(kernel), Poisson(), UniformGrid(40))


def test_threads_that_update_one_model_lose_nothing() -> None:
    gp = OnlineGP(RBF(1), Gaussian(NOISE), LegS(8), t0=0.0, rebase="manual")
    gp.rebase(100.0)
    failures: list[Exception] = []

    def learn(first: int) -> None:
        try:
            for stamp in range(first, 100, 4):
                gp.update([float(stamp)], [0.1])
                assert gp.predict([50.0]).variance > 0
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=learn, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (gp.state.count, gp.updates) == (100, 100)
    for copied in (pickle.loads(pickle.dumps(gp)), copy.deepcopy(gp), gp.updated([100.0], [0.1])):
        copied.update([100.0], [0.1])
        assert copied.state.count >= 101
    assert gp.state.count == 100


def test_predictions_beside_a_fit_have_the_hyperparameters_before_it(monkeypatch) -> None:
    gp = OnlineGP(RBF(1), Gaussian(NOISE), LegS(8), refit=Refit("every:1", steps=3))
    gp.update([0.0, 1.0], [0.1, 0.2])
    before, found = gp.predict([0.5]).mean, []
    fitted = fitting.fit_process

    def fit(*args, **options):
        info = fitted(*args, **options)
        found.append(gp.predict([0.5]).mean)
        return info

    monkeypatch.setattr(fitting, "fit_process", fit)
    gp.update([2.0, 3.0], [2.0, -2.0])
    assert torch.equal(found[0], before)
    assert not torch.equal(gp.predict([0.5]).mean, before)
