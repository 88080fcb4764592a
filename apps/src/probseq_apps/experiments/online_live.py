"""`probseq online live`: learn a stream line by line, forecast, and survive being killed.

A line is `t,y`: a number or an ISO date, and a number. Empty lines and those that begin with # are
passed over. A line that cannot be understood, or whose stamp lies before t0 or absurdly far ahead,
is named on standard error and skipped: a stream must not stop at one bad line. After each other
line the forecast is printed, one line `t,mean,sd` for each stamp, with the noise of a new value in
it.

The state is written after the update and before its forecast is printed: what was printed is
never lost. After a crash the stream goes on with the lines that were not absorbed, or with
--replay from its beginning; predictions are then those of an uninterrupted run to the last bit.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from ohsvgp import OnlineGP
from probseq_apps.data.series import parse_number, parse_stamp
from probseq_apps.experiments.online_live_settings import (
    LIVE_SCHEMA,
    LiveModel,
    LiveSettings,
    model_facts,
    read_facts,
)
from probseq_apps.experiments.online_methods import make_basis, make_kernel, make_likelihood
from probseq_apps.experiments.online_settings import GPSettings
from probseq_apps.training.files import write_atomic

_REBASE = "grow:1.05"
_NANOSECONDS = 1_000_000_000
# What int64 nanoseconds since 1970 reach, in seconds.
_LAST_SECOND = np.iinfo(np.int64).max // _NANOSECONDS
# A window that has grown to a wild stamp never shrinks: all that was learned would lie in one point
# of it. Counted in spans of the stream so far.
_FARTHEST = 1e6
# Where there is no span yet: after so many lengthscales, stamps in float64 are no finer than one.
_RESOLUTION = 1e15
# Of so many gaps the median is the step: one that stands out, or a few, say nothing.
_GAPS = 9


@dataclass
class Position:
    """How far a stream has come; stamps of dates are in seconds since 1970.

    Attributes:
        lines: lines of input that were read, those passed over too.
        calendar: whether stamps are dates; None before it is known.
        start: t0.
        last: the latest stamp.
        gaps: times between the latest stamps.
    """

    lines: int = 0
    calendar: bool | None = None
    start: float | None = None
    last: float | None = None
    gaps: list[float] = field(default_factory=list[float])

    def pass_to(self, stamp: float) -> None:
        """Take up a stamp; a late one changes nothing."""
        if self.last is not None and stamp > self.last:
            self.gaps = [*self.gaps, stamp - self.last][-_GAPS:]
        self.start = stamp if self.start is None else self.start
        self.last = stamp if self.last is None else max(self.last, stamp)


class LiveStream:
    """A model and its place in a stream.

    Args:
        settings: model and forecast. If the state's file is there, it is taken up, else made.

    Raises:
        ValueError: the file is damaged, or belongs to another model.
        OSError: it cannot be read or written.
    """

    def __init__(self, settings: LiveSettings) -> None:
        self.settings, self.position = settings, Position()
        self._model = build_live_model(settings.model)
        if settings.model.t0 is not None:
            self.position.start, self.position.calendar = parse_stamp(settings.model.t0)
        if settings.state is not None:
            self._take_up(settings.state)
        self.save()  # a file that cannot be written is told before anything is learned

    def learn(self, line: str) -> bool:
        """Read a line; whether there was something to learn in it.

        Raises:
            ValueError: the line cannot be understood, or its stamp lies before t0 or absurdly far
                ahead.
        """
        self.position.lines += 1
        text = line.strip()
        if not text or text.startswith("#"):
            return False
        cells = text.split(",")
        if len(cells) != 2:
            raise ValueError(f"a line must be t,y, got {text!r}")
        stamp, calendar = parse_stamp(cells[0].strip())
        value = parse_number(cells[1].strip())
        if self.position.calendar not in (None, calendar):
            kinds = ("numbers", "dates")
            raise ValueError(
                f"stamps must be {kinds[not calendar]} like those before, got {cells[0]!r}"
            )
        self._check_place(stamp, cells[0].strip())
        self._model.update(_times([stamp], calendar), [value - self.settings.model.offset])
        self.position.calendar = calendar
        self.position.pass_to(stamp)
        return True

    def forecast(self) -> list[str]:
        """Lines `t,mean,sd` for the next stamps; none before their distance is known."""
        last, step = self.position.last, self._step()
        if last is None or step is None:
            return []
        stamps = [last + step * (k + 1) for k in range(self.settings.horizon)]
        calendar = bool(self.position.calendar)
        found = self._model.predict(_times(stamps, calendar), include_noise=True)
        means = (found.mean + self.settings.model.offset).tolist()
        deviations = found.variance.clamp(min=0.0).sqrt().tolist()
        shown = [_stamp_text(stamp, calendar) for stamp in stamps]
        return [
            f"{t},{mean!r},{sd!r}" for t, mean, sd in zip(shown, means, deviations, strict=True)
        ]

    def save(self) -> None:
        """Write the state, all or nothing; nothing if no file was named."""
        if self.settings.state is None:
            return
        facts = {
            "schema": LIVE_SCHEMA,
            "model": model_facts(self.settings.model),
            "position": json.dumps(vars(self.position)),
        }
        content = save(self._model.state_dict(), metadata=facts)
        try:
            write_atomic(self.settings.state, content)
        except OSError as error:
            raise OSError(f"{self.settings.state} cannot be written: {error.strerror}") from error

    def _check_place(self, stamp: float, text: str) -> None:
        """Refuse a stamp before t0, and one that would stretch the window beyond all use."""
        start, last, calendar = self.position.start, self.position.last, self.position.calendar
        if start is not None and stamp < start:
            raise ValueError(
                f"the stamp must not lie before {_stamp_text(start, bool(calendar))}, got {text!r}:"
                " give the earliest that can come as --t0 when the stream begins"
            )
        latest = start if last is None else last
        if start is None or latest is None:
            return
        lengthscale = self._in_stamps(self.settings.model.lengthscale)
        # A first gap may happen to be tiny; the lengthscale is the other measure of time.
        known = _FARTHEST * max(latest - start, lengthscale)
        reach = known if self.position.gaps else _RESOLUTION * lengthscale
        if stamp - latest > reach:
            unit = " seconds" if calendar else ""
            raise ValueError(
                f"the stamp must lie within {reach:g}{unit} of the latest, "
                f"{_stamp_text(latest, bool(calendar))}, to go by the stream so far, got {text!r}"
            )

    def _in_stamps(self, time: float) -> float:
        """A time in the model's unit, as a difference of stamps."""
        if not self.position.calendar:
            return time
        unit = np.timedelta64(1, self.settings.model.time_unit)
        return time * float(unit / np.timedelta64(1, "s"))

    def _step(self) -> float | None:
        if self.settings.step is not None:
            return self._in_stamps(self.settings.step)
        return median_low(self.position.gaps) if self.position.gaps else None

    def _take_up(self, path: Path) -> None:
        facts = read_facts(path)
        if facts is None:
            return
        if facts["model"] != model_facts(self.settings.model):
            saved, now = json.loads(facts["model"]), json.loads(model_facts(self.settings.model))
            changed = [
                f"{k} {saved.get(k)} instead of {now[k]}" for k in now if saved.get(k) != now[k]
            ]
            raise ValueError(
                f"{path} is the state of another model ({', '.join(changed)}): leave these flags "
                "out, or name another file"
            )
        try:
            self._model.load_state_dict(load_file(path))
            self.position = Position(**json.loads(facts["position"]))
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def build_live_model(settings: LiveModel) -> OnlineGP:
    """A model that has seen nothing yet."""
    model = GPSettings(
        num_inducing=settings.num_inducing,
        likelihood=settings.likelihood,
        kernel=settings.kernel,
        hyperparameters="fixed",
        lengthscale=settings.lengthscale,
        outputscale=settings.outputscale,
        noise=settings.noise,
        dispersion=settings.dispersion,
        window=settings.window,
    )
    start = None
    if settings.t0 is not None:
        stamp, calendar = parse_stamp(settings.t0)
        start = _times([stamp], calendar)[0]
    return OnlineGP(
        make_kernel(model, 1),
        make_likelihood(model),
        make_basis(settings.method, model, window=settings.window),
        t0=start,
        rebase=_REBASE,
        time_unit=settings.time_unit,
    )


def live(
    settings: LiveSettings,
    lines: Iterable[str],
    tell: Callable[[str], None],
    complain: Callable[[str], None],
) -> None:
    """Read lines to the end; tell a forecast after each.

    Args:
        settings: model, forecast and state.
        lines: the stream.
        tell: takes the forecasts, line by line.
        complain: takes messages about lines that cannot be understood.

    Raises:
        ValueError: the state's file is damaged, or belongs to another model.
        OSError: a file cannot be read or written.
    """
    torch.set_num_threads(settings.threads)
    stream = LiveStream(settings)
    skip = stream.position.lines if settings.replay else 0
    unsaved = 0
    for number, line in enumerate(lines, 1):
        if number <= skip:
            continue
        try:
            learned = stream.learn(line)
        except ValueError as error:
            complain(f"line {number} skipped: {error}")
            learned = False
        unsaved += 1
        if unsaved == settings.every:
            stream.save()
            unsaved = 0
        if learned:
            for text in stream.forecast():
                tell(text)
    if unsaved:
        stream.save()


def _times(stamps: list[float], calendar: bool) -> Any:
    if not calendar:
        return np.array(stamps)
    if any(abs(stamp) > _LAST_SECOND for stamp in stamps):
        raise ValueError("dates must lie between the years 1678 and 2261")
    return np.array([round(stamp * _NANOSECONDS) for stamp in stamps], dtype="datetime64[ns]")


def _stamp_text(stamp: float, calendar: bool) -> str:
    if not calendar:
        return repr(stamp)
    text = np.datetime_as_string(np.datetime64(round(stamp), "s"))
    return str(text)
