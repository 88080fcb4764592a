"""Fits that updates make by themselves, priors of parameters, and restarts."""

import copy
import math

import pytest
import torch
from scipy import stats

from ohsvgp import Cosine, Gaussian, LegS, OnlineGP, Poisson, Refit
from ohsvgp.exact import log_marginal_likelihood
from ohsvgp.fitting import batch_probability
from probseq.errors import CholeskyError
from probseq.kernels import RBF, Periodic, parse_kernel


def draw(t, kernel, noise, seed=0):
    generator = torch.Generator().manual_seed(seed)
    K = kernel.double()(t[:, None], t[:, None]).detach() + noise * torch.eye(len(t))
    return torch.linalg.cholesky(K) @ torch.randn(len(t), generator=generator, dtype=torch.float64)


T = torch.linspace(0, 20, 120, dtype=torch.float64)
Y = draw(T, RBF(1, lengthscale=0.8, outputscale=2.0), 0.1)


def learn(refit, parts=6, basis=None, kernel=None, y=Y, **options):
    gp = OnlineGP(kernel or RBF(1), Gaussian(0.5), basis or Cosine(40), refit=refit, **options)
    seen = []
    for part in torch.arange(len(y)).chunk(parts):
        gp.update(T[part], y[part])
        seen.append(gp.kernel.lengthscale.item())
    return gp, seen


def changes(seen, first=1.0):
    return [a != b for a, b in zip([first, *seen[:-1]], seen, strict=True)]


def test_first_fits_once_every_counts_updates_and_none_leaves_all_alone():
    assert changes(learn(None)[1]) == [False] * 6
    assert changes(learn(Refit("first"))[1]) == [True] + [False] * 5
    assert changes(learn(Refit("every:2"))[1]) == [True, False] * 3


def test_the_first_fit_is_fit_hyperparameters_on_the_first_batch():
    by_hand = OnlineGP(RBF(1), Gaussian(0.5), Cosine(40))
    by_hand.fit_hyperparameters(T[:20], Y[:20], steps=7)
    by_hand.update(T[:20], Y[:20])
    gp = OnlineGP(RBF(1), Gaussian(0.5), Cosine(40), refit=Refit(steps=7))
    gp.update(T[:20], Y[:20])
    assert torch.equal(gp.predict(T).mean, by_hand.predict(T).mean)


def test_drift_is_seen_where_the_scale_changes_and_hardly_elsewhere():
    y = Y.clone()
    y[60:] *= 5
    known = RBF(1, lengthscale=0.8, outputscale=2.0)
    _, seen = learn(Refit("drift"), parts=4, kernel=copy.deepcopy(known), y=y)
    assert changes(seen)[:3] == [True, False, True]


def test_the_probability_of_a_batch_is_uniform_under_the_model():
    kernel, found = RBF(1, lengthscale=0.8, outputscale=2.0), []
    for seed in range(60):
        y = draw(T[:60], kernel, 0.1, seed)
        gp = OnlineGP(copy.deepcopy(kernel), Gaussian(0.1), Cosine(40))
        gp.update(T[:30], y[:30])
        batch = gp.read(T[30:60], y[30:60])
        found.append(batch_probability(gp.process, gp.state, batch))
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_counts_drift_too():
    generator = torch.Generator().manual_seed(0)
    gp = OnlineGP(RBF(1, lengthscale=5.0, outputscale=0.1), Poisson(), LegS(8))
    gp.update(T[:60], torch.poisson(torch.ones(60), generator=generator))
    usual = gp.read(T[60:90], torch.poisson(torch.ones(30), generator=generator))
    many = gp.read(T[60:90], torch.poisson(8 * torch.ones(30), generator=generator))
    assert batch_probability(gp.process, gp.state, usual) > 0.01
    assert batch_probability(gp.process, gp.state, many) < 1e-6


def test_a_saved_model_goes_on_counting():
    half = 3
    gp = OnlineGP(RBF(1), Gaussian(0.5), Cosine(40), refit=Refit("every:2", steps=5))
    parts = torch.arange(120).chunk(6)
    for part in parts[:half]:
        gp.update(T[part], Y[part])
    again = OnlineGP(RBF(1), Gaussian(0.5), Cosine(40), refit=Refit("every:2", steps=5))
    again.load_state_dict(gp.state_dict())
    for part in parts[half:]:
        gp.update(T[part], Y[part])
        again.update(T[part], Y[part])
    assert torch.equal(gp.predict(T).mean, again.predict(T).mean)


def test_an_update_that_fails_takes_its_fit_back(monkeypatch):
    gp = OnlineGP(RBF(1), Gaussian(0.5), Cosine(40), refit=Refit("every:1", steps=3))
    gp.update(T[:60], Y[:60])
    before = [parameter.clone() for parameter in gp.kernel.parameters()]

    def fail(*_):
        raise CholeskyError("no")

    monkeypatch.setattr("ohsvgp.process.Process.update", fail)
    with pytest.raises(CholeskyError):
        gp.update(T[60:], Y[60:])
    assert all(torch.equal(a, b) for a, b in zip(before, gp.kernel.parameters(), strict=True))


def test_priors_are_those_of_the_log_normal_and_hold_a_parameter_near_their_median():
    gp = OnlineGP(RBF(1), Gaussian(0.5), LegS(10))
    law = {"kernel.raw_lengthscale": (3.0, 1.05)}
    info = gp.fit_hyperparameters(T[:40], Y[:40], priors=law)
    assert 2.2 < gp.kernel.lengthscale.item() < 3.2
    evidence = log_marginal_likelihood(gp.kernel, gp.likelihood.noise, T[:40, None], Y[:40])
    raw = gp.kernel.raw_lengthscale.item()
    # The normal density of the logarithm, without its constant.
    law = stats.norm(math.log(3.0), math.log(1.05))
    penalty = law.logpdf(raw) - law.logpdf(math.log(3.0))
    assert info.after == pytest.approx(float(evidence.detach()) + penalty, abs=1e-6)


@pytest.mark.parametrize("kernel", ["rbf", "matern32", "rbf(1) + matern32(3)"])
def test_fits_end_at_the_same_evidence_wherever_they_start(kernel):
    y = T.sin() + 0.1 * draw(T, RBF(1, lengthscale=0.01), 1e-6)
    ends = []
    for lengthscale in (0.02, 1.0, 100.0):
        prior = parse_kernel(kernel, 1, lengthscale=lengthscale)
        for noise in (1e-3, 1.0):
            gp = OnlineGP(copy.deepcopy(prior), Gaussian(noise), LegS(10))
            ends.append(gp.fit_hyperparameters(T, y).after)
    assert max(ends) - min(ends) < 0.05
    # From far below the inputs' gap all is noise; a single start stays, and the others tell.
    gp = OnlineGP(RBF(1, lengthscale=0.01), Gaussian(0.1), LegS(10))
    single = gp.fit_hyperparameters(T, y, restarts=0)
    assert single.converged
    assert single.reached == pytest.approx([single.after])
    gp = OnlineGP(RBF(1, lengthscale=0.01), Gaussian(0.1), LegS(10))
    several = gp.fit_hyperparameters(T, y)
    assert several.after > single.after + 50
    assert max(several.reached) - min(several.reached) > 50


def test_gaps_and_moved_ends_are_no_first_batch() -> None:
    t = torch.linspace(0.0, 9.0, 60, dtype=torch.float64)
    y = t.sin()
    start = {"t0": 0.0, "refit": Refit("first", steps=5)}
    late, early = (OnlineGP(RBF(1), Gaussian(0.1), LegS(15), **start) for _ in range(2))
    late.rebase(1.0)
    late.update(t[:3], torch.full((3,), torch.nan, dtype=torch.float64), missing="drop")
    for gp in (late, early):
        gp.update(t, y)
    assert late.updates == 1
    assert float(early.likelihood.noise.detach()) < 0.05  # fitted
    torch.testing.assert_close(late.likelihood.noise, early.likelihood.noise)


@pytest.mark.slow
def test_restarts_find_what_one_start_does_not():
    # A period of half the truth's is a local maximum.
    wave = (2 * torch.pi * T / 5).sin() + 0.3 * (2 * torch.pi * T / 2.5).sin()
    y = wave + 0.05 * draw(T, RBF(1, lengthscale=0.01), 1e-6)

    def fit(restarts):
        gp = OnlineGP(Periodic(1, period=1.3), Gaussian(0.5), LegS(10), seed=1)
        return gp.fit_hyperparameters(T, y, restarts=restarts, steps=60).after

    assert fit(12) > fit(0) + 50
