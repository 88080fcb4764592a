"""Output of a run: its loss, which must be finite, `metrics.jsonl`, progress bars and lines."""

import io
import json
import math
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from probseq.files import DamagedFileError, named, sha256, write_atomic
from probseq_apps.engine import distributed
from probseq_apps.engine.files import METRICS, read_finished
from probseq_apps.engine.trackers import Tracker

_LINE_SECONDS = 60.0
quiet = False  # set by `run` for --quiet
started = time.perf_counter()  # set anew by each command, before it imports torch
_jobs: "JobsBar | None" = None  # the bar over all jobs, while there is one


class NonFiniteLossError(FloatingPointError):
    """The loss became NaN or infinite; the message names the step and the terms of the loss."""


class LossMonitor:
    """Collects losses on their device and checks every so many steps that they are finite.

    Reading a number waits for a CUDA device, so there losses of several steps are read together; on
    the CPU each is read at once, before it can spoil the weights. `latest` has the loss and terms
    of the last step that was read.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._unchecked: list[tuple[int, int, Tensor]] = []
        self._names: list[str] = []
        self._sums: dict[str, float] = {}
        self._count = 0
        self.latest: dict[str, float] = {}

    def add(self, step: int, loss: Tensor, terms: Mapping[str, Tensor], *, size: int) -> bool:
        """Record a step's loss and its terms; return whether losses were checked now.

        The loss is a mean over the global batch of `size` examples, or this rank's part of it.
        """
        names = ["loss", *terms]
        if "loss" in terms or names != (self._names or names):
            raise ValueError(
                "loss must return the same parts at each step, and none named 'loss', "
                f"{self._names[1:]}, got {names[1:]}"
            )
        self._names = names
        values = torch.stack([value.detach().float() for value in (loss, *terms.values())])
        self._unchecked.append((step, size, values))
        if due := len(self._unchecked) >= self._every:
            self.flush()
        return due

    def flush(self) -> None:
        """Read all losses recorded so far; raise at the first that is not finite."""
        if not self._unchecked:
            return
        rows = distributed.total(torch.stack([values for *_, values in self._unchecked])).tolist()
        unchecked, self._unchecked = self._unchecked, []
        for (step, size, _), row in zip(unchecked, rows, strict=True):
            self.latest = dict(zip(self._names, row, strict=True))
            if not math.isfinite(row[0]):
                listed = ", ".join(f"{name}={value:g}" for name, value in self.latest.items())
                raise NonFiniteLossError(
                    f"the loss is not finite at step {step}: {listed}; "
                    "look at the data, lower learning_rate or set grad_clip"
                )
            self._count += size
            for name, value in self.latest.items():
                self._sums[name] = self._sums.get(name, 0.0) + size * value

    def take_means(self) -> dict[str, float]:
        """Return means per example since the last call, over complete steps."""
        self.flush()
        means = {name: value / self._count for name, value in self._sums.items()}
        self._sums, self._count = {}, 0
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return the running sums, to resume in the middle of an epoch."""
        self.flush()
        return {"sums": self._sums, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._sums, self._count = dict(state["sums"]), state["count"]


class MetricsLog:
    """`metrics.jsonl`: one JSON object a line, appended and flushed at once.

    Rows of later steps than `step` are dropped: they were written after the checkpoint, and come
    again.
    """

    def __init__(self, path: Path, *, step: int) -> None:
        self._path = path / METRICS
        rows = [row for row in read_metrics(path) if row["step"] <= step]
        write_atomic(self._path, "".join(json.dumps(row) + "\n" for row in rows))
        self._tracker = Tracker(path)
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it must hold `step`."""
        with named(self._path):
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()
        self._tracker.log(row)

    def close(self) -> None:
        """Close the file."""
        self._tracker.close()
        with suppress(OSError):  # a row that a full disk did not take was reported before
            self._file.close()


def in_minutes(seconds: float) -> str:
    """Return a time in words, one minute at least."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes:,} minute{'' if minutes == 1 else 's'}"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's log; a last line that a crash cut short is left out."""
    file, rows = path / METRICS, list[dict[str, Any]]()
    if not file.exists():
        return rows
    finished = read_finished(path) or {}
    if METRICS in finished and finished[METRICS] != {"sha256": sha256(file)}:
        raise DamagedFileError(f"{file} does not hold what was written: copy it again")
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
                rows.append({"step": int(row["step"]), **row})
            except (ValueError, TypeError, KeyError) as error:
                raise DamagedFileError(
                    f"{file} is damaged in line {number}: delete this line, which only curves need"
                ) from error
    return rows


class _Lines(io.TextIOBase):
    """Standard error for a bar, as a line a minute, or the end of that of the bar over all jobs."""

    def __init__(self, jobs: "JobsBar | None") -> None:
        self._jobs, self._last_line = jobs, time.monotonic()

    def write(self, text: str) -> int:
        line = text.replace("\x1b[A", "").strip()
        if line and self._jobs is not None:
            self._jobs.set_postfix_str(line, refresh=False)
        elif line and time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            sys.stderr.write(f"{line}\n")
        return len(text)


class JobsBar(tqdm):
    """The bar over all jobs; `jobs_bar` makes it."""

    def start(self, name: str) -> None:
        """Name the job that is done now."""
        self.set_postfix_str("", refresh=False)
        self.set_description_str(name)


@contextmanager
def jobs_bar(total: int, finished: int) -> Generator[JobsBar]:
    """Show a bar over all jobs each second, or a line a minute and one at the end.

    Bars inside stand below it, and vanish when they are done.
    """
    global _jobs
    form = "{l_bar}{bar}| {n_fmt}/{total_fmt} jobs [{elapsed}<{remaining}{postfix}]"
    options: dict[str, Any] = _bar_options() | {"leave": True, "unit": " jobs"}
    options["bar_format"] = form
    over = Event()

    def tick() -> None:
        while not over.wait(1.0):
            bar.refresh()

    with JobsBar(total=total, initial=finished, **options) as bar:
        thread = Thread(target=tick, daemon=True)
        if not bar.disable:
            thread.start()
            _jobs = bar
        try:
            yield bar
            if isinstance(options.get("file"), _Lines) and not bar.disable:
                bar.start("done")
                sys.stderr.write(f"{bar}\n")
        finally:
            _jobs = None
            over.set()
            if thread.is_alive():
                thread.join()


def _bar_options() -> dict[str, Any]:
    hidden = quiet or not distributed.is_main()
    options: dict[str, Any] = {"leave": False, "dynamic_ncols": True, "disable": hidden}
    if not sys.stderr.isatty():
        options |= {"file": _Lines(_jobs), "mininterval": _LINE_SECONDS / 10}
    return options


def bar(rows: Iterable[Any] | None = None, **options: Any) -> "tqdm[Any]":
    """Return a bar of `tqdm` on a terminal, and elsewhere a line a minute; none with --quiet."""
    options = _bar_options() | options
    if _jobs is not None:
        options["leave"] = False
    return tqdm(rows, **options)


def say(text: str) -> None:
    """Print what a run is about to do: once among all processes, and not with --quiet."""
    if not quiet and distributed.is_main():
        tqdm.write(text, file=sys.stdout)  # above the bars
        sys.stdout.flush()
