"""What a model computes before its first random layer, once for all samples."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from probseq.transformers.calls import Opened, Undo, acting, change_class, is_compiled
from probseq.transformers.sampling import repeat_samples


class _ReachedError(Exception):
    """The first random layer is reached: what comes before it is known."""


def open_blocks(model: nn.Module) -> list[Undo]:
    """Let calls share what blocks give; return what takes it back.

    Blocks are the members of an ``nn.ModuleList`` or ``nn.Sequential`` with modules inside.
    """
    blocks = {
        block: None
        for owner in model.modules()
        if isinstance(owner, nn.ModuleList | nn.Sequential)
        for block in owner
        if not isinstance(block, Opened) and next(block.children(), None) is not None
    }
    return [change_class(block, Opened) for block in blocks]


@contextmanager
def shared_prefix(
    model: nn.Module, call: Callable[[], object], random: Sequence[nn.Module], num_samples: int
) -> Generator[int | None]:
    """Let blocks that come before all random layers give what they gave for one sample, S times.

    The model is called once up to its first random layer. Blocks count that are opened
    (:func:`open_blocks`), and take and give tensors with the batch first. A block is left alone
    that takes anything that it could change, like a cache, that changes a tensor in place, or with
    hooks on it or inside, which see all samples then. With tokens before the batch a model runs as
    a whole; in training mode or compiled it is not called before.

    Args:
        model: with random layers.
        call: calls it on the batch, not repeated.
        random: its random layers, which tell their state when they are reached.
        num_samples: number of samples S, in which the batch is repeated inside.

    Yields:
        The number of sequences that reached the first random layer; ``None`` if it was not called.
    """
    training = any(module.training for module in model.modules())
    if training or num_samples == 1 or is_compiled(model):
        yield None
        return
    tokens_first = any(
        isinstance(module, nn.MultiheadAttention) and not module.batch_first
        for module in model.modules()
    )
    blocks = [module for module in model.modules() if isinstance(module, Opened)]
    outputs, sequences = _record([] if tokens_first else blocks, call, random)
    with ExitStack() as stack:
        for block, known in outputs.items():
            good = [one for one in known if one is not None and one.is_unchanged()]
            if sequences and len(good) == len(known) and not _is_hooked(block):
                stack.enter_context(acting([block], forward=_Replay(good, num_samples)))
        yield sequences


class _Output(NamedTuple):
    """What a block gave for tokens, and how often its tensors had been changed in place."""

    output: Any
    versions: list[int]
    tokens: torch.Size

    def is_unchanged(self) -> bool:
        return _versions(_tensors(self.output)) == self.versions


class _Replay:
    """Gives what a block gave at each of its calls, for S samples.

    Later calls, and those whose first axis is not that of the samples, are the block's own.
    """

    def __init__(self, outputs: list[_Output], num_samples: int) -> None:
        self._outputs, self._samples = iter(outputs), num_samples

    def __call__(self, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        known = next(self._outputs, None)
        if known is None or args[0].shape != (self._samples * known.tokens[0], *known.tokens[1:]):
            return forward(*args, **named)
        if isinstance(known.output, Tensor):
            return repeat_samples(known.output, self._samples)
        return tuple(
            None if one is None else repeat_samples(one, self._samples) for one in known.output
        )


def _record(
    blocks: Iterable[nn.Module], call: Callable[[], object], random: Sequence[nn.Module]
) -> tuple[dict[nn.Module, list[_Output | None]], int | None]:
    """Return what blocks give at each call before the first random layer; None for what cannot.

    And the number of sequences there.
    """
    outputs: dict[nn.Module, list[_Output | None]] = defaultdict(list)
    sequences: int | None = None

    def look(block: nn.Module) -> Callable[..., Any]:
        def record(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
            values = (*args, *named.values())
            before = _versions(values)
            output = forward(*args, **named)
            rows = args[0].shape[0] if args and _batched(args[0], None) else 0
            fits = rows and all(one is None or _batched(one, rows) for one in _tensors(output))
            if fits and all(map(is_value, values)) and _versions(values) == before:
                known = _Output(output, _versions(_tensors(output)), args[0].shape)
                outputs[block].append(known)
            else:
                outputs[block].append(None)
            return output

        return record

    def stop(count: int) -> None:
        nonlocal sequences
        sequences = count
        raise _ReachedError

    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(acting([block], forward=look(block)))
        stack.enter_context(acting(random, reached=stop))
        with suppress(_ReachedError):
            call()
    return outputs, cast("int | None", sequences)


def _is_hooked(block: nn.Module) -> bool:
    """Whether calls of the block or of what is inside are looked at, or changed, from outside."""
    names = ("_forward_hooks", "_forward_pre_hooks")
    return any(vars(module)[name] for module in block.modules() for name in names)


def _tensors(output: Any) -> tuple[Any, ...]:
    return output if type(output) is tuple else (output,)


def _versions(values: tuple[Any, ...]) -> list[int]:
    # Inference tensors don't tell whether they were changed.
    return [one._version for one in values if isinstance(one, Tensor) and not one.is_inference()]


def _batched(value: object, rows: int | None) -> bool:
    """Whether it is a tensor of a batch of tokens, of as many rows if they are given."""
    if not isinstance(value, Tensor) or value.ndim < 3 or value.is_inference():
        return False
    # With as many tokens as rows it could be the tokens that come first.
    return rows is None or (value.shape[0] == rows != value.shape[1])


def is_value(value: object) -> bool:
    """Whether nothing is in it that a model could change but tensors, which tell."""
    if isinstance(value, tuple):
        return all(map(is_value, value))
    return value is None or isinstance(value, Tensor | bool | int | float | str)
