"""What float32 and hard cases may cost, and what they may not."""

import math

import numpy as np
import pytest
import torch

from ohsvgp import (
    Gaussian,
    LegS,
    NegativeBinomial,
    OnlineGP,
    Poisson,
    StudentT,
    UniformGrid,
    VariationalFourier,
    core,
)
from probseq.kernels import RBF, Matern32


@pytest.mark.parametrize("M", [25, 40])
def test_close_points_in_float32_give_the_bound_and_the_variances_of_float64(M: int) -> None:
    # The same model: jitter of 1e-6 in both. A product with an explicit inverse in place of a
    # triangular solve takes the unexplained variance to −3e-3 and the bound 300 nats too high.
    x = torch.linspace(0.0, 5.0, 40)
    single = OnlineGP(RBF(1), Gaussian(1e-4), UniformGrid(M), dtype=torch.float32)
    double = OnlineGP(RBF(1), Gaussian(1e-4), UniformGrid(M), rel_jitter=1e-6)
    got, expected = single.update(x, x.sin()), double.update(x, x.sin())
    assert abs(float(got.bound) - float(expected.bound)) < 0.1
    variance = single.predict(x, full_cov=True).variance
    torch.testing.assert_close(variance.double(), double.predict(x).variance, atol=1e-6, rtol=0)
    assert single.sample(x, 3).isfinite().all()


def test_little_noise_in_float32_does_not_stop_the_stream() -> None:
    t = torch.linspace(0.0, 10.0, 300)
    gp = OnlineGP(RBF(1, lengthscale=3.0), Gaussian(1e-6), UniformGrid(15), dtype=torch.float32)
    for part in t.chunk(3):
        gp.update(part, part.sin())
    torch.testing.assert_close(gp.predict(t).mean, t.sin(), atol=0.02, rtol=0)


def test_an_indefinite_site_is_refused_by_name() -> None:
    site = core.Site(-5 * torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match="not positive definite"):
        core.posterior(site)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_large_batch_with_outliers_is_learned_to_the_end(seed: int) -> None:
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 10, 100)
    truth = 2 * np.sin(t)
    gp = OnlineGP(RBF(1), StudentT(4.0, 0.1), LegS(15))
    gp.update(t, truth + 0.1 * rng.standard_t(4, 100))
    # Steps that stop early leave an error of .3 and more.
    assert math.sqrt(((gp.predict(t).mean.numpy() - truth) ** 2).mean()) < 0.06


@pytest.mark.parametrize(
    ("r", "mean", "variance", "y", "expected"),
    # Sums over two million values of f.
    [
        (1.0, -4.6066591864921, 0.06688542909553, 177.0, -279.61257),
        (1.0, -3.8615543517077, 0.03537796248293, 387.0, -451.90766),
        (0.1, -4.997, 0.0301, 1867.0, -602.82314),
        (None, 25.0, 0.05, 0.0, -4014.26804),
    ],
)
def test_densities_of_distant_counts_find_the_peak(
    r: float | None, mean: float, variance: float, y: float, expected: float
) -> None:
    likelihood = Poisson() if r is None else NegativeBinomial(r).double()
    arguments = (torch.tensor([value], dtype=torch.float64) for value in (mean, variance, y))
    got = likelihood.predictive_log_prob(*arguments)
    assert abs(float(got.detach()) - expected) < 1e-4


def test_a_negative_binomial_of_great_dispersion_is_poisson_in_float32() -> None:
    f, y = torch.tensor([2.0, -1.0]), torch.tensor([7.0, 0.0])
    got = NegativeBinomial(1e6).log_prob(f, y)
    expected = torch.distributions.Poisson(f.exp()).log_prob(y)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_what_an_update_refuses_its_bound_refuses_too() -> None:
    t = torch.linspace(0.0, 5.0, 20, dtype=torch.float64)
    gp = OnlineGP(Matern32(1), Gaussian(0.1), VariationalFourier(9, -1.0, 6.0))
    gp.update(t, t.sin())
    with torch.no_grad():
        gp.kernel.raw_lengthscale += 0.1
    with pytest.raises(ValueError, match="kernel must keep its hyperparameters"):
        gp.bound(t, t.sin())


def test_a_functional_twin_shares_nothing_that_can_change() -> None:
    t = torch.linspace(0.0, 5.0, 20, dtype=torch.float64)
    gp = OnlineGP(RBF(1), Gaussian(0.1), LegS(8))
    gp.update(t[:10], t[:10].sin())
    before = gp.predict(t).mean
    twin = gp.updated(t[10:], t[10:].sin())
    other = OnlineGP(RBF(1, lengthscale=3.0), Gaussian(0.5), LegS(8))
    other.update(t, t.cos())
    twin.load_state_dict(other.state_dict())
    assert torch.equal(gp.predict(t).mean, before)


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    gp = OnlineGP(RBF(1), Gaussian(0.1), LegS(8), t0=0.0)
    with pytest.raises(ValueError, match="t_end must not lie before t0, got 5 units"):
        gp.update([], [], t_end=-5.0)


def test_nothing_can_be_predicted_of_no_stamps() -> None:
    gp = OnlineGP(RBF(1), Gaussian(0.1), LegS(8))
    assert gp.predict([]).mean.shape == (0,)


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("generator", torch.zeros(3), "generator must be .* bytes of its state"),
        ("site.shift", torch.zeros(5, dtype=torch.float64), "site.precision must have shape"),
    ],
)
def test_a_broken_state_is_refused_before_anything_is_taken_from_it(
    name: str, broken: torch.Tensor, message: str
) -> None:
    t = torch.linspace(0.0, 5.0, 20, dtype=torch.float64)
    source = OnlineGP(RBF(1, lengthscale=2.0), Gaussian(0.1), LegS(8))
    source.update(t, t.sin())
    gp = OnlineGP(RBF(1), Gaussian(0.1), LegS(8))
    with pytest.raises(ValueError, match=message):
        gp.load_state_dict({**source.state_dict(), name: broken})
    assert float(gp.kernel.lengthscale.detach()) == 1.0
    assert gp.state is None
