"""Forecasts of live streams with their defaults from rolling origins, beside seasonal naive ones.

With `-s` the numbers are printed.
"""

import math

import numpy as np
import pytest

from ohsvgp.integrations.live import LiveStream


def sunspots() -> tuple[list[str], np.ndarray]:
    data = pytest.importorskip("statsmodels.datasets").sunspots.load_pandas().data
    return [f"{year:.0f}-01-01" for year in data.YEAR], data.SUNACTIVITY.to_numpy()


def co2() -> tuple[list[str], np.ndarray]:
    weeks = pytest.importorskip("statsmodels.datasets").co2.load_pandas().data["co2"]
    months = weeks.resample("MS").mean().ffill()
    return months.index.strftime("%Y-%m").tolist(), months.to_numpy()


def airline() -> tuple[list[str], np.ndarray]:
    rows = list(pytest.importorskip("river.datasets").AirlinePassengers())
    return [f"{x['month']:%Y-%m}" for x, _ in rows], np.array([y for _, y in rows], float)


def elnino() -> tuple[list[str], np.ndarray]:
    table = pytest.importorskip("statsmodels.datasets").elnino.load_pandas().data
    years = table.iloc[:, 0].astype(int)
    return [f"{y}-{m:02}" for y in years for m in range(1, 13)], table.iloc[
        :, 1:
    ].to_numpy().ravel()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "season", "horizon", "first", "most"),
    [
        (sunspots, 11, 10, 80, 1.0),
        (co2, 12, 24, 120, 0.35),
        (airline, 12, 12, 60, 0.8),
        (elnino, 12, 12, 120, 0.9),
    ],
)
def test_errors_are_those_of_the_page(load, season, horizon, first, most) -> None:
    stamps, y = load()
    stream = LiveStream(horizon=horizon)
    lines = zip(stamps, y.tolist(), strict=True)
    answers = [stream.answer(f"{stamp},{value!r}") or {} for stamp, value in lines]
    rows = []
    for k in range(first, len(y) - horizon):
        ahead = answers[k]["forecasts"]
        mean, low, high = (np.array([row[e] for row in ahead]) for e in ("mean", "low", "high"))
        value = y[k + 1 : k + 1 + horizon]
        back = [y[k + 1 + j - season * math.ceil((j + 1) / season)] for j in range(horizon)]
        unit = np.abs(y[season : k + 1] - y[: k + 1 - season]).mean()
        errors = np.abs(value - mean).mean() / unit, np.abs(value - back).mean() / unit
        rows.append((*errors, np.mean((low <= value) & (value <= high))))
    error, naive, coverage = np.mean(rows, 0)
    periods = [answer["season"] for answer in answers if "season" in answer][-1]["periods"]
    print(f"{load.__name__}: MASE {error:.2f} ({coverage:.3f}), naive {naive:.2f}; {periods}")
    assert error < most * naive
    assert 0.88 < coverage < 0.99
