"""Fits of degenerate series end within limits in the units of the data, and say where."""

import math

import pytest
import torch
from torch import Tensor

from ohsvgp import Cosine, Gaussian, Level, NegativeBinomial, OnlineGP, Poisson, StudentT, forecast
from ohsvgp.limits import data_limits
from probseq.kernels import RBF, Walk

# Few inducing variables, and forecasts that the prior gives.
pytestmark = pytest.mark.filterwarnings("ignore")

N = 30
T = torch.arange(float(N), dtype=torch.float64)
NOISE = torch.randn(2, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ZEROS, WAVE = torch.zeros_like(T), (T / 5).sin()
PLAIN = WAVE + 0.1 * NOISE[0]


def spike(size: float) -> Tensor:
    return ZEROS.index_fill(0, torch.tensor([15]), size)


SERIES = {
    "zeros": ZEROS,
    "constant": ZEROS + 5.0,
    "spike": spike(9.0),
    "two values": T % 2,
    "step": (T > 14).double(),
    "line": T,
    "wave": PLAIN,
    "rounded": (3 * WAVE).round(),
    "growth": (T / 4).exp(),
    "saw": T % 7,
}
SCALES = (1e-6, 1.0, 1e9)
CASES = [
    *((Gaussian, name, scale) for name in SERIES for scale in SCALES),
    (StudentT, "zeros", 1.0),
    (StudentT, "spike", 1e9),
]


def fitted(likelihood: object, y: Tensor, **options: object) -> tuple[object, object]:
    gp = OnlineGP(RBF(1), likelihood, Cosine(10), **options)
    info = gp.fit_hyperparameters(T, y, steps=15 if isinstance(likelihood, Gaussian) else 6)
    gp.update(T, y)
    return info, forecast(gp, 3)


@pytest.mark.parametrize(("kind", "name", "scale"), CASES)
def test_forecasts_of_degenerate_series_are_finite_and_of_their_size(kind, name, scale):
    y = scale * SERIES[name]
    info, ahead = fitted(kind(), y)
    low, high = ahead.interval(0.95)
    assert all(bool(part.isfinite().all()) for part in (ahead.mean, ahead.variance, low, high))
    # The next values of those that stay or swing; of a line only that they are no other size.
    size = float(y.abs().max()) or 1.0
    assert (high - low).max() < 20 * size
    if name in ("zeros", "spike", "two values", "rounded", "wave"):
        middle = float(y.median())
        assert (low <= middle + 1.1 * size).all()
        assert (high >= middle - 1.1 * size).all()
    assert math.isfinite(info.after)
    assert info.after >= info.before - 1e-9
    if name == "zeros":
        assert "likelihood.raw_noise" in info.at_limit or kind is StudentT


@pytest.mark.parametrize("likelihood", [NegativeBinomial, Poisson])
@pytest.mark.parametrize("size", [0.0, 1.0])
def test_rare_counts_are_forecast_to_be_rare(likelihood, size):
    _, ahead = fitted(likelihood(), spike(size))
    assert (ahead.mean < 1).all()
    assert (ahead.variance < 10).all()
    assert ahead.interval(0.95)[0].max() == 0


def test_fits_do_not_depend_on_the_unit_of_the_targets():
    found = [fitted(Gaussian(0.1), scale * PLAIN)[1] for scale in (1e-6, 1e9)]
    first, second = ((law.mean, law.variance.sqrt()) for law in found)
    for small, large in zip(first, second, strict=True):
        torch.testing.assert_close(1e15 * small, large, rtol=1e-2, atol=1e7)


def test_an_offset_of_a_billion_beside_a_level_changes_nothing():
    options = {"mean": Level(1e9)}
    plain, far = (fitted(Gaussian(0.1), PLAIN + c, **options)[1] for c in (0.0, 1e9))
    torch.testing.assert_close(far.mean - 1e9, plain.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(far.variance, plain.variance, rtol=0.05, atol=0)


def test_limits_hold_the_values_of_now_and_are_switched_off():
    kernel, noise = RBF(1, lengthscale=1e-9).double(), Gaussian(1e-12).double()
    found = data_limits(kernel, noise, T[:, None], PLAIN)
    assert float(found["kernel.raw_lengthscale"].low) < 0.5e-9
    assert float(found["kernel.raw_lengthscale"].high) == pytest.approx(2900.0)
    square = float(PLAIN.square().mean())
    assert float(found["likelihood.raw_noise"].high) == pytest.approx(10 * square)
    with pytest.raises(ValueError, match="zero everywhere"):
        OnlineGP(RBF(1), Gaussian(0.1), Cosine(5)).fit_hyperparameters(T, ZEROS, limited=False)


def test_the_variance_of_a_walk_is_looked_for_around_a_share_of_the_steps():
    kernel = (RBF(1) + Walk(step=0.5)).double()
    y = PLAIN.numpy()
    found = data_limits(kernel, Gaussian(0.1).double(), T[:, None], PLAIN)
    median, factor = found["kernel.parts.1.raw_outputscale"].prior
    rate = 0.05 * ((y[1:] - y[:-1]) ** 2).mean()  # stamps are one apart
    assert median == pytest.approx(rate * 500 / 2, rel=1e-6)
    assert factor == 3.0
    assert "kernel.parts.1.raw_lengthscale" in found
    # In other units of time and targets the same process.
    other = data_limits(kernel, Gaussian(0.1).double(), 7 * T[:, None], 10 * PLAIN)
    assert other["kernel.parts.1.raw_outputscale"].prior[0] == pytest.approx(median * 100 / 7)
