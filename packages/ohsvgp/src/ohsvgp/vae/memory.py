"""Memory of the latent processes as tensors of a module's state."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ohsvgp.bases.base import Basis
from ohsvgp.saved import (
    basis_settings,
    clone_generator,
    pack,
    state_from_tensors,
    state_tensors,
    unpack,
)
from ohsvgp.state import OnlineState
from ohsvgp.stream.clock import Clock

_PREFIX = "memory."


@dataclass
class LatentMemory:
    """State of the stream."""

    clock: Clock | None = None  # where time starts; None before the first task, unless t0 was given
    # Posterior of the latent processes; None before the first task
    state: OnlineState | None = None
    tasks: int = 0  # number of tasks absorbed


def move_memory(module: Any, device: torch.device) -> None:
    """Bring the memory of a module to a device, and seed a generator there by the one before."""
    memory: LatentMemory = module.memory
    basis: Basis = module.basis
    groups = {"basis": basis.tensors(), **state_tensors(memory.state)}
    moved = {
        group: {name: tensor.to(device) for name, tensor in named.items()}
        for group, named in groups.items()
    }
    basis.load_tensors(moved["basis"])
    memory.state = state_from_tensors(moved, basis.restore)
    old: torch.Generator = module.generator
    seed = torch.randint(2**62, (), generator=old, device=old.device)
    module.generator = torch.Generator(device).manual_seed(int(seed))


def save_memory(
    module: Any, state_dict: dict[str, Tensor], prefix: str, local_metadata: object
) -> None:
    """Add the memory of a module: a hook of ``nn.Module.state_dict``."""
    memory: LatentMemory = module.memory
    basis: Basis = module.basis
    packed = pack(
        basis_settings(basis),
        {"tasks": memory.tasks, "clock": None if memory.clock is None else vars(memory.clock)},
        {
            "generator": {"": module.generator.get_state()},
            "basis": basis.tensors(),
            **state_tensors(memory.state),
        },
    )
    state_dict |= {f"{prefix}{_PREFIX}{name}": tensor for name, tensor in packed.items()}


def load_memory(module: Any, state_dict: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Take the memory out, where it would be unknown: a hook of ``nn.Module.load_state_dict``."""
    start = f"{prefix}{_PREFIX}"
    names = [name for name in state_dict if name.startswith(start)]
    packed = {name.removeprefix(start): state_dict.pop(name) for name in names}
    basis: Basis = module.basis
    values, groups = unpack(
        packed, basis_settings(basis), module.raw_noise.device, source="OnlineSVGPVAE.state_dict"
    )
    basis.load_tensors(groups.get("basis", {}))
    module.generator = clone_generator(module.generator, groups["generator"][""])
    module.memory = LatentMemory(
        None if values["clock"] is None else Clock(**values["clock"]),
        state_from_tensors(groups, basis.restore),
        values["tasks"],
    )
