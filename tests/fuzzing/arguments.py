"""Strategies of arguments for the fuzz suite: good ones, and mistakes of callers.

Sizes and the floating dtype are shared by name within one call: ``tensors("n d")`` and
``tensors("m d")`` agree in d, and all tensors agree in their dtype.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

__all__ = [
    "BACKBONE",
    "COUNTS",
    "DTYPES",
    "GENERATORS",
    "PASSES",
    "SCALES",
    "TEXT_BACKBONE",
    "Draw",
    "attended",
    "bools",
    "built",
    "covariance",
    "factor",
    "hostile",
    "images",
    "labels",
    "modules",
    "normal",
    "positive",
    "probabilities",
    "show",
    "size",
    "tensors",
    "unit",
]

# Of all tensors of one call: mostly float32 and float64.
DTYPES: SearchStrategy[torch.dtype] = st.shared(
    st.sampled_from([torch.float32, torch.float64] * 3 + [torch.float16, torch.bfloat16]),
    key="dtype",
)

# Strategies of numbers and of generators.
COUNTS = st.integers(1, 3)
SCALES = st.sampled_from([0.5, 1.0, 2.0])
GENERATORS = st.none() | st.builds(torch.Generator)
PASSES = "NaN and infinity in a tensor reach the result"
"""Sentence in the documentation of functions that don't look at the values."""

BACKBONE: dict[str, SearchStrategy[Any]] = {
    "depth": st.integers(1, 2),
    "dim": st.just(4),
    "num_heads": st.sampled_from([1, 2]),
    "hidden_dim": COUNTS,
    "dropout": st.sampled_from([0.0, 0.1]),
    "pooling": st.sampled_from(["mean", "sequence", "cls", "flatten"]),
    "norm": st.sampled_from(["pre", "post"]),
    "shared_norm": st.booleans(),
    "final_norm": st.booleans(),
}
"""Settings of a small transformer of images."""

TEXT_BACKBONE = BACKBONE | {"pooling": st.sampled_from(["mean", "cls", "flatten"])}
"""Settings of a small transformer of sequences of different lengths."""

# Not hypothesis' DrawFn, a protocol that shape checks of test sessions cannot look into.
Draw = Callable[[SearchStrategy[Any]], Any]
Values = Callable[[tuple[int, ...], torch.Generator], Tensor]


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return multiples of 1/4 in −2..2."""
    return torch.randint(-8, 9, shape, generator=generator) / 4


def positive(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return multiples of 1/4 in 1/4..2."""
    return torch.randint(1, 9, shape, generator=generator) / 4


def unit(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return multiples of 1/8 in −1..1, as images have them."""
    return torch.randint(-8, 9, shape, generator=generator) / 8


def probabilities(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return distributions along the last axis."""
    return normal(shape, generator).double().softmax(-1)


def covariance(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return positive definite matrices."""
    root = factor(shape, generator)
    return root @ root.mT


def factor(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return lower triangular matrices with a dominant, positive diagonal."""
    diagonal = 1 + positive(shape[:-1], generator)
    return normal(shape, generator).tril(-1) / 8 + torch.diag_embed(diagonal)


def size(name: str, least: int = 1, most: int = 4) -> SearchStrategy[int]:
    """Return a size that is the same wherever its name occurs within one call."""
    return st.just(int(name)) if name.isdigit() else st.shared(st.integers(least, most), key=name)


@st.composite
def tensors(
    draw: Draw, shape: str, values: Values = normal, dtype: torch.dtype | None = None
) -> Tensor:
    """Draw a tensor.

    Args:
        draw: given by hypothesis.
        shape: names of sizes, or the sizes themselves, with blanks between them.
        values: makes the entries.
        dtype: the dtype; None for the call's floating dtype.
    """
    sizes = tuple(draw(size(name)) for name in shape.split())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return values(sizes, generator).to(dtype or draw(DTYPES))


@st.composite
def labels(draw: Draw, shape: str, classes: str) -> Tensor:
    """Draw integers below ``classes``, the name of a size."""
    count = draw(size(classes))
    return draw(tensors(shape, partial(_integers, count), torch.int64))


def images(shape: str) -> SearchStrategy[Tensor]:
    """Return images in −1..1."""
    return tensors(shape, unit)


def bools(shape: str) -> SearchStrategy[Tensor]:
    """Return booleans, the first of each row true."""
    return tensors(shape, _bools, torch.bool)


def attended() -> dict[str, SearchStrategy[Any]]:
    """Return arguments of an attention module of width 4."""
    return {
        "x": tensors("b t 4"),
        "mask": st.none() | bools("b t"),
        "token_map": st.none(),
        "generator": GENERATORS,
        "num_samples": st.none() | COUNTS,
    }


def _integers(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(0, count, shape, generator=generator)


def _bools(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    flags = torch.randint(0, 2, shape, generator=generator)
    flags[..., 0] = 1
    return flags


@st.composite
def built(draw: Draw, maker: Callable[..., Any], /, **arguments: SearchStrategy[Any] | Any) -> Any:
    """Draw the result of ``maker`` for arguments, strategies or values, that fit together."""
    drawn = {
        name: draw(value) if isinstance(value, SearchStrategy) else value
        for name, value in arguments.items()
    }
    torch.default_generator.manual_seed(0)
    try:
        made = maker(**drawn)
    except ValueError:
        reject()
    if not isinstance(made, (int, float, str, tuple, Tensor)):
        object.__setattr__(made, "_fuzz_shown", f"{maker.__name__}({_show_all(drawn)})")
    return made


@st.composite
def modules(
    draw: Draw, maker: Callable[..., torch.nn.Module], /, **arguments: SearchStrategy[Any] | Any
) -> torch.nn.Module:
    """Draw a module as ``built`` does, in the call's dtype, in training or in evaluation."""
    module, dtype, training = draw(built(maker, **arguments)), draw(DTYPES), draw(st.booleans())
    code = f"{show(module)}.to({dtype}).train({training})"
    object.__setattr__(module, "_fuzz_shown", code)
    return module.to(dtype).train(training)


# -- What callers pass by mistake -------------------------------------------------------------

_NUMBERS: list[Any] = [
    *(0, -1, 1, 2, 0.5, 0.0, -0.5, 1.5, 1e30, -1e30, 1e-30, 10**6),
    *(float("nan"), float("inf"), -float("inf")),
]
_ENTRIES = [float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 2.0, 1e30, -1e30, 1e-30]
_DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int64, torch.uint8, torch.bool, torch.complex64),
]


def hostile(value: Any) -> SearchStrategy[Any]:
    """Return mistakes in place of a good argument: another shape, dtype or value.

    Objects of foreign types, such as a list for a tensor, are left to type checkers.
    """
    match value:
        case Tensor() | np.ndarray():
            return st.one_of(
                st.sampled_from(_reshaped(value)),
                st.builds(_refilled, st.just(value), st.sampled_from(_ENTRIES), st.booleans()),
                st.sampled_from(_retyped(value)),
            )
        case bool():
            return st.just(not value)
        case int() | float():
            return st.sampled_from(_NUMBERS)
        case str():
            return st.sampled_from(["", "nonsense", value.upper()])
        case tuple() | list():
            items = cast("Sequence[Any]", value)
            return st.sampled_from([items[:0], items[:-1], [*items, *items[:1]]]) | (
                st.integers(0, len(items) - 1).flatmap(partial(_with_hostile_item, items))
                if items
                else st.nothing()
            )
        case dict():
            entries = cast("dict[Any, Any]", value)
            less = dict(list(entries.items())[1:])
            extra = next(iter(entries.values()), 1)
            changed = st.sampled_from([{}, less, {**entries, "nonsense": extra}])
            return changed | (
                st.sampled_from(list(entries)).flatmap(
                    lambda key: hostile(entries[key]).map(lambda item: {**entries, key: item})
                )
                if entries
                else st.nothing()
            )
        case _:
            return st.just(value)


def _reshaped(value: Any) -> list[Any]:
    """Return the values in other shapes: axes added, dropped, emptied, halved, doubled, swapped."""
    join = torch.cat if isinstance(value, Tensor) else np.concatenate
    values = [value[None], value[..., None], value.reshape(-1)]
    for axis in range(value.ndim):
        before = (slice(None),) * axis
        values += [value[(*before, slice(0, 0))], value[(*before, slice(0, 1))]]
        if value.shape[axis]:
            values += [value[(*before, 0)], join([value, value], axis)]
    if value.ndim > 1:
        values += [value.swapaxes(-1, -2), value.swapaxes(0, 1)]
    return values


def _retyped(value: Any) -> list[Any]:
    """Return the values in other dtypes."""
    if isinstance(value, Tensor):
        return [value.to(dtype) for dtype in _DTYPES]
    return [value.astype(dtype) for dtype in ("f2", "f4", "i8", "?", "c8")] + [value]


def _refilled(value: Any, entry: float, everywhere: bool) -> Any:
    """Return values with the first entry, or all, replaced; NaN becomes 10⁶ in whole numbers."""
    value = value.clone() if isinstance(value, Tensor) else value.copy()
    index = ... if everywhere or value.ndim == 0 else (0,) * value.ndim
    if 0 in value.shape:
        return value
    if isinstance(value, Tensor):
        integers = not value.is_floating_point()
        beyond = integers and not abs(entry) < 1e6
        # Through float64: half precision takes 1e30 as infinity.
        number = torch.tensor(10**6) if beyond else torch.tensor(entry, dtype=torch.float64)
        value[index] = number.to(value.dtype)
    elif value.dtype.kind == "f":
        value[index] = entry
    elif value.dtype.kind == "M":
        value[index] = np.datetime64("NaT" if entry != entry else "1678-01-01", "D")
    else:
        value[index] = entry if abs(entry) < 1e6 else 10**6
    return value


def _with_hostile_item(items: Sequence[Any], index: int) -> SearchStrategy[Any]:
    def replaced(item: Any) -> Any:
        return type(items)([*items[:index], item, *items[index + 1 :]])  # type: ignore[call-arg]

    return hostile(items[index]).map(replaced)


# -- How a call is shown ----------------------------------------------------------------------


def show(value: Any) -> str:
    """Return code on one line that makes ``value``, or something near it."""
    code = getattr(value, "__dict__", {}).get("_fuzz_shown")
    if code is not None:
        return code
    match value:
        case Tensor():
            dtype = str(value.dtype)
            if not value.numel():
                return f"torch.zeros({tuple(value.shape)}, dtype={dtype})"
            grad = ", requires_grad=True" if value.requires_grad else ""
            return f"torch.tensor({_rounded(value.tolist())}, dtype={dtype}{grad})"
        case np.ndarray():
            if not value.size:
                return f"np.zeros({value.shape}, dtype={value.dtype.str!r})"
            return f"np.array({_rounded(value.tolist())}, dtype={value.dtype.str!r})"
        case torch.Generator():
            return "torch.Generator()"
        case tuple() | list():
            items = cast("Sequence[Any]", value)
            inside = ", ".join(map(show, items))
            if isinstance(items, list):
                return f"[{inside}]"
            return f"({inside},)" if len(items) == 1 else f"({inside})"
        case int() if abs(value) > 2**64:
            return f"10**{len(str(value)) - 1}"
        case dict():
            entries = cast("dict[Any, Any]", value)
            return f"{{{', '.join(f'{key!r}: {show(item)}' for key, item in entries.items())}}}"
        case type():
            return value.__name__
        case _ if callable(value) and hasattr(value, "__name__"):
            return value.__name__
        case _ if type(value) is object:
            return "object()"
        case _ if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            inside = _show_all({field.name: getattr(value, field.name) for field in fields})
            return f"{type(value).__name__}({inside})"
        case _:
            return " ".join(repr(value).split())


def _rounded(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_rounded(item) for item in cast('list[Any]', value))}]"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _show_all(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in arguments.items())
