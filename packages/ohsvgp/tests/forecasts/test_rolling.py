"""Forecasts from rolling origins: a stream of fixed size against refits on all data so far.

``python packages/ohsvgp/tests/forecasts/test_rolling.py DATA`` prints Reproduce's tables in some
minutes; DATA is the folder of data sets, without which solar irradiance is left out. At each
origin the forecast of the next stretch is scored, then the stretch is learned: by ``OnlineGP`` from
its state, by the others with all data so far, or those of a window.
"""

import csv
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from ohsvgp import Cosine, Gaussian, LegS, Level, OnlineGP, Refit, Seasonal, Trend, UniformGrid
from ohsvgp.beyond.means import Mean
from probseq.kernels import parse_kernel

Forecaster = Callable[[Tensor, Tensor, Tensor], tuple[np.ndarray, np.ndarray]]


class Study(NamedTuple):
    """A series, in units of about one, and how it is forecast."""

    name: str
    t: Tensor
    y: Tensor
    start: float  # of the first forecast
    stretch: float  # between origins, and the horizon
    season: int  # points in a period, for the scale of MASE, and SARIMAX's and ETS' seasons
    period: float  # the same in units of time
    kernel: str
    mean: Mean
    num_inducing: int


def weekly_co2() -> Study:
    """CO2 at Mauna Loa by week, 1958 to 2001, with gaps; ppm above 315, years."""
    from statsmodels.datasets import co2

    values = co2.load_pandas().data["co2"].dropna()
    t = (values.index - values.index[0]).days.to_numpy() / 365.25
    mean = Trend(10.0, 2.0) + Seasonal(1.0, 4, deviation=3.0)
    kernel = "matern32(20, 10) + rbf(1, .3)"
    y = torch.from_numpy(values.to_numpy() - 315.0)
    return Study("weekly CO2", torch.from_numpy(t), y, 12.0, 2.0, 52, 1.0, kernel, mean, 40)


def sunspots() -> Study:
    """Sunspots by year, 1700 to 2008, divided by 50."""
    from statsmodels.datasets import sunspots as data

    table = data.load_pandas().data
    t, y = (torch.tensor(table[name].to_numpy()) for name in ("YEAR", "SUNACTIVITY"))
    kernel = "periodic(11)*rbf(30) + matern32(3, .3)"
    return Study("sunspots", t, y / 50, 1800.0, 11.0, 11, 11.0, kernel, Level(3.0), 60)


def solar(folder: Path) -> Study:
    """Solar irradiance by year since 1610, standardised."""
    with (folder / "solar_irradiance" / "solar_irradiance.csv").open() as file:
        rows = list(csv.DictReader(file))
    year, y = (
        torch.tensor([float(row[name]) for row in rows], dtype=torch.float64)
        for name in ("year", "tsi_11yr_cycle_plus_background")
    )
    y = (y - y[:120].mean()) / y[:120].std()
    kernel = "periodic(11)*rbf(30) + matern32(20)"
    return Study("solar irradiance", year, y, 1730.0, 11.0, 11, 11.0, kernel, Level(3.0), 60)


def online(basis: type, study: Study) -> Forecaster:
    """``OnlineGP``, whose updates refit the hyperparameters; only new data are handed to it."""
    gp = OnlineGP(
        parse_kernel(study.kernel),
        Gaussian(0.1),
        basis(study.num_inducing),
        mean=study.mean,
        refit=Refit("every:1", steps=30),
    )

    def forecast(t: Tensor, y: Tensor, ahead: Tensor) -> tuple[np.ndarray, np.ndarray]:
        gp.update(t, y)
        law = gp.predict(ahead, include_noise=True)
        return law.mean.numpy(), law.variance.sqrt().numpy()

    return forecast


def on_all_so_far(fit: Forecaster) -> Forecaster:
    """Hand all data so far to a method that keeps nothing itself."""
    kept: list[tuple[Tensor, Tensor]] = []

    def forecast(t: Tensor, y: Tensor, ahead: Tensor) -> tuple[np.ndarray, np.ndarray]:
        kept.append((t, y))
        times, values = (torch.cat([part[i] for part in kept]) for i in range(2))
        return fit(times, values, ahead)

    return forecast


def window_gp(study: Study) -> Forecaster:
    """GPyTorch's exact process with RBF and periodic kernels, on the last 400 points."""

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, t: Tensor, y: Tensor, noise: gpytorch.likelihoods.Likelihood) -> None:
            super().__init__(t, y, noise)
            k = gpytorch.kernels
            season = k.PeriodicKernel()
            season.period_length = study.period
            self.mean = gpytorch.means.LinearMean(1)
            self.kernel = k.ScaleKernel(k.RBFKernel() * season) + k.ScaleKernel(k.MaternKernel(1.5))
            self.double()

        def forward(self, t: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(t), self.kernel(t))

    def fit(t: Tensor, y: Tensor, ahead: Tensor) -> tuple[np.ndarray, np.ndarray]:
        t, y = t[-400:], y[-400:]
        centre, scale, origin = y.mean(), y.std(), t[-1]
        torch.manual_seed(0)
        noise = gpytorch.likelihoods.GaussianLikelihood().double()
        model = Exact((t - origin)[:, None], (y - centre) / scale, noise)
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(noise, model)
        adam = torch.optim.Adam(model.parameters(), lr=0.1)
        model.train()
        for _ in range(60):
            adam.zero_grad()
            (-objective(model(*model.train_inputs), model.train_targets)).backward()
            adam.step()
        model.eval()
        noise.eval()
        with torch.no_grad():
            law = noise(model((ahead - origin)[:, None]))
        return (law.mean * scale + centre).numpy(), (law.stddev * scale).numpy()

    return on_all_so_far(fit)


def sarimax(study: Study) -> Forecaster:
    """statsmodels' SARIMAX(1, 1, 1) with four harmonics of the season, on a regular grid."""
    from statsmodels.tsa.statespace.sarimax import SARIMAX

    def fit(t: Tensor, y: Tensor, ahead: Tensor) -> tuple[np.ndarray, np.ndarray]:
        grid, values, places = _regular(study, t, y, ahead)

        def waves(at: np.ndarray) -> np.ndarray:
            phase = 2 * np.pi * np.outer(at / study.period, np.arange(1, 5))
            return np.concatenate([np.cos(phase), np.sin(phase)], 1)

        step = study.period / study.season
        found = SARIMAX(values, exog=waves(grid), order=(1, 1, 1)).fit(disp=False, maxiter=50)
        future = grid[-1] + step * np.arange(1, places.max() + 2)
        law = found.get_forecast(len(future), exog=waves(future))
        return law.predicted_mean[places], law.se_mean[places]

    return on_all_so_far(fit)


def ets(study: Study) -> Forecaster:
    """statsmodels' exponential smoothing with additive errors, damped trend and season."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    def fit(t: Tensor, y: Tensor, ahead: Tensor) -> tuple[np.ndarray, np.ndarray]:
        _, values, places = _regular(study, t, y, ahead)
        known = ~np.isnan(values)
        values = np.interp(np.arange(len(values)), np.flatnonzero(known), values[known])
        season = {"seasonal": "add", "seasonal_periods": study.season}
        model = ETSModel(pd.Series(values), trend="add", damped_trend=True, **season)
        found = model.fit(disp=False, maxiter=100)
        law = found.get_prediction(len(values), len(values) + int(places.max()))
        mean, variance = np.asarray(law.predicted_mean), np.asarray(law.forecast_variance)
        return mean[places], np.sqrt(variance[places])

    return on_all_so_far(fit)


def _regular(
    study: Study, t: Tensor, y: Tensor, ahead: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A regular grid with NaN in its gaps, the values on it, and the places of what is ahead."""
    step = study.period / study.season
    index = ((t - t[0]) / step).round().long().numpy()
    values = np.full(index[-1] + 1, np.nan)
    values[index] = y.numpy()
    places = ((ahead - t[0]) / step).round().long().numpy() - len(values)
    return float(t[0]) + step * np.arange(len(values)), values, places.clip(0)


def naive(study: Study) -> Forecaster:
    """The value one season ago, with the deviation of such errors so far, by seasons ahead."""

    def fit(t: Tensor, y: Tensor, ahead: Tensor) -> tuple[np.ndarray, np.ndarray]:
        grid, values, places = _regular(study, t, y, ahead)
        known = ~np.isnan(values)
        values = np.interp(np.arange(len(grid)), np.flatnonzero(known), values[known])
        seasons = 1 + places // study.season
        back = len(values) + places - study.season * seasons
        error = np.std(values[study.season :] - values[: -study.season])
        return values[back], error * np.sqrt(seasons)

    return on_all_so_far(fit)


def scores(study: Study, method: Forecaster, most: int = 1000) -> dict[str, float]:
    """Mean absolute scaled error, CRPS in units of the series, coverage of 95 %, CPU seconds."""
    t, y = study.t, study.y
    scale = (y[study.season :] - y[: -study.season]).abs().mean()
    found: list[Tensor] = []
    old, began = t < study.start, time.process_time()
    for k in range(min(most, math.ceil((float(t[-1]) - study.start) / study.stretch))):
        origin = study.start + k * study.stretch
        new = (t >= origin) & (t < origin + study.stretch)
        mean, sd = (torch.from_numpy(np.array(x)) for x in method(t[old], y[old], t[new]))
        z = ((y[new] - mean) / sd).numpy()
        # E|Y − y| − ½E|Y − Y'| of a normal Y (Gneiting and Raftery 2007).
        crps = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - math.pi**-0.5)
        inside = torch.from_numpy(np.abs(z) < 1.959964).double()
        found.append(torch.stack([(y[new] - mean).abs() / scale, crps, inside]).mean(1))
        old = new
    values = torch.stack(found).mean(0).tolist()
    seconds = time.process_time() - began
    return dict(zip(("MASE", "CRPS", "coverage", "CPU"), [*values, seconds], strict=True))


METHODS: dict[str, Callable[[Study], Forecaster]] = {
    "Cosine": lambda study: online(Cosine, study),
    "LegS": lambda study: online(LegS, study),
    "UniformGrid": lambda study: online(UniformGrid, study),
    "exact GP, last 400 points (GPyTorch)": window_gp,
    "SARIMAX with harmonics (statsmodels)": sarimax,
    "ETS (statsmodels)": ets,
    "seasonal naive": naive,
}


def table(study: Study) -> None:
    """Print a table of all methods."""
    print(f"\n| {study.name} | MASE | CRPS | coverage of 95 % | CPU |\n|---|---|---|---|---|")
    for name, method in METHODS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = scores(study, method(study))
        cells = [f"{row[key]:.3f}" for key in ("MASE", "CRPS", "coverage")]
        print(f"| {name} | {' | '.join(cells)} | {row['CPU']:.1f} s |", flush=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_years_of_weekly_co2_are_forecast_better_than_by_the_season_before() -> None:
    pytest.importorskip("statsmodels", reason="statsmodels has the series")
    study = weekly_co2()
    found, plain = (
        scores(study, METHODS[name](study), most=4) for name in ("Cosine", "seasonal naive")
    )
    assert found["MASE"] < 0.8 * plain["MASE"]
    assert found["CRPS"] < 0.8 * plain["CRPS"]
    assert 0.7 < found["coverage"] < 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    studies = [weekly_co2(), sunspots(), *(solar(Path(folder)) for folder in sys.argv[1:])]
    for each in studies:
        table(each)
