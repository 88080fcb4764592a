"""A stream that is learned line by line, forecasts, and survives being killed.

A line is ``t,y``: a number or an ISO date, and a number, or nothing (NA, NaN, null) where the value
is missing; another separator and decimal mark can be named. Empty lines and those that begin with #
are passed over; each other line is answered by an object, see ``LiveStream.answer``. One that
cannot be understood, or whose stamp lies before t0 or absurdly far ahead, is refused in its answer:
a stream must not stop at one bad line.

The first lines are kept and learned at once: they give the hyperparameters, and the mean and
deviation by which real numbers are standardised. Then each line is learned by itself, and the
hyperparameters are fitted anew when ``refit`` of the model says so, by the evidence of the latest
hundred lines; after few lines where these have doubled, and where two in a row are very unlikely.

Where half of the lines since one lie beyond 99 % of what the model expects, and there are as many
as it began with, or where the squares of so many are a sixteenth of what it expects, it has no
longer the stream's units: it starts anew from these lines, and forgets those before.

Intervals are widened, horizon by horizon, by what the stream has shown: after each line that an
interval missed its reach grows by a fifth, after each that it held it shrinks by a hundredth, but
not below the model's. This is adaptive conformal inference (Gibbs and Candès 2021) on the logarithm
of the reach: the share of misses tends to 5 %.

The state is written after the update and before its answer is told: what was told is never lost.
After a crash the stream goes on with the lines that were not absorbed, or from its beginning, those
absorbed skipped; answers are then those of an uninterrupted run to the last bit.

Not in the papers.
"""

import copy
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ohsvgp.forecasts import ExtrapolationWarning, Forecast
from ohsvgp.live_state import SCHEMA, checksum, read_facts
from ohsvgp.lost import Losses, LostInformationWarning
from ohsvgp.monitor import Monitor
from ohsvgp.online import OnlineGP
from ohsvgp.prior import fit_prior
from ohsvgp.stream.calendar import calendar_ahead
from ohsvgp.stream.lines import LineReader
from ohsvgp.stream.spacing import StampSpacing
from ohsvgp.tasks import starting_lengthscales
from probseq.checks import check_counts, check_positive
from probseq.errors import CholeskyError
from probseq.files import write_atomic
from probseq.kernels import ARDKernel, Sum, Walk

__all__ = ["LEVEL", "LiveStream", "Position"]

# Probability of the intervals that are told.
LEVEL = 0.95
_NANOSECONDS = 1_000_000_000
# What int64 nanoseconds since 1970 reach, in seconds.
_LAST_SECOND = np.iinfo(np.int64).max // _NANOSECONDS
# A window that has grown to a wild stamp never shrinks: all that was learned would lie in one point
# of it. Counted in spans of the stream so far.
_FARTHEST = 1e6
# Where there is no span yet: after so many lengthscales, stamps in float64 are no finer than one.
_RESOLUTION = 1e15
# Lines that later fits see.
_LATEST = 100
# Values whose deviation is less than this share of their size are equal.
_ROUND_OFF = 1e-12
# Standardised errors beyond it come once in a hundred; a new start takes so many lines at least.
_FAR, _FEWEST = 2.576, 5
# … and this one once in a thousand. Mean squares of twenty that are below it hardly ever come.
_UNLIKELY, _NEAR = 3.291, 0.0625
# Of reaches: steps of their logarithm, and the largest, at which tails are still numbers.
_RATE, _FARTHEST_REACH = 0.2, 4.0


@dataclass
class Position(StampSpacing):
    """How far a stream has come; stamps of dates are in seconds since 1970.

    Attributes:
        lines: lines of input that were read, those passed over too.
        calendar: whether stamps are dates; None before it is known.
        zoned: whether they name their time zone.
        start: t0.
        kept: stamps and values of the first lines, until they are learned.
        centre: subtracted from values before they are learned.
        scale: what they are divided by then.
        losses: of the updates so far, as ``Losses``.
        recent: latest stamps, values and errors.
        fitted: lines that the latest fit saw.
        since: lines since then.
        told: horizon, stamp, low and high end of intervals whose values have not come.
        reach: of the interval of each horizon, in units of the model's.
        answer: the last one that was told.
    """

    lines: int = 0
    calendar: bool | None = None
    zoned: bool | None = None
    start: float | None = None
    kept: list[list[float]] = field(default_factory=list[list[float]])
    centre: float = 0.0
    scale: float = 1.0
    losses: list[Any] = field(default_factory=lambda: list[Any](Losses()))
    recent: list[list[float]] = field(default_factory=list[list[float]])
    fitted: int = 0
    since: int = 0
    told: list[list[float]] = field(default_factory=list[list[float]])
    reach: list[float] = field(default_factory=list[float])
    answer: str = ""

    def observe(self, stamp: float) -> None:
        """Take up a stamp; a late one changes nothing."""
        super().observe(stamp)
        self.start = stamp if self.start is None else self.start


class LiveStream:
    """A model and its place in a stream of lines, kept in a file.

    Args:
        model: times in, one series; it has seen nothing yet. ``rebase="grow:1.05"`` saves it most
            factorisations; without ``refit`` its hyperparameters stay.
        file: of the state; taken up if it is there, else made. None keeps the state in memory.
        settings: what the model is, as JSON can hold it: kept in the file, where other settings
            are refused.
        warmup: lines that are learned at once at the beginning; if they are two or more, real
            numbers are standardised by their mean and deviation, hence not before two differ.
        horizon: stamps to forecast after each line.
        step: time between them; None for months, quarters, years or business days where the latest
            stamps come so, else the median of their gaps.
        separator: between the cells of a line.
        decimal: mark of decimals in numbers, "." or ",".
        widen: whether intervals are widened by what the stream has shown; else they are the
            model's.

    Raises:
        ValueError: a model of points, ``warmup`` or ``horizon`` below 1, ``step`` not above 0, a
            separator that is no mark of its own, or a file that is damaged or belongs to another
            model.
        OSError: the file cannot be read or written.

    Example:
        >>> from ohsvgp import Gaussian, LegS, OnlineGP, Refit
        >>> from ohsvgp.live import LiveStream
        >>> from probseq.kernels import RBF
        >>> model = OnlineGP(RBF(1), Gaussian(0.1), LegS(20), rebase="grow:1.05", refit=Refit())
        >>> stream = LiveStream(model, warmup=3)
        >>> answers = [stream.answer(line) for line in ["0,1.0", "0.5,1.2", "1,0.9", "1.5,"]]
        >>> [len(answer["forecasts"]) for answer in answers], answers[-1]["alerts"][0]
        ([0, 0, 1, 1], 'missing')
    """

    def __init__(
        self,
        model: OnlineGP,
        file: Path | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        warmup: int = 20,
        horizon: int = 1,
        step: float | None = None,
        separator: str = ",",
        decimal: str = ".",
        widen: bool = True,
    ) -> None:
        self._reader = LineReader(separator, decimal)
        if not model.of_time:
            raise ValueError(f"model must be one of times, got points of dim {model.kernel.dim}")
        check_counts(warmup=warmup, horizon=horizon)
        if step is not None:
            check_positive(step=step)
        self.model, self.file, self.position, self.monitor = model, file, Position(), Monitor()
        self.warmup, self.horizon, self.step = warmup, horizon, step
        self._refit, self._widen, model.refit = model.refit, widen, None
        self._blank = copy.deepcopy(model)
        self._settings = json.dumps(dict(settings or {}), sort_keys=True)
        if (clock := model.clock) is not None:
            self.position.calendar = clock.unit is not None
            self.position.start = clock.origin / (1 if clock.unit is None else _NANOSECONDS)
        if file is not None:
            self._take_up(file)
        self.save()  # a file that cannot be written is told before anything is learned

    def follow(
        self, lines: Iterable[str], *, every: int = 1, replay: bool = False
    ) -> Iterator[str]:
        """Read lines to their end, and tell what answers each.

        Args:
            lines: the stream.
            every: lines between two savings of the state.
            replay: lines begin at the stream's first one: skip those that the state has absorbed,
                but tell the last answer again, which a crash may have kept from being told.

        Yields:
            What ``answer`` returns, as JSON in one line.

        Raises:
            OSError: the state cannot be written.
        """
        skip = self.position.lines if replay else 0
        if skip and self.position.answer:
            yield self.position.answer
        unsaved = 0
        for number, line in enumerate(lines, 1):
            if number <= skip:
                continue
            answer = self.answer(line)
            text = json.dumps(answer) if answer else ""
            self.position.answer = text or self.position.answer
            unsaved += 1
            if unsaved == every:
                self.save()
                unsaved = 0
            if text:
                yield text
        if unsaved:
            self.save()

    def answer(self, line: str) -> dict[str, Any] | None:
        """Learn a line and forecast.

        Args:
            line: ``t,y``.

        Returns:
            None if there is nothing in it; else values that JSON can hold: ``line``, its number;
            ``t``; ``y``, None if it is missing; ``error``, its standardised error
            (``ohsvgp.monitor.standard_errors``), None if there was no forecast; ``alerts``: of
            "missing", "drift" (``Monitor``), "lost information" (as ``LostInformationWarning``),
            "anew" (the model has started anew) and "extrapolation" (the prior forecasts); and
            ``forecasts`` with ``horizon``, ``t``, ``mean``, ``low`` and ``high`` each, ends of the
            interval of 95 %: none before the first lines are learned. Or ``line`` and ``refused``,
            why it was not learned.
        """
        self.position.lines += 1
        text = line.strip()
        if not text or text.startswith("#"):
            return None
        told: dict[str, Any] = {"line": self.position.lines}
        with warnings.catch_warnings():  # they are among the alerts
            warnings.simplefilter("ignore", LostInformationWarning)
            warnings.simplefilter("ignore", ExtrapolationWarning)
            try:
                return told | self._take(text)
            except ValueError as error:
                return told | {"refused": str(error)}

    def save(self) -> None:
        """Write the state, all or nothing; nothing without a file."""
        if self.file is None:
            return
        held = {"position": vars(self.position), "monitor": self.monitor.state_dict()}
        position = json.dumps(held)
        facts = {"schema": SCHEMA, "model": self._settings, "position": position}
        facts["sha256"] = checksum(self._settings, position)
        try:
            write_atomic(self.file, save(self.model.state_dict(), metadata=facts))
        except OSError as error:
            raise OSError(f"{self.file} cannot be written: {error.strerror}") from error

    def _take(self, text: str) -> dict[str, Any]:
        """Learn a line that is not empty."""
        cell, stamp, calendar, zoned, value = self._reader.read(text)
        here = self.position
        if here.calendar not in (None, calendar):
            kinds = ("numbers", "dates")
            raise ValueError(
                f"stamps must be {kinds[not calendar]} like those before, got {cell!r}"
            )
        if here.zoned not in (None, zoned):
            raise ValueError(
                f"stamps must {'all' if here.zoned else 'not'} name their time zone like those "
                f"before, got {cell!r}"
            )
        self._check_place(stamp, cell)
        times, error, alerts = _times([stamp], calendar), None, list[str]()
        if value is None:
            alerts.append("missing")
        elif self.model.updates == 0:
            self.model.likelihood.check_targets(torch.tensor([value], dtype=torch.float64))
            self._keep(stamp, value, calendar)
        else:
            target = [(value - here.centre) / here.scale]
            if self.monitor.see(self.model, times, target):
                alerts.append("drift")
            (error,) = self.monitor.errors
            here.recent = [*here.recent, [stamp, value, error]][-max(2 * self.warmup, _LATEST) :]
            if self._due():
                self._fit(here.recent[-_LATEST:])
            losses = Losses(*here.losses).after(self.model.update(times, target))
            here.losses = [*losses._replace(warned=False)]
            if losses.warned:
                alerts.append("lost information")
            self._judge(stamp, value)
            if self._astray():
                alerts.append("anew")
                self._start_anew()
        here.calendar, here.zoned = calendar, zoned
        here.observe(stamp)
        forecasts, beyond = self._forecasts()
        if beyond:
            alerts.append("extrapolation")
        shown = _shown(stamp, calendar)
        return {"t": shown, "y": value, "error": error, "alerts": alerts, "forecasts": forecasts}

    def _keep(self, stamp: float, value: float, calendar: bool) -> None:
        """Keep one of the first lines, and learn them at once when they are enough."""
        here = self.position
        here.kept.append([stamp, value])
        if len(here.kept) < self.warmup:
            return
        stamps, values = zip(*sorted(here.kept), strict=True)
        if self.warmup > 1 and self.model.likelihood.continuous:
            centre, scale = fmean(values), pstdev(values)
            # The oldest of equal values, but for round-off, says no more than the others.
            if not scale > _ROUND_OFF * max(map(abs, values)):
                del here.kept[0]
                return
            here.centre, here.scale = centre, scale
        if self.model.clock is None:
            here.start = stamps[0]
        here.recent = [[stamp, value, 0.0] for stamp, value in here.kept]
        self._fit(here.recent, first=True)
        targets = [(value - here.centre) / here.scale for value in values]
        info = self.model.update(_times(stamps, calendar), targets)
        here.losses, here.kept = [*Losses().after(info)._replace(warned=False)], []

    def _due(self) -> bool:
        """Whether to fit the hyperparameters anew before the latest line is learned."""
        here, refit = self.position, self._refit
        here.since += 1
        far = [abs(error) > _UNLIKELY for *_, error in here.recent[-2:]]
        if refit is None or refit.period is None:
            return refit is not None and refit.when == "drift" and far[-1]
        return here.since >= min(refit.period, here.fitted) or (here.since > 1 and all(far))

    def _fit(self, lines: list[list[float]], *, first: bool = False) -> None:
        """Fit the hyperparameters to lines; at first from several lengthscales, of unknown unit."""
        here, model, refit = self.position, self.model, self._refit
        if refit is None:
            return
        stamps, values, _ = zip(*sorted(lines), strict=True)
        unit, start = self._in_stamps(1.0), here.start or 0.0
        x = (torch.tensor(stamps, dtype=torch.float64) - start) / unit
        y = (torch.tensor(values, dtype=torch.float64) - here.centre) / here.scale
        options: Any = {"steps": refit.steps, "priors": refit.priors, "limited": refit.limited}
        if first:
            options["restarts"] = refit.restarts
            for part in model.kernel.modules():
                if isinstance(part, Walk) and len(x) > 1:
                    part.set_step(x.diff().median())
        priors = [copy.deepcopy((model.kernel, model.likelihood))]
        for lengthscale in starting_lengthscales(x) if first else ():
            kernel, likelihood = copy.deepcopy(priors[0])
            term = kernel.kernels[0] if isinstance(kernel, Sum) else kernel
            if isinstance(term, ARDKernel) and not isinstance(term, Walk):
                with torch.no_grad():
                    term.raw_lengthscale.fill_(math.log(lengthscale))
                priors.append((kernel, likelihood))
        with suppress(CholeskyError):
            best = fit_prior(priors, x, y, seed=model.seed, mean=model.mean, **options)
            for own, fitted in zip((model.kernel, model.likelihood), best, strict=True):
                own.load_state_dict(fitted.state_dict())
        here.fitted, here.since = len(lines), 0

    def _astray(self) -> bool:
        """Whether the latest lines are far out, or all near, and enough to start anew from.

        Half of those since one; or as many as the model began with whose squares are a sixteenth of
        what it expects, as those after a jump that a fit took for the stream's variance.
        """
        here, count = self.position, self.warmup
        rows = here.recent[-2 * count :]
        if count < _FEWEST or self._refit is None or len(rows) < count:
            return False
        errors = [error for *_, error in rows]
        far = [abs(error) > _FAR for error in errors]
        first = len(rows) - count
        # What the model was fitted to are no forecasts, and have no errors.
        calm = all(errors[first:]) and fmean(e * e for e in errors[first:]) < _NEAR
        if not calm:
            # Two at once: one alone may be an outlier of what was before.
            begins = range(first + 1)
            begins = (
                k for k in begins if far[k] and far[k + 1] and 2 * sum(far[k:]) >= len(far) - k
            )
            first = next(begins, None)
        if first is None:
            return False
        here.recent = rows[first:]
        return True

    def _start_anew(self) -> None:
        """Forget all but the latest lines, and learn these as the first ones of a stream."""
        here = self.position
        here.told, here.reach, here.centre, here.scale = [], [], 0.0, 1.0
        self.model = copy.deepcopy(self._blank)
        *here.kept, (stamp, value) = [row[:2] for row in here.recent]
        here.recent = []
        self._keep(stamp, value, bool(here.calendar))

    def _judge(self, stamp: float, value: float) -> None:
        """Widen or narrow the intervals of the horizons that told of a stamp."""
        here, near = self.position, 0.25 * (self._step() or 0.0)
        for k, at, low, high in here.told:
            if abs(at - stamp) <= near:
                missed = not low <= value <= high
                change = math.exp(_RATE * (missed - (1.0 - LEVEL)))
                here.reach[int(k)] = min(max(1.0, here.reach[int(k)] * change), _FARTHEST_REACH)
        here.told = [row for row in here.told if row[1] > stamp + near]

    def _interval(self, law: Forecast) -> tuple[Tensor, Tensor]:
        """Ends of the interval of each horizon, as wide as the stream has shown."""
        here = self.position
        here.reach += [1.0] * (self.horizon - len(here.reach))
        if not self._widen or max(here.reach) == 1.0:
            return law.interval(LEVEL)
        reach = torch.tensor(here.reach[: self.horizon], dtype=torch.float64)
        half = torch.special.ndtri(reach.new_tensor(0.5 * (1.0 - LEVEL)))
        tails = torch.special.ndtr(reach * half)
        ends = law.quantile(torch.cat([tails, 1 - tails])).unflatten(0, (2, -1))
        low, high = ends.diagonal(dim1=-2, dim2=-1)
        return low, high

    def _forecasts(self) -> tuple[list[dict[str, Any]], bool]:
        """Forecasts, none before the distance of stamps is known; and whether the prior answers."""
        here, step = self.position, self._step()
        if self.model.updates == 0 or here.last is None or step is None:
            return [], False
        calendar = bool(here.calendar)
        stamps = None
        if calendar and self.step is None:
            stamps = calendar_ahead(here.last, here.gaps, self.horizon)
        if stamps is None:
            stamps = [here.last + step * (k + 1) for k in range(self.horizon)]
        law = self.model.forecast(_times(stamps, calendar))
        rows = zip(*(part.tolist() for part in (law.mean, *self._interval(law))), strict=True)
        told: list[dict[str, Any]] = []
        for k, (stamp, row) in enumerate(zip(stamps, rows, strict=True), 1):
            numbers = [here.centre + here.scale * number for number in row]
            named = zip(("mean", "low", "high"), numbers, strict=True)
            told.append({"horizon": k, "t": _shown(stamp, calendar)} | dict(named))
            here.told.append([k - 1.0, stamp, *numbers[1:]])
        return told, bool(law.beyond.any())

    def _check_place(self, stamp: float, text: str) -> None:
        """Refuse a stamp before t0, and one that would stretch the window beyond all use."""
        start, last, calendar = self.position.start, self.position.last, self.position.calendar
        if start is None:
            return
        # The clock's t0 in seconds may be off by one digit of float64.
        if stamp < math.nextafter(start, -math.inf):
            raise ValueError(
                f"the stamp must not lie before {_shown(start, bool(calendar))}, got {text!r}:"
                " give the earliest that can come as t0 when the stream begins"
            )
        latest = start if last is None else last
        lengthscale = self._in_stamps(float(self.model.kernel.resolution.detach().max()))
        # A first gap may happen to be tiny; the lengthscale is the other measure of time.
        known = _FARTHEST * max(latest - start, lengthscale)
        reach = known if self.position.gaps else _RESOLUTION * lengthscale
        if stamp - latest > reach:
            unit = " seconds" if calendar else ""
            raise ValueError(
                f"the stamp must lie within {reach:g}{unit} of the latest, "
                f"{_shown(latest, bool(calendar))}, to go by the stream so far, got {text!r}"
            )

    def _in_stamps(self, time: float) -> float:
        """A time in the model's unit, as a difference of stamps."""
        if not self.position.calendar:
            return time
        unit = np.timedelta64(1, self.model.time_unit)
        return time * float(unit / np.timedelta64(1, "s"))

    def _step(self) -> float | None:
        if self.step is not None:
            return self._in_stamps(self.step)
        return self.position.step

    def _take_up(self, path: Path) -> None:
        facts = read_facts(path)
        if facts is None:
            return
        if facts["model"] != self._settings:
            saved, now = json.loads(facts["model"]), json.loads(self._settings)
            changed = [
                f"{k} {saved.get(k)} instead of {now[k]}" for k in now if saved.get(k) != now[k]
            ]
            raise ValueError(
                f"{path} is the state of another model ({', '.join(changed)}): leave these out, "
                "or name another file"
            )
        try:
            self.model.load_state_dict(load_file(path))
            held = json.loads(facts["position"])
            self.position = Position(**held["position"])
            self.monitor.load_state_dict(held["monitor"])
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def _times(stamps: Sequence[float], calendar: bool) -> np.ndarray:
    if not calendar:
        return np.array(stamps)
    if any(abs(stamp) > _LAST_SECOND for stamp in stamps):
        raise ValueError("dates must lie between the years 1678 and 2261")
    return np.array([round(stamp * _NANOSECONDS) for stamp in stamps], dtype="datetime64[ns]")


def _shown(stamp: float, calendar: bool) -> float | str:
    """A stamp as JSON can hold it."""
    if not calendar:
        return stamp
    return str(np.datetime_as_string(np.datetime64(round(stamp), "s")))
