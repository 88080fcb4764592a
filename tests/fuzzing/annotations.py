"""Targets of the fuzz suite from annotations: a table holds only what an annotation can't say.

Shapes and dtypes come from jaxtyping, bounds from ``probseq.settings``, values from ``Literal``;
classes are built from the annotations of their constructors, and an argument of no known type
keeps its default.
"""

import collections.abc
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from fuzzing.arguments import (
    BACKBONE,
    COUNTS,
    GENERATORS,
    PASSES,
    SCALES,
    TEXT_BACKBONE,
    bools,
    built,
    covariance,
    factor,
    images,
    labels,
    modules,
    normal,
    positive,
    probabilities,
    tensors,
    unit,
)
from fuzzing.fuzz import Target, public_callables
from probseq.settings import Bound
from probseq.transformers import (
    TextTransformer,
    TransformerConfig,
    VisionTransformer,
    text_transformer,
    vision_transformer,
)

__all__ = ["backbone_targets", "derive", "instances", "small_transformers", "strategies"]

Entries = Mapping[str, Mapping[str, SearchStrategy[Any]]]

_NUMBERS = (0, 1, 2, 3, 0.1, 0.5, 1.0, 2.0)
# Names that mean the same everywhere, where their annotations say less.
_NAMED: Mapping[str, SearchStrategy[Any]] = {
    "dim": st.just(4),
    "num_heads": st.sampled_from([1, 2]),
    "max_tokens": st.just(4),
    "dropout": st.sampled_from([0.0, 0.1]),
    "jitter": st.sampled_from([1e-6, 1e-4]),
    "num_data": st.sampled_from([None, 10]),
    "token_map": st.none(),
    "penalty": tensors("", positive),
    **dict.fromkeys(("progress", "start", "end"), st.sampled_from([0.0, 0.5, 1.0])),
    **dict.fromkeys(("alpha", "penalty_scale", "kl_scale"), st.sampled_from([0.0, 0.5, 1.0])),
}
# Names of tensors whose entries mean the same everywhere.
_VALUES: Mapping[str, Callable[..., Tensor]] = {
    **dict.fromkeys(("probs", "probabilities"), probabilities),
    **dict.fromkeys(("variance", "losses", "spectrum", "sigmas", "noise"), positive),
    **dict.fromkeys(("covariance", "matrix", "scatter"), covariance),
    **dict.fromkeys(("L", "q_sqrt"), factor),
    **dict.fromkeys(("images", "references", "videos", "frames"), unit),
}


def derive(
    public: Sequence[ModuleType],
    reasons: Mapping[str, str],
    others: Sequence[Target] = (),
    *,
    entries: Entries | None = None,
    words: Mapping[str, str] | None = None,
) -> list[Target]:
    """Return a target for each public function, constructor and method, and ``others``.

    Args:
        public: modules, whose ``__all__`` is public.
        reasons: patterns of names that are left out, as in ``uncovered``.
        others: further targets, and those in place of the derived ones of their names.
        entries: strategies of arguments by patterns of the names of their functions: what the
            annotations don't say; that of the last pattern counts. ``self`` is one, too.
        words: for results that aren't finite, where the documentation has other words than
            ``PASSES``.

    Raises:
        TypeError: an annotation doesn't say what an argument is, and it has no entry and no
            default.
    """
    targets, apart = list(others), {str(target) for target in others}
    for owner, call in _all_callables(public):
        name = call.__qualname__ if owner is None else f"{owner.__qualname__}.{call.__name__}"
        if name not in apart and not any(fnmatchcase(name, pattern) for pattern in reasons):
            chosen = (words or {}).get(name, PASSES if _passes(owner, call) else "")
            targets.append(Target(call, strategies(call, name, entries or {}, owner), chosen))
    return targets


def backbone_targets(configs: SearchStrategy[Any]) -> list[Target]:
    """Return targets of transformers whose attention has these settings."""
    sampled = {"generator": GENERATORS, "num_samples": st.none() | COUNTS}
    vision, text = small_transformers(configs)
    return [
        Target(
            VisionTransformer.forward,
            {"self": vision, "images": images("b 1 4 4"), **sampled},
            non_finite=PASSES,
        ),
        Target(
            TextTransformer.forward,
            {"self": text, "tokens": labels("b t", "4"), "mask": st.none() | bools("b t")}
            | sampled,
        ),
    ]


def small_transformers(
    configs: SearchStrategy[Any],
) -> tuple[SearchStrategy[Any], SearchStrategy[Any]]:
    """Return transformers of images of 4 by 4 pixels, and of at most four of five tokens."""
    vision = {"image_size": 4, "patch_size": 2, "channels": 1, "num_classes": 3}
    text = {"vocab_size": 5, "max_length": 4, "num_classes": 3}
    backbones = (built(TransformerConfig, **b) for b in (BACKBONE, TEXT_BACKBONE))
    return (
        modules(vision_transformer, backbone=next(backbones), attention=configs, **vision),
        modules(text_transformer, backbone=next(backbones), attention=configs, **text),
    )


def strategies(
    call: Callable[..., Any], name: str, entries: Entries, owner: type | None = None
) -> dict[str, SearchStrategy[Any]]:
    """Return a strategy of each argument, from the entries of its name or its annotation."""
    entered: dict[str, SearchStrategy[Any]] = {}
    for pattern, arguments in entries.items():
        if fnmatchcase(name, pattern):
            entered |= arguments
    made: dict[str, SearchStrategy[Any]] = {}
    parameters = inspect.signature(call).parameters
    classes = [
        parameters[key].annotation.dim_str.split()[-1]
        for key in ("logits", "log_probs", "probs")
        if hasattr(parameters.get(key), "annotation")
        and hasattr(parameters[key].annotation, "dim_str")
    ]
    for key, parameter in parameters.items():
        if key == "self" and owner is not None:
            made[key] = entered.get(key, instances(owner, entries))
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            strategy = entered.get(key)
            if strategy is None and key == "labels" and classes:
                strategy = labels(parameter.annotation.dim_str, classes[0])
            if strategy is None:
                strategy = _of(parameter.annotation, key, entries)
            if strategy is None and parameter.default is not parameter.empty:
                strategy = st.just(parameter.default)
            if strategy is None:
                raise TypeError(
                    f"{name} needs an entry for {key}: {parameter.annotation} says too little"
                )
            made[key] = strategy
    return made


def _all_callables(public: Sequence[ModuleType]) -> Iterator[tuple[type | None, Any]]:
    """Yield functions, constructors, and methods with their classes.

    Of inherited methods, those of private classes, and ``forward`` of modules.
    """
    things: list[Any] = [getattr(module, name) for module in public for name in module.__all__]
    for thing in dict.fromkeys(thing for thing in things if callable(thing)):
        names = [name.partition(".")[2] for name in public_callables(thing)]
        if inspect.isclass(thing) and names:
            for base in thing.__mro__[1:]:
                if base.__name__.startswith("_"):
                    names += [name.partition(".")[2] for name in public_callables(base)]
            if issubclass(thing, nn.Module) and thing.forward is not nn.Module.forward:
                names.append("forward")
        for name in dict.fromkeys(names):
            if not name:
                yield None, thing
                continue
            method = getattr(thing, name, None)
            if method is None:  # a lambda of the class's body
                continue
            static = isinstance(inspect.getattr_static(thing, name), (staticmethod, classmethod))
            if not getattr(method, "__isabstractmethod__", False):
                owner: Any = None if static else thing
                yield owner, method


def _passes(owner: type | None, call: Any) -> bool:
    """Return whether the documentation lets NaN and infinity in a tensor pass."""
    parameters = () if inspect.isclass(call) else inspect.signature(call).parameters.values()
    if not any("Tensor" in str(parameter.annotation) for parameter in parameters):
        return False
    places = [call, sys.modules[call.__module__], *(inspect.getmro(owner) if owner else ())]
    return any(PASSES in " ".join(str(place.__doc__).split()) for place in places)


def _of(annotation: Any, name: str, entries: Entries) -> SearchStrategy[Any] | None:
    """Return a strategy of a type, or None where it says too little."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _of_bounded(
            inside[0], [b for b in inside[1:] if isinstance(b, Bound)], name, entries
        )
    if origin in (Union, UnionType):
        named = _NAMED.get(name)
        if named is not None:
            return (st.none() | named) if NoneType in inside else named
        options = [_of(option, name, entries) for option in inside if option is not NoneType]
        known = [option for option in options if option is not None]
        if known and NoneType in inside:
            known.append(st.none())
        return st.one_of(*known) if known else None
    if origin is Literal:
        return st.sampled_from(inside)
    if annotation is NoneType:
        return st.none()
    if name in _NAMED:
        return _NAMED[name]
    if origin in (list, tuple, collections.abc.Sequence, collections.abc.Iterable):
        return _of_items(origin, inside, name, entries)
    if getattr(annotation, "array_type", None) is Tensor:
        return _of_shape(annotation, name)
    known = {bool: st.booleans(), int: COUNTS, float: SCALES, torch.Generator: GENERATORS}
    if annotation in known:
        return known[annotation]
    if annotation is torch.dtype:
        return st.sampled_from([torch.float32, torch.float64])
    if inspect.isclass(annotation) and (
        dataclasses.is_dataclass(annotation)
        or (issubclass(annotation, nn.Module) and annotation is not nn.Module)
    ):
        return instances(annotation, entries)
    return None


def _of_bounded(
    kind: Any, bounds: Sequence[Bound], name: str, entries: Entries
) -> SearchStrategy[Any] | None:
    """Return values that meet the bounds."""

    def holds(value: Any) -> bool:
        return all(bound.holds(value) for bound in bounds)

    if kind not in (int, float):
        whole = _of(kind, name, entries)
        return None if whole is None else whole.filter(holds)
    numbers = [n for n in _NUMBERS if (isinstance(n, int) or kind is float) and holds(n)]
    return st.sampled_from(numbers) if numbers else None


def instances(kind: type, entries: Entries | None = None) -> SearchStrategy[Any]:
    """Return instances of a class by the annotations of its constructor.

    Modules are in the call's dtype, in training or in evaluation.
    """
    make = modules if issubclass(kind, nn.Module) else built
    return make(kind, **strategies(kind, kind.__qualname__, entries or {}))


def _of_items(
    origin: Any, inside: tuple[Any, ...], name: str, entries: Entries
) -> SearchStrategy[Any] | None:
    whole = origin is not tuple or inside[1:] == (Ellipsis,)
    items = [_of(item, name, entries) for item in (inside[:1] if whole else inside)]
    if None in items:
        return None
    known = [item for item in items if item is not None]
    if not whole:
        return st.tuples(*known)
    lists = st.lists(known[0], min_size=1, max_size=2)
    return lists.map(tuple) if origin is tuple else lists


def _of_shape(annotation: Any, name: str) -> SearchStrategy[Any]:
    """Return tensors of a shape; ``*batch`` is no axis or one, ``dim`` is 4."""
    axes: list[Sequence[str]] = []
    for axis in annotation.dim_str.split():
        axis = axis.rpartition("=")[2]
        size = {"dim": "4", "...": "more"}.get(axis.lstrip("*#?_"), axis.lstrip("*#?_") or "some")
        axes.append([size, ""] if axis.startswith(("*", "...")) else [size])
    shapes = [" ".join(filter(None, chosen)) for chosen in product(*axes)]
    dtypes = annotation.dtypes if isinstance(annotation.dtypes, tuple) else ()
    if any("bool" in str(dtype) for dtype in dtypes):
        return st.one_of(*map(bools, shapes))
    if any("int" in str(dtype) for dtype in dtypes):
        return st.one_of(*(labels(shape, "4") for shape in shapes))
    values = _VALUES.get(name, normal)
    return st.one_of(*(tensors(shape, values) for shape in shapes))
