"""Checks of arguments that several packages make; the errors name the argument."""

import math
from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

__all__ = [
    "broadcastable",
    "check_choice",
    "check_counts",
    "check_labels",
    "check_not_negative",
    "check_positive",
    "check_rates",
    "check_real",
]


def check_choice(name: str, value: str, choices: object) -> None:
    """Refuse a value that is none of a ``Literal``'s.

    Raises:
        ValueError: ``value`` is unknown; the message lists the known ones.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {get_args(choices)}, got {value!r}")


def check_counts(**counts: object) -> None:
    """Refuse counts that are not whole numbers of at least 1.

    Raises:
        ValueError: a count is not a whole number of at least 1; the message names it.
    """
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_positive(**values: float) -> None:
    """Refuse values that are not positive and finite.

    Raises:
        ValueError: a value is not positive and finite; the message names it.
    """
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_not_negative(**values: float) -> None:
    """Refuse values that are negative, infinite or NaN.

    Raises:
        ValueError: a value is negative or not finite; the message names it.
    """
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")


def check_rates(**rates: float) -> None:
    """Refuse dropout rates outside [0, 1).

    Raises:
        ValueError: a rate is below 0, at least 1 or NaN; the message names it.
    """
    for name, rate in rates.items():
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"{name} must be in [0, 1), got {rate!r}")


def check_labels(labels: Tensor, logits: Tensor) -> None:
    """Refuse labels that do not belong to ``logits``.

    Values are read on a CPU only: on a GPU that would stall every training step, and the device
    itself asserts that labels are in range. Inside a compiled graph they are not read either.

    Args:
        labels: one class a sequence, ``(batch,)``.
        logits: ``(batch, classes)`` or ``(S, batch, classes)``.

    Raises:
        ValueError: ``logits`` has fewer than two dimensions or no class, or ``labels`` is not one
            int64 a sequence, or holds a class out of range.
    """
    if logits.ndim < 2 or logits.shape[-1] == 0:
        raise ValueError(
            f"logits must have shape (..., batch, classes) with a class, got {tuple(logits.shape)}"
        )
    if labels.shape != logits.shape[-2:-1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be int64 of shape (batch,)={tuple(logits.shape[-2:-1])}, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.device.type == "cpu" and not torch.compiler.is_compiling() and labels.numel():
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < 0 or highest >= logits.shape[-1]:
            raise ValueError(
                f"labels must be from 0 to {logits.shape[-1] - 1}, got {lowest} to {highest}"
            )


def check_real(**tensors: Tensor) -> None:
    """Refuse tensors of another dtype than float32 and float64.

    Raises:
        ValueError: a tensor is of another dtype; the message names it.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}: convert it")


def broadcastable(*shapes: Sequence[int]) -> bool:
    """Whether tensors of these shapes broadcast against one another.

    Not ``torch.broadcast_shapes``, which imports sympy: seconds in the first call of a process.
    """
    for place in range(1, max(map(len, shapes)) + 1):
        size = 1
        for shape in shapes:
            if place <= len(shape) and shape[-place] != 1:
                if size not in (1, shape[-place]):
                    return False
                size = shape[-place]
    return True
