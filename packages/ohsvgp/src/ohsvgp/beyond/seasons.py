"""Seasons of a series, chosen by evidence among those of the calendar and of its autocorrelation.

Not in the papers.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ohsvgp.beyond.horizons import NEXT_STEP, Horizons
from ohsvgp.beyond.state_space import Array, Belief, Candidates, Held, StateSpace
from probseq.checks import check_positive

REGULAR, OUTLIER, RESTART = 0, 1, 2
"""Kinds of rows."""
LATEST = 740
"""Values that seasons are compared on: a year of days can be seen in 694."""
# Seconds of a day, a week, and a year.
CALENDAR = (86_400.0, 604_800.0, 31_557_600.0)
# Steps in the shortest season; repeats of the longest that a series must hold, of the calendar's
# and of others.
_SHORTEST, _REPEATS, _OTHERS = 3.0, 1.9, 3.0
# Periods that people's clocks have, in steps.
_COMMON = (4.0, 7.0, 12.0, 24.0, 48.0, 52.0, 60.0, 96.0, 144.0, 168.0, 288.0, 365.25)
# Nats that a season must be better than none.
_LEAST_NATS = 5.0
# Share of a value by which others are the same, and of a step of rounding.
_SAME, _ROUND_OFF = 1e-9, 1e-2
# Seasons that are compared by evidence at a time.
_COMPARED = 3

# Variances of the steps of seasons that last.
_STEADY, _MOVING, _FAST = (1e-5,), (3e-3,), (0.3,)
_BOTH = (*_STEADY, *_MOVING)
# Level, slope, fading, swing, rate, and the seasons beside them. Others, of fifty tried on thirty
# real series and twenty made ones, have no evidence that these lack.
GRID = [
    # Walks.
    (1e-4, 0.0, 1.0, 0.0, 1.0, _STEADY),
    (0.01, 0.0, 1.0, 0.0, 1.0, _MOVING),
    (0.1, 0.0, 1.0, 0.0, 1.0, _BOTH),
    (1.0, 0.0, 1.0, 0.0, 1.0, _MOVING + _FAST),
    (10.0, 0.0, 1.0, 0.0, 1.0, _STEADY + _FAST),
    # Trends.
    (0.01, 1e-6, 1e-3, 0.0, 1.0, _STEADY),
    (0.01, 1e-5, 1e-3, 0.0, 1.0, _MOVING),
    (0.1, 1e-5, 1e-3, 0.0, 1.0, _MOVING),
    (1.0, 1e-3, 1e-3, 0.0, 1.0, _MOVING),
    # Curves.
    (0.01, 1e-3, 0.02, 0.0, 1.0, _BOTH),
    (0.01, 1.0, 0.005, 0.0, 1.0, _STEADY),
    (0.01, 0.01, 0.05, 0.0, 1.0, _BOTH),
    (1.0, 0.1, 0.05, 0.0, 1.0, _BOTH),
    (0.01, 1.0, 0.1, 0.0, 1.0, _STEADY + _FAST),
    (0.01, 100.0, 0.2, 0.0, 1.0, _BOTH),
    # Swings about a level.
    (1e-4, 0.0, 1.0, 4.0, 0.1, _STEADY),
    (1e-4, 0.0, 1.0, 30.0, 0.3, _STEADY),
    (1e-4, 0.0, 1.0, 30.0, 0.05, _STEADY),
]
_COARSE = [GRID[k] for k in (1, 3, 5, 8, 10, 13, 15, 16)]
# Cycles that do not last: a swing beside them, and their variance; their amplitudes and phases fade
# in five periods, and they have two harmonics.
_CYCLES = [
    (0.1, 0.0, 1.0, swing, 0.3, size) for swing, size in ((0.0, 3.0), (0.0, 30.0), (4.0, 30.0))
]
_FADING, _HARMONICS = 0.2, 2


class SeriesRow(NamedTuple):
    """A line that was learned."""

    time: float  # in steps
    value: float
    kind: int = REGULAR


def fixed_periods(
    seasons: Literal["auto"] | Sequence[float] | np.ndarray | None,
) -> list[float] | None:
    """Return the periods, which must be positive and differ; None if they are to be chosen."""
    if isinstance(seasons, str) and seasons == "auto":
        return None
    array = np.asarray([] if seasons is None else seasons)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(f'seasons must be "auto", None or a list of numbers, got {seasons!r}')
    periods = list(map(float, array))
    check_positive(**{f"seasons[{k}]": period for k, period in enumerate(periods)})
    if len({*periods}) < len(periods):
        raise ValueError(f"seasons must differ, got {periods}")
    return periods


def candidates(periods: Sequence[float], *, coarse: bool = False) -> Candidates:
    """Return the hyperparameters of a bank of models with some seasons, in steps."""
    base = _COARSE if coarse else GRID
    rows = [
        (*row, walk, 0.0)
        for *row, seasons in base
        for walk in (seasons if periods else _STEADY)
        if not coarse or walk not in _FAST  # which would explain what is no season
    ]
    waves = np.tile(harmonics(periods)[:, None], (len(rows), 1))
    if periods:
        # dz = (−γ + iω) z dt + √q dW has the variance q/2γ in the long run.
        damping = _FADING / periods[0]
        rows += [(*row, 2 * damping * size, damping) for *row, size in _CYCLES]
        low = harmonics(periods[:1], _HARMONICS)
        cycle = np.pad(low, ((0, 0), (0, waves.shape[2] - low.shape[1])))
        waves = np.concatenate([waves, np.tile(cycle[:, None], (len(_CYCLES), 1))], axis=1)
    level, slope, fading, swing, rate, walk, damping = np.array(rows).T.copy()
    return Candidates(level, slope, fading, swing, rate, walk, damping, *waves)


def harmonics(periods: Sequence[float], most: int = 6) -> Array:
    """Return angular frequencies, up to half a cycle a step, and shares 1/j², (2, J)."""
    # Months and quarters have some days more or fewer than a step.
    counts = [min(math.floor(1.05 * period / 2), most) for period in periods]
    pairs = [(p, j) for p, J in zip(periods, counts, strict=True) for j in range(1, J + 1)]
    return np.array([(2 * math.pi * j / period, 1 / j**2) for period, j in pairs]).reshape(-1, 2).T


def filter_rows(
    space: StateSpace, rows: Sequence[SeriesRow], ahead: Horizons = NEXT_STEP, step: float = 1.0
) -> tuple[Belief, Array, Horizons]:
    """Return what a bank knows after some rows, the models' log evidence, and their judgement."""
    y = np.array([row.value for row in rows if row.kind != OUTLIER])
    variance, steps = float(y.var()), np.abs(np.diff(y))
    space.width, size = 0.0, float(np.abs(y).max())
    for change in steps.tolist():
        space.width = common_divisor(space.width, change, size)
    # As many rounded values stay as go up by one step; others that stay are those of the sensor.
    moves = steps[steps > _SAME * size]
    steps = steps if (moves < 1.5 * space.width).any() else moves
    noise = max(float(np.median(steps)) ** 2 if len(steps) else 0.0, 1e-4 * variance)
    if space.counts is not None:
        variance /= max(float(y.mean()), 0.1)
        noise = 1.0 if space.counts == "poisson" else max(variance, 1.0)
    belief = space.begin(float(np.median(y[:5])), variance, noise)
    evidence, last, held = np.zeros(len(belief.draws)), rows[0].time, Held()
    for row in rows:
        belief, last = space.advance(belief, row.time - last), row.time
        if row.kind == RESTART:
            belief = space.restart(belief, row.value)
        elif row.kind == REGULAR:
            belief, logs, _, came = space.observe(belief, row.value, held.prior(row.value))
            evidence, held = evidence + logs, held.after(row.value, came)
            ahead = ahead.after(space, belief, row.time, row.value, step)
    return belief, evidence, ahead


def common_divisor(width: float, step: float, size: float) -> float:
    """Return what divides a width, 0 for none yet, and a step of values of some size, by Euclid.

    A remainder of a hundredth is round-off. Of values that are not rounded the divisor is tiny.
    """
    least, left = _SAME * abs(size), abs(math.remainder(step, width) if width else step)
    while max(least, _ROUND_OFF * width) < left < math.inf and not 0.0 < width <= least:
        width, left = left, abs(math.remainder(width, left))
    return width


def next_length(length: float, step: float | None) -> float:
    """Return the next length in steps from which a period of the calendar may be seen."""
    lengths = [float(math.ceil(_REPEATS * p)) for p in _calendar(step) if p >= _SHORTEST]
    return min((due for due in lengths if due > length), default=math.inf)


def _calendar(step: float | None) -> Sequence[float]:
    """Return periods in steps of so many seconds, or those that are common in numbered ones."""
    return _COMMON if step is None else [seconds / step for seconds in CALENDAR]


def suggested_periods(
    rows: Sequence[SeriesRow], step: float | None, chosen: Sequence[float] = ()
) -> list[float]:
    """Return periods in steps that a series may have beside those chosen, the best first.

    Of the calendar, if a step's seconds are given, the autocorrelation of differences, and the
    periodogram; ordered by what harmonics explain, of differences or about a straight line: waves
    that are slow beside the noise have small differences.
    """
    rows = [row for row in rows if row.kind != OUTLIER]
    times, values, _ = np.array(sorted(rows)).reshape(-1, 3).T
    length = int(times[-1] - times[0]) if len(times) else 0
    if length < 2 * _SHORTEST or length > 20 * len(times):
        return []
    grid = np.arange(length + 1.0) + times[0]
    y = np.interp(grid, times, values)
    change = np.diff(y)
    center = float(np.median(change))
    size = float(np.quantile(np.abs(change - center), 0.9)) or float(np.std(change))
    if size == 0.0:
        return []
    change = np.clip(change, center - 3.0 * size, center + 3.0 * size)
    if chosen:
        change = change - _explained(change, np.diff(_waves(len(y), chosen), axis=0))
    y = y[0] + np.concatenate([[0.0], np.cumsum(change)])  # without jumps
    calendar, peaks = _calendar(step), _peaks(change, y, length / _REPEATS)
    periods = [*([] if step is None else calendar), *(_common(peak, length) for peak in peaks)]
    scores, line = list[tuple[float, float]](), y - _explained(y, np.arange(1.0 + length)[:, None])
    for k, period in enumerate(periods):
        others = [*periods[:k], *chosen]
        twice = any(abs(period - other) < 0.03 * other for other in others)
        repeats = _REPEATS if period in calendar else _OTHERS
        if twice or not _SHORTEST <= period <= length / repeats:
            continue
        waves = _waves(len(y), [period])
        # Few harmonics: a cycle whose phase wanders has no others that a sum of waves could follow.
        for some in (waves, waves[:, : 2 * _HARMONICS]):
            of_change, of_line = _score(change, np.diff(some, axis=0)), _score(line, some)
            scores.append((max(of_change, of_line), period))
    suggested = dict.fromkeys(
        period for score, period in sorted(scores, reverse=True) if score > 0.0
    )
    return [*suggested][:_COMPARED]


def _waves(length: int, periods: Sequence[float]) -> Array:
    """Return harmonics at each step, (length, 2J), the slowest first."""
    angles = np.outer(np.arange(length), harmonics(periods)[0])
    return np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(length, -1)


def _explained(values: Array, waves: Array) -> Array:
    """Return what a constant and some waves explain of values."""
    design = np.column_stack([np.ones(len(values)), waves])
    return np.asarray(design @ np.linalg.lstsq(design, values, rcond=None)[0], dtype=np.float64)


def _score(values: Array, waves: Array) -> float:
    """Return Schwarz's criterion of waves, over none, in units of half a nat."""
    total = max(float(((values - values.mean()) ** 2).sum()), 1e-300)
    left = max(float(((values - _explained(values, waves)) ** 2).sum()), 1e-12 * total)
    return len(values) * math.log(total / left) - waves.shape[1] * math.log(len(values))


def _common(period: float, length: int) -> float:
    """Return the common period that a series of this length cannot tell from another."""
    for common in (*_COMMON, float(round(period))):
        if abs(period - common) <= min(0.5 * period**2 / length, 0.08 * period):
            return common
    return period


def _peaks(change: Array, y: Array, longest: float) -> list[float]:
    """Return the period of the highest autocorrelation, and that of the highest power."""
    periods, n = list[float](), len(change)
    power = np.abs(np.fft.rfft(change - change.mean(), 2 * n)) ** 2
    correlation = np.fft.irfft(power)[:n] / np.arange(n, 0, -1.0)
    last = min(int(longest), n - 2)
    lags = np.arange(3, last + 1)
    if len(lags):
        peaks = lags[
            (correlation[lags] >= correlation[lags - 1])
            & (correlation[lags] >= correlation[lags + 1])
        ]
        peaks = peaks[correlation[peaks] > 0.0]
        if len(peaks):
            # The first of those that are about as high: its multiples are no shorter seasons.
            high = peaks[correlation[peaks] >= 0.85 * correlation[peaks].max()]
            periods.append(_vertex(correlation, int(high[0])))
    line = y - np.polyval(np.polyfit(np.arange(len(y)), y, 1), np.arange(len(y)))
    spectrum = np.abs(np.fft.rfft(line * np.hanning(len(y)), 8 * len(y))) ** 2
    first = max(2, math.ceil(8 * len(y) / max(longest, 1.0)))
    final = int(8 * len(y) / _SHORTEST)
    if final > first:
        k = first + int(spectrum[first:final].argmax())
        periods.append(8 * len(y) / _vertex(spectrum, k))
    return periods


def _vertex(values: Array, k: int) -> float:
    """Return where the parabola through three values has its top."""
    if not 0 < k < len(values) - 1:
        return float(k)
    a, b, c = values[k - 1 : k + 2]
    bend = a - 2 * b + c
    return float(k) if bend >= 0 else k + float(0.5 * (a - c) / bend)


def choose_seasons(
    rows: Sequence[SeriesRow],
    step: float | None,
    floor: float,
    counts: str | None,
    current: tuple[float, ...] = (),
) -> tuple[tuple[float, ...], float]:
    """Return the periods of greatest evidence of the latest rows, at most two, and their nats.

    Nats are over none. Those that are chosen already stay where others are not better by some.
    """
    periods, total, rows = tuple[float, ...](), 0.0, rows[-LATEST:]
    while len(periods) < 2:
        others = [(*periods, p) for p in suggested_periods(rows, step, periods)]
        stay = current[: len(periods) + 1]
        new = stay not in (periods, *others) and stay[: len(periods)] == periods
        others += [stay] * new
        if not others:
            break
        base, *scores = _evidence(rows, [periods, *others], floor, counts)
        # What is chosen already need not be chosen again.
        favours = [
            score + _LEAST_NATS * (o == stay) for o, score in zip(others, scores, strict=True)
        ]
        k = int(np.argmax(favours))
        if favours[k] - base < _LEAST_NATS:
            break
        periods, total = others[k], total + scores[k] - base
    return periods, total


def _evidence(
    rows: Sequence[SeriesRow],
    options: Sequence[tuple[float, ...]],
    floor: float,
    counts: str | None,
) -> list[float]:
    """Return the log evidence of some seasons, in one run of all."""
    banks = [candidates(periods, coarse=True) for periods in options]
    J = max(bank.frequencies.shape[1] for bank in banks)
    padded = [
        [c if c.ndim == 1 else np.pad(c, ((0, 0), (0, J - c.shape[1]))) for c in bank]
        for bank in banks
    ]
    columns = [np.concatenate(column) for column in zip(*padded, strict=True)]
    evidence = filter_rows(StateSpace(Candidates._make(columns), floor, counts), rows)[1]
    ends = np.cumsum([len(bank.level) for bank in banks])[:-1]
    return [
        float(np.logaddexp.reduce(models)) - math.log(len(models))
        for models in np.split(evidence, ends)
    ]
