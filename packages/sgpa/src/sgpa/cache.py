"""A value computed from parameters, kept until one of them changes."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class ParameterCache(Generic[T]):
    """Remember one value for as long as the tensors that it came from stay as they are.

    A tensor counts as changed when its storage, device, dtype or version counter differs: optimizer
    steps, ``load_state_dict`` and ``.to()`` all show. Writing through ``.data`` does not; call
    :meth:`clear` after that. The value is no part of any state dict, and copies start empty.
    """

    def __init__(self) -> None:
        # Key, value and tensors together, for other threads that read them; while the tensors live,
        # no other can be given their address.
        self._entry: tuple[tuple[object, ...], T, list[Tensor]] | None = None

    def get(
        self, compute: Callable[[], T], tensors: Callable[[], list[Tensor] | None], *, fresh: bool
    ) -> T:
        """Return the remembered value, or compute and remember it.

        Args:
            compute: computes the value; where it is remembered, without gradients.
            tensors: returns all tensors on which the value depends; ``None`` where it is random.
            fresh: compute it whatever is remembered, as where gradients are taken or a graph is
                traced.
        """
        if fresh or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return compute()
        inputs = tensors()
        if inputs is None or any(t.is_inference() for t in inputs):  # no version counter there
            return compute()
        key = tuple((t.data_ptr(), t._version, t.device, t.dtype) for t in inputs)
        entry = self._entry
        if entry is None or key != entry[0]:
            # Not in inference mode, or a later pass with plain no_grad could not use the value.
            with torch.inference_mode(False), torch.no_grad():
                entry = key, compute(), [tensor.detach() for tensor in inputs]
            self._entry = entry
        return entry[1]

    def clear(self) -> None:
        """Forget the value."""
        self._entry = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()
