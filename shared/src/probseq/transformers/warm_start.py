"""Gaussian process attention from a trained kernel transformer."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class FromKernel(Protocol):
    """An attention module that can take the place of kernel attention."""

    def from_kernel(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return its state for the weights of kernel attention; what these lack stays its own."""
        ...


def copy_kernel_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy a transformer with `KernelAttention` into one whose attention has `from_kernel`.

    In place: all weights outside the attention are copied as they are; inducing parameters stay.

    Raises:
        RuntimeError: the transformers differ by more than their attention.
    """
    weights = source.state_dict()
    for name, module in target.named_modules():
        if isinstance(module, FromKernel):
            prefix = f"{name}."
            device = next(target.get_submodule(name).parameters()).device
            old = [key for key in weights if key.startswith(prefix)]
            new = {key.removeprefix(prefix): weights.pop(key).to(device) for key in old}
            weights |= {prefix + key: value for key, value in module.from_kernel(new).items()}
    target.load_state_dict(weights)
