"""Targets, masks and points of users, as tensors that the algebra can trust."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_points(t: Any, dim: int, like: Tensor) -> Tensor:
    """Return inputs of several dimensions, shape (n, dim)."""
    points = as_real(t, like, "t")
    if points.ndim != 2 or points.shape[-1] != dim:
        raise ValueError(
            f"t must have shape (n, {dim}), got {tuple(points.shape)}: "
            "the last dimension is the kernel's dim"
        )
    if not points.isfinite().all():
        raise ValueError(f"t must be finite, got {int((~points.isfinite()).sum())} NaN or infinite")
    return points


def as_targets(
    y: Any, count: int, mask: Tensor | None, like: Tensor, order: Tensor | None = None
) -> Tensor:
    """Return targets of shape (*b, n) in an order; those that the mask hides become zero."""
    targets = torch.atleast_1d(as_real(y, like, "y"))
    if targets.shape[-1] != count:
        raise ValueError(
            f"y must have shape (..., {count}) for {count} inputs, got {tuple(targets.shape)}"
        )
    if 0 in targets.shape[:-1]:
        raise ValueError(f"y must hold at least one series, got {tuple(targets.shape)}")
    if order is not None:
        targets = targets[..., order]
    if mask is not None:
        targets = targets.masked_fill(~mask, 0.0)
    if not targets.isfinite().all():
        bad = int((~targets.isfinite()).sum())
        raise ValueError(
            f"y must be finite, got {bad} NaN or infinite values: pass mask= with False there, "
            'or missing="drop"'
        )
    return targets


def as_weights(weights: Any, targets: Tensor, order: Tensor | None) -> Tensor:
    """Return weights of targets, in an order."""
    tensor = torch.atleast_1d(as_real(weights, targets, "weights"))
    if tensor.shape != targets.shape[targets.ndim - tensor.ndim :]:
        raise ValueError(
            f"weights must have shape {tuple(targets.shape)} like y, got {tuple(tensor.shape)}"
        )
    if not bool(((tensor > 0) & tensor.isfinite()).all()):
        raise ValueError(f"weights must be finite and above 0, got {float(tensor.min()):g}")
    return tensor if order is None else tensor[..., order]


def as_mask(mask: Any, y: Any, missing: str, like: Tensor) -> Tensor | None:
    """Return the user's mask, or with missing="drop" the one that hides NaN; None for none."""
    if missing not in ("raise", "drop"):
        raise ValueError(f'missing must be "raise" or "drop", got {missing!r}')
    if mask is None and missing == "raise":
        return None
    targets = torch.atleast_1d(as_real(y, like, "y"))
    if mask is None:
        hidden = targets.isnan()
        return ~hidden if bool(hidden.any()) else None
    if missing == "drop":
        raise ValueError('mask and missing="drop" exclude each other: give one of them')
    chosen = as_array(mask, "mask")
    if chosen.dtype != np.bool_:
        raise ValueError(f"mask must be boolean, True at points that count, got {chosen.dtype}")
    chosen = torch.atleast_1d(torch.from_numpy(chosen.copy())).to(like.device)
    shape = targets.shape[targets.ndim - chosen.ndim :]
    if (
        chosen.ndim > targets.ndim
        or chosen.shape[-1:] != shape[-1:]
        or not all(size in (1, n) for size, n in zip(chosen.shape, shape, strict=True))
    ):
        raise ValueError(
            f"mask must have y's shape {tuple(targets.shape)}, got {tuple(chosen.shape)}"
        )
    return chosen


def as_real(value: Any, like: Tensor, name: str) -> Tensor:
    """Return a fresh tensor of real numbers, in the dtype and on the device of ``like``."""
    if not isinstance(value, Tensor):
        value = torch.from_numpy(
            real_numbers(as_array(value, name), name, "be an array of real numbers")
        )
    elif value.is_complex():
        raise ValueError(f"{name} must be an array of real numbers, got dtype {value.dtype}")
    # Copied to an aligned address and in one order, as in ``clock.Clock``.
    return value.to(like).clone(memory_format=torch.contiguous_format)


def as_array(value: Any, name: str) -> np.ndarray:
    """Return a user's array, on the CPU; of pandas' periods their first moments."""
    if isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any()):
        raise ValueError(
            f"{name} must have no masked values, got {int(np.ma.count_masked(value))}: pass "
            "y=y.data and mask=~y.mask"
        )
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        # numpy has no bfloat16.
        return (value.double() if value.is_floating_point() else value).numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be an array: {error}") from error
    if array.dtype.kind == "O" and array.ndim and all(hasattr(x, "start_time") for x in array.flat):
        return np.array([x.start_time for x in array.flat], "M8[ns]").reshape(array.shape)
    return array


def real_numbers(array: np.ndarray, name: str, wanted: str) -> np.ndarray:
    """Copy an array in float64."""
    try:
        if array.dtype.kind not in "biufO":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must {wanted}, got dtype {array.dtype}") from None
