"""Means of wide priors and far units, against dense conditioning in 90 digits."""

import mpmath
import pytest
import torch

from ohsvgp import Gaussian, Level, OnlineGP, Seasonal, Trend, UniformGrid, forecast
from ohsvgp.exact import log_marginal_likelihood
from probseq.kernels import RBF

COUNT, NOISE = 20, 0.01
YEAR = 365.25 * 86400


def data(unit, offset):
    t = torch.linspace(0.0, 6.0, COUNT, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    noise = 0.1 * torch.randn(COUNT, generator=generator, dtype=torch.float64)
    return t * unit, offset + t.sin() + noise


def model_of(unit, mean):
    kernel = RBF(1, lengthscale=torch.tensor(unit, dtype=torch.float64)).double()
    noise = Gaussian(torch.tensor(NOISE, dtype=torch.float64))
    return OnlineGP(kernel, noise, UniformGrid(COUNT), mean=mean, rel_jitter=1e-14)


def dense(unit, features, t, y, x):
    """Mean and variance at x, and the log evidence, of K = k + ΦΦᵀ + σ²I."""
    with mpmath.workdps(90):

        def kernel(a, b):
            distance = (mpmath.mpf(a) - mpmath.mpf(b)) / mpmath.mpf(unit)
            weights = sum(p * q for p, q in zip(features(a), features(b), strict=True))
            return mpmath.exp(-(distance**2) / 2) + weights

        K = mpmath.matrix(len(t), len(t))
        for i, a in enumerate(t):
            for j, b in enumerate(t):
                K[i, j] = kernel(a, b) + (mpmath.mpf(NOISE) if i == j else 0)
        inverse, target = K**-1, mpmath.matrix(y)
        found = []
        for z in x:
            k = mpmath.matrix([kernel(z, a) for a in t])
            mean, square = (k.T * inverse * target)[0], (k.T * inverse * k)[0]
            found.append((float(mean), float(kernel(z, z) - square)))
        log_det = mpmath.log(mpmath.det(K))
        squares = (target.T * inverse * target)[0]
        evidence = -(squares + log_det + len(t) * mpmath.log(2 * mpmath.pi)) / 2
    return found, float(evidence)


def features_of(mean):
    """Those of a sum of means by their formulas, in mpmath."""

    def features(a):
        a, found = mpmath.mpf(a), []
        for part in mean.terms:
            if isinstance(part, Level):
                found += [mpmath.mpf(part.deviation)]
            elif isinstance(part, Trend):
                found += [mpmath.mpf(part.level), part.slope * a]
            else:
                phase = 2 * mpmath.pi * a / mpmath.mpf(part.period)
                found += [part.deviation * f(phase) for f in (mpmath.cos, mpmath.sin)]
        return found

    return features


CASES = [
    (1.0, Level(1e7), 0.0),
    (1.0, Level(1e9), 1e9),
    (1.0, Level(10.0) + Seasonal(7.0, 1, deviation=1e9), 0.0),
    (86400 * 30.0, Trend(), 0.0),  # seconds over half a year
    (YEAR, Trend(), 0.0),
    (YEAR * 1e9, Trend(1e9, 1.0) + Seasonal(4 * YEAR * 1e9, 1, deviation=1e3), 1e9),
    (1 / 8766, Trend(1e9, 1e9), 1e9),  # hours in years
]


@pytest.mark.parametrize(("unit", "mean", "offset"), CASES)
def test_wide_priors_of_weights_leave_the_digits_of_the_process(unit, mean, offset):
    t, y = data(unit, offset)
    gp = model_of(unit, mean)
    for part in torch.arange(COUNT).chunk(4):
        gp.update(t[part], y[part])
    x = torch.tensor([2.9, 6.4], dtype=torch.float64) * unit
    expected, evidence = dense(unit, features_of(mean), t.tolist(), y.tolist(), x.tolist())
    means, variances = (
        torch.tensor(part, dtype=torch.float64) for part in zip(*expected, strict=True)
    )
    found, ahead = gp.predict(x), forecast(gp, x)
    for law in (found, ahead.latent, ahead.marginal):
        # A hundredth of the noise's deviation, though float64 holds a billion to 1e-7.
        torch.testing.assert_close(law.mean, means, rtol=0, atol=1e-3)
        torch.testing.assert_close(law.variance, variances, rtol=1e-5, atol=0)
    draws = ahead.sample(4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.var(0), variances + NOISE, rtol=0.15, atol=0)
    X = t[:, None]
    exact = log_marginal_likelihood(gp.kernel, NOISE, X, y, features=mean.scaled(X))
    assert float(exact.detach()) == pytest.approx(evidence, abs=1e-3)


def test_weights_known_by_nothing_yet_do_not_drown_what_others_know():
    # The weights of a season that is not seen keep their wide prior beside a level that is known.
    gp = model_of(1.0, Level(1e9) + Seasonal(4.0, 1, deviation=1e9))
    info = gp.update([0.0, 0.0], [1e9, 1e9])
    assert abs(float(info.unexplained)) < 1e-6
    found = gp.predict([0.0])
    assert float(found.variance) == pytest.approx(NOISE / 2, rel=1e-6)
    assert float(found.mean) == pytest.approx(1e9, abs=1e-5)
