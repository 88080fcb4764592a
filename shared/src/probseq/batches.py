"""Data of many forms, read once, as batches of inputs and labels."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_LABELS = "labels"


def read_batches(
    data: Iterable[Any], model: nn.Module | None = None, *, name: str = "batches"
) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels of batches, in one pass over the data.

    Args:
        data: a loader, a generator or another iterable of batches, or one batch. A batch is a pair
            of inputs and labels, or a mapping that has its labels under ``"labels"``. Inputs are a
            tensor, an array of numpy, or a mapping of keyword arguments; labels may be a list.
        model: arrays of floating numbers get the dtype of its weights, see :func:`on_device`;
            ``None`` leaves theirs.
        name: of the data in messages.
    """
    for batch in [data] if _is_batch(data) else data:
        if isinstance(batch, Mapping) and _LABELS in batch:
            inputs = {key: value for key, value in batch.items() if key != _LABELS}
            labels = batch[_LABELS]
        elif isinstance(batch, tuple | list) and len(batch) == 2:
            inputs, labels = batch
        else:
            what = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"{name} must hold pairs of inputs and labels, or mappings with {_LABELS!r}, "
                f"got {what}"
            )
        yield _tensors(inputs, model), _classes(labels, name)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's weights, the CPU where it has none."""
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def on_device(inputs: Any, model: nn.Module) -> Any:
    """Return a batch's inputs on the device of a model's weights.

    Arrays of numpy become tensors, those of floating numbers in the dtype of the weights.
    """
    return _tensors(inputs, model, device_of(model))


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model on a batch's inputs; a mapping is given by keywords."""
    inputs = on_device(inputs, model)
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def _is_batch(data: Iterable[Any]) -> bool:
    if isinstance(data, Mapping):
        return True
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    labels = data[1]
    listed = isinstance(labels, tuple | list) and all(isinstance(each, int) for each in labels)
    return listed or isinstance(labels, Tensor | np.ndarray)


def _tensors(inputs: Any, model: nn.Module | None, device: torch.device | None = None) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _tensors(value, model, device) for key, value in inputs.items()}
    if isinstance(inputs, np.ndarray):
        # torch takes no negative strides, and warns of what cannot be written.
        writeable = inputs.flags.writeable
        inputs = torch.from_numpy(np.ascontiguousarray(inputs) if writeable else inputs.copy())
        if model is not None and inputs.is_floating_point():
            dtypes = (each.dtype for each in model.parameters() if each.is_floating_point())
            inputs = inputs.to(next(dtypes, inputs.dtype))
    return inputs.to(device) if isinstance(inputs, Tensor) and device is not None else inputs


def _classes(labels: Any, name: str) -> Tensor:
    if not isinstance(labels, Tensor):
        array = np.array(labels, order="C")
        labels = torch.from_numpy(array) if array.dtype.kind in "iuf" else array
    whole = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
    if not whole or labels.dtype == torch.bool or labels.ndim != 1:
        raise ValueError(
            f"{name} must have labels that are whole numbers of shape (batch,), "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.long()
