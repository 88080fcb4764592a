"""Forecast of a group of a table, for pandas, dask, Ray and Spark alike. Not in the papers."""

import warnings
from collections.abc import Sequence
from datetime import date
from statistics import median_low
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from ohsvgp.bases import Fading
from ohsvgp.beyond.forecasts import passing_forecast
from ohsvgp.beyond.means import Trend
from ohsvgp.information_loss import LostInformationWarning
from ohsvgp.likelihoods import Gaussian
from ohsvgp.mismatch import PriorMismatchWarning
from ohsvgp.online import OnlineGP
from ohsvgp.stream.calendar import calendar_ahead
from ohsvgp.stream.spacing import GAPS
from probseq.checks import check_counts
from probseq.kernels import RBF, Kernel, Walk
from probseq.linalg import safe_cholesky

if TYPE_CHECKING:
    import pandas as pd

# Values that a series must have, and the latest ones by which a model is chosen.
_MIN_VALUES, _LATEST = 10, 200
_ANSWER = ("mean", "low", "high", "reason")
# Default priors of standardised values: lengthscales in steps, variances of the noise and of the
# level from step to step; and noise over the level's steps, of a level without swings.
_LENGTHSCALES, _NOISES, _WANDERS = (2.0, 6.0, 20.0, 60.0), (0.03, 0.3, 3.0), (1e-3, 0.1)
_LEVEL_NOISES = (0.03, 1.0, 30.0, 1000.0)


def forecast_group(
    group: "pd.DataFrame",
    *,
    time: str,
    target: str,
    horizon: int,
    by: Sequence[str] = (),
    models: Sequence[OnlineGP] = (),
) -> "pd.DataFrame":
    """Return the forecast of one series after its latest stamp.

    Stamps go on in months, quarters, years or business days where the latest ones come so, else in
    steps of the median of their gaps. Values are standardised by their mean and, under Gaussian
    noise, by the scale of greatest evidence, in closed form; hyperparameters are those of the model
    of greatest evidence of the latest 200 values.

    Args:
        group: a row an observation, in any order.
        time: column of dates or numbers.
        target: column of numbers; NaN is a missing value.
        horizon: number h of steps.
        by: columns of the group's key, which the answer has too.
        models: of standardised values, with Gaussian noise, or a single one; they have learned
            nothing, and stay so. Without, 32 with ``Fading(100)``: a level that wanders, ``Walk``,
            beside swings of 2 to 60 steps, a line, or nothing.

    Returns:
        Columns ``by``, ``time``, "mean", "low", "high" (ends of the interval of 95 %) and "reason",
        h rows. A series that cannot be forecast has one row with its latest stamp, NaN and the
        reason, so that it does not stop an engine at the others.
    """
    check_counts(horizon=horizon)
    keys = _columns(group, time, target, by)
    ordered = group.sort_values(time, ignore_index=True)
    y = ordered[target].to_numpy(np.float64, na_value=np.nan)
    stamps, zone = _stamps(cast("pd.Series", ordered[time]))
    reason, rows = "", np.full((3, 1), np.nan)
    try:
        ahead = _stamps_ahead(stamps, horizon)
        rows = _forecast(stamps, y, ahead, models)
    except ValueError as error:
        ahead, reason = stamps[-1:], str(error)
    answer = ordered.loc[[0] * len(ahead), keys].reset_index(drop=True)
    answer[time] = ahead
    if zone is not None:
        # Of an hour that comes twice the first; one that is left out begins an hour later.
        first, home = np.ones(len(ahead), dtype=bool), ordered[time].dt.tz
        local = answer[time].dt.tz_localize(zone, ambiguous=first, nonexistent="shift_forward")
        answer[time] = local.dt.tz_convert(home)
    return answer.assign(mean=rows[0], low=rows[1], high=rows[2], reason=reason)


def _columns(group: "pd.DataFrame", time: str, target: str, by: Sequence[str]) -> list[str]:
    """Return the columns of the key, which the answer's own must leave free."""
    if isinstance(by, str):
        raise ValueError(f"by must be a list of columns, got {by!r}")
    names = [time, *by]
    if missing := [name for name in (*names, target) if name not in group.columns]:
        raise ValueError(f"time, target and by must be columns of the table, got {missing}")
    if len(set(names) | set(_ANSWER)) < len(names) + len(_ANSWER):
        raise ValueError(
            f"time and by must each be another column, and none of {', '.join(_ANSWER)}, which "
            f"the answer has, got {names}: rename them"
        )
    return names[1:]


def _stamps(column: "pd.Series") -> tuple[np.ndarray, Any]:
    """Return numbers, or dates without their zone, and the zone that they are then in."""
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
        seconds = _elapsed(latest, np.datetime64(0, "s"), "s")
        calendar = calendar_ahead(seconds[-1], np.diff(seconds).tolist(), horizon)
        if calendar is not None:
            ahead = np.array(calendar).round().astype("datetime64[s]").astype(stamps.dtype)
    if not (ahead > np.append(stamps[-1:], ahead[:-1])).all():
        raise ValueError(
            f"{stamps.dtype} must hold {horizon} stamps after {stamps[-1]}, which are beyond it"
        )
    return ahead


def _elapsed(stamps: np.ndarray, start: np.datetime64, unit: str) -> np.ndarray:
    """Return the time since a start, in a unit of numpy's, of any dates: nanoseconds would wrap."""
    whole = stamps.astype("datetime64[s]")
    length = np.timedelta64(1, unit)
    return (whole - start.astype("datetime64[s]")) / length + (stamps - whole) / length


def _forecast(
    stamps: np.ndarray, values: np.ndarray, ahead: np.ndarray, models: Sequence[OnlineGP]
) -> np.ndarray:
    """Return mean, low and high at the stamps ahead, by the model of greatest evidence."""
    observed = ~np.isnan(values)
    y = torch.from_numpy(values[observed])
    if len(y) < _MIN_VALUES or not y.isfinite().all():
        raise ValueError(f"values must be finite, and at least {_MIN_VALUES}, got {len(y)}")
    models = models or _default_models(stamps)
    model, centre, scale = models[0], y.new_zeros(()), y.new_ones(())
    if model.likelihood.continuous:
        centre, scale = y.mean(), y.std(correction=0)
        if not scale > torch.finfo(y.dtype).eps * len(y) * y.abs().max():
            return np.full((3, len(ahead)), float(y[-1]))
    y = (y - centre) / scale
    if stamps.dtype.kind == "M" and model.clock is None:
        # Of dates outside the years that a clock counts in nanoseconds, too.
        start = stamps[observed][0]
        stamps, ahead = (_elapsed(each, start, model.time_unit) for each in (stamps, ahead))
    if isinstance(model.likelihood, Gaussian):
        x = model.inputs(stamps[observed])
        scored = [(*_evidence(each, x[-_LATEST:], y[-_LATEST:]), each) for each in models]
        _, size, model = max(scored, key=lambda score: score[0])
        y, scale = y / size, scale * size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LostInformationWarning)
        warnings.simplefilter("ignore", PriorMismatchWarning)  # values are standardised
        gp = model.updated(stamps[observed], y)
    predicted = passing_forecast(gp, gp.inputs(ahead))
    standard = torch.stack([predicted.mean, *predicted.interval(0.95)]).double()
    return (centre + scale * standard).numpy()


def _evidence(model: OnlineGP, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the log evidence of targets at their best scale s, but for a constant, and s.

    N(y; 0, s²K), K with the noise, is greatest at s² = yᵀK⁻¹y/n: −½ (n log s² + log|K|).
    """
    with torch.no_grad():
        noise = cast("Gaussian", model.likelihood).noise
        K = model.process.prior(x, x) + torch.diag_embed(noise.expand(len(x)))
        L = safe_cholesky(K, jitter=torch.finfo(K.dtype).eps, max_tries=8)
        square = torch.linalg.solve_triangular(L, y[:, None], upper=False).square().mean()
        log_root = L.diagonal().log().sum()  # ½ log|K|
    return float(-0.5 * len(x) * square.log() - log_root), float(square.sqrt())


def _default_models(stamps: np.ndarray) -> list[OnlineGP]:
    """Return the candidates for series with these stamps."""
    step = median_low(np.diff(np.unique(stamps)[-GAPS - 1 :]))
    step = float(step / np.timedelta64(1, "D") if stamps.dtype.kind == "M" else step)

    def model(kernel: Kernel, noise: float, mean: Trend | None = None) -> OnlineGP:
        return OnlineGP(kernel, Gaussian(noise), Fading(100), mean=mean)

    def wander(variance: float) -> Walk:  # of a step; see ``Walk``
        return Walk(step=step, outputscale=500 * variance)

    swings = [
        model(RBF(1, lengthscale=length * step) + wander(variance), noise)
        for length in _LENGTHSCALES
        for variance in _WANDERS
        for noise in _NOISES
    ]
    means = (None, Trend(level=100.0, slope=1.0 / step))
    return swings + [model(wander(1.0), noise, mean) for noise in _LEVEL_NOISES for mean in means]
