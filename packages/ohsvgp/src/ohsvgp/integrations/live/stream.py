"""A stream that is learned line by line, forecasts, and survives being killed.

A line is ``t,y``: a number or an ISO date, and a number, or nothing (NA, NaN, null) where the value
is missing. A line that cannot be understood is refused in its answer, and does not stop the stream.

The first lines wait and are learned at once: they give the hyperparameters, and the mean and
deviation by which real numbers are standardised. Then each line is learned by itself.

Fits and new starts are decided in ``refitting``, the width of intervals in ``intervals``.

The state is written after the update and before its answer is given: no answer is ever lost.
After a crash the stream goes on with the lines that were not absorbed, or from its beginning, those
absorbed skipped; answers are then those of an uninterrupted run to the last bit.

Not in the papers.
"""

import copy
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch

from ohsvgp.beyond.forecasts import passing_forecast
from ohsvgp.beyond.monitor import Monitor
from ohsvgp.information_loss import InformationLoss, LostInformationWarning
from ohsvgp.integrations.live.intervals import judge_intervals, widened_interval
from ohsvgp.integrations.live.lines import LineReader
from ohsvgp.integrations.live.refitting import (
    LATEST,
    lines_to_restart_from,
    refit_due,
    refit_to_lines,
)
from ohsvgp.integrations.live.state import FORMAT, read_state
from ohsvgp.integrations.live.stream_state import NANOSECONDS, StreamState, as_json, as_times
from ohsvgp.online import OnlineGP
from ohsvgp.stream.calendar import calendar_ahead
from probseq.checks import check_counts, check_positive
from probseq.files import pack_tensors, unpack_tensors, write_atomic

# A window that has grown to a wild stamp never shrinks: all that was learned would lie in one point
# of it. Counted in spans of the stream so far.
_MAX_SPANS = 1e6
# Where there is no span yet: after so many lengthscales, stamps in float64 are no finer than one.
_MAX_LENGTHSCALES = 1e15
# Values whose deviation is less than this share of their size are equal.
_ROUND_OFF = 1e-12


class LiveStream:
    """A model and its place in a stream of lines, kept in a file.

    Args:
        model: times in, one series; it has seen nothing yet. ``rebase="grow:1.05"`` saves it most
            factorisations; without ``refit`` its hyperparameters stay.
        file: of the state; taken up if it is there, else made. None keeps the state in memory.
        settings: of the model, as JSON can hold them; the file refuses others.
        warmup: lines that are learned at once at the beginning; if they are two or more, real
            numbers are standardised by their mean and deviation, hence not before two differ.
        horizon: stamps to forecast after each line.
        step: time between them; if None, as in ``ohsvgp.forecast``.
        separator: between the cells of a line.
        decimal: mark of decimals in numbers, "." or ",".
        widen: whether intervals are widened by their misses so far.

    Raises:
        OSError: the file cannot be read or written.

    Example:
        >>> from ohsvgp import Gaussian, LegS, OnlineGP, Refit
        >>> from ohsvgp.integrations.live import LiveStream
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
        self.model, self.file, self.position, self.monitor = model, file, StreamState(), Monitor()
        self.warmup, self.horizon, self.step = warmup, horizon, step
        self._refit, self._widen, model.refit = model.refit, widen, None
        self._blank = copy.deepcopy(model)
        self._settings = json.loads(json.dumps(dict(settings or {})))
        if (clock := model.clock) is not None:
            self.position.calendar = clock.unit is not None
            self.position.start = clock.origin / (1 if clock.unit is None else NANOSECONDS)
        if file is not None and (state := read_state(file)) is not None:
            self._restore(state, str(file))
        self.save()  # a file that cannot be written is refused before anything is learned

    def follow(
        self, lines: Iterable[str], *, every: int = 1, replay: bool = False
    ) -> Iterator[str]:
        """Read lines to their end, and tell what answers each.

        The state is saved after ``every`` lines. With ``replay`` they begin at the stream's first
        one: those that the state has absorbed are skipped, but the last answer, which a crash may
        have swallowed, comes again.

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

        Returns:
            None if there is nothing in it; else values that JSON can hold: ``line``, its number;
            ``t``; ``y``, None if it is missing; ``error``, its standardised error (of
            ``standard_errors``), None if there was no forecast; ``alerts``: of
            "missing", "drift" (``Monitor``), "lost information" (as ``LostInformationWarning``, at
            the line where it begins), "anew" (the model has started anew) and "extrapolation" (the
            prior forecasts); and ``forecasts`` with ``horizon``, ``t``, ``mean``, ``low`` and
            ``high`` each, ends of the interval of 95 %: none before the first lines are learned. Or
            ``line`` and ``refused``, why it was not learned.
        """
        self.position.lines += 1
        text = line.strip()
        if not text or text.startswith("#"):
            return None
        number: dict[str, Any] = {"line": self.position.lines}
        with warnings.catch_warnings():  # they are among the alerts
            warnings.simplefilter("ignore", LostInformationWarning)
            try:
                return number | self._learn(text)
            except ValueError as error:
                return number | {"refused": str(error)}

    def save(self) -> None:
        """Write the state, all or nothing; nothing without a file."""
        if self.file is None:
            return
        try:
            write_atomic(self.file, self.to_bytes())
        except OSError as error:
            raise OSError(f"{self.file} cannot be written: {error.strerror}") from error

    def to_bytes(self) -> bytes:
        """Return the bytes of the state file, for an engine that keeps states by itself."""
        head = {
            "model": self._settings,
            "position": vars(self.position),
            "monitor": self.monitor.state_dict(),
        }
        return pack_tensors(FORMAT, head, self.model.state_dict())

    def load_bytes(self, state: bytes) -> None:
        """Take over what ``to_bytes`` gave, and forget all else; answers go on to the last bit."""
        self._restore(state, "state")

    def _learn(self, text: str) -> dict[str, Any]:
        """Learn a line that is not empty."""
        cell, stamp, (_, form, zone), value = self._reader.read(text)
        calendar = form != "number"
        state = self.position
        if state.calendar not in (None, calendar):
            kinds = ("numbers", "dates")
            raise ValueError(
                f"stamps must be {kinds[not calendar]} like those before, got {cell!r}"
            )
        if state.form not in (None, form):
            raise ValueError(f"stamps must each be a {state.form} like those before, got {cell!r}")
        self._check_reach(stamp, cell)
        times, error, alerts = as_times([stamp], calendar), None, list[str]()
        was_large = InformationLoss(*state.losses).large
        if value is None:
            alerts.append("missing")
        elif self.model.updates == 0:
            self.model.likelihood.check_targets(torch.tensor([value], dtype=torch.float64))
            self._keep(stamp, value, calendar)
        else:
            target = [(value - state.centre) / state.scale]
            if self.monitor.observe(self.model, times, target):
                alerts.append("drift")
            (error,) = self.monitor.errors
            state.recent = [*state.recent, [stamp, value, error]][-max(2 * self.warmup, LATEST) :]
            state.since += 1
            if self._refit is not None and refit_due(state, self._refit):
                refit_to_lines(self.model, self._refit, state, self._in_stamps(1.0))
            state.losses = [*InformationLoss(*state.losses).after(self.model.update(times, target))]
            judge_intervals(state, stamp, value, 0.25 * (self._step() or 0.0))
            restart = None if self._refit is None else lines_to_restart_from(state, self.warmup)
            if restart is not None:
                alerts.append("anew")
                self._restart_from(restart)
        if InformationLoss(*state.losses).large and not was_large:  # news, and not a state
            alerts.append("lost information")
        state.calendar, state.form, state.zone = calendar, form, zone
        state.observe(stamp)
        forecasts, beyond = self._forecasts()
        if beyond:
            alerts.append("extrapolation")
        t = as_json(stamp, calendar, zone)
        return {"t": t, "y": value, "error": error, "alerts": alerts, "forecasts": forecasts}

    def _keep(self, stamp: float, value: float, calendar: bool) -> None:
        """Keep one of the first lines, and learn them at once when they are enough."""
        state = self.position
        state.first_lines.append([stamp, value])
        if len(state.first_lines) < self.warmup:
            return
        stamps, values = zip(*sorted(state.first_lines), strict=True)
        if self.warmup > 1 and self.model.likelihood.continuous:
            centre, scale = fmean(values), pstdev(values)
            # The oldest of equal values, but for round-off, says no more than the others.
            if not scale > _ROUND_OFF * max(map(abs, values)):
                del state.first_lines[0]
                return
            state.centre, state.scale = centre, scale
        if self.model.clock is None:
            state.start = stamps[0]
        state.recent = [[stamp, value, 0.0] for stamp, value in state.first_lines]
        if self._refit is not None:
            refit_to_lines(self.model, self._refit, state, self._in_stamps(1.0), first=True)
        targets = [(value - state.centre) / state.scale for value in values]
        info = self.model.update(as_times(stamps, calendar), targets)
        state.losses, state.first_lines = [*InformationLoss().after(info)], []

    def _restart_from(self, lines: list[list[float]]) -> None:
        """Forget all but these lines, and learn them as the first ones of a stream."""
        state = self.position
        state.pending, state.reach, state.centre, state.scale = [], [], 0.0, 1.0
        self.model = copy.deepcopy(self._blank)
        *state.first_lines, (stamp, value) = [row[:2] for row in lines]
        state.recent = []
        self._keep(stamp, value, bool(state.calendar))

    def _forecasts(self) -> tuple[list[dict[str, Any]], bool]:
        """Return forecasts, none before stamps have a distance, and whether the prior answers."""
        state, step = self.position, self._step()
        if self.model.updates == 0 or state.last is None or step is None:
            return [], False
        calendar = bool(state.calendar)
        stamps = None
        if calendar and self.step is None:
            stamps = calendar_ahead(state.last, state.gaps, self.horizon, state.zone)
        if stamps is None:
            stamps = [state.last + step * (k + 1) for k in range(self.horizon)]
        ahead = passing_forecast(self.model, self.model.inputs(as_times(stamps, calendar)))
        ends = widened_interval(state, ahead, self.horizon, widen=self._widen)
        rows = zip(*(values.tolist() for values in (ahead.mean, *ends)), strict=True)
        answers: list[dict[str, Any]] = []
        for k, (stamp, row) in enumerate(zip(stamps, rows, strict=True), 1):
            numbers = [state.centre + state.scale * number for number in row]
            named = zip(("mean", "low", "high"), numbers, strict=True)
            answers.append({"horizon": k, "t": as_json(stamp, calendar, state.zone)} | dict(named))
            state.pending.append([k - 1.0, stamp, *numbers[1:]])
        return answers, bool(ahead.beyond.any())

    def _check_reach(self, stamp: float, text: str) -> None:
        """Refuse a stamp before t0, and one that would stretch the window beyond all use."""
        start, last, calendar = self.position.start, self.position.last, self.position.calendar
        if start is None:
            return
        # The clock's t0 in seconds may be off by one digit of float64.
        if stamp < math.nextafter(start, -math.inf):
            raise ValueError(
                f"the stamp must not lie before {as_json(start, bool(calendar))}, got {text!r}:"
                " give the earliest that can come as t0 when the stream begins"
            )
        latest = start if last is None else last
        lengthscale = self._in_stamps(float(self.model.kernel.resolution.detach().max()))
        # A first gap may happen to be tiny; the lengthscale is the other measure of time.
        farthest = _MAX_SPANS * max(latest - start, lengthscale)
        reach = farthest if self.position.gaps else _MAX_LENGTHSCALES * lengthscale
        if stamp - latest > reach:
            unit = " seconds" if calendar else ""
            raise ValueError(
                f"the stamp must lie within {reach:g}{unit} of the latest, "
                f"{as_json(latest, bool(calendar))}, to go by the stream so far, got {text!r}"
            )

    def _in_stamps(self, time: float) -> float:
        """Return a time in the model's unit, as a difference of stamps."""
        if not self.position.calendar:
            return time
        unit = np.timedelta64(1, self.model.time_unit)
        return time * float(unit / np.timedelta64(1, "s"))

    def _step(self) -> float | None:
        if self.step is not None:
            return self._in_stamps(self.step)
        return self.position.step

    def _restore(self, state: bytes, source: str) -> None:
        head, tensors = unpack_tensors(state, FORMAT, source)
        saved, now = head["model"], self._settings
        if saved != now:
            changed = [
                f"{k} {saved.get(k)} instead of {now[k]}" for k in now if saved.get(k) != now[k]
            ]
            raise ValueError(
                f"{source} is the state of another model ({', '.join(changed)}): leave these out, "
                "or name another file"
            )
        try:
            self.model.load_state_dict(tensors)
            self.position = StreamState(**head["position"])
            self.monitor.load_state_dict(head["monitor"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{source} is damaged: {error}") from error
