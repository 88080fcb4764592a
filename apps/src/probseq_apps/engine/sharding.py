"""A model in shards: each rank has its part of the weights, gradients and Adam's moments (FSDP2).

The weights are gathered for each pass as one group, which is right for a model of any structure.
What checkpoints hold is whole, so that they are those of a run without shards. Importing this
module does not load torch's distributed tensors, which takes a second.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer


def sharded(model: nn.Module) -> Any:
    """Return a copy of a model in shards, an `FSDPModule`.

    Raises:
        ValueError: a parameter is a single number, which cannot be cut.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    scalars = [name for name, parameter in model.named_parameters() if not parameter.ndim]
    if scalars:
        raise ValueError(
            f"shard must be off for a model with parameters that are single numbers: {scalars[0]}"
        )
    # Ranks on CPUs may have a GPU in their machine, which torch would choose.
    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    return fully_shard(copy.deepcopy(model), mesh=mesh)


def share_buffers(model: nn.Module) -> None:
    """Give every rank the main rank's buffers, as DDP does before each pass."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor gathered from its shards; every rank must call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor cut as another one of its shape is; every rank must call this."""
    if not hasattr(other, "device_mesh") or tensor.shape != other.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    on_device = tensor.to(other.device)
    return distribute_tensor(on_device, other.device_mesh, other.placements)


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer, gathered."""
    state = optimizer.state_dict()
    moments = {
        index: {name: whole(value) for name, value in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": moments}


def load_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Set the state of an optimizer to what `optimizer_state` returned."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {
        index: {name: like(value, parameters[index]) for name, value in entry.items()}
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})
