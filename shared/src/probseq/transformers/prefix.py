"""What a model computes before its first random layer, once for all samples."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

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
    ``nn.ModuleList`` or ``nn.Sequential`` that take and give tensors with the batch first; a block
    that takes anything that it could change, like a cache, is left alone. A model in training mode
    or compiled, or with tokens before the batch, runs as a whole.

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
            kept = [one.output for one in found if one is not None and one.is_unchanged()]
            if len(kept) == len(found):
                stack.callback(_restore, block)
                block.forward = _Replay(kept, num_samples)
        yield


class _Output(NamedTuple):
    """What a block gave, and how often its tensors had been changed in place."""

    output: Any
    versions: list[int]

    @classmethod
    def of(cls, output: Any) -> "_Output":
        return cls(output, _versions(output))

    def is_unchanged(self) -> bool:
        return _versions(self.output) == self.versions


class _Replay:
    """Gives what a block gave at each of its calls, for S samples."""

    def __init__(self, outputs: list[Any], num_samples: int) -> None:
        self._outputs, self._samples = iter(outputs), num_samples

    def __call__(self, *args: Any, **named: Any) -> Any:
        output = next(self._outputs)
        if isinstance(output, Tensor):
            return repeat_samples(output, self._samples)
        return tuple(None if one is None else repeat_samples(one, self._samples) for one in output)


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

    def keep(block: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        rows = args[0].shape[0] if args and _batched(args[0], None) else 0
        fits = rows and all(one is None or _batched(one, rows) for one in _parts(output))
        fixed = all(_is_value(value) for value in (*args, *named.values()))
        outputs[block].append(_Output.of(output) if fits and fixed else None)

    def stop(module: nn.Module, args: object) -> None:
        raise _ReachedError

    with ExitStack() as stack:
        for block in dict.fromkeys(blocks):
            stack.enter_context(block.register_forward_hook(keep, with_kwargs=True))
        for module in random:
            stack.enter_context(module.register_forward_pre_hook(stop))
        with suppress(_ReachedError):
            call()
    return outputs


def _parts(output: Any) -> tuple[Any, ...]:
    return output if type(output) is tuple else (output,)


def _versions(output: Any) -> list[int]:
    return [one._version for one in _parts(output) if one is not None]


def _batched(value: object, rows: int | None) -> bool:
    """Whether it is a tensor of a batch of tokens, of as many rows if they are given."""
    # Inference tensors don't tell whether they were changed.
    if not isinstance(value, Tensor) or value.ndim < 3 or value.is_inference():
        return False
    return rows in (None, value.shape[0])


def _is_value(value: object) -> bool:
    """Whether nothing that a block could change is in it."""
    if isinstance(value, tuple):
        return all(map(_is_value, value))
    return value is None or isinstance(value, Tensor | bool | int | float | str)
