"""Checks of arguments that several packages make; the errors name the argument."""

import math
import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import get_args

import torch
from torch import Tensor

__all__ = [
    "broadcastable",
    "check_choice",
    "check_counts",
    "check_floating",
    "check_generator",
    "check_integers",
    "check_labels",
    "check_not_negative",
    "check_positive",
    "check_rates",
    "check_real",
    "check_same_shape",
    "check_shape",
    "check_sizes",
    "check_whole",
    "parse_number",
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
        if value is True or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_whole(**values: object) -> None:
    """Refuse what is no whole number, such as of a seed; any sign will do.

    Raises:
        ValueError: a value is not a whole number; the message names it.
    """
    for name, value in values.items():
        if not isinstance(value, Integral):
            raise ValueError(f"{name} must be a whole number, got {value!r}")


def check_positive(**values: float | int) -> None:
    """Refuse values that are not positive and finite.

    Raises:
        ValueError: a value is not positive and finite; the message names it.
    """
    for name, value in values.items():
        if not isinstance(value, Real) or not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_not_negative(**values: float | int) -> None:
    """Refuse values that are negative, infinite or NaN.

    Raises:
        ValueError: a value is negative or not finite; the message names it.
    """
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")


def check_rates(**rates: float | int) -> None:
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
        ValueError: ``logits`` has fewer than two dimensions, no class or no floating dtype, or
            ``labels`` is not one int64 a sequence, or holds a class out of range.
    """
    check_floating(logits=logits)
    if logits.ndim < 2 or logits.shape[-1] == 0:
        raise ValueError(
            f"logits must have shape (..., batch, classes) with a class, got {tuple(logits.shape)}"
        )
    if labels.shape != logits.shape[-2:-1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels must be int64 of shape (batch,)={tuple(logits.shape[-2:-1])}, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    check_integers(0, logits.shape[-1] - 1, labels=labels)


def check_real(**tensors: Tensor) -> None:
    """Refuse tensors that are not all float32 or all float64.

    Raises:
        ValueError: a tensor is of another dtype, or of another one than the rest; the message names
            it.
    """
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}: convert it")
        if tensor.dtype != tensors[first].dtype:
            raise ValueError(
                f"{name} must be {tensors[first].dtype} as {first} is, got {tensor.dtype}: convert "
                "one of them"
            )


def check_floating(**tensors: Tensor) -> None:
    """Refuse tensors of whole numbers, booleans and complex numbers.

    Raises:
        ValueError: a tensor is of no floating dtype; the message names it.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be of a floating dtype, got {tensor.dtype}: convert it")


def check_generator(generator: torch.Generator | None) -> None:
    """Refuse a generator inside ``torch.utils.checkpoint``, where gradients need the draws again.

    A backward pass repeats the call, with torch's own generators as they were and no other.

    Raises:
        ValueError: there is a generator, and gradients will be computed.
    """
    if generator is None or torch.compiler.is_compiling():
        return
    checkpointing = sys.modules.get("torch.utils.checkpoint")
    frame = sys._getframe() if checkpointing else None  # pyright: ignore[reportPrivateUsage]
    while frame is not None and checkpointing is not None:
        if frame.f_code.co_filename == checkpointing.__file__:
            # Its older form calls without gradients at first, but knows where they will go.
            node = frame.f_locals.get("ctx")
            if torch.is_grad_enabled() or getattr(node, "next_functions", ()):
                raise ValueError(
                    "generator must be None inside torch.utils.checkpoint, which cannot draw the "
                    "same again for gradients: seed torch instead"
                )
        frame = frame.f_back


def check_finite(**tensors: Tensor) -> None:
    """Refuse NaN and infinity.

    Raises:
        ValueError: an entry is not finite; the message names the tensor.
    """
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} must be finite, got NaN or infinity")


def check_integers(least: int, most: int, **tensors: Tensor) -> None:
    """Refuse tensors of another dtype than int64, or with entries outside ``least``..``most``.

    Values are read on a CPU only: on a GPU that would stall every training step, and the device
    itself asserts that an index is in range. Inside a compiled graph they are not read either.

    Raises:
        ValueError: a tensor is not int64 or an entry is out of range; the message names it.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != torch.int64:
            raise ValueError(f"{name} must be int64, got {tensor.dtype}: convert with .long()")
        if tensor.device.type == "cpu" and not torch.compiler.is_compiling() and tensor.numel():
            lowest, highest = int(tensor.min()), int(tensor.max())
            if lowest < least or highest > most:
                raise ValueError(
                    f"{name} must be from {least} to {most}, got {lowest} to {highest}"
                )


def check_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors whose shapes differ from the first one's.

    Raises:
        ValueError: a shape differs; the message names both tensors.
    """
    (first, expected), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != expected.shape:
            raise ValueError(
                f"{name} must have the shape of {first}, {tuple(expected.shape)}, "
                f"got {tuple(tensor.shape)}"
            )


def check_sizes(name: str, tensor: Tensor, *sizes: int | str) -> None:
    """Refuse a tensor of another shape.

    Args:
        name: of the argument.
        tensor: the argument.
        sizes: of its axes; a letter stands for any size.

    Raises:
        ValueError: the number of axes or a size differs.
    """
    if tensor.ndim != len(sizes) or any(
        isinstance(size, int) and size != actual
        for size, actual in zip(sizes, tensor.shape, strict=True)
    ):
        expected = ", ".join(map(str, sizes))
        raise ValueError(f"{name} must have shape ({expected}), got {tuple(tensor.shape)}")


def check_shape(**shapes: object) -> None:
    """Refuse what is no shape.

    Raises:
        ValueError: a shape is not a tuple of whole numbers of at least 0; the message names it.
    """
    for name, shape in shapes.items():
        sizes = shape if isinstance(shape, tuple) else (None,)
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError(
                f"{name} must be a tuple of whole numbers of at least 0, got {shape!r}"
            )


def parse_number(text: str) -> float:
    """Read a finite number.

    Raises:
        ValueError: the text is none.
    """
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"a value must be a number, got {text!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"a value must be finite, got {text!r}")
    return number


def broadcastable(*shapes: Sequence[int]) -> bool:
    """Return whether tensors of these shapes broadcast against one another.

    Not ``torch.broadcast_shapes``, which imports sympy: seconds in the first call of a process.
    """
    for place in range(1, max([len(shape) for shape in shapes]) + 1):
        size = 1
        for shape in shapes:
            if place <= len(shape) and shape[-place] != 1:
                if size not in (1, shape[-place]):
                    return False
                size = shape[-place]
    return True
