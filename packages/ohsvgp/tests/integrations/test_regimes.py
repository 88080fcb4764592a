"""Live streams through what happens to sensors, beside naive forecasts.

With `-s -m slow` the table of all regimes is printed.
"""

import math
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pytest

from ohsvgp.integrations.live import LiveStream

LINES, DAY = 400, 24
# Where something happens; lines until it must be detected; from where on coverage counts again.
CHANGE, DETECTED, SETTLED = 200, 5, 30
_LEARNED, _FIRST = 20, 60


class Series(NamedTuple):
    """A made stream."""

    times: np.ndarray
    values: np.ndarray  # NaN where missing
    wrong: np.ndarray  # lines that no forecast can know: errors of sensors
    counts: bool = False


def make_series(name: str, seed: int) -> Series:
    """Return the series of a regime, such as "level" or "level, daily"."""
    kind, _, base = name.partition(", ")
    rng, k = np.random.default_rng(seed), np.arange(LINES)
    after, times, wrong = k >= CHANGE, k.astype(float), np.zeros(LINES, bool)
    match kind:
        case "repeats":
            times = (k // 3).astype(float)
        case "duplicate":
            times = (k // 2).astype(float)
        case "gap":
            times += 60.0 * after
        case "sampling":
            times = np.where(after, CHANGE + (k - CHANGE) / 2, times)
    shift = 4.0 * after if kind == "phase" else 0.0
    wave = (5.0 if base else 0.0) * np.sin(2 * math.pi * (times - shift) / DAY)
    noise = rng.normal(size=LINES) * (0.5 if base else 1.0)
    noise *= np.where(after, {"variance": 5.0, "calm": 0.2}.get(kind, 1.0), 1.0)
    values = 20.0 + wave + np.cumsum(0.1 * rng.normal(size=LINES)) + noise
    match kind:
        case "outlier" | "sentinel":
            wrong[CHANGE : CHANGE + (1 if kind == "outlier" else 3)] = True
            values = np.where(wrong, 60.0 if kind == "outlier" else -9999.0, values)
        case "level":
            values += 10.0 * after
        case "reset":
            values += 3.0 * k - 3.0 * CHANGE * after
        case "slope":
            values += 0.3 * np.maximum(k - CHANGE, 0)
        case "night":
            values = np.maximum(0.0, wave) * np.exp(0.2 * noise)
        case "rounding":
            values = np.round(values)
        case "constant":
            values = np.where(after, values, 20.0)
        case "saturated":
            values = np.minimum(values, np.quantile(values, 0.6))
        case "duplicate":
            values[1::2] = values[::2]
        case "late":
            order = np.argsort(times + 3.0 * (rng.random(LINES) < 0.1), kind="stable")
            times, values = times[order], values[order]
        case "ahead":
            times[CHANGE] += 1e6
        case "back":
            times -= 50.0 * after
        case "missing":
            values[CHANGE : CHANGE + 30] = math.nan
        case "counts":
            size, mean = (3.0, 3.0 + 0.4 * wave) if base else (0.3, np.full(LINES, 0.9))
            values = rng.negative_binomial(size, size / (size + mean)).astype(float)
        case _:
            pass
    return Series(times, values, wrong, kind == "counts")


KINDS = (
    *("quiet", "outlier", "sentinel", "level", "reset", "slope", "variance", "calm", "rounding"),
    *("constant", "saturated", "repeats", "duplicate", "late", "gap", "ahead", "back", "sampling"),
    *("missing", "counts"),
)
REGIMES = (*KINDS, *(f"{kind}, daily" for kind in (*KINDS, "phase", "night")))


class Outcome(NamedTuple):
    """Of a stream: shares, errors against those of the better naive forecast, and alarms."""

    answered: float
    before: float  # coverage
    after: float
    ratio: float  # of mean absolute errors, after the change
    smoothing: float  # that of simple exponential smoothing
    detected: float
    false: float  # alarms in a thousand lines before


def follow(name: str, seed: int) -> Outcome:
    """Let a stream learn a series, and judge it."""
    series = make_series(name, seed)
    stream = LiveStream(likelihood="negative-binomial" if series.counts else "gaussian")
    # Forecasts of stamps: mean, ends of the interval, and the naive ones; values of stamps.
    ahead, past, smooth = dict[float, tuple[float, ...]](), dict[float, float](), math.nan
    inside, errors = list[tuple[int, bool]](), list[tuple[float, ...]]()
    answered, alarms = list[bool](), list[int]()
    for k, (t, y) in enumerate(zip(series.times.tolist(), series.values.tolist(), strict=True)):
        answer = stream.answer(f"{t!r},{y!r}") or {}
        if t in ahead and not math.isnan(y) and not series.wrong[k] and k >= _FIRST:
            mean, low, high, *naive = ahead[t]
            inside.append((k, low <= y <= high))
            errors.append((k, abs(y - mean), *(abs(y - value) for value in naive)))
        if not math.isnan(y):
            past[t] = y
            smooth = y if math.isnan(smooth) else smooth + 0.3 * (y - smooth)
        answered += [bool(answer.get("forecasts"))] if k >= 2 * _LEARNED else []
        alarms += [k] if {"outlier", "new level", "clock"} & {*answer.get("alerts", ())} else []
        for row in answer.get("forecasts", ()):
            naive = (y if not math.isnan(y) else smooth, past.get(row["t"] - DAY, smooth), smooth)
            ahead[row["t"]] = (row["mean"], row["low"], row["high"], *naive)
    late = np.array([row[1:] for row in errors if row[0] >= CHANGE + DETECTED]).mean(0)
    best = max(min(late[1:3]), 1e-12)
    quiet = [k for k in alarms if k < CHANGE]
    return Outcome(
        fmean(answered),
        fmean(held for k, held in inside if k < CHANGE),
        fmean(held for k, held in inside if k >= CHANGE + SETTLED),
        late[0] / best,
        late[3] / best,
        float(any(CHANGE <= k < CHANGE + DETECTED for k in alarms)),
        1e3 * len(quiet) / (CHANGE - _LEARNED),
    )


def judge(name: str, seeds: int) -> Outcome:
    """Return the mean outcome of a regime, which must hold."""
    outcomes = [follow(name, seed) for seed in range(seeds)]
    mean = Outcome(*map(fmean, zip(*outcomes, strict=True)))
    print(f"| {name} |", " | ".join(f"{value:.2f}" for value in mean), "|")
    assert mean.answered == 1.0
    assert 0.88 < mean.after < 0.995
    # Of a season that begins after two hundred equal values hardly two days are left.
    assert mean.ratio < (1.4 if name == "constant, daily" else 1.1)
    return mean


@pytest.mark.parametrize("name", ["sentinel", "reset, daily", "back", "duplicate, daily", "counts"])
def test_streams_are_answered_and_as_good_as_the_better_naive_forecast(name: str) -> None:
    outcome = judge(name, 1)
    assert outcome.detected or name in ("duplicate, daily", "counts")


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIMES)
def test_no_regime_is_left_alone(name: str) -> None:
    judge(name, 5)
