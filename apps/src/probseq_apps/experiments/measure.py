"""Time and memory of callables, measured side by side."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

# Runs one pass; with gradients if asked.
Pass = Callable[[bool], object]


class Timing(NamedTuple):
    """Seconds of a method.

    Attributes:
        forward: median of the forward passes, in which nothing is kept for a backward pass.
        both: median of the forward passes followed by backward passes.
        runs: number of runs of each.
    """

    forward: float
    both: float
    runs: int


def now(device: torch.device) -> float:
    """Seconds on the clock that suits a device, once it has done what it was given.

    Args:
        device: a CPU's clock counts this process' time, a GPU's is the wall's.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def time_interleaved(
    passes: Mapping[str, Pass], runs: Mapping[str, int], device: torch.device, bar: tqdm
) -> dict[str, Timing]:
    """Time methods in turns, so that a slow minute of the machine meets all of them.

    Each method runs once before the clock starts.

    Args:
        passes: the methods, by name.
        runs: timed runs of each.
        device: a CPU's clock counts this process' time, a GPU's is the wall's.
        bar: progress, one step a run.
    """
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in passes}
    for turn in range(max(runs.values()) + 1):
        for name, run in passes.items():
            if turn > runs[name]:
                continue
            for with_gradients, found in zip((False, True), seconds[name], strict=True):
                start = now(device)
                run(with_gradients)
                if turn > 0:
                    found.append(now(device) - start)
            bar.update()
    return {
        name: Timing(median(forward), median(both), len(both))
        for name, (forward, both) in seconds.items()
    }


def kept_bytes(forward: Callable[[], object], owned: set[int]) -> int:
    """Bytes that autograd keeps between a forward pass and its backward pass.

    Each storage counts once, whoever saved it, custom functions included.

    Args:
        forward: runs the pass and returns what holds its graph.
        owned: addresses of storages that exist anyway, such as the parameters'.
    """
    storages: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            # Held until the end: freed memory could come back at the same address.
            storages[storage.data_ptr()] = (storage.nbytes(), tensor.detach())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        graph = forward()
    total = sum(size for size, _ in storages.values())
    del graph
    return total
