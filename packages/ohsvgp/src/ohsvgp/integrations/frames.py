"""Forecasts of every series in a table, those that share their stamps at once.

Series of one table are independent: what is answered for one doesn't depend on the others, so a
table may be cut between them as an engine likes. Not in the papers.
"""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ohsvgp.bases import Fading
from ohsvgp.beyond.forecasts import passing_forecast
from ohsvgp.beyond.means import Trend
from ohsvgp.information_loss import LostInformationWarning
from ohsvgp.likelihoods import Gaussian
from ohsvgp.online import OnlineGP
from ohsvgp.stream.calendar import calendar_ahead
from ohsvgp.stream.spacing import GAPS
from probseq.checks import check_counts
from probseq.errors import require
from probseq.kernels import RBF, Kernel, Walk
from probseq.linalg import safe_cholesky

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = require("pandas", extra="frames", distribution="ohsvgp")

LEVEL = 0.95
# Values that a series must have, and the latest ones by which a model is chosen.
_MIN_VALUES, _LATEST = 10, 200
# Series in one model: of other likelihoods than the Gaussian each has a matrix M × M.
_BLOCK = 1000
# The squares of larger values are no numbers any more; smaller differences are round-off.
_LARGEST, _ROUND_OFF = 1e100, 1e-12
_NANOSECONDS = 10**9
# Default priors, swings of variance 1 about a level that wanders: lengthscales in steps, variances
# of the noise, and of the level from step to step …
_LENGTHSCALES, _NOISES, _WANDERS = (2.0, 6.0, 20.0, 60.0), (0.03, 0.3, 3.0), (1e-3, 0.1)
# … and a level alone or beside a line: noise by the variance of the level's steps.
_LEVEL_NOISES = (0.03, 1.0, 30.0, 1000.0)
_DEFAULT_INDUCING = 100


class _Ahead(NamedTuple):
    """Forecasts of B series at h stamps, in their units; one reason where there are none."""

    stamps: np.ndarray  # shape (h,)
    rows: np.ndarray  # mean, low and high, shape (3, B, h)
    reason: str = ""  # empty where they were forecast


def forecast_groups(
    frame: pd.DataFrame,
    *,
    by: str | Sequence[str] = (),
    time: str,
    target: str,
    horizon: int,
    model: OnlineGP | Sequence[OnlineGP] | None = None,
) -> pd.DataFrame:
    """Return the forecasts of all series of a table.

    Each series is forecast from its own rows alone, after its latest stamp: in months, quarters,
    years or business days where the latest stamps come so, else in steps of the median of their
    gaps. Series with the same stamps and missing values go through one model at once.

    Real values are standardised by their mean and deviation. Under Gaussian noise the scale that
    maximises the evidence of the latest 200 values, in closed form, takes the deviation's place,
    and of several models each series takes the one of greatest evidence then: hyperparameters are
    chosen from candidates, series by series, and not fitted otherwise.

    Args:
        frame: a row an observation, in any order.
        by: columns that tell the series apart; none if the table is a single one, as
            ``groupby(...).apply`` of pandas and dask hands it over.
        time: column of stamps, dates or numbers.
        target: column of numbers; NaN is a missing value of a known stamp.
        horizon: steps to forecast.
        model: one or several that have seen nothing, without ``refit``, of standardised values;
            they stay as they are. None for 32 with ``Fading(100)``: a level that wanders,
            ``Walk``, beside swings of lengthscales from 2 to 60 steps, a line, or nothing.

    Returns:
        Columns ``by``, ``time``, "mean", "low", "high" (ends of the interval of 95 %) and "reason",
        sorted by series and stamp: ``horizon`` rows a series, whose reason is empty. A series that
        cannot be forecast has one row with its latest stamp, NaN and the reason: fewer than 10
        values, infinite ones, missing stamps, values that the likelihood doesn't have. One whose
        values are all equal has them as its forecasts, an interval without width and a reason.

    Raises:
        ValueError: no such columns, stamps or targets of another kind, ``horizon`` below 1, or a
            model of points, that has learned, has ``refit``, or is one of several without Gaussian
            noise.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from ohsvgp.integrations.frames import forecast_groups
        >>> t = np.arange(50.0)
        >>> table = pd.DataFrame({"sensor": ["a"] * 50, "t": t, "y": np.sin(t / 5)})
        >>> ahead = forecast_groups(table, by="sensor", time="t", target="y", horizon=2)
        >>> ahead.shape, bool(abs(ahead["mean"][0] - np.sin(50 / 5)) < 0.1)
        ((2, 6), True)
    """
    keys = [by] if isinstance(by, str) else list(by)
    for name in (*keys, time, target):
        if name not in frame.columns:
            raise ValueError(f"frame must have a column {name!r}, got {list(frame.columns)}")
    check_counts(horizon=horizon)
    models = [model] if isinstance(model, OnlineGP) else model
    _check_models(models)
    stamps, values = _stamps(frame[time], time), _values(frame[target], target)
    counts = bool(models) and not models[0].likelihood.continuous
    codes = np.zeros(len(frame), dtype=np.int64)
    if keys:
        codes = frame.groupby(keys, sort=True, dropna=False).ngroup().to_numpy()
    order = np.lexsort((stamps, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    series = np.split(order, starts[1:]) if len(frame) else []
    answers: dict[int, tuple[_Ahead, int]] = {}
    together = defaultdict[tuple[bytes, bytes], list[int]](list)
    for index, rows in enumerate(series):
        t, y = stamps[rows], values[rows]
        if reason := _refusal(t, y):
            answers[index] = _nothing(t, reason), 0
        elif not counts and np.nanmax(y) - np.nanmin(y) <= _ROUND_OFF * np.nanmax(np.abs(y)):
            level = np.full((3, 1, horizon), y[~np.isnan(y)][-1])
            answers[index] = _Ahead(_next(t, horizon), level, "all values are equal"), 0
        else:
            together[t.tobytes(), np.isnan(y).tobytes()].append(index)
    for indices in together.values():
        t = stamps[series[indices[0]]]
        for first in range(0, len(indices), _BLOCK):
            block = indices[first : first + _BLOCK]
            y = values[np.stack([series[index] for index in block])]
            answers |= _answers(models, t, y, block, horizon)
    ordered = [answers[index] for index in range(len(series))]
    repeats = [len(ahead.stamps) for ahead, _ in ordered]
    labels = frame[keys].iloc[order[starts]].loc[:, keys]
    result = labels.iloc[np.repeat(np.arange(len(series)), repeats)].reset_index(drop=True)
    ahead = np.concatenate([stamps[:0], *(ahead.stamps for ahead, _ in ordered)])
    zone = getattr(frame[time].dtype, "tz", None)
    result[time] = ahead if zone is None else pd.DatetimeIndex(ahead, tz="UTC").tz_convert(zone)
    rows = np.concatenate(
        [np.empty((3, 0)), *(ahead.rows[:, place] for ahead, place in ordered)], 1
    )
    result["mean"], result["low"], result["high"] = rows
    reasons = np.array([ahead.reason for ahead, _ in ordered], dtype=object)
    result["reason"] = np.repeat(reasons, repeats).astype(str)
    return result


def _answers(
    models: Sequence[OnlineGP] | None,
    stamps: np.ndarray,
    values: np.ndarray,
    block: Sequence[int],
    horizon: int,
) -> dict[int, tuple[_Ahead, int]]:
    """Return the forecasts of series that share their stamps and gaps, and the place of each.

    Stamps are sorted; values are NaN at the same stamps; the block has B numbers of series.
    """
    try:
        ahead = _forecast(models or _default_models(stamps), stamps, values, horizon)
    except ValueError as error:
        if len(block) == 1:
            return {block[0]: (_nothing(stamps, str(error)), 0)}
        # One of them is at fault.
        alone: dict[int, tuple[_Ahead, int]] = {}
        for index, row in zip(block, values, strict=True):
            alone |= _answers(models, stamps, row[None], [index], horizon)
        return alone
    return {index: (ahead, place) for place, index in enumerate(block)}


def _forecast(
    models: Sequence[OnlineGP], stamps: np.ndarray, values: np.ndarray, horizon: int
) -> _Ahead:
    """Learn and forecast series by the model of greatest evidence of each."""
    seen = ~np.isnan(values[0])
    y = torch.from_numpy(values)
    count = len(y)
    centre, scale = y.new_zeros(count, 1), y.new_ones(count, 1)
    chosen = torch.zeros(count, dtype=torch.long)
    if models[0].likelihood.continuous:
        centre = y[:, seen].mean(-1, keepdim=True)
        scale = y[:, seen].std(-1, correction=0, keepdim=True)
    y = (y - centre) / scale
    if isinstance(models[0].likelihood, Gaussian):
        latest = np.flatnonzero(seen)[-_LATEST:]
        pairs = [_evidence(model, model.inputs(stamps)[latest], y[:, latest]) for model in models]
        evidence, square = map(torch.stack, zip(*pairs, strict=True))
        chosen = evidence.argmax(0)
        size = square.gather(0, chosen[None])[0, :, None].sqrt()
        y, scale = y / size, scale * size
    after = _next(stamps, horizon)
    rows = y.new_empty(3, count, horizon)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LostInformationWarning)
        for index in chosen.unique().tolist():
            members = chosen == index
            mask = None if seen.all() else seen
            gp = models[index].updated(stamps, y[members], mask=mask, missing="raise")
            ahead = passing_forecast(gp, gp.inputs(after))
            standard = torch.stack([ahead.mean, *ahead.interval(LEVEL)]).double()
            rows[:, members] = centre[members] + scale[members] * standard
    return _Ahead(after, rows.numpy())


def _evidence(model: OnlineGP, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log evidence of each series at its best scale s², but for a constant, and s².

    N(y; 0, s²K), K with the noise, is greatest at s² = yᵀK⁻¹y/n: −½ (n log s² + log|K|).

    Args:
        model: gives K.
        x: inputs, shape (n, 1).
        y: targets, shape (B, n).
    """
    with torch.no_grad():
        noise = cast("Gaussian", model.likelihood).noise
        K = model.process.prior(x, x) + torch.diag_embed(noise.expand(len(x)))
        L = safe_cholesky(K, jitter=torch.finfo(K.dtype).eps, max_tries=8)
        square = torch.linalg.solve_triangular(L, y.mT, upper=False).square().mean(0)
        log_root = L.diagonal().log().sum()  # ½ log|K|
    return -0.5 * len(x) * square.log() - log_root, square


def _default_models(stamps: np.ndarray) -> list[OnlineGP]:
    """Return the candidates of ``forecast_groups`` for series with these stamps."""
    step = float(median_low(_gaps(stamps)))
    if stamps.dtype.kind == "M":
        step /= np.timedelta64(1, "D") / np.timedelta64(1, "ns")

    def model(kernel: Kernel, noise: float, mean: Trend | None = None) -> OnlineGP:
        return OnlineGP(kernel, Gaussian(noise), Fading(_DEFAULT_INDUCING), mean=mean)

    def wander(variance: float) -> Walk:  # of a step; see ``Walk``
        return Walk(step=step, outputscale=500 * variance)

    swings = [
        model(RBF(1, lengthscale=length * step) + wander(variance), noise)
        for length in _LENGTHSCALES
        for variance in _WANDERS
        for noise in _NOISES
    ]
    trend = Trend(level=100.0, slope=1.0 / step)
    return swings + [
        model(wander(1.0), noise, mean) for noise in _LEVEL_NOISES for mean in (None, trend)
    ]


def _check_models(models: Sequence[OnlineGP] | None) -> None:
    if models is not None and not len(models):
        raise ValueError("model must be one or several, got none")
    for one in models or ():
        if not one.of_time or one.updates or one.refit is not None:
            raise ValueError(
                "model must be of times, without data and without refit, got one of dim "
                f"{one.kernel.dim} with {one.updates} updates and refit {one.refit}"
            )
        if len(models or ()) > 1 and not isinstance(one.likelihood, Gaussian):
            raise ValueError(
                "model must be a single one unless all have Gaussian noise, got "
                f"{type(one.likelihood).__name__} among several"
            )


def _stamps(column: Any, name: str) -> np.ndarray:
    """Return stamps as ``datetime64[ns]``, of dates with a zone in UTC, or as float64."""
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if column.dtype.kind == "M":
        return column.to_numpy("datetime64[ns]")
    return _values(column, name, "dates or numbers (pandas.to_datetime makes dates of texts)")


def _values(column: Any, name: str, wanted: str = "numbers") -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(column.dtype):
        raise ValueError(f"column {name!r} must hold {wanted}, got {column.dtype}")
    return column.to_numpy(np.float64, na_value=np.nan)


def _numbers(stamps: np.ndarray) -> np.ndarray:
    """Return stamps as numbers: of dates, whole nanoseconds since 1970."""
    return stamps.view(np.int64) if stamps.dtype.kind == "M" else stamps


def _refusal(stamps: np.ndarray, values: np.ndarray) -> str:
    """Return why a series cannot be forecast; empty if it may be."""
    count = int((~np.isnan(values)).sum())
    if stamps[-1] != stamps[-1]:  # NaN and NaT come last
        return "stamps are missing"
    if count < _MIN_VALUES:
        return f"{count} values are too few: {_MIN_VALUES} are needed"
    if not np.nanmax(np.abs(values)) <= _LARGEST:
        return f"values must lie within ±{_LARGEST:g}"
    if not np.isfinite(_numbers(stamps)).all():
        return "stamps must be finite"
    return "" if stamps[0] < stamps[-1] else "all stamps are the same"


def _nothing(stamps: np.ndarray, reason: str) -> _Ahead:
    """Return the one row of a series that is not forecast."""
    known = stamps[stamps == stamps][-1:]
    latest = known if len(known) else stamps[:1]
    return _Ahead(latest, np.full((3, 1, 1), np.nan), reason)


def _next(stamps: np.ndarray, horizon: int) -> np.ndarray:
    """Return the stamps after those of a series, which are sorted."""
    last, gaps = _numbers(stamps)[-1], _gaps(stamps)
    if stamps.dtype.kind == "M":
        seconds = [gap / _NANOSECONDS for gap in gaps]
        ahead = calendar_ahead(last / _NANOSECONDS, seconds, horizon)
        if ahead is not None:
            return np.array(ahead).round().astype("datetime64[s]").astype(stamps.dtype)
    return (last + median_low(gaps) * np.arange(1, horizon + 1)).astype(stamps.dtype)


def _gaps(stamps: np.ndarray) -> list[Any]:
    """Return the latest gaps between stamps that differ, of which two do."""
    return np.diff(np.unique(_numbers(stamps))[-GAPS - 1 :]).tolist()
