"""Standard errors of predictions, running scores, and how often drift is told."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch

from ohsvgp import Bernoulli, Gaussian, LegS, OnlineGP, Poisson, StudentT
from ohsvgp.beyond.monitor import Monitor, alarm_threshold, standard_errors
from probseq.kernels import RBF

DOUBLE = torch.float64
T = torch.arange(30, dtype=DOUBLE) / 3


def model(likelihood) -> OnlineGP:
    gp = OnlineGP(RBF(1, lengthscale=1.5), likelihood, LegS(15))
    gp.update(T, (T.sin() > 0).double())
    return gp


def delay(errors: np.ndarray) -> int:
    """Errors that a monitor sees of a model that learns nothing until it tells of drift."""
    gp = OnlineGP(RBF(1, outputscale=1e-12), Gaussian(torch.ones((), dtype=DOUBLE)), LegS(3))
    monitor = Monitor()
    return 1 + next(k for k, e in enumerate(errors) if monitor.observe(gp, [0.0], [float(e)]))


def test_gaussian_errors_are_residuals_over_deviations() -> None:
    gp, t = model(Gaussian(0.1)), torch.tensor([10.0, 10.5], dtype=DOUBLE)
    law = gp.predict(t, include_noise=True)
    z = torch.tensor([-3.0, 1.2], dtype=DOUBLE)
    found = standard_errors(gp, t, law.mean + z * law.variance.sqrt())
    torch.testing.assert_close(found, z, atol=1e-12, rtol=0)


def test_errors_of_counts_lie_in_the_middle_of_a_step() -> None:
    gp, t = model(Poisson()), torch.tensor([10.0], dtype=DOUBLE)
    law = gp.predict(t)
    f = float(law.mean) + float(law.variance) ** 0.5 * np.linspace(-10, 10, 20_001)
    weight = scipy.stats.norm.pdf(np.linspace(-10, 10, 20_001)) / 1000
    for y in (0.0, 3.0):
        step = [(weight * scipy.stats.poisson.cdf(k, np.exp(f))).sum() for k in (y - 1, y)]
        expected = scipy.stats.norm.ppf(sum(step) / 2)
        assert float(standard_errors(gp, t, [y])) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("likelihood", [Gaussian(0.1), StudentT(4.0, 0.3), Poisson(), Bernoulli()])
def test_errors_of_what_the_model_says_are_standard(likelihood) -> None:
    gp = model(likelihood)
    t = torch.full((4000,), 10.2, dtype=DOUBLE)
    law = gp.predict(t)
    generator = torch.Generator().manual_seed(0)
    f = law.mean + law.variance.sqrt() * torch.randn(4000, dtype=DOUBLE, generator=generator)
    with torch.no_grad():
        errors = standard_errors(gp, t, likelihood.sample(f, generator))
    # Four standard errors; the mean of the shares is ½ for steps too, which only narrow their law.
    shares = torch.special.ndtr(errors)
    assert float(shares.mean()) == pytest.approx(0.5, abs=4 / math.sqrt(12 * 4000))
    assert float(errors.std()) < 1 + 4 / math.sqrt(8000)
    if likelihood.continuous:
        assert float(errors.std()) > 1 - 4 / math.sqrt(8000)


def test_coverage_and_score_are_those_of_all_predictions() -> None:
    gp, monitor = OnlineGP(RBF(1), Gaussian(0.1), LegS(12)), Monitor()
    y = T.sin() + 0.3 * torch.randn(30, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    scores, inside = [], []
    for part in torch.arange(30).split(5):
        law = gp.predict(T[part], include_noise=True)
        normal = scipy.stats.norm(law.mean.numpy(), law.variance.sqrt().numpy())
        scores += normal.logpdf(y[part]).tolist()
        inside += (abs(normal.cdf(y[part].numpy()) - 0.5) < 0.25).tolist()
        monitor.observe(gp, T[part], y[part])
        gp.update(T[part], y[part])
    assert monitor.score == pytest.approx(np.mean(scores), rel=1e-9)
    assert monitor.coverage[0.5] == pytest.approx(np.mean(inside))


def test_without_drift_it_is_told_once_in_some_465_observations() -> None:
    errors = np.random.default_rng(0).standard_normal(100_000)
    gp = OnlineGP(RBF(1, outputscale=1e-12), Gaussian(torch.ones((), dtype=DOUBLE)), LegS(3))
    monitor = Monitor()
    monitor.observe(gp, torch.zeros(100_000, dtype=DOUBLE), errors)
    # Runs are all but exponential: the standard error of some 215 of them is 7 %.
    assert 100_000 / monitor.drifts == pytest.approx(465, rel=0.28)


def test_a_shift_by_a_standard_deviation_is_told_after_some_ten_observations() -> None:
    generator = np.random.default_rng(1)
    for sign in (-1, 1):
        delays = [delay(generator.standard_normal(60) + sign) for _ in range(40)]
        assert np.mean(delays) == pytest.approx(10.5, abs=4 * 5.5 / math.sqrt(40))


def test_a_saved_monitor_goes_on_as_it_was() -> None:
    gp, one = model(Gaussian(0.1)), Monitor()
    one.observe(gp, [10.0, 10.5], [0.0, 2.0])
    other = Monitor()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for monitor in (one, other):
        monitor.observe(gp, [11.0], [3.0])
    assert one.state_dict() == other.state_dict()


def test_what_cannot_be_watched_is_refused_and_changes_nothing() -> None:
    gp, monitor = model(Poisson()), Monitor()
    with pytest.raises(ValueError, match="y must hold counts"):
        monitor.observe(gp, [10.0], [0.5])
    with pytest.raises(ValueError, match=r"y must be one series of shape \(n,\), got \(2, 1\)"):
        monitor.observe(gp, [10.0], [[1.0], [2.0]])
    assert monitor.state_dict()["count"] == 0
    assert math.isnan(monitor.score)
    for numbers, message in (({}, "must have names"), ({"score": math.nan}, "must be finite")):
        with pytest.raises(ValueError, match=message):
            monitor.load_state_dict({**monitor.state_dict(), **numbers} if numbers else {})


@pytest.mark.parametrize("n", [1, 9, 19, 28, 99])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.29, 0.5, 0.9])
def test_no_smaller_error_is_as_rare_as_an_alarm_may_be(n: int, rate: float) -> None:
    # Of n + 1 errors in any order each is the last as often: leave out each in turn.
    errors = np.random.default_rng(n).standard_normal(n + 1)
    allowed = sum(Fraction(k, n + 1) <= Fraction(str(rate)) for k in range(1, n + 2))
    alarms, nearly = 0, 0
    for k, new in enumerate(np.abs(errors)):
        history = np.delete(errors, k)
        threshold = alarm_threshold(history, rate)
        sizes = sorted([0.0, *np.abs(history), math.inf])
        assert threshold in sizes[1:]
        alarms += new > threshold
        nearly += new > sizes[sizes.index(threshold) - 1]
    assert alarms == allowed
    assert nearly == min(allowed + 1, n + 1)


@pytest.mark.parametrize("n", [40, 2000])
def test_a_quiet_stream_alarms_as_often_as_is_wanted(n: int) -> None:
    rate, repetitions, random = 0.05, 1_000, np.random.default_rng(n)
    # Heavy tails, and as far from standard as can be: only their order counts.
    errors = 3.0 + 10.0 * random.standard_t(2, size=(repetitions, n + 1))
    alarms = [abs(new) > alarm_threshold(past, rate) for *past, new in errors.tolist()]
    deviation = math.sqrt(rate * (1.0 - rate) / repetitions)
    assert np.mean(alarms) <= rate + 3.0 * deviation
    assert np.mean(alarms) >= rate - 1.0 / (n + 1) - 3.0 * deviation
