"""Exchange between several processes (torchrun); without torchrun, one process and no cost.

Each global batch is cut into one slice a rank. A rank's loss counts by its share of the batch, so
the averaged gradient is that of the whole batch in one process.
"""

import atexit
import os
import sys
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor

T = TypeVar("T")


def rank() -> int:
    """Return the number of this process among all; 0 without torchrun."""
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes; 1 without torchrun."""
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return whether this process writes the files and shows the progress."""
    return rank() == 0


def resolve_device(name: str) -> torch.device:
    """Turn the setting `device` into a device; under torchrun `auto` and `cuda` are this rank's."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = int(name.partition(":")[2] or os.environ.get("LOCAL_RANK", "0"))
    if number >= count:
        raise ValueError(
            f"device {name!r} needs CUDA device number {number}, and torch sees {count} of them: "
            "use device 'cpu' or 'auto', or fewer processes"
        )
    return torch.device("cuda", number)


def join(device: torch.device) -> None:
    """Join the other processes that torchrun started, once, if any; the device is this rank's."""
    if world_size() == 1 or dist.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    atexit.register(dist.destroy_process_group)


def leave(status: int) -> NoReturn:
    """Leave the process group and end this process with an exit status.

    A thread of the group that drops its last tensor while the interpreter ends aborts the process
    ("terminate called without an active exception"), so the interpreter is not taken down.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def barrier() -> None:
    """Wait until every rank has come here."""
    if world_size() > 1:
        dist.barrier()


def broadcast(value: T) -> T:
    """Give every rank the main rank's value."""
    box: list[Any] = [value]
    if world_size() > 1:
        dist.broadcast_object_list(box)
    return box[0]


def gather(value: T) -> list[T]:
    """Return every rank's value, in the order of the ranks."""
    values: list[Any] = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def total(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Sum over the ranks."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def rank_slice(indices: Int64[Tensor, " n"]) -> tuple[Int64[Tensor, " m"], float]:
    """Return this rank's examples of a global batch, and its share of the batch.

    A batch smaller than the number of ranks leaves some without examples: they take the first one
    with a share of 0, because every rank must take part in the exchange of gradients.
    """
    examples = torch.tensor_split(indices, world_size())[rank()]
    return (examples, len(examples) / len(indices)) if len(examples) else (indices[:1], 0.0)
