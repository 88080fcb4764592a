"""What the latent processes remember, as tensors of a module's state."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ohsvgp.bases.base import Basis
from ohsvgp.core import Site
from ohsvgp.inputs import Clock
from ohsvgp.state import OnlineState
from ohsvgp.whitening import Whitening

__all__ = ["Memory", "load_memory", "pack", "save_memory", "unpack"]

_SCHEMA = 1
_NO_UNIT = -1
_PREFIX = "memory."


@dataclass
class Memory:
    """Where the stream stands.

    Attributes:
        clock: where time starts; None before the first task, unless t0 was given.
        state: posterior of the latent processes; None before the first task.
        tasks: number of tasks absorbed.
    """

    clock: Clock | None = None
    state: OnlineState | None = None
    tasks: int = 0


def pack(memory: Memory, basis: Basis, generator: torch.Generator) -> dict[str, Tensor]:
    """All of it as a flat dict.

    Args:
        memory: what to pack.
        basis: may have drawn numbers of its own.
        generator: the model's source of randomness.
    """
    identity = torch.tensor(list(json.dumps(_identity(basis)).encode()), dtype=torch.uint8)
    tensors = {
        "identity": identity,
        "generator": generator.get_state(),
        "tasks": torch.tensor(memory.tasks),
        **{f"basis.{name}": tensor for name, tensor in basis.tensors().items()},
    }
    if (clock := memory.clock) is not None:
        number = torch.float64 if clock.unit is None else torch.int64
        tensors["clock.origin"] = torch.tensor(clock.origin, dtype=number)
        tensors["clock.unit"] = torch.tensor(_NO_UNIT if clock.unit is None else clock.unit)
    if (state := memory.state) is not None:
        tensors |= {
            **{f"inducing.{name}": tensor for name, tensor in state.inducing.tensors().items()},
            **{f"whitening.{name}": tensor for name, tensor in state.whitening._asdict().items()},
            **{f"site.{name}": tensor for name, tensor in state.site._asdict().items()},
            "hyperparameters": state.hyperparameters,
            "length": torch.tensor(state.length, dtype=torch.float64),
            "count": torch.tensor(state.count),
        }
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def unpack(
    tensors: dict[str, Tensor], basis: Basis, generator: torch.Generator, like: Tensor
) -> Memory:
    """The memory that was packed; the basis and the generator take theirs.

    Args:
        tensors: from ``pack``.
        basis: that of a model made with the same arguments.
        generator: the model's source of randomness.
        like: gives the device.

    Raises:
        ValueError: no such tensors, or those of another schema, basis or M.
    """
    if not {"identity", "generator", "tasks"} <= tensors.keys():
        raise ValueError("state must come from OnlineSVGPVAE.state_dict, got no memory in it")
    saved, own = json.loads(bytes(tensors["identity"].tolist())), _identity(basis)
    if saved != own:
        raise ValueError(f"state must be that of a model with {own}, got {saved}")
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, field = name.partition(".")
        parts.setdefault(group, {})[field] = tensor.clone()
    basis.load_tensors({n: t.to(like.device) for n, t in parts.get("basis", {}).items()})
    generator.set_state(tensors["generator"].cpu())
    clock = None
    if "clock" in parts:
        unit = int(parts["clock"]["unit"])
        clock = Clock(parts["clock"]["origin"].item(), None if unit == _NO_UNIT else unit)
    state = None
    if "site" in parts:
        here = {
            group: {name: tensor.to(like.device) for name, tensor in parts[group].items()}
            for group in ("inducing", "whitening", "site")
        }
        state = OnlineState(
            basis.restore(here["inducing"]),
            Whitening(**here["whitening"]),
            Site(**here["site"]),
            tensors["hyperparameters"].clone().to(like.device),
            float(tensors["length"]),
            int(tensors["count"]),
        )
    return Memory(clock, state, int(tensors["tasks"]))


def save_memory(
    module: Any, state_dict: dict[str, Tensor], prefix: str, local_metadata: object
) -> None:
    """Hook of ``nn.Module.state_dict``: adds the memory.

    Args:
        module: has ``memory``, ``basis`` and ``generator``.
        state_dict: gets the tensors.
        prefix: of the module's names.
        local_metadata: not used.
    """
    packed = pack(module.memory, module.basis, module.generator)
    state_dict |= {f"{prefix}{_PREFIX}{name}": tensor for name, tensor in packed.items()}


def load_memory(module: Any, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
    """Hook of ``nn.Module.load_state_dict``: takes the memory out, where it would be unknown.

    Args:
        module: has ``memory``, ``basis``, ``generator`` and ``raw_noise``.
        state_dict: torch's own copy of the dict.
        prefix: of the module's names.
        rest: not used.

    Raises:
        ValueError: see ``unpack``.
    """
    start = f"{prefix}{_PREFIX}"
    names = [name for name in state_dict if name.startswith(start)]
    packed = {name.removeprefix(start): state_dict.pop(name) for name in names}
    module.memory = unpack(packed, module.basis, module.generator, module.raw_noise)


def _identity(basis: Basis) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "basis": type(basis).__name__,
        "num_inducing": basis.num_inducing,
    }
