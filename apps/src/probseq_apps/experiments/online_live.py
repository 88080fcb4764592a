"""`probseq online live`: learn a stream line by line, forecast, and survive being killed.

A line is `t,y`: a number or an ISO date, and a number. Empty lines and those that begin with # are
passed over. A line that cannot be understood, or whose stamp lies before the first one, is named
on standard error and skipped: a stream must not stop at one bad line. After each other line the
forecast is printed, one line `t,mean,sd` for each stamp, with the noise of a new value in it.

The state is written after the update and before its forecast is printed: what was printed is
never lost. After a crash the stream goes on with the lines that were not absorbed, or with
--replay from its beginning; predictions are then those of an uninterrupted run to the last bit.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
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


@dataclass
class Position:
    """How far a stream has come; stamps of dates are in seconds since 1970.

    Attributes:
        lines: lines of input that were read, those passed over too.
        calendar: whether stamps are dates; None before the first.
        last: the latest stamp.
        gap: time between the two latest stamps; None before there are two.
    """

    lines: int = 0
    calendar: bool | None = None
    last: float | None = None
    gap: float | None = None

    def pass_to(self, stamp: float) -> None:
        """Take up a stamp; a late one changes nothing."""
        if self.last is not None and stamp > self.last:
            self.gap = stamp - self.last
        self.last = stamp if self.last is None else max(self.last, stamp)


class LiveStream:
    """A model and its place in a stream.

    Args:
        settings: model and forecast. If the state's file is there, it is taken up.

    Raises:
        ValueError: the file is damaged, or belongs to another model.
        OSError: it cannot be read.
    """

    def __init__(self, settings: LiveSettings) -> None:
        self.settings, self.position = settings, Position()
        self._model = build_live_model(settings.model)
        if settings.state is not None and settings.state.exists():
            self._take_up(settings.state)

    def learn(self, line: str) -> bool:
        """Read a line; whether there was something to learn in it.

        Raises:
            ValueError: the line cannot be understood, or its stamp lies before the first.
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
        write_atomic(self.settings.state, save(self._model.state_dict(), metadata=facts))

    def _step(self) -> float | None:
        step = self.settings.step
        if step is None or not self.position.calendar:
            return self.position.gap if step is None else step
        return step * float(
            np.timedelta64(1, self.settings.model.time_unit) / np.timedelta64(1, "s")
        )

    def _take_up(self, path: Path) -> None:
        facts = read_facts(path)
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
        except (SafetensorError, KeyError, TypeError) as error:
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
    return OnlineGP(
        make_kernel(model, 1),
        make_likelihood(model),
        make_basis(settings.method, model, window=settings.window),
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
        return torch.tensor(stamps, dtype=torch.float64)
    return np.array([round(stamp * _NANOSECONDS) for stamp in stamps], dtype="datetime64[ns]")


def _stamp_text(stamp: float, calendar: bool) -> str:
    if not calendar:
        return repr(stamp)
    text = np.datetime_as_string(np.datetime64(round(stamp), "s"))
    return str(text)
