"""Forecasts of live streams with their defaults on real series that packages ship, beside others.

With `-s` the table is printed, with AutoETS, which is given the season, if statsforecast is there.
"""

import math
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest

from ohsvgp.integrations.live import LiveStream

MACRO = ("realgdp", "realcons", "realinv", "realgovt", "realdpi", "cpi", "m1", "tbilrate")
MACRO += ("unemp", "pop", "infl", "realint")


class Series(NamedTuple):
    name: str
    stamps: list[str]
    values: np.ndarray
    season: int
    horizon: int
    first: int  # origin


def table(name: str) -> Any:
    return import_module(f"statsmodels.datasets.{name}").load_pandas().data


def real_series() -> Iterator[Series]:
    d = table("sunspots")
    yield Series(
        "sunspots", [f"{y:.0f}-01-01" for y in d.YEAR], d.SUNACTIVITY.to_numpy(), 11, 10, 80
    )
    d = table("co2")["co2"].resample("MS").mean().ffill()
    yield Series("CO₂", [*d.index.strftime("%Y-%m")], d.to_numpy(), 12, 24, 120)
    d = table("elnino")
    months = [f"{int(y)}-{m:02}" for y in d.iloc[:, 0] for m in range(1, 13)]
    yield Series("El Niño", months, d.iloc[:, 1:].to_numpy().ravel(), 12, 12, 120)
    d = table("nile")
    yield Series("Nile", [f"{y:.0f}-01-01" for y in d.year], d.volume.to_numpy(), 1, 5, 60)
    d = table("elec_equip")
    yield Series("electronics", [*d.index.strftime("%Y-%m")], d.iloc[:, 0].to_numpy(), 12, 12, 60)
    quarters = [(name, "macrodata", name, 60) for name in MACRO]
    quarters += [(f"German {c}", "interest_inflation", c, 40) for c in ("Dp", "R")]
    quarters += [(f"Danish {c}", "danish_data", c, 30) for c in ("lrm", "lry", "lpy", "ibo", "ide")]
    for name, file, column, first in quarters:
        d = table(file)
        if "year" in d:
            stamps = [f"{y:.0f}Q{q:.0f}" for y, q in zip(d.year, d.quarter, strict=True)]
        else:
            stamps = [f"{day.year}Q{day.quarter}" for day in d.index]
        yield Series(name, stamps, d[column].to_numpy(), 4, 4 if "Danish" in name else 8, first)
    sets = import_module("river.datasets")
    rows = list(sets.AirlinePassengers())
    stamps = [f"{x['month']:%Y-%m}" for x, _ in rows]
    yield Series("passengers", stamps, np.array([float(y) for _, y in rows]), 12, 12, 60)
    rows = list(sets.WaterFlow())
    stamps, values = [x["Time"].isoformat() for x, _ in rows], np.array([y for _, y in rows])
    yield Series("water flow", stamps, values, 24, 24, 200)
    rows = list(sets.TrumpApproval())
    days = [f"{np.datetime64('2017-01-20') + k}" for k in range(len(rows))]
    for poll in ("gallup", "rasmussen"):
        yield Series(poll, days, np.array([x[poll] for x, _ in rows]), 7, 14, 100)


def judge(series: Series) -> np.ndarray:
    """MASE of live stream, seasonal naive, last value and AutoETS, and coverages of live and it."""
    _, stamps, y, season, horizon, first = series
    stream = LiveStream(horizon=horizon)
    answers = [stream.answer(f"{t},{v!r}") for t, v in zip(stamps, y.tolist(), strict=True)]
    rows = []
    for k in np.unique(np.linspace(first, len(y) - horizon - 1, 40).astype(int)):
        value, past = y[k + 1 : k + 1 + horizon], y[: k + 1]
        ahead = (answers[k] or {})["forecasts"]
        mean, low, high = (np.array([row[e] for row in ahead]) for e in ("mean", "low", "high"))
        back = [past[j - season * math.ceil((j + 1) / season)] for j in range(horizon)]
        unit = np.abs(past[season:] - past[:-season]).mean()
        errors = [np.abs(value - forecast).mean() / unit for forecast in (mean, back, past[-1])]
        inside, ets = np.mean((low <= value) & (value <= high)), {"mean": math.nan}
        if find_spec("statsforecast"):
            model = import_module("statsforecast.models").AutoETS(season_length=season)
            ets = model.forecast(past, h=horizon, level=[95])
        covered = np.mean((ets.get("lo-95", 0) <= value) & (value <= ets.get("hi-95", 0)))
        rows.append([*errors, np.abs(value - ets["mean"]).mean() / unit, inside, covered])
    return np.mean(rows, 0)


@pytest.mark.slow
def test_errors_are_those_of_the_page() -> None:
    pytest.importorskip("statsmodels"), pytest.importorskip("river")
    rows = {}
    for series in real_series():
        live, seasonal, last, ets, inside, covered = rows[series.name] = judge(series)
        numbers = (live, inside, seasonal, last, ets, covered)
        print(f"| {series.name} | " + " | ".join(f"{x:.3f}" for x in numbers) + " |", flush=True)
    live, seasonal, last, *_, inside, _ = np.array([*rows.values()]).T
    assert (live / np.minimum(seasonal, last)).mean() < 0.8
    assert (live / np.minimum(seasonal, last)).max() < 1.2
    assert 0.93 < inside.mean() < 0.97
    for name, most in {"sunspots": 1.0, "CO₂": 0.35, "passengers": 0.7, "El Niño": 0.8}.items():
        assert rows[name][0] < most * rows[name][1]
