"""Checks of tensors; the errors name the argument.

``check_…`` return nothing. ``as_…``, for whole evaluation sets, return the tensor as it is computed
with: 16-bit floats are upcast to float32, because 8 bits of mantissa cannot hold a sum of
probabilities; each costs one pass over the data and one copy to the host. Values of a
``check_…`` are read on a CPU only: on a GPU that would stall every training step, and the device
itself asserts that an index is in range. Inside a compiled graph they are not read either.
"""

import sys

import numpy as np
import torch
from torch import Tensor

# Row sums are off by rounding: of the mean over samples in float32, of each entry in 16 bits.
_SUM_TOLERANCE = 1e-4
_SUM_TOLERANCE_16_BIT = 2e-2


def check_labels(labels: Tensor, logits: Tensor) -> None:
    """Refuse labels that are not one int64 a sequence, or out of the range of ``logits``.

    Labels have the shape ``(batch,)``, logits ``(batch, classes)`` or ``(S, batch, classes)``.
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
    """Refuse tensors that are not all float32 or all float64."""
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
    """Refuse tensors of whole numbers, booleans and complex numbers."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be of a floating dtype, got {tensor.dtype}: convert it")


def check_finite(**tensors: Tensor) -> None:
    """Refuse NaN and infinity."""
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} must be finite, got NaN or infinity")


def check_integers(least: int, most: int, **tensors: Tensor) -> None:
    """Refuse tensors of another dtype than int64, or with entries outside ``least``..``most``."""
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
    """Refuse tensors whose shapes differ from the first one's."""
    for name, tensor in tensors.items():
        _as_tensor(name, tensor)
    (first, expected), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != expected.shape:
            raise ValueError(
                f"{name} must have the shape of {first}, {tuple(expected.shape)}, "
                f"got {tuple(tensor.shape)}"
            )


def check_sizes(name: str, tensor: Tensor, *sizes: int | str) -> None:
    """Refuse a tensor of another shape; a letter stands for any size."""
    if tensor.ndim != len(sizes) or any(
        isinstance(size, int) and size != actual
        for size, actual in zip(sizes, tensor.shape, strict=True)
    ):
        expected = ", ".join(map(str, sizes))
        raise ValueError(f"{name} must have shape ({expected}), got {tuple(tensor.shape)}")


def check_generator(generator: torch.Generator | None) -> None:
    """Refuse a generator inside ``torch.utils.checkpoint``, where gradients need the draws again.

    A backward pass repeats the call, with torch's own generators as they were and no other.
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


def as_floating(name: str, values: Tensor) -> Tensor:
    """Return floats in float32 or float64; refuse other dtypes."""
    values = _as_tensor(name, values)
    if not values.is_floating_point():
        raise ValueError(
            f"{name} must be a floating-point tensor, got {values.dtype}: convert it with .float()"
        )
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def as_finite(name: str, values: Tensor) -> Tensor:
    """Return floats in float32 or float64, not empty and without NaN or infinity."""
    values = as_floating(name, values)
    if values.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {tuple(values.shape)}")
    if not torch.isfinite(values).all():
        bad = int((~torch.isfinite(values)).sum())
        zeros = int((values == -torch.inf).sum()) == bad
        hint = "clip probabilities of 0" if zeros else "find where the model diverged"
        raise ValueError(
            f"{name} must be finite, got {bad} NaN or infinite entries of {values.numel()}: {hint}"
        )
    return values


def as_vector(name: str, values: Tensor) -> Tensor:
    """Return ``as_finite(name, values)`` of shape (N,)."""
    values = _as_tensor(name, values)
    if values.ndim != 1:
        raise ValueError(f"{name} must have shape (N,), got {tuple(values.shape)}")
    return as_finite(name, values)


def as_probs(probs: Tensor, name: str = "probs") -> Tensor:
    """Return probabilities (N, C), whose rows must sum to 1."""
    probs = _as_tensor(name, probs)
    if probs.ndim != 2 or probs.numel() == 0:
        raise ValueError(
            f"{name} must have shape (N, C) with N, C >= 1, got {tuple(probs.shape)}: "
            "average over samples first"
        )
    half = probs.element_size() < 4
    tolerance = _SUM_TOLERANCE_16_BIT if half else _SUM_TOLERANCE
    probs = as_floating(name, probs)
    values = probs.detach()
    sum_error = (values.sum(dim=-1, dtype=torch.float64) - 1.0).abs().amax()
    lowest, worst = torch.stack([values.amin().double(), sum_error]).tolist()
    if lowest != lowest:
        raise ValueError(f"{name} must be finite, got NaN: find where the model diverged")
    # `not <=` and not `>`: an infinite entry makes the sum NaN or infinite.
    if lowest < 0.0 or not worst <= tolerance:
        raise ValueError(
            f"{name} must be rows of probabilities that sum to 1 within {tolerance:g}, got a "
            f"smallest entry of {lowest:g} and a row sum off by {worst:g}: apply softmax to logits"
        )
    return probs / probs.sum(-1, keepdim=True) if half else probs


def as_labels(labels: Tensor, num_samples: int, num_classes: int) -> Tensor:
    """Return class labels (N,) in 0..C-1 as int64."""
    labels = _as_tensor("labels", labels)
    if labels.shape != (num_samples,):
        raise ValueError(f"labels must have shape (N,)=({num_samples},), got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}: convert with .long()")
    labels = labels.long()
    lowest, highest = torch.stack([labels.amin(), labels.amax()]).tolist()
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"labels must lie in 0..{num_classes - 1}, got values from {lowest} to {highest}: "
            "drop unlabelled rows or widen probs"
        )
    return labels


def as_flags(name: str, flags: Tensor, num_samples: int) -> Tensor:
    """Return a boolean tensor (N,)."""
    flags = _as_tensor(name, flags)
    if flags.shape != (num_samples,):
        raise ValueError(f"{name} must have shape (N,)=({num_samples},), got {tuple(flags.shape)}")
    if flags.dtype != torch.bool:
        raise ValueError(f"{name} must be boolean, got {flags.dtype}: convert with .bool()")
    return flags


def _as_tensor(name: str, values: object) -> Tensor:
    """Return a tensor, or that of an array of numpy."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(np.array(values, order="C"))
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor or an array, got {type(values).__name__}")
    return values
