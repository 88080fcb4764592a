"""Which basis when: what inducing variables cost against the exact process, as M grows.

``python packages/ohsvgp/tests/forecasts/test_bases.py DATA PICTURE`` prints Reproduce's tables
and draws its picture in some minutes; DATA is the folder of data sets, and a drawn series needs
none. ``Spaced`` and ``Fading`` are bases of a user's own: one keeps its resolution everywhere,
the other near the end.
"""

import csv
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ohsvgp import Cosine, ExactGP, Gaussian, LegS, OnlineGP, PivotedCholesky, UniformGrid
from ohsvgp.bases import Basis, TimeBasis
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.kernels import RBF, Kernel, Matern32


class Spaced(TimeBasis):
    """Points at a fixed distance: M grows with the window."""

    num_inducing = 2

    def __init__(self, distance: float) -> None:
        self.distance = distance

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        count = math.ceil(length / self.distance) + 1
        return PointFunctional(torch.linspace(0.0, length, count).to(kernel.like)[:, None])


class Fading(TimeBasis):
    """M points, of which the last ones keep a fixed distance; it grows geometrically backwards.

    Ages are a_m = distance·(r^m − 1)/(r − 1), with r such that a_{M−1} is the window's length.
    """

    def __init__(self, num_inducing: int, distance: float) -> None:
        self.num_inducing, self.distance = num_inducing, distance

    def inducing(self, kernel: Kernel, length: float) -> Inducing:
        m = np.arange(self.num_inducing)
        low, high = 0.0, 500.0 / m[-1]  # of log r, by bisection: a_{M−1} grows with r
        for _ in range(60):
            middle = 0.5 * (low + high)
            last = self.distance * math.expm1(m[-1] * middle) / math.expm1(middle)
            low, high = (middle, high) if last < length else (low, middle)
        rate = high
        ages = np.expm1(m * rate) / np.expm1(m[-1] * rate) * length
        return PointFunctional(torch.from_numpy(length - ages[::-1]).to(kernel.like)[:, None])


class Series(NamedTuple):
    """A standardised stream and the kernel to learn it with."""

    name: str
    t: Tensor
    y: Tensor
    kernel: RBF | Matern32


def drawn(points: int = 1000, length: float = 100.0) -> Series:
    """A draw of a Matérn-3/2 process of lengthscale one, with noise of a tenth of its variance."""
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, length, points, dtype=torch.float64)
    kernel = Matern32(1).double()
    with torch.no_grad():
        factor = torch.linalg.cholesky(kernel(t[:, None], t[:, None]) + 1e-9 * torch.eye(points))
    noise, values = torch.randn(2, points, generator=generator, dtype=torch.float64)
    return Series("Matérn-3/2 draw", t, factor @ values + 0.1**0.5 * noise, kernel)


def recorded(folder: Path) -> list[Series]:
    """Yearly solar irradiance, weekly CO2 without its trend, and a band of an audio signal."""
    from statsmodels.datasets import co2

    with (folder / "solar_irradiance" / "solar_irradiance.csv").open() as file:
        rows = list(csv.DictReader(file))
    year, sun = (
        torch.tensor([float(row[name]) for row in rows], dtype=torch.float64)
        for name in ("year", "tsi_11yr_cycle_plus_background")
    )
    table = co2.load_pandas().data
    assert table is not None
    ppm = table["co2"].dropna()
    week = torch.from_numpy((ppm.index - ppm.index[0]).days.to_numpy() / 7.0)
    trend = np.polyval(np.polyfit(week, ppm.to_numpy(), 2), week)
    ripple = torch.from_numpy(ppm.to_numpy() - trend)
    with np.load(next((folder / "audio_subband").glob("*.npz"))) as arrays:
        band = torch.from_numpy(arrays["demodulated"][:2000]).double()
    band += 0.1 * band.std() * torch.randn(2000, generator=torch.Generator().manual_seed(0))
    return [
        Series("solar irradiance", year, sun, RBF(1, lengthscale=5.0)),
        Series("weekly CO2", week, ripple, RBF(1, lengthscale=9.0)),
        Series("audio", torch.arange(2000.0).double(), band, RBF(1, lengthscale=10.0)),
    ]


BASES: dict[str, Callable[[int], Basis]] = {
    "LegS": LegS,
    "Cosine": Cosine,
    "UniformGrid": UniformGrid,
    "PivotedCholesky": PivotedCholesky,
}


class Case:
    """A series with a fifth of it held out, and the exact process of greatest evidence on it."""

    def __init__(self, series: Series, seed: int) -> None:
        self.name, t = series.name, series.t
        y = (series.y - series.y.mean()) / series.y.std()
        hidden = torch.rand(len(t), generator=torch.Generator().manual_seed(seed)) < 0.2
        self.train, self.test = (t[~hidden], y[~hidden]), (t[hidden], y[hidden])
        self.kernel, self.likelihood = series.kernel.double(), Gaussian(0.1)
        learner = OnlineGP(self.kernel, self.likelihood, UniformGrid(2))
        learner.fit_hyperparameters(self.train[0][:2000], self.train[1][:2000])
        self.unit = float(self.kernel.lengthscale.detach())
        self.length = float(t[-1] - t[0]) / self.unit
        exact = ExactGP(self.kernel, self.likelihood)
        exact.update(*self.train)
        self.exact = self._nlpd(exact)

    def run(self, basis: Basis, tasks: int = 10) -> tuple[Tensor, int, float]:
        """Nats of each held-out point behind the exact process, M, and CPU seconds of updates."""
        began = time.process_time()
        gp = OnlineGP(self.kernel, self.likelihood, basis)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in torch.arange(len(self.train[0])).chunk(tasks):
                gp.update(self.train[0][part], self.train[1][part])
        seconds = time.process_time() - began
        assert gp.state is not None
        size = gp.state.whitening.matrix.shape[-1]
        return self._nlpd(gp) - self.exact, size, seconds

    def _nlpd(self, gp: OnlineGP | ExactGP) -> Tensor:
        law = gp.predict(self.test[0], include_noise=True)
        square = (self.test[1] - law.mean).square() / law.variance
        return 0.5 * (square + (2 * math.pi * law.variance).log())


def sweep(cases: list[list[Case]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Print and return (M per lengthscale, mean excess over splits) by series and basis."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for splits in cases:
        name, length = splits[0].name, splits[0].length
        print(f"\n| {name}, {length:.0f} lengthscales: M | {' | '.join(BASES)} |", flush=True)
        print(f"|{'---|' * (1 + len(BASES))}")
        curves = found.setdefault(name, {basis: [] for basis in BASES})
        for m in (20, 40, 80, 160, 320):
            row = [
                np.mean([float(case.run(make(m))[0].mean()) for case in splits])
                for make in BASES.values()
            ]
            for basis, value in zip(BASES, row, strict=True):
                curves[basis].append((m / length, float(value)))
            print(f"| {m} | {' | '.join(f'{value:.3f}' for value in row)} |", flush=True)
    return found


def draw(found: dict[str, dict[str, list[tuple[float, float]]]], picture: Path) -> None:
    """Draw the excess over the exact process by M per lengthscale, a panel a series."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (name, curves) in zip(panels, found.items(), strict=True):
        for (basis, curve), marker in zip(curves.items(), "os^d", strict=True):
            x, y = zip(*curve, strict=True)
            axes.plot(x, np.maximum(y, 1e-3), marker=marker, markersize=4, label=basis)
        axes.set(title=name, xscale="log", yscale="log", xlabel="M per lengthscale")
        axes.set_xticks(ticks := [0.1, 0.3, 1, 3], labels=[f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("nats a point behind\nthe exact process")
    panels[0].legend(fontsize=8)
    figure.savefig(picture, dpi=110)


def resolution() -> None:
    """Print what a stream of 500 lengthscales is known by, with M fixed, growing and fading."""
    case = Case(drawn(5000, 500.0), 0)
    recent = case.test[0] > 0.95 * float(case.train[0][-1])
    print("\n| 500 lengthscales | M at the end | excess, all | excess, last 25 | CPU |")
    print("|---|---|---|---|---|")
    bases = {
        "`Cosine(160)`": Cosine(160),
        "`UniformGrid(160)`": UniformGrid(160),
        "`Fading(160, .5)`": Fading(160, 0.5 * case.unit),
        "`Spaced(.5)`": Spaced(0.5 * case.unit),
        "`Cosine(1000)`": Cosine(1000),
    }
    for name, basis in bases.items():
        each, size, seconds = case.run(basis, tasks=50)
        values = f"{float(each.mean()):.3f} | {float(each[recent].mean()):.3f}"
        print(f"| {name} | {size} | {values} | {seconds:.1f} s |", flush=True)


def test_points_at_a_fixed_distance_hold_all_and_fading_ones_the_end() -> None:
    case = Case(drawn(800, 80.0), 0)
    recent = case.test[0] > 70
    spaced, size, _ = case.run(Spaced(0.2))
    fading, most, _ = case.run(Fading(40, 0.2))
    assert 390 < size <= 401
    assert most == 40
    assert abs(float(spaced.mean())) < 0.02
    assert abs(float(fading[recent].mean())) < 0.1
    assert float(fading[~recent].mean()) > 0.3


if __name__ == "__main__":
    torch.set_num_threads(1)
    studies = [drawn(), *recorded(Path(sys.argv[1]))]
    draw(
        sweep([[Case(series, seed) for seed in range(3)] for series in studies]), Path(sys.argv[2])
    )
    resolution()
