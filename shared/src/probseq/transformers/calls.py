"""What a call of a model needs to know: it lives in a context, for threads share the model."""

import functools
import inspect
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# What takes something out of a model.
Undo = Callable[[], object]


@dataclass
class Functions:
    """Random functions that several calls read; on leaving, caches may be reordered again."""

    noise: dict[nn.Module, Tensor] = field(default_factory=dict[nn.Module, Tensor])
    leaving: ExitStack = field(default_factory=ExitStack)

    def refuse_reordering(self, cache: Any) -> None:
        """Let a decoder's cache refuse to exchange its rows, which beam search does."""
        for name in ("reorder_cache", "batch_select_indices"):
            if hasattr(cache, name) and name not in vars(cache):
                setattr(cache, name, refuse_beams)
                self.leaving.callback(delattr, cache, name)


def refuse_beams(*_: Any) -> None:
    """Raise: rows of a batch must not change places."""
    raise ValueError(
        "held_functions must not be used in beam search: each row has a function, and texts change "
        "their rows"
    )


@dataclass(frozen=True)
class State:
    """What a call has for a module."""

    generator: torch.Generator | None = None  # source of its draws; ``None`` for torch's own
    functions: Functions | None = None  # those that all calls read; ``None`` where each draws anew
    penalties: list[Tensor] | None = None  # where it leaves its penalty
    # Called with the number of sequences before it draws
    reached: Callable[[int], None] = lambda sequences: None
    forward: Callable[..., Any] | None = None  # what is called in place of the module's forward


class _Call:
    """All states; to compilers, nothing but whether there is one."""

    def __init__(self, states: dict[nn.Module, State]) -> None:
        self.states = states


_NO_STATE = State()
_CALL: ContextVar[_Call | None] = ContextVar("probseq_call", default=None)


@contextmanager
def acting(modules: Iterable[nn.Module], **changes: Any) -> Generator[None]:
    """Change the states of modules, for what this thread calls inside."""
    call = _CALL.get()
    before = call.states if call else {}
    changed = {each: replace(before.get(each, _NO_STATE), **changes) for each in modules}
    token = _CALL.set(_Call(before | changed))
    try:
        yield
    finally:
        _CALL.reset(token)


def state_of(module: nn.Module) -> State:
    """Return what this thread's call has for a module."""
    call = _CALL.get()
    return _NO_STATE if call is None else call.states.get(module, _NO_STATE)


def with_state(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method take the module's state before its arguments, and compilers leave it alone."""

    def in_call(self: nn.Module, *args: Any) -> Any:
        return function(self, state_of(self), *args)

    @functools.wraps(function)
    def method(self: nn.Module, *args: Any) -> Any:
        if _CALL.get() is None:  # what compilers guard
            return function(self, _NO_STATE, *args)
        if torch.compiler.is_compiling():
            return torch.compiler.disable(in_call)(self, *args)
        return in_call(self, *args)

    return method


# -- Modules with another forward -----------------------------------------------------------------


class Changed(nn.Module):
    """Stands before a module's class; compilers guard a type of its own, but not hooks."""

    probseq_base: type[nn.Module] = nn.Module  # the module's class
    probseq_arguments: tuple[str, ...] = ()  # names of the arguments of its forward

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new, _base_and_changes(type(self)), self.__getstate__()


class Opened(Changed):
    """A block that a call may put something in place of."""

    def forward(self, *args: Any, **named: Any) -> Any:
        """Call what stands in for it, or itself."""
        if torch.compiler.is_compiling() or (stand_in := state_of(self).forward) is None:
            return super().forward(*args, **named)
        return stand_in(super().forward, *args, **named)


def argument_names(cls: type[nn.Module]) -> tuple[str, ...]:
    """Return the names of a forward's arguments."""
    if issubclass(cls, Changed):
        return cls.probseq_arguments
    return tuple(inspect.signature(cls.forward).parameters)[1:]


@functools.cache
def _changed(base: Any, changes: tuple[type[Changed], ...]) -> Any:
    """Return a class with others before it, the last of them first."""
    if not changes:
        return base
    base = _changed(base, changes[:-1])
    members = {"probseq_base": base, "probseq_arguments": argument_names(base)}
    members["__module__"] = base.__module__
    return type(base.__name__, (changes[-1], base), members)


def _base_and_changes(cls: type[Any]) -> tuple[type[nn.Module], tuple[type[Changed], ...]]:
    """Return a class as it was, and what is before it."""
    if not issubclass(cls, Changed):
        return cls, ()
    base, changes = _base_and_changes(cls.probseq_base)
    return base, (*changes, cls.__mro__[1])


def _new(base: type[nn.Module], changes: tuple[type[Changed], ...]) -> nn.Module:
    cls = _changed(base, changes)
    return cls.__new__(cls)


def change_class(module: nn.Module, change: type[Changed]) -> Undo:
    """Put a class before that of a module; return what takes it away."""
    base, changes = _base_and_changes(type(module))
    module.__class__ = _changed(base, (*changes, change))
    return _TakeAway(module, change)


class _TakeAway(NamedTuple):
    """Takes a class from before that of a module."""

    module: nn.Module
    change: type[Changed]

    def __call__(self) -> None:
        base, changes = _base_and_changes(type(self.module))
        others = tuple(each for each in changes if each is not self.change)
        self.module.__class__ = _changed(base, others)


# -- Compiled models ------------------------------------------------------------------------------


def is_compiled(model: nn.Module) -> bool:
    """Whether a model or what is in it is compiled: what is put in its place would not be seen."""
    return any(
        hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None
        for each in model.modules()
    )


@contextmanager
def eager() -> Generator[None]:
    """Let compiled models run as they are written: compilers don't see hooks."""
    if "torch._dynamo" not in sys.modules:  # nothing can be compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
