"""A stream that is learned line by line, forecasts, and survives being killed.

A line is ``t,y``: a number or an ISO date, and a number. Empty lines and those that begin with #
are passed over. A line that cannot be understood, or whose stamp lies before t0 or absurdly far
ahead, is named and skipped: a stream must not stop at one bad line. After each other line there is
a forecast, one line ``t,mean,sd`` for each stamp, with the noise of a new value in it.

The state is written after the update and before its forecast is told: what was told is never lost.
After a crash the stream goes on with the lines that were not absorbed, or from its beginning, those
absorbed skipped; forecasts are then those of an uninterrupted run to the last bit.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from ohsvgp.live_state import SCHEMA, read_facts
from ohsvgp.online import OnlineGP
from ohsvgp.stream.clock import parse_stamp
from ohsvgp.stream.pace import Pace
from probseq.checks import check_counts, check_positive, parse_number
from probseq.files import write_atomic

__all__ = ["LiveStream", "Position"]

_NANOSECONDS = 1_000_000_000
# What int64 nanoseconds since 1970 reach, in seconds.
_LAST_SECOND = np.iinfo(np.int64).max // _NANOSECONDS
# A window that has grown to a wild stamp never shrinks: all that was learned would lie in one point
# of it. Counted in spans of the stream so far.
_FARTHEST = 1e6
# Where there is no span yet: after so many lengthscales, stamps in float64 are no finer than one.
_RESOLUTION = 1e15


@dataclass
class Position(Pace):
    """How far a stream has come; stamps of dates are in seconds since 1970.

    Attributes:
        lines: lines of input that were read, those passed over too.
        calendar: whether stamps are dates; None before it is known.
        start: t0.
    """

    lines: int = 0
    calendar: bool | None = None
    start: float | None = None

    def pass_to(self, stamp: float) -> None:
        """Take up a stamp; a late one changes nothing."""
        super().pass_to(stamp)
        self.start = stamp if self.start is None else self.start


class LiveStream:
    """A model and its place in a stream of lines, kept in a file.

    Args:
        model: times in, one series; it has seen nothing yet. ``rebase="grow:1.05"`` saves it most
            factorisations.
        file: of the state; taken up if it is there, else made. None keeps the state in memory.
        settings: what the model is, as JSON can hold it: kept in the file, where other settings
            are refused.
        offset: subtracted from each value and added to each forecast, for a process of mean zero.
        horizon: stamps to forecast after each line.
        step: time between them; None for the median of the latest gaps between stamps.

    Raises:
        ValueError: a model of points, ``horizon`` below 1, ``step`` not above 0, or a file that is
            damaged or belongs to another model.
        OSError: the file cannot be read or written.

    Example:
        >>> from ohsvgp import Gaussian, LegS, OnlineGP
        >>> from ohsvgp.live import LiveStream
        >>> from probseq.kernels import RBF
        >>> model = OnlineGP(RBF(1), Gaussian(0.01), LegS(20), rebase="grow:1.05")
        >>> stream = LiveStream(model)
        >>> forecasts = list(stream.follow(["0,1.0", "0.5,1.2", "1.0,1.1"]))
        >>> [forecast.split(",")[0] for forecast in forecasts]
        ['1.0', '1.5']
    """

    def __init__(
        self,
        model: OnlineGP,
        file: Path | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        offset: float = 0.0,
        horizon: int = 1,
        step: float | None = None,
    ) -> None:
        if not model.of_time:
            raise ValueError(f"model must be one of times, got points of dim {model.kernel.dim}")
        check_counts(horizon=horizon)
        if step is not None:
            check_positive(step=step)
        self.model, self.file, self.position = model, file, Position()
        self.offset, self.horizon, self.step = offset, horizon, step
        self._settings = json.dumps(dict(settings or {}), sort_keys=True)
        if (clock := model.clock) is not None:
            self.position.calendar = clock.unit is not None
            self.position.start = clock.origin / (1 if clock.unit is None else _NANOSECONDS)
        if file is not None:
            self._take_up(file)
        self.save()  # a file that cannot be written is told before anything is learned

    def follow(
        self,
        lines: Iterable[str],
        *,
        complain: Callable[[str], None] | None = None,
        every: int = 1,
        replay: bool = False,
    ) -> Iterator[str]:
        """Read lines to their end, and tell the forecasts after each.

        Args:
            lines: the stream.
            complain: takes a message about each line that cannot be understood.
            every: lines between two savings of the state.
            replay: lines begin at the stream's first one: skip those that the state has absorbed.

        Yields:
            Lines ``t,mean,sd``.

        Raises:
            OSError: the state cannot be written.
        """
        skip = self.position.lines if replay else 0
        unsaved = 0
        for number, line in enumerate(lines, 1):
            if number <= skip:
                continue
            try:
                learned = self.learn(line)
            except ValueError as error:
                learned = False
                if complain is not None:
                    complain(f"line {number} skipped: {error}")
            unsaved += 1
            if unsaved == every:
                self.save()
                unsaved = 0
            if learned:
                yield from self.forecast()
        if unsaved:
            self.save()

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
        stamp, calendar = _seconds(cells[0].strip())
        value = parse_number(cells[1].strip())
        if self.position.calendar not in (None, calendar):
            kinds = ("numbers", "dates")
            raise ValueError(
                f"stamps must be {kinds[not calendar]} like those before, got {cells[0]!r}"
            )
        self._check_place(stamp, cells[0].strip())
        self.model.update(_times([stamp], calendar), [value - self.offset])
        self.position.calendar = calendar
        self.position.pass_to(stamp)
        return True

    def forecast(self) -> list[str]:
        """Lines ``t,mean,sd`` for the next stamps; none before their distance is known."""
        last, step = self.position.last, self._step()
        if last is None or step is None:
            return []
        stamps = [last + step * (k + 1) for k in range(self.horizon)]
        calendar = bool(self.position.calendar)
        found = self.model.predict(_times(stamps, calendar), include_noise=True)
        means = (found.mean + self.offset).tolist()
        deviations = found.variance.clamp(min=0.0).sqrt().tolist()
        shown = [_stamp_text(stamp, calendar) for stamp in stamps]
        return [
            f"{t},{mean!r},{sd!r}" for t, mean, sd in zip(shown, means, deviations, strict=True)
        ]

    def save(self) -> None:
        """Write the state, all or nothing; nothing without a file."""
        if self.file is None:
            return
        facts = {
            "schema": SCHEMA,
            "model": self._settings,
            "position": json.dumps(vars(self.position)),
        }
        try:
            write_atomic(self.file, save(self.model.state_dict(), metadata=facts))
        except OSError as error:
            raise OSError(f"{self.file} cannot be written: {error.strerror}") from error

    def _check_place(self, stamp: float, text: str) -> None:
        """Refuse a stamp before t0, and one that would stretch the window beyond all use."""
        start, last, calendar = self.position.start, self.position.last, self.position.calendar
        if start is None:
            return
        # The clock's t0 in seconds may be off by one digit of float64.
        if stamp < math.nextafter(start, -math.inf):
            raise ValueError(
                f"the stamp must not lie before {_stamp_text(start, bool(calendar))}, got {text!r}:"
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
                f"{_stamp_text(latest, bool(calendar))}, to go by the stream so far, got {text!r}"
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
            self.position = Position(**json.loads(facts["position"]))
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def _seconds(text: str) -> tuple[float, bool]:
    """A number, or a date in seconds since 1970, and whether it is one."""
    stamp, calendar = parse_stamp(text)
    return (stamp / _NANOSECONDS if calendar else stamp), calendar


def _times(stamps: list[float], calendar: bool) -> np.ndarray:
    if not calendar:
        return np.array(stamps)
    if any(abs(stamp) > _LAST_SECOND for stamp in stamps):
        raise ValueError("dates must lie between the years 1678 and 2261")
    return np.array([round(stamp * _NANOSECONDS) for stamp in stamps], dtype="datetime64[ns]")


def _stamp_text(stamp: float, calendar: bool) -> str:
    if not calendar:
        return repr(stamp)
    return str(np.datetime_as_string(np.datetime64(round(stamp), "s")))
