"""Exchange between several processes (torchrun); without torchrun, one process and no cost.

Each global batch is cut into one range a rank. A rank's loss counts by its share of the batch, so
the averaged gradient is that of the whole batch in one process.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from pseudovideo.ranks import alone, several_ranks

T = TypeVar("T")
_WAIT = 0.01  # seconds between two looks at the other ranks


def rank() -> int:
    """Return the number of this process among all; 0 without torchrun."""
    if dist.is_initialized():
        return dist.get_rank() if several_ranks() else 0
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes; 1 without torchrun, and for one that works alone."""
    if dist.is_initialized():
        return dist.get_world_size() if several_ranks() else 1
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
    # One rank may draw and measure for hours; torchrun ends the others where one has failed.
    backend, patience = "nccl" if device.type == "cuda" else "gloo", timedelta(days=7)
    dist.init_process_group(backend, timeout=patience)
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


def main_alone(make: Callable[[], T]) -> T | None:
    """Return what the main rank makes by itself while the others wait; None on these."""
    value = None
    if is_main():
        with alone():
            value = make()
    barrier()
    return value


def main_first(make: Callable[[], T]) -> T:
    """Return what every rank makes, the others after the main one, whose files they read."""
    value = main_alone(make)
    return make() if value is None else value


def barrier() -> None:
    """Wait until every rank has come here, or a signal ends this one."""
    if world_size() == 1:
        return
    waiting: Any = dist.barrier(async_op=True)
    # Python handles signals between its own steps only.
    while not waiting.is_completed():
        time.sleep(_WAIT)
    waiting.wait()


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
