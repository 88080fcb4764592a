"""Time and memory of callables, measured side by side, and the table of what was found.

All cases run in turns, on one thread, and the medians of the process' own time are compared: the
ratios mean something on a busy machine too. A case makes what it needs outside the clock; values
are noise and weights random, since no time depends on them.
"""

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
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

CPU = torch.device("cpu")
_WIDTH = 120


class Row(NamedTuple):
    """A line of the table: a median or what follows from medians, and its goal."""

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


def now(device: torch.device) -> float:
    """Return seconds: a CPU's clock counts this process' time, a GPU's is the wall's."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def timed(
    work: Callable[[], object],
    device: torch.device = CPU,
    *,
    gradients: bool = False,
    lean: bool = False,
) -> Case:
    """Return the case of one call, where asked with gradients or in bfloat16."""

    def run() -> float:
        with (
            torch.inference_mode(not gradients),
            torch.autocast(device.type, torch.bfloat16, enabled=lean),
        ):
            start = now(device)
            work()
            return now(device) - start

    return run


def training_step(
    model: nn.Module,
    loss: Callable[[], Tensor],
    device: torch.device = CPU,
    *,
    lean: bool = False,
) -> Case:
    """Return the case of a forward pass, a backward pass, and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=lean):
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
                    found = run()
                    if turn > 0:
                        seconds[case].append(found)
                    bar.update()
    return {case: median(found) for case, found in seconds.items()}


def kept_bytes(forward: Callable[[], object], owned: set[int]) -> int:
    """Return the bytes that autograd keeps between a forward pass and its backward pass.

    Each storage counts once, whoever saved it, custom functions included.

    Args:
        forward: runs the pass and returns what holds its graph.
        owned: addresses of storages that exist anyway, such as the parameters'.
    """
    storages: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            # Held until the end: freed memory could come back at the same address.
            storages[storage.data_ptr()] = (storage.nbytes(), tensor.detach())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        graph = forward()
    total = sum(size for size, _ in storages.values())
    del graph
    return total


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
    print(f"{table(rows)}\n\ntorch {torch.__version__}, {note}")
    write([row._asdict() | {"met": row.met} for row in rows], path)


def write(numbers: Any, path: Path | None) -> None:
    """Write numbers as JSON where asked."""
    if path is not None:
        path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


def table(rows: Sequence[Row]) -> str:
    """Return aligned text: what, measured, goal, and whether it is met."""
    cells = [
        [
            row.label,
            _shown(row.value, row.unit),
            "" if row.goal is None else f"{'≥' if row.least else '≤'} {_shown(row.goal, row.unit)}",
            {True: "met", False: "missed", None: ""}[row.met],
        ]
        for row in rows
    ]
    return aligned_blocks(("", "measured", "goal", ""), cells, _WIDTH)


def _shown(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if unit == "bytes" or value >= 100 else f"{value:.3g}"
    return f"{number}{'' if unit == 'x' else ' '}{unit}"
