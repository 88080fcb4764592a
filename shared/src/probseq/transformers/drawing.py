"""Predictions of models with deviations: samples in one pass, and functions that stay the same."""

import math
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.transformers.adapters import deviations, guests
from probseq.transformers.attention import full_precision
from probseq.transformers.calls import (
    Changed,
    Functions,
    acting,
    change_class,
    refuse_beams,
    state_of,
)
from probseq.transformers.prefix import is_value, shared_prefix
from probseq.transformers.sampling import repeat_samples


def sample_predictions(
    model: nn.Module,
    *inputs: Any,
    num_samples: int = 10,
    generator: torch.Generator | None = None,
    **named: Any,
) -> Any:
    """Call a model for S samples of the deviations, in one batch.

    In evaluation mode the blocks before the first deviation run once for all samples. Several
    threads may call one model.

    Args:
        model: with deviations.
        inputs: arguments; tensors of at least one axis have the batch first, or a first axis of 1
            where they are for all inputs. A single mapping, as tokenizers give, is of keywords.
        num_samples: S.
        generator: source of the draws.
        named: keyword arguments, likewise.

    Returns:
        What the model returns, each tensor in it as ``(S, batch, ...)``: logits of a
        classifier are ``result`` or ``result["logits"]``, their mean probabilities
        ``logits.softmax(-1).mean(0)``.

    Raises:
        ValueError: the model has no deviation or reaches none, ``num_samples`` is no whole number
            of at least 1, the batch is not the first axis of what goes in and comes out, or there
            is a generator where activations are checkpointed for gradients.
    """
    check_counts(num_samples=num_samples)
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        inputs, named = (), {**inputs[0], **named}
    batch = _batch_size({**{str(place): each for place, each in enumerate(inputs)}, **named})

    def fold(value: Any) -> Any:
        shared = not isinstance(value, Tensor) or value.ndim == 0 or len(value) != batch
        return value if shared else repeat_samples(value, num_samples)

    def copy(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    folded, reached = {name: fold(value) for name, value in named.items()}, list[int]()
    with ExitStack() as stack:
        stack.enter_context(_drawing(model, generator=generator, reached=reached.append))
        single = None
        # A cache of the caller's, for one, must not see the batch twice.
        if all(map(is_value, (*inputs, *named.values()))):
            # Copies: a model that changes its inputs in place must not do so twice.
            copied = {name: copy(value) for name, value in named.items()}
            call = partial(model, *map(copy, inputs), **copied)
            single = stack.enter_context(shared_prefix(model, call, guests(model), num_samples))
        outputs = model(*map(fold, inputs), **folded)
    if not reached:
        raise ValueError(
            f"model must call its attention layers, and {type(model).__name__} has reached none "
            "with a deviation: is it a compiled, traced or scripted copy?"
        )
    whole = num_samples * batch
    if reached[0] % whole or (single is not None and reached[0] != num_samples * single):
        raise ValueError(
            f"inputs must have the batch as their first axis: {num_samples} samples of {batch} "
            f"inputs were {reached[0]} sequences for the attention"
        )
    return _unfolded(outputs, num_samples, whole)


def _batch_size(arguments: Mapping[str, Any]) -> int:
    """Return the length of the first axes, but those of 1, which are for all inputs."""
    shapes = {k: tuple(v.shape) for k, v in arguments.items() if isinstance(v, Tensor) and v.ndim}
    sizes = {shape[0] for shape in shapes.values()} - {1}
    if len(sizes) > 1:
        raise ValueError(f"inputs must have the batch as their first axis, got shapes {shapes}")
    return sizes.pop() if sizes else 1


def log_probabilities(
    model: nn.Module,
    inputs: Any,
    num_samples: int | None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "batch classes"]:
    """Return the logarithm of the mean probabilities of samples; ``None``: of the model's own."""
    if num_samples is None:
        outputs = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
        return full_precision(_logits(outputs)).log_softmax(-1)
    drawn = sample_predictions(model, inputs, num_samples=num_samples, generator=generator)
    # log 1/S Σ softmax
    return full_precision(_logits(drawn)).log_softmax(-1).logsumexp(0) - math.log(num_samples)


def _logits(outputs: Any) -> Tensor:
    if isinstance(outputs, Mapping):
        return outputs["logits"]
    return outputs if isinstance(outputs, Tensor) else outputs[0]


@contextmanager
def held_functions(
    model: nn.Module, *, generator: torch.Generator | None = None
) -> Generator[None]:
    """Let all calls inside read the same random functions, one for each sequence of the batch.

    A decoder that is called token by token with its cache needs it: one sample of a text has one
    function in each layer. The batch must keep its size and order: transformers' models refuse beam
    search, and caches to be reordered. Other threads are not concerned.

    Args:
        model: with deviations.
        generator: source of the draws.

    Raises:
        ValueError: the model has no deviation, a batch has another size than the first, beams are
            searched, a cache is reordered, or activations are checkpointed for gradients.
    """
    functions = Functions()
    for each in model.modules():
        if hasattr(each, "_beam_search") and not isinstance(each, _Generating):
            for guest in guests(model)[:1]:  # it takes the class away when it is removed
                guest.undo.append(change_class(each, _Generating))
    with functions.leaving, _drawing(model, generator=generator, functions=functions):
        yield


class _Generating(Changed):
    """A language model of transformers, which reorders no cache where it has none."""

    def _beam_search(self, *args: Any, **named: Any) -> Any:
        if any(state_of(each).functions is not None for each in guests(self)):
            refuse_beams()
        model: Any = super()
        return model._beam_search(*args, **named)


@contextmanager
def _drawing(
    model: nn.Module, *, generator: torch.Generator | None, **changes: Any
) -> Generator[None]:
    attached, holds = guests(model), "functions" in changes
    if holds or not attached:
        deviations(model)
    if generator is not None or holds:
        _check_no_recomputation(model)
    with acting(attached, generator=generator, **changes):
        yield


def _check_no_recomputation(model: nn.Module) -> None:
    """Refuse activation checkpointing: what a backward pass draws again would be something else.

    It restores the global generator alone.
    """
    for module in model.modules() if torch.is_grad_enabled() else ():
        # timm recomputes in every mode, transformers in training mode.
        for name in ("grad_checkpointing", *["gradient_checkpointing"] * module.training):
            if getattr(module, name, False) is True:
                raise ValueError(
                    "generator must be None, and functions not held, where a model checkpoints its "
                    f"activations for gradients, got {name}=True: seed torch instead"
                )


def _unfolded(outputs: Any, samples: int, whole: int) -> Any:
    if isinstance(outputs, Tensor):
        if outputs.ndim and len(outputs) % whole:
            raise ValueError(
                "model must return tensors with the batch as their first axis, got shape "
                f"{tuple(outputs.shape)} for {samples} samples of {whole // samples} inputs"
            )
        return outputs.unflatten(0, (samples, -1)) if outputs.ndim else outputs
    if isinstance(outputs, Mapping):
        return {name: _unfolded(value, samples, whole) for name, value in outputs.items()}
    if isinstance(outputs, tuple | list):
        return tuple(_unfolded(value, samples, whole) for value in outputs)
    return outputs
