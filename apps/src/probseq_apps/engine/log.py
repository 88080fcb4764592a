"""The loss of a run: running means, `metrics.jsonl`, and a stop when it is not finite."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from probseq_apps.engine import distributed
from probseq_apps.engine.files import METRICS, flatten, write_atomic


class NonFiniteLossError(FloatingPointError):
    """The loss became NaN or infinite; the message names the step and the parts of the loss."""


class LossMonitor:
    """Collects losses where they are and looks at them now and then.

    Looking at a number on a CUDA device waits for the device, so there the losses are kept and
    looked at together; on the CPU, each at once, before it can spoil the weights.

    Args:
        every: steps between two looks.

    Attributes:
        latest: loss and parts of the last step looked at.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._rows: list[Tensor] = []
        self._steps: list[tuple[int, int]] = []
        self._names: list[str] = []
        self._sums: dict[str, float] = {}
        self._count = 0
        self.latest: dict[str, float] = {}

    def add(
        self, step: int, loss: Tensor, parts: Mapping[str, Tensor], *, share: float, size: int
    ) -> bool:
        """Note the loss of one step.

        Args:
            step: number of the step, counted from 1.
            loss: over this rank's slice of the batch.
            parts: what it is made of.
            share: this rank's share of the global batch.
            size: examples in the global batch.

        Returns:
            Whether the losses were looked at now.

        Raises:
            NonFiniteLossError: a loss looked at now is not finite.
            ValueError: the parts have other names than before, or one is named `loss`.
        """
        if "loss" in parts:
            raise ValueError("loss must not name a part 'loss', which names their sum")
        names = ["loss", *parts]
        if self._names and names != self._names:
            raise ValueError(
                f"loss must return the same parts at each step, {self._names[1:]}, got {names[1:]}"
            )
        self._names = names
        values = [value.detach().float() for value in (loss, *parts.values())]
        self._rows.append(share * torch.stack(values))
        self._steps.append((step, size))
        if len(self._rows) < self._every:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Look at all losses noted so far.

        Raises:
            NonFiniteLossError: one of them is not finite; names the first.
        """
        if not self._rows:
            return
        rows = distributed.total(torch.stack(self._rows)).tolist()
        steps = self._steps
        self._rows, self._steps = [], []
        for (step, size), row in zip(steps, rows, strict=True):
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
        """Means per example since the last call, over complete steps."""
        self.flush()
        means = {name: value / self._count for name, value in self._sums.items()}
        self._sums, self._count = {}, 0
        return means

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on in the middle of an epoch."""
        self.flush()
        return {"sums": self._sums, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._sums, self._count = dict(state["sums"]), state["count"]


class MetricsLog:
    """`metrics.jsonl`: one JSON object a line, appended and flushed at once.

    Args:
        path: the run's folder.
        step: step at which the run goes on. Rows of later steps are dropped: they were written
            after the checkpoint, and come again.
        tensorboard: also write each number as a TensorBoard scalar.
    """

    def __init__(self, path: Path, *, step: int, tensorboard: bool = False) -> None:
        file = path / METRICS
        kept = [row for row in read_metrics(path) if row["step"] <= step]
        write_atomic(file, "".join(json.dumps(row) + "\n" for row in kept))
        self._file: TextIO = file.open("a", encoding="utf-8")
        self._writer = _tensorboard_writer(path, step) if tensorboard else None

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it must hold `step`."""
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        if self._writer is not None:
            for name, value in flatten(row):
                if name != "step" and value is not None:
                    self._writer.add_scalar(name, value, row["step"])
            self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's log; a last line that a crash cut short is left out."""
    file = path / METRICS
    return list(_rows(file.read_text(encoding="utf-8"))) if file.exists() else []


def _rows(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _tensorboard_writer(path: Path, step: int) -> Any:
    # Late: tensorboard is an extra, and slow to import.
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(str(path / "tensorboard"), purge_step=step + 1)
