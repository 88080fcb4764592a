"""Sums over the processes of `torch.distributed`; of a single one, its own."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
import torch.distributed
from torch import Tensor

_alone = False  # while this process works and the others wait


def several_ranks() -> bool:
    """Return whether several processes work together."""
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    return joined and not _alone


@contextmanager
def alone() -> Generator[None]:
    """Work as one process, while the others wait."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum over all ranks, in place."""
    if several_ranks():
        torch.distributed.all_reduce(values)
    return values


def from_first_rank(values: Tensor) -> Tensor:
    """Return rank 0's values, in place."""
    if several_ranks():
        torch.distributed.broadcast(values, 0)
    return values
