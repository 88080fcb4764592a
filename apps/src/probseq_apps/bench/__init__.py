"""Time and memory of callables, measured side by side, and the table of what was found.

All cases run in turns, on one thread, and the medians of the process' own time are compared: the
ratios mean something on a busy machine too. A case makes what it needs outside the clock; values
are noise and weights random, since no time depends on them.
"""

import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probseq_apps.engine import log
from probseq_apps.report.tables import aligned_blocks

# Gives the seconds of what is timed.
Case = Callable[[], float]
Work = Callable[[], object]

CPU = torch.device("cpu")
_WIDTH = 120


class Row(NamedTuple):
    """A row of the table: a median or what follows from medians, and its goal."""

    label: str
    value: float
    unit: str  # such as "ms"; "x" for a ratio
    goal: float | None = None  # what it should reach; None without one
    least: bool = False  # whether the goal is a lower limit

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.least else self.value <= self.goal


class Line(NamedTuple):
    """What becomes a row: the time of a case, or the ratio of two, `slow / fast`."""

    label: str
    case: str
    unit: str = "x"  # s or ms for each of `amount` things, or /s for their rate
    goal: float | None = None
    least: bool = False
    amount: float = 1.0


def measure(
    cases: Mapping[str, Case], lines: Iterable[Line | Row], runs: int, name: str = "speed"
) -> list[Row]:
    """Time all cases in turns and return the rows of what was found."""
    seconds = interleaved(cases, runs, name)
    return [line if isinstance(line, Row) else row_of(line, seconds) for line in lines]


def row_of(line: Line, seconds: Mapping[str, float]) -> Row:
    """Return the row of a line."""
    case, _, other = line.case.partition(" / ")
    value = seconds[case] / line.amount / (seconds[other] if other else 1.0)
    value = {"ms": 1e3 * value, "/s": 1.0 / value}.get(line.unit, value)
    return Row(line.label, value, line.unit, line.goal, line.least)


def now(device: torch.device) -> float:
    """Return seconds: a CPU's clock counts this process' time, a GPU's is the wall's."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def timed(
    work: Callable[[], object],
    device: torch.device = CPU,
    gradients: bool = False,
    lean: bool = False,
) -> Case:
    """Return the case of one call, where asked with gradients or, by `lean`, in bfloat16."""

    def run() -> float:
        with torch.inference_mode(not gradients), autocast(device, lean):
            start = now(device)
            work()
            return now(device) - start

    return run


def autocast(device: torch.device, lean: bool) -> torch.autocast:
    """Return the context of computations in bfloat16 where asked."""
    return torch.autocast(device.type, torch.bfloat16, enabled=lean)


def training_step(
    model: nn.Module, loss: Callable[[], Tensor], device: torch.device = CPU, *, lean: bool = False
) -> Case:
    """Return the case of a forward pass, a backward pass, and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(device, lean):
            value = loss()
        value.backward()
        optimizer.step()

    return timed(step, device, gradients=True)


def interleaved(
    cases: Mapping[str, Case], runs: int | Mapping[str, int], name: str = "speed"
) -> dict[str, float]:
    """Return the median seconds of cases that run in turns; the first turn does not count."""
    each = dict.fromkeys(cases, runs) if isinstance(runs, int) else runs
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    with log.bar(total=sum(each.values()) + len(each), desc=name) as bar:
        for turn in range(max(each.values()) + 1):
            for case, run in cases.items():
                if turn <= each[case]:
                    seconds[case].append(run())
                    bar.update()
    return {case: median(found[1:]) for case, found in seconds.items()}


@contextmanager
def one_thread(device: str = "cpu") -> Generator[torch.device, None, None]:
    """Give the device, which must be there, while one thread is used."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be cpu on a machine without CUDA, got 'cuda'")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield torch.device(device)
    finally:
        torch.set_num_threads(threads)


def show(rows: Sequence[Row], note: str, path: Path | None) -> None:
    """Print the table and a note, and write the numbers where asked."""
    verdict = {True: "met", False: "missed", None: ""}
    cells = [
        [
            row.label,
            _shown(row.value, row.unit),
            "" if row.goal is None else f"{'≥' if row.least else '≤'} {_shown(row.goal, row.unit)}",
            verdict[row.met],
        ]
        for row in rows
    ]
    print(aligned_blocks(("", "measured", "goal", ""), cells, _WIDTH))
    print(f"\ntorch {torch.__version__}, {note}")
    write([row._asdict() | {"met": row.met} for row in rows], path)


def write(numbers: Any, path: Path | None) -> None:
    """Write numbers as JSON where asked."""
    if path is not None:
        path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


def _shown(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if unit == "bytes" or value >= 100 else f"{value:.3g}"
    return f"{number}{'' if unit == 'x' else ' '}{unit}"
