"""Forecasts of `probseq online live` from rolling origins beside naive ones."""

import math
from statistics import fmean

import pytest

from ohsvgp.integrations.live import LiveStream
from probseq_apps.experiments.online import build_live_model
from probseq_apps.settings.online import LiveModel

SEASON, FIRST = 12, 44


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_live_forecasts_are_no_worse_than_last_value_and_seasonal_naive() -> None:
    datasets = pytest.importorskip("river.datasets", reason="river has the series")
    y = [float(value) for _, value in datasets.AirlinePassengers()]
    stream = LiveStream(build_live_model(LiveModel(season=(float(SEASON),))), horizon=SEASON)
    ahead: dict[tuple[int, int], dict[str, float]] = {}
    for line, value in enumerate(y):
        for forecast in (stream.answer(f"{line},{value!r}") or {})["forecasts"]:
            ahead[line + forecast["horizon"], forecast["horizon"]] = forecast
    # A year ahead .68 of the intervals held, before they were widened by what the stream shows.
    for horizon, least in ((1, 0.88), (SEASON, 0.85)):
        lines = [line for line in range(FIRST, len(y)) if (line, horizon) in ahead]
        forecasts = [ahead[line, horizon] for line in lines]
        error = fmean(abs(y[k] - f["mean"]) for k, f in zip(lines, forecasts, strict=True))
        backs = (horizon, SEASON * math.ceil(horizon / SEASON))
        naive = min(fmean(abs(y[k] - y[k - back]) for k in lines) for back in backs)
        assert error < 1.05 * naive
        held = [f["low"] <= y[k] <= f["high"] for k, f in zip(lines, forecasts, strict=True)]
        assert least < fmean(held) < 1
