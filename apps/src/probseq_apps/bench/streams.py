"""`probseq bench streams`: live streams through what happens to sensors, and the time of a line.

Streams are made from seeds: a level that wanders, alone or with a daily wave, to which something
happens in the middle. The scale of everything is about one.
"""

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import NamedTuple, get_args

import numpy as np

from ohsvgp import Cosine, Gaussian, OnlineGP
from ohsvgp.integrations.live import LiveStream
from probseq.kernels import Matern32
from probseq_apps.bench import Timing, interleaved, show, single_thread, timed
from probseq_apps.report.tables import markdown_table
from probseq_apps.settings.bench import BenchStreamsSettings, Regime

LINES, DAY, LEVEL = 400, 24, 20.0
# Where something happens; lines until it must be detected; from where on coverage counts again.
CHANGE, DETECTED, SETTLED = 200, 5, 30
_LEARNED, _FIRST = 20, 60
_OUTLIER, _SENTINEL, _OUTAGE = 60.0, -9999.0, 25
# Lines whose time is measured.
TIMED = 200
Answers = list[tuple[float, ...]]


class MadeStream(NamedTuple):
    """A stream made from a seed."""

    times: np.ndarray
    values: np.ndarray  # NaN where missing
    wrong: np.ndarray  # lines that no forecast can know: errors of sensors


def make_stream(kind: Regime, daily: bool, seed: int) -> MadeStream:
    """Return the stream of a regime, with a daily wave or without."""
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
        case _:
            pass
    shift = 4.0 * after if kind == "phase" else 0.0
    wave = (5.0 if daily else 0.0) * np.sin(2 * math.pi * (times - shift) / DAY)
    noise = rng.normal(size=LINES) * (0.5 if daily else 1.0)
    factor = {"variance": 5.0, "wild": 1000.0, "calm": 0.2}.get(kind, 1.0)
    noise *= np.where(after, factor, 1.0)
    values = LEVEL + wave + np.cumsum(0.1 * rng.normal(size=LINES)) + noise
    match kind:
        case "outlier" | "sentinel":
            wrong[CHANGE : CHANGE + (1 if kind == "outlier" else 3)] = True
            values = np.where(wrong, _OUTLIER if kind == "outlier" else _SENTINEL, values)
        case "outage":
            wrong[CHANGE : CHANGE + _OUTAGE] = True
            values = np.where(wrong, 0.0, values)
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
            values = np.where(after, values, LEVEL)
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
            size, mean = (3.0, 3.0 + 0.4 * wave) if daily else (0.3, np.full(LINES, 0.9))
            values = rng.negative_binomial(size, size / (size + mean)).astype(float)
        case _:
            pass
    return MadeStream(times, values, wrong)


class StreamOutcome(NamedTuple):
    """Judgement of a stream."""

    answered: float  # share of lines with forecasts
    before: float  # coverage
    after: float  # coverage after the change
    # Mean absolute errors after the change, over those of naive forecasts
    last: float
    yesterday: float
    smoothing: float
    detected: float  # whether there was an alarm within some lines of the change
    alarms: float  # in a thousand lines before

    @property
    def ratio(self) -> float:
        """The error over that of the better of the last value and yesterday's."""
        return max(self.last, self.yesterday)


def follow(kind: Regime, daily: bool, seed: int) -> StreamOutcome:
    """Let a stream learn what was made, and judge it."""
    series = make_stream(kind, daily, seed)
    stream = LiveStream(likelihood="negative-binomial" if kind == "counts" else "gaussian")
    # Forecasts of stamps: mean, ends of the interval, and the naive ones; values of stamps.
    ahead, past, smooth = dict[float, tuple[float, ...]](), dict[float, float](), math.nan
    inside, errors = list[tuple[int, bool]](), list[np.ndarray]()
    answered, alarms = list[bool](), list[int]()
    for k, (t, y) in enumerate(zip(series.times.tolist(), series.values.tolist(), strict=True)):
        answer = stream.answer(f"{t!r},{y!r}") or {}
        if t in ahead and not math.isnan(y) and not series.wrong[k] and k >= _FIRST:
            low, high, *means = ahead[t]
            inside.append((k, low <= y <= high))
            errors += [np.abs(y - np.array(means))] if k >= CHANGE + DETECTED else []
        if not math.isnan(y):
            past[t] = y
            smooth = y if math.isnan(smooth) else smooth + 0.3 * (y - smooth)
        answered += [bool(answer.get("forecasts"))] if k >= 2 * _LEARNED else []
        alarms += [k] if {"outlier", "new level", "clock"} & {*answer.get("alerts", ())} else []
        last = smooth if math.isnan(y) else y
        for row in answer.get("forecasts", ()):
            yesterday = past.get(row["t"] - DAY, smooth)
            ahead[row["t"]] = (row["low"], row["high"], row["mean"], last, yesterday, smooth)
    error, *naive = np.mean(errors, 0).tolist()
    last, yesterday, smoothing = (error / max(each, 1e-12) for each in naive)
    return StreamOutcome(
        fmean(answered),
        fmean(held for k, held in inside if k < CHANGE),
        fmean(held for k, held in inside if k >= CHANGE + SETTLED),
        last,
        yesterday,
        smoothing,
        float(any(CHANGE <= k < CHANGE + DETECTED for k in alarms)),
        1e3 * sum(k < CHANGE for k in alarms) / (CHANGE - _LEARNED),
    )


def judge(kind: Regime, daily: bool, seeds: int) -> StreamOutcome:
    """Return the mean outcome over seeds."""
    outcomes = [follow(kind, daily, seed) for seed in range(seeds)]
    return StreamOutcome(*map(fmean, zip(*outcomes, strict=True)))


def streams_of(regimes: tuple[Regime, ...] = get_args(Regime)) -> list[tuple[Regime, bool]]:
    """Return regimes, each without a daily wave and with one, where it can be without."""
    waves = ("phase", "night")
    return [(kind, day) for day in (False, True) for kind in regimes if day or kind not in waves]


def bench_streams(settings: BenchStreamsSettings) -> None:
    """Judge and measure, and print the tables."""
    rows = [["", *StreamOutcome._fields]]
    for kind, daily in streams_of(settings.regimes):
        outcome = judge(kind, daily, settings.seeds)
        rows.append([f"{kind}{', daily' * daily}", *(f"{value:.2f}" for value in outcome)])
    print(markdown_table(rows), end="\n\n", flush=True)
    with single_thread():
        timings = measure_streams(settings.repeats)
    show(timings, settings.repeats, f". {TIMED} points, each learned and the next one forecast")


def measure_streams(repeats: int) -> list[dict[str, object]]:
    """Return the rows of learning one point and forecasting the next."""
    series = make_stream("quiet", True, 0)
    values = series.values - LEVEL  # which the Gaussian processes do not know
    points = list(zip(series.times.tolist(), values.tolist(), strict=True))[:TIMED]
    live, gp, kalman = (timed(partial(f, points), gradients=True) for f in METHODS.values())
    names = dict(zip(METHODS, (live, gp, kalman), strict=True))
    rows = [
        *(Timing(name, case, "ms", amount=TIMED) for name, case in names.items()),
        Timing("LiveStream against it", live, over=kalman),
        Timing("OnlineGP against LiveStream", gp, over=live),
    ]
    seconds = interleaved(dict.fromkeys((live, gp, kalman), repeats))
    return [row.result(seconds) for row in rows]


def by_live_stream(points: Answers) -> list[float]:
    """Forecast with ``LiveStream``'s defaults."""
    stream = LiveStream()
    answers = [stream.answer(f"{t!r},{y!r}") or {} for t, y in points]
    return [answer["forecasts"][0]["mean"] for answer in answers[_LEARNED:]]


def by_online_gp(points: Answers) -> list[float]:
    """Forecast with an ``OnlineGP`` without fits of its hyperparameters."""
    gp, ahead = OnlineGP(Matern32(1, lengthscale=DAY / 4), Gaussian(0.25), Cosine(50)), []
    for t, y in points:
        gp.update([t], [y])
        ahead.append(float(gp.predict([t + 1.0]).mean))
    return ahead


def by_kalman_filter(points: Answers) -> list[float]:
    """Forecast with the exact filter of a Matérn-3/2 process, all of whose numbers are known."""
    noise, rate = 0.25, math.sqrt(3.0) / (DAY / 4)
    # The process and its derivative after a step: e^{−λ} (1 + λ, 1; −λ², 1 − λ).
    F = math.exp(-rate) * np.array([[1.0 + rate, 1.0], [-(rate**2), 1.0 - rate]])
    stationary = np.diag([1.0, rate**2])
    Q = stationary - F @ stationary @ F.T
    mean, cov, ahead = np.zeros(2), stationary, []
    for _, y in points:
        gain = cov[:, 0] / (cov[0, 0] + noise)
        mean, cov = mean + gain * (y - mean[0]), cov - np.outer(gain, cov[0])
        mean, cov = F @ mean, F @ cov @ F.T + Q
        ahead.append(float(mean[0]))
    return ahead


METHODS: dict[str, Callable[[Answers], list[float]]] = {
    "LiveStream, which finds step, season and noise": by_live_stream,
    "OnlineGP, Matérn-3/2, Cosine(50)": by_online_gp,
    "Kalman filter of that kernel, in numpy": by_kalman_filter,
}
