"""Forecast of a group of a table, for pandas, dask, Ray and Spark alike. Not in the papers."""

from collections.abc import Sequence
from datetime import date
from statistics import median_low
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from ohsvgp.beyond.horizons import Horizons
from ohsvgp.beyond.seasons import SeriesRow, candidates, choose_seasons, filter_rows, fixed_periods
from ohsvgp.beyond.state_space import StateSpace
from ohsvgp.integrations.live.intervals import DEVIATIONS
from ohsvgp.integrations.live.regimes import Regimes, advance, learn
from ohsvgp.stream.calendar import calendar_ahead
from ohsvgp.stream.durations import duration_text
from ohsvgp.stream.spacing import GAPS
from probseq.checks import check_counts

if TYPE_CHECKING:
    import pandas as pd

# Values that a series must have, and their bound, as of live streams; errors that are alarms.
_MIN_VALUES, _LARGEST, _ALARM = 10, 1e100, 3.0
_ANSWER = ("mean", "low", "high", "season", "reason")


def forecast_group(
    group: "pd.DataFrame",
    *,
    time: str,
    target: str,
    horizon: int,
    by: Sequence[str] = (),
    likelihood: Literal["gaussian", "poisson", "negative-binomial"] = "gaussian",
    seasons: Literal["auto"] | Sequence[float] | np.ndarray | None = "auto",
) -> "pd.DataFrame":
    """Return the forecast of one series after its latest stamp.

    Stamps go on in months, quarters, years or business days where the latest ones come so, else in
    steps of the median of their gaps. The model is that of ``LiveStream``: levels, slopes, swings
    and the seasons of greatest evidence, filtered exactly; outliers are not believed.

    Args:
        group: a row an observation, in any order.
        time: column of dates, numbers or periods, which stand for their first moments.
        target: column of numbers; NaN is a missing value.
        horizon: number h of steps.
        by: columns of the group's key, which the answer has too.
        likelihood: of numbers, or of counts.
        seasons: as of ``LiveStream``; periods are in the unit of the stamps, of dates in seconds.

    Returns:
        Columns ``by``, ``time``, "mean", "low", "high" (ends of the interval of 95 %), "season",
        the periods of those that it has, such as "1d 7d", and "reason", h rows. A series that
        cannot be forecast has one row with its latest stamp, NaN and the reason, so that it does
        not stop an engine at the others.
    """
    check_counts(horizon=horizon)
    lengths = fixed_periods(seasons)  # refused before anything is learned
    keys = _columns(group, time, target, by)
    ordered = group.sort_values(time, ignore_index=True)
    y = ordered[target].to_numpy(np.float64, na_value=np.nan)
    stamps, zone = _stamps(cast("pd.Series", ordered[time]))
    reason, season, rows = "", "", np.full((3, 1), np.nan)
    counts = None if likelihood == "gaussian" else likelihood
    try:
        ahead = _stamps_ahead(stamps, horizon)
        rows, season = _forecast(stamps, y, ahead, counts, lengths)
    except ValueError as error:
        ahead, reason = stamps[-1:], str(error)
    answer = ordered.loc[[0] * len(ahead), keys].reset_index(drop=True)
    answer[time] = ahead
    if zone is not None:
        # Of an hour that comes twice the first; one that is left out begins an hour later.
        first, home = np.ones(len(ahead), dtype=bool), ordered[time].dt.tz
        local = answer[time].dt.tz_localize(zone, ambiguous=first, nonexistent="shift_forward")
        answer[time] = local.dt.tz_convert(home)
    return answer.assign(**dict(zip(_ANSWER, (*rows, season, reason), strict=True)))


def _columns(group: "pd.DataFrame", time: str, target: str, by: Sequence[str]) -> list[str]:
    """Return the columns of the key, which the answer's own must leave free."""
    names = [time, *by]
    if isinstance(by, str) or not {*names, target} <= {*group.columns}:
        raise ValueError(f"time, target and the list by must be columns, got {[*names, target]}")
    if len({*names, *_ANSWER}) < len(names) + len(_ANSWER):
        raise ValueError(
            f"time and by must each be another column, and none of {', '.join(_ANSWER)}, which "
            f"the answer has, got {names}: rename them"
        )
    return names[1:]


def _stamps(column: "pd.Series") -> tuple[np.ndarray, Any]:
    """Return numbers, or dates without their zone, and the zone that they are then in."""
    column = column.dt.to_timestamp() if hasattr(column.dtype, "freq") else column  # of periods
    zone = getattr(column.dtype, "tz", None)
    if zone is not None:
        local = column.dt.tz_localize(None)
        # Days and months go on at the same time of the local clock, hours in UTC.
        of_days = (local - local.dt.normalize()).nunique() <= 1
        column, zone = (local, zone) if of_days else (column.dt.tz_convert(None), "UTC")
    stamps = column.to_numpy()
    if stamps.dtype.kind == "M":
        return stamps, zone
    if stamps.dtype.kind == "O" and all(isinstance(stamp, date) for stamp in stamps):
        return stamps.astype("datetime64[us]"), zone
    try:
        return column.to_numpy(np.float64, na_value=np.nan), zone
    except (TypeError, ValueError):
        raise ValueError(f"time must be a column of dates or numbers, got {column.dtype}") from None


def _stamps_ahead(stamps: np.ndarray, horizon: int) -> np.ndarray:
    """Return the stamps after those of a series, which are sorted."""
    if (stamps != stamps).any() or stamps[0] == stamps[-1]:
        raise ValueError("stamps are missing, or all the same")
    latest = np.unique(stamps)[-GAPS - 1 :]
    ahead = stamps[-1] + median_low(np.diff(latest)) * np.arange(1, horizon + 1)
    if stamps.dtype.kind == "M":
        seconds = _numbers(latest) / 1e6
        calendar = calendar_ahead(seconds[-1], np.diff(seconds).tolist(), horizon)
        if calendar is not None:
            ahead = np.array(calendar).round().astype("datetime64[s]").astype(stamps.dtype)
    if not (ahead > np.append(stamps[-1:], ahead[:-1])).all():
        raise ValueError(
            f"{stamps.dtype} must hold {horizon} stamps after {stamps[-1]}, which are beyond it"
        )
    return ahead


def _numbers(stamps: np.ndarray) -> np.ndarray:
    """Return numbers, or microseconds since 1970 of dates of any year: nanoseconds would wrap."""
    return stamps.astype("datetime64[us]").astype(float) if stamps.dtype.kind == "M" else stamps


def _forecast(
    stamps: np.ndarray,
    values: np.ndarray,
    ahead: np.ndarray,
    counts: str | None,
    lengths: Sequence[float] | None,
) -> tuple[np.ndarray, str]:
    """Return mean, low and high at the stamps ahead, and the periods of seasons."""
    observed = ~np.isnan(values)
    y = values[observed]
    if (n := int((np.abs(y) <= _LARGEST).sum())) < max(len(y), _MIN_VALUES):
        raise ValueError(f"values must be at least {_MIN_VALUES}, within ±{_LARGEST:g}, got {n}")
    if counts is not None and ((y < 0) | (y % 1 > 0)).any():
        raise ValueError(f"values must be counts 0, 1, 2, … for {counts}")
    if y.min() == y.max():
        return np.full((3, len(ahead)), y[-1]), ""
    times = _numbers(stamps[observed])
    step = float(median_low(np.diff(np.unique(times))))
    rows = [SeriesRow(t, v) for t, v in zip((times - times[0]) / step, y.tolist(), strict=True)]
    floor = max(float(np.diff(np.unique(y)).min()) ** 2 / 12.0, 1e-100)  # of rounding
    unit = step / 1e6 if stamps.dtype.kind == "M" else None  # in seconds
    if lengths is None:
        periods, _ = choose_seasons(rows, unit, floor, counts)
    else:
        periods = tuple(period / (unit or step) for period in lengths)
        if min(periods, default=2.0) < 2.0:
            raise ValueError(f"seasons must be at least two steps of {unit or step:g}")
    text = duration_text if unit else "{:.6g}".format
    season = " ".join(text(period * (unit or step)) for period in periods)
    space, first = StateSpace(candidates(periods), floor, counts), rows[:_MIN_VALUES]
    judged = Horizons.begin(1 if counts else len(ahead), len(space.candidates.level))
    main, _, judged = filter_rows(space, first, judged)
    state, last = Regimes(main), first[-1].time
    for time, value, _ in rows[_MIN_VALUES:]:
        state = learn(space, advance(space, state, time - last), value, _ALARM)[0]
        judged, last = judged.after(space, state.leader, time, value, 1.0), time
    steps = (_numbers(ahead) - times[-1]) / step
    mean, variance = judged.forecast(space, state.leader, steps.tolist(), 1.0, 0.0)
    return np.stack([mean, *space.interval(mean, variance, DEVIATIONS)]), season
