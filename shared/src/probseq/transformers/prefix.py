"""What a model computes before its first random layer, once for all samples."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probseq.transformers.sampling import repeat_samples


class _ReachedError(Exception):
    """The first random layer is reached: what comes before it is known."""


@contextmanager
def shared_prefix(
    model: nn.Module, call: Callable[[], object], random: Sequence[nn.Module], num_samples: int
) -> Generator[None]:
    """Let blocks that come before all random layers give what they gave for one sample, S times.

    The model is called once up to its first random layer. Blocks are the members of an
    ``nn.ModuleList`` or ``nn.Sequential`` that take and give tensors with the batch first. A block
    is left alone that takes anything that it could change, like a cache, that changes a tensor in
    place, or with hooks on it or inside, which see all samples then. A model in training mode or
    compiled, or with tokens before the batch, runs as a whole.

    Args:
        model: with random layers.
        call: calls it on the batch, not repeated.
        random: its random layers.
        num_samples: number of samples S, in which the batch is repeated inside.
    """
    blocks = list(_blocks(model))
    tokens_first = any(
        isinstance(part, nn.MultiheadAttention) and not part.batch_first for part in model.modules()
    )
    training = any(part.training for part in model.modules())
    if tokens_first or training or hasattr(model, "_orig_mod") or num_samples == 1:
        yield
        return
    outputs = _record(blocks, call, random)
    with ExitStack() as stack:
        for block, found in outputs.items():
            kept = [one for one in found if one is not None and one.is_unchanged()]
            if len(kept) == len(found) and not _is_hooked(block):
                stack.callback(_restore, block)
                block.forward = _Replay(block, kept, num_samples)
        yield


class _Output(NamedTuple):
    """What a block gave for tokens, and how often its tensors had been changed in place."""

    output: Any
    versions: list[int]
    tokens: torch.Size

    def is_unchanged(self) -> bool:
        return _versions(_parts(self.output)) == self.versions


class _Replay:
    """Gives what a block gave at each of its calls, for S samples.

    Later calls, and those whose first axis is not that of the samples, are the block's own.
    """

    def __init__(self, block: nn.Module, outputs: list[_Output], num_samples: int) -> None:
        self._block, self._outputs, self._samples = block, iter(outputs), num_samples

    def __call__(self, *args: Any, **named: Any) -> Any:
        known = next(self._outputs, None)
        if known is None or args[0].shape != (self._samples * known.tokens[0], *known.tokens[1:]):
            return type(self._block).forward(self._block, *args, **named)
        if isinstance(known.output, Tensor):
            return repeat_samples(known.output, self._samples)
        return tuple(
            None if one is None else repeat_samples(one, self._samples) for one in known.output
        )


def _restore(block: nn.Module) -> None:
    del block.forward  # the instance's own; that of its class is back


def _blocks(model: nn.Module) -> Iterable[nn.Module]:
    for owner in model.modules():
        if isinstance(owner, nn.ModuleList | nn.Sequential):
            yield from (block for block in owner if "forward" not in vars(block))


def _record(
    blocks: Iterable[nn.Module], call: Callable[[], object], random: Sequence[nn.Module]
) -> dict[nn.Module, list[_Output | None]]:
    """Return what blocks give at each call before the first random layer; None for what cannot."""
    outputs: dict[nn.Module, list[_Output | None]] = defaultdict(list)
    before: dict[nn.Module, list[int]] = {}

    def look(block: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        before[block] = _versions((*args, *named.values()))

    def keep(block: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        given = (*args, *named.values())
        rows = args[0].shape[0] if args and _batched(args[0], None) else 0
        fits = rows and all(one is None or _batched(one, rows) for one in _parts(output))
        if fits and all(map(is_value, given)) and _versions(given) == before[block]:
            found = _Output(output, _versions(_parts(output)), args[0].shape)
            outputs[block].append(found)
        else:
            outputs[block].append(None)

    def stop(module: nn.Module, args: object) -> None:
        raise _ReachedError

    with ExitStack() as stack:
        for block in dict.fromkeys(blocks):
            stack.enter_context(block.register_forward_pre_hook(look, with_kwargs=True))
            stack.enter_context(block.register_forward_hook(keep, with_kwargs=True))
        for module in random:
            stack.enter_context(module.register_forward_pre_hook(stop))
        with suppress(_ReachedError):
            call()
    return outputs


def _is_hooked(block: nn.Module) -> bool:
    """Whether calls of the block or of what is inside are looked at, or changed, from outside."""
    names = ("_forward_hooks", "_forward_pre_hooks")
    return any(vars(part)[name] for part in block.modules() for name in names)


def _parts(output: Any) -> tuple[Any, ...]:
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
