"""Running means of the loss, and the stop when it is not finite."""

import math
from typing import Any

import torch
from torch import Tensor

from probseq_apps.training import distributed
from probseq_apps.training.task import LossParts


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

    def add(self, step: int, parts: LossParts, *, share: float, size: int) -> bool:
        """Note the loss of one step.

        Args:
            step: number of the step, counted from 1.
            parts: loss and parts over this rank's slice of the batch.
            share: this rank's share of the global batch.
            size: examples in the global batch.

        Returns:
            Whether the losses were looked at now.

        Raises:
            NonFiniteLossError: a loss looked at now is not finite.
            ValueError: the parts have other names than before, or one is named `loss`.
        """
        if "loss" in parts.parts:
            raise ValueError("loss must not name a part 'loss', which names their sum")
        names = ["loss", *parts.parts]
        if self._names and names != self._names:
            raise ValueError(
                f"loss must return the same parts at each step, {self._names[1:]}, got {names[1:]}"
            )
        self._names = names
        values = [value.detach().float() for value in (parts.loss, *parts.parts.values())]
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
