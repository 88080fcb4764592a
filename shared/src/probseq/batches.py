"""Data of many forms, read once, as batches of inputs and labels; logits of many outputs."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probseq.precision import full_precision


def read_batches(
    data: Any,
    model: nn.Module | None = None,
    *,
    name: str = "batches",
    classes: Sequence[Any] | None = None,
) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels of batches that are not empty, in one pass over the data.

    Args:
        data: a loader, a generator or another iterable of batches, or one batch. A batch is a pair
            of inputs and labels, or a mapping that has its labels under ``"labels"``. Inputs are a
            tensor, an array of numpy, a frame of numbers, a tuple of several, or a mapping of
            keyword arguments; labels may be a list or a column of pandas.
        model: arrays become tensors, see :func:`on_device`; ``None`` leaves inputs as they are.
        name: of the data in messages.
        classes: what labels are called, in the order of the model's outputs.
    """
    if not isinstance(data, Iterable):
        raise ValueError(
            f"{name} must be batches of inputs and labels, as a DataLoader makes of a data set, "
            f"got {type(data).__name__}"
        )
    for batch in [data] if _is_batch(data) else data:
        if isinstance(batch, Mapping) and "labels" in batch:
            inputs = {key: value for key, value in batch.items() if key != "labels"}
            labels = batch["labels"]
        elif isinstance(batch, tuple | list) and len(batch) == 2:
            inputs, labels = batch
        else:
            what = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"{name} must hold pairs of inputs and labels, or mappings with labels, got {what}"
            )
        numbers = read_labels(labels, name, classes)
        if len(numbers):
            yield inputs if model is None else _tensors(inputs, model), numbers


def read_labels(labels: Any, name: str, classes: Sequence[Any] | None = None) -> Tensor:
    """Return the numbers of classes; labels may be numbers, or what classes are called."""
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.array(labels, order="C")
    words = classes is not None and all(isinstance(each, str) for each in classes)
    if classes is not None and array.ndim == 1 and not (words and array.dtype.kind in "iu"):
        number = {value: index for index, value in enumerate(classes)}
        if unknown := [value for value in dict.fromkeys(array.tolist()) if value not in number]:
            raise ValueError(
                f"{name} must have labels among the classes {list(classes)[:20]}, got "
                f"{unknown[:5]}: classes must name them as the labels do"
            )
        array = np.array([number[value] for value in array.tolist()], dtype=np.int64)
    if array.dtype.kind not in "iub" or array.ndim != 1:
        hint = ": name the classes in the order of the outputs" * (array.dtype.kind in "OUS")
        if array.ndim == 0:
            hint = ": a DataLoader makes batches of single examples"
        raise ValueError(
            f"{name} must have labels that are whole numbers of shape (batch,), "
            f"got {array.dtype} of shape {array.shape}{hint}"
        )
    return torch.from_numpy(array.astype(np.int64))


def read_logits(outputs: Any, output: str | int | Callable[[Any], Any] | None = None) -> Tensor:
    """Return the logits among the outputs of a model.

    These are a tensor, or what stands under ``logits``, or the only tensor in a mapping, a tuple or
    a dataclass; or `output` is their key, attribute or number, or a function to them.
    """
    if callable(output):
        outputs = output(outputs)
    elif output is not None:
        attribute = isinstance(output, str) and not isinstance(outputs, Mapping)
        try:
            outputs = getattr(outputs, str(output)) if attribute else outputs[output]
        except (AttributeError, LookupError, TypeError) as error:
            kind = type(outputs).__name__
            raise ValueError(
                f"output {output!r} must be in what the model gives, a {kind}"
            ) from error
    if isinstance(outputs, np.ndarray):
        outputs = torch.from_numpy(outputs)
    logits = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    values: dict[Any, Any] = vars(outputs) if dataclasses.is_dataclass(outputs) else {}
    if isinstance(outputs, Mapping):
        values = dict(outputs)
    elif isinstance(outputs, tuple | list):
        values = dict(enumerate(outputs))
    if isinstance(values.get("logits"), Tensor):
        return values["logits"]
    tensors = {key: value for key, value in values.items() if isinstance(value, Tensor)}
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    shapes = ", ".join(f"{key!r} of shape {tuple(value.shape)}" for key, value in tensors.items())
    raise ValueError(
        "model must return logits: a tensor, or an output called logits; got "
        f"{type(outputs).__name__}{f' with {shapes}: output must say which' if shapes else ''}"
    )


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's weights, the CPU where it has none or they are offloaded."""
    devices = (each.device for each in model.parameters() if not each.is_meta)
    return next(devices, torch.device("cpu"))


def on_device(inputs: Any, model: nn.Module) -> Any:
    """Return a batch's inputs on the device of a model's weights.

    Arrays and frames become tensors, those of floating numbers in the dtype of the weights.
    """
    return _tensors(inputs, model, device_of(model))


def call_model(model: nn.Module, inputs: Any, **named: Any) -> Any:
    """Call a model on a batch's inputs: a mapping by keywords, a tuple by position."""
    inputs, named = on_device(inputs, model), on_device(named, model)
    if isinstance(inputs, Mapping):
        return model(**inputs, **named)
    return model(*inputs, **named) if _is_tuple(inputs) else model(inputs, **named)


def split_inputs(data: Any, name: str) -> Iterator[Any]:
    """Yield the inputs of batches without labels, or those of the one batch that data are."""
    whole = isinstance(data, Mapping | tuple) or hasattr(data, "__array__")
    texts = isinstance(data, list) and all(isinstance(each, str) for each in data) and data
    for batch in [data] if whole or texts or not isinstance(data, Iterable) else data:
        inputs = batch[0] if isinstance(batch, list) and len(batch) == 1 else batch
        if isinstance(inputs, list) and not all(isinstance(each, str) for each in inputs):
            raise ValueError(f"{name} must hold inputs without labels, got lists of several")
        yield inputs


def _is_batch(data: Iterable[Any]) -> bool:
    if isinstance(data, Mapping):
        return True
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    labels = data[1]
    listed = isinstance(labels, tuple | list) and all(map(np.isscalar, labels))
    return listed or isinstance(labels, Tensor) or hasattr(labels, "__array__")


def _is_tuple(inputs: Any) -> bool:
    return isinstance(inputs, tuple) and not hasattr(inputs, "to")  # as packed sequences have


def _tensors(inputs: Any, model: nn.Module, device: torch.device | None = None) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _tensors(value, model, device) for key, value in inputs.items()}
    if _is_tuple(inputs):
        return tuple(_tensors(value, model, device) for value in inputs)
    if hasattr(inputs, "__array__") and not isinstance(inputs, Tensor):
        array = np.asarray(inputs)
        if array.dtype.kind in "biufc":
            # torch takes no negative strides, and warns of what cannot be written.
            array = np.ascontiguousarray(array) if array.flags.writeable else array.copy()
            inputs = torch.from_numpy(array)
            if inputs.is_floating_point():
                dtypes = (each.dtype for each in model.parameters() if each.is_floating_point())
                inputs = inputs.to(next(dtypes, inputs.dtype))
    return inputs.to(device) if device is not None and hasattr(inputs, "to") else inputs


LOGITS, PROBABILITIES = "logits", "probabilities"
LOGIT, PROBABILITY = "logits of the second of two classes", "probabilities of the second class"


def output_kind(outputs: Tensor) -> str:
    """Return the kind of outputs (rows, classes) or (rows,) by all of their rows."""
    if not bool((outputs == outputs).all()) or bool((outputs == torch.inf).any()):
        raise ValueError("model must give finite outputs, got NaN or infinity")
    if outputs.ndim == 1 or outputs.shape[-1] == 1:
        return PROBABILITY if _are_probabilities(outputs) else LOGIT
    return PROBABILITIES if _are_probabilities(outputs) else LOGITS


def _are_probabilities(outputs: Tensor) -> bool:
    """Return whether rows are at least 0 and sum to 1, a column is within 0 and 1; NaN may be."""
    column = outputs.ndim == 1 or outputs.shape[-1] == 1
    # In half precision each entry is off by 2⁻⁹.
    wrong = outputs > 1.0 if column else (outputs.sum(-1) - 1.0).abs() > 0.02
    return not bool(wrong.any() | (outputs < 0.0).any())


def to_log_probs(outputs: Tensor, kind: str) -> Tensor:
    """Return logarithms of probabilities (rows, classes), in float32 at least."""
    outputs = full_precision(outputs)
    # Values are not read inside a compiled graph.
    compiled = torch.compiler.is_compiling()
    if "prob" in kind and not compiled and not _are_probabilities(outputs):
        raise ValueError(f"model must give {kind}, as when it was calibrated, got other numbers")
    if kind in (LOGIT, PROBABILITY):
        column = outputs.flatten()
        if kind == LOGIT:
            return torch.stack([torch.zeros_like(column), column], -1).log_softmax(-1)
        outputs = torch.stack([1.0 - column, column], -1)
    logits = outputs if kind == LOGITS else outputs.clamp_min(1e-12).log()
    # Classes that are ruled out by a logit of -inf.
    return logits.log_softmax(-1).clamp_min(torch.finfo(logits.dtype).min)
