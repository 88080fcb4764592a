"""Time and memory of callables, measured side by side, and the table of the results.

All cases run in turns, on one thread, and the medians of the process' own time are compared: the
ratios mean something on a busy machine too. A case makes what it needs outside the clock; values
are noise and weights random, since no time depends on them.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import torch

from probseq_apps.engine import log
from probseq_apps.report.tables import aligned

# Gives the seconds of what is timed.
Case = Callable[[], float]

CPU = torch.device("cpu")


class Timing(NamedTuple):
    """A row of the table: the time of a case, or the ratio of two, or a number."""

    label: str
    value: float | Case
    unit: str = "x"  # s or ms for each of `amount` things, or /s for their rate
    over: Case | None = None  # what the value is divided by
    amount: float = 1.0

    @property
    def cases(self) -> list[Case]:
        """The cases to time."""
        return [case for case in (self.value, self.over) if callable(case)]

    def result(self, seconds: Mapping[Case, float]) -> dict[str, Any]:
        """Return the row as it is written, with its number."""
        value = self.value
        if callable(value):
            value = seconds[value] / self.amount / (seconds[self.over] if self.over else 1.0)
            value = {"ms": 1e3 * value, "/s": 1.0 / value}.get(self.unit, value)
        return {"label": self.label, "value": value, "unit": self.unit}


def timed(work: Callable[[], object], device: torch.device = CPU, gradients: bool = False) -> Case:
    """Return the case of one call, where asked with gradients.

    A CPU's clock counts this process' time, a GPU's is the wall's.
    """

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            return time.perf_counter()
        return time.process_time()

    def run() -> float:
        with torch.inference_mode(not gradients):
            start = now()
            work()
            return now() - start

    return run


def interleaved(runs: Mapping[Case, int], name: str = "speed") -> dict[Case, float]:
    """Return the median seconds of cases that run in turns; the first turn does not count."""
    seconds: dict[Case, list[float]] = {case: [] for case in runs}
    with log.bar(total=sum(runs.values()) + len(runs), desc=name) as bar:
        for turn in range(max(runs.values(), default=0) + 1):
            for case, count in runs.items():
                if turn <= count:
                    seconds[case].append(case())
                    bar.update()
    return {case: median(times[1:]) for case, times in seconds.items()}


@contextmanager
def single_thread(device: str = "cpu") -> Generator[torch.device, None, None]:
    """Give the device, which must be there, while one thread is used."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be cpu on a machine without CUDA, got 'cuda'")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield torch.device(device)
    finally:
        torch.set_num_threads(threads)


def show(rows: Sequence[Mapping[str, Any]], runs: int, note: str) -> None:
    """Print the table and a note."""
    cells: list[list[str]] = []
    for row in rows:
        value, unit = row["value"], row["unit"]
        number = f"{value:,.0f}" if unit == "bytes" or value >= 100 else f"{value:.3g}"
        cells.append([row["label"], f"{number}{'' if unit == 'x' else ' '}{unit}"])
    print(aligned([("", "measured"), *cells]))
    clock = f"cpu, one thread, process time, medians of {runs} runs in turns"
    print(f"\ntorch {torch.__version__}, {clock}{note}")
