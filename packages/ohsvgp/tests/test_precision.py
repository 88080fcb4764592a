"""What float32 and hard cases may cost, and what they may not."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ohsvgp import (
    Cosine,
    FouT,
    Gaussian,
    LagT,
    LegS,
    LegT,
    NegativeBinomial,
    OnlineGP,
    PivotedCholesky,
    Poisson,
    RandomSubset,
    RecurrentFeatures,
    StudentT,
    UniformGrid,
    VariationalFourier,
    core,
)
from ohsvgp.bases import Basis
from probseq.kernels import RBF, Matern52


@pytest.mark.parametrize("noise", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
def test_a_float32_model_is_the_float64_model_rounded(noise: float) -> None:
    # Inducing points so close that float32 algebra, however careful, is off by nats.
    t = torch.linspace(0.0, 10.0, 300)
    single, double = (
        OnlineGP(RBF(1, lengthscale=3.0), Gaussian(noise), LegS(15), dtype=dtype)
        for dtype in (torch.float32, torch.float64)
    )
    for part in t.chunk(3):
        infos = [gp.update(part, part.sin()) for gp in (single, double)]
        assert infos[0].energy.dtype == torch.float64
        torch.testing.assert_close(infos[0].energy, infos[1].energy)

    def laws(gp: OnlineGP) -> list[torch.Tensor]:
        plain, noisy = gp.predict(t), gp.predict(t, include_noise=True)
        joint, u = gp.predict(t[::10], full_cov=True), gp.posterior_coefficients()
        f = gp.reconstruct(t[1:-1])
        draws = gp.sample(t[::10], 3, torch.Generator().manual_seed(0))
        return [
            *(plain.mean, plain.variance, noisy.mean, noisy.variance),
            *(joint.mean, joint.covariance, u.mean, u.covariance, f.mean, f.variance),
            *(draws, gp.log_prob(t, t.sin())),
        ]

    for got, expected in zip(laws(single), laws(double), strict=True):
        assert (got.dtype, expected.dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(got, expected.float(), rtol=1e-6, atol=1e-12)
    assert float((single.predict(t).mean - t.sin()).abs().max()) < math.sqrt(noise)
    assert float(single.predict(t).variance.min()) > 0


BASES: list[Callable[[int], Basis]] = [
    UniformGrid,
    LegS,
    Cosine,
    PivotedCholesky,
    RandomSubset,
    lambda M: LegT(M, 10.0),
    lambda M: LagT(M, 5.0),
    lambda M: FouT(M, 10.0),
    lambda M: VariationalFourier(M, -5.0, 15.0),
    lambda M: RecurrentFeatures(LegS(M), num_features=100, step="closed"),
]


@pytest.mark.parametrize("basis", BASES, ids=lambda basis: type(basis(10)).__name__)
@pytest.mark.parametrize(
    ("M", "alpha"),
    [
        *((10, 0.1), (30, 0.0), (60, 0.1)),
        *(pytest.param(M, a, marks=pytest.mark.slow) for M, a in ((10, 0.0), (30, 0.1), (60, 0.0))),
    ],
)
def test_errors_stay_within_four_predicted_deviations_unless_the_model_warns(
    basis: Callable[[int], Basis], M: int, alpha: float
) -> None:
    # The least deviation of all, that of f, however little noise there is: float32 predictions
    # of a smooth stream in three parts.
    t = torch.linspace(0.0, 10.0, 300)
    truth = t.double().sin()
    for noise in (1e-6, 1e-4, 1e-2):
        chosen = basis(M)
        kernel = Matern52 if isinstance(chosen, VariationalFourier) else RBF
        gp = OnlineGP(
            kernel(1, lengthscale=3.0), Gaussian(noise), chosen, alpha=alpha, dtype=torch.float32
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for part in torch.arange(300).chunk(3):
                gp.update(t[part], truth[part])
        law = gp.predict(t)
        ratio = float(((law.mean - truth).abs() / law.variance.sqrt()).max())
        assert ratio < 4 or caught, f"noise {noise}: {ratio}"


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
