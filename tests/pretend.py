"""A device that only pretends: its values lie on the CPU, and it refuses what CUDA refuses.

Most faults of code for a GPU are tensors left on the CPU. Inside of `device` there is a device
"pretend" (torch's Python backend): an operation on its tensors and the CPU's raises, and so do
generators of another device, and numpy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

# Beside pointwise operations, what takes numbers of the CPU or copies between devices, and the
# places of its arguments that may be on the CPU.
aten = torch.ops.aten
COPIES = {aten.copy_, aten._to_copy, aten._foreach_copy_, aten.lift_fresh}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}


class Module(_DummyBackendModule):
    """What `torch.pretend` offers."""

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        """Do nothing: the random numbers are the CPU's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend("pretend", Module())
CPU, HERE = torch.device("cpu"), torch.device("pretend:0")
PLAIN = torch.Generator
MEMBERS = {"probseq", "sgpa", "cgpt", "kepsvgp", "ohsvgp", "pseudovideo"}


class Generator(PLAIN):
    """A generator that says on which device it is."""

    def __new__(cls, device: torch.device | str = "cpu") -> "Generator":
        self = super().__new__(cls, "cpu")
        self.place = torch.device(device)
        return self

    @property
    def device(self) -> torch.device:
        return self.place


class Away(Tensor):
    """A tensor of the device; `raw` has its values."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "Away":
        with torch.inference_mode(False):  # what is made in inference mode has no version
            return torch.Tensor._make_wrapper_subclass(
                cls,
                raw.shape,
                strides=raw.stride(),
                storage_offset=raw.storage_offset(),
                dtype=raw.dtype,
                device=HERE,
            )

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["raw"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> "Away":
        return Away(inner["raw"])

    def tolist(self) -> Any:
        return self.raw.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {HERE} device type tensor to numpy")

    def __repr__(self, **_: Any) -> str:
        return f"Away({self.raw})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


def refuse_mixed(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError for tensors of two devices where CUDA would."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if func.overloadpacket in COPIES or not any(isinstance(tensor, Away) for tensor in tensors):
        return
    if func.overloadpacket in INDEXED and isinstance(args[0], Away):
        tensors = [args[0], *(value for value in args[2:3] if value.dim())]
    elif (
        torch.Tag.pointwise in func.tags
    ):  # a number on the CPU may be there, if nothing changes it
        written = func._schema.is_mutable
        tensors = [x for x in tensors if x.dim() or (written and x is args[0])]
        if not tensors:
            return
    if not all(isinstance(tensor, Away) for tensor in tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{HERE} and cpu! (in {func})"
        )


def execute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the values, and put the results where they belong."""
    leaves = tree_leaves((args, kwargs))
    here = any(isinstance(leaf, Away) for leaf in leaves)
    target = kwargs.get("device") or (HERE if here else CPU)
    refuse_mixed(func, args, kwargs)
    if not here and target.type != HERE.type:
        return func(*args, **kwargs)
    on_cpu = {**kwargs, "device": CPU} if kwargs.get("device") else kwargs
    raw_args, raw_kwargs = tree_map_only(Away, lambda tensor: tensor.raw, (args, on_cpu))
    result = func(*raw_args, **raw_kwargs)
    if target.type == HERE.type:
        result = tree_map_only(Tensor, Away, result)
    # What an operation changes in place it returns.
    returns = func._schema.returns
    if returns and returns[0].alias_info is not None and returns[0].alias_info.is_write:
        names = [argument.name for argument in func._schema.arguments]
        written = [
            kwargs[argument.name] if argument.name in kwargs else args[names.index(argument.name)]
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return written[0] if len(returns) == 1 else type(result)(written)
    return result


class Dispatch(TorchDispatchMode):
    """Every operation, with the tensors that it makes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


class Draws(TorchFunctionMode):
    """Every function, for its generator, which operations see as the CPU's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (generator := kwargs.get("generator")) is not None:
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            place = kwargs.get("device") or (tensors[0].device if tensors else CPU)
            if torch.device(place).type != generator.device.type:
                raise RuntimeError(
                    f"Expected a '{place}' device type for generator but found '{generator.device}'"
                )
        return func(*args, **kwargs)


def moved(value: Any) -> Any:
    """Return an argument of a function with all its tensors, in place where they have a home."""
    match value:
        case Tensor() | torch.nn.Module():
            return value.to(HERE)
        case PLAIN():
            return Generator(HERE)
        case tuple():
            values = map(moved, value)
            return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
        case list():
            return [moved(inner) for inner in value]
        case dict():
            return {name: moved(inner) for name, inner in value.items()}
    if type(value).__module__.partition(".")[0] in MEMBERS and not callable(value):
        for name, inner in vars(value).items() if hasattr(value, "__dict__") else ():
            object.__setattr__(value, name, moved(inner))
    return value


@contextmanager
def device() -> Iterator[torch.device]:
    """Give the device, which is there inside of this context only."""
    torch.Generator = Generator
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with Draws(), Dispatch():
            yield HERE
    finally:
        torch.Generator = PLAIN
        torch._C._set_only_lift_cpu_tensors(lifted)
