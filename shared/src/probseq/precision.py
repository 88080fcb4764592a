"""Precision of algebra and of gradients by hand, and their refusal of second derivatives."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Grads = TypeVar("Grads")


def full_precision(x: Tensor) -> Tensor:
    """Cast half precision to float32; leave float32 and float64 alone."""
    return x.float() if x.dtype.itemsize < 4 else x


def without_autocast(backward: Callable[..., Grads]) -> Callable[..., Grads]:
    """Let the backward pass of a custom autograd function ignore autocast.

    A caller may run ``backward()`` inside ``torch.autocast``. There products return half precision,
    which neither buffers nor in-place products of float32 take. ``torch.amp.custom_bwd`` would want
    to know the device when the class is defined.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor) -> Grads:
        with torch.autocast(grads[0].device.type, enabled=False):
            return backward(ctx, *grads)

    return wrapped


def differentiable_once(backward: Callable[..., Grads]) -> Callable[..., Grads]:
    """Let the backward pass of a custom autograd function refuse second derivatives.

    What the forward pass saved besides its inputs counts as a constant in them. (torch's
    ``once_differentiable`` refuses them only where the incoming gradient has derivatives.)
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor) -> Grads:
        # Compiled functions refuse by themselves.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                f"{type(ctx).__name__} has no second derivatives: create_graph must be False"
            )
        return backward(ctx, *grads)

    return wrapped
