"""Argument checks that every metric shares.

Each check costs one pass over the data and one copy to the host, on any device; 16-bit inputs are
upcast to float32, because 8 bits of mantissa cannot hold a sum of probabilities.
"""

import torch
from torch import Tensor

# Row sums are off by rounding: of the mean over samples in float32, of each entry in 16 bits.
_SUM_TOLERANCE = 1e-4
_SUM_TOLERANCE_16_BIT = 2e-2


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def check_tensor(name: str, values: object) -> None:
    """Raise TypeError if values are no tensor."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(values).__name__}")


def as_float(name: str, values: Tensor) -> Tensor:
    """Return floating-point ``values`` in float32 or float64; reject the rest by name."""
    check_tensor(name, values)
    if not values.is_floating_point():
        raise ValueError(
            f"{name} must be a floating-point tensor, got {values.dtype}: convert it with .float()"
        )
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def check_finite(name: str, values: Tensor) -> Tensor:
    """Return ``values`` upcast to at least float32, not empty and without NaN or infinity."""
    values = as_float(name, values)
    if values.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {_shape(values)}")
    if not torch.isfinite(values).all():
        bad = int((~torch.isfinite(values)).sum())
        raise ValueError(
            f"{name} must be finite, got {bad} NaN or infinite entries of {values.numel()}: "
            "find where the model diverged"
        )
    return values


def check_vector(name: str, values: Tensor) -> Tensor:
    """Return ``check_finite(values)`` of shape (N,)."""
    check_tensor(name, values)
    if values.ndim != 1:
        raise ValueError(f"{name} must have shape (N,), got {_shape(values)}")
    return check_finite(name, values)


def check_probs(probs: Tensor, name: str = "probs") -> Tensor:
    """Return probabilities (N, C) upcast to at least float32.

    Raises:
        ValueError: not two-dimensional, empty, NaN, negative, or a row doesn't sum to 1.
    """
    check_tensor(name, probs)
    if probs.ndim != 2 or probs.numel() == 0:
        raise ValueError(
            f"{name} must have shape (N, C) with N, C >= 1, got {_shape(probs)}: "
            "average over samples first"
        )
    tolerance = _SUM_TOLERANCE if probs.element_size() > 2 else _SUM_TOLERANCE_16_BIT
    probs = as_float(name, probs)
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
    return probs


def check_labels(labels: Tensor, num_samples: int, num_classes: int) -> Tensor:
    """Return class labels (N,) as int64.

    Raises:
        ValueError: another shape, not integers, or outside 0..C-1.
    """
    check_tensor("labels", labels)
    if _shape(labels) != (num_samples,):
        raise ValueError(f"labels must have shape (N,)=({num_samples},), got {_shape(labels)}")
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


def check_flags(name: str, flags: Tensor, num_samples: int) -> Tensor:
    """Return a boolean tensor (N,).

    Raises:
        ValueError: another shape, or not boolean.
    """
    check_tensor(name, flags)
    if _shape(flags) != (num_samples,):
        raise ValueError(f"{name} must have shape (N,)=({num_samples},), got {_shape(flags)}")
    if flags.dtype != torch.bool:
        raise ValueError(f"{name} must be boolean, got {flags.dtype}: convert with .bool()")
    return flags


def check_same_shape(name: str, values: Tensor, other_name: str, other: Tensor) -> None:
    """Reject shapes that differ: broadcasting (N,) with (N, 1) would average N² differences."""
    check_tensor(name, values)
    check_tensor(other_name, other)
    if values.shape != other.shape:
        raise ValueError(
            f"{name} must have the shape of {other_name}, {_shape(other)}, got {_shape(values)}"
        )
