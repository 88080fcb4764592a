"""Sums and rows over the processes of `torch.distributed`; of a single one, its own."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
import torch.distributed
from jaxtyping import Shaped
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


def rows_of_ranks(rows: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "total ..."]:
    """Return the rows of all ranks, those of rank 0 first; ranks may have different numbers."""
    if not several_ranks():
        return rows
    counts = rows.new_zeros(torch.distributed.get_world_size(), dtype=torch.int64)
    counts[torch.distributed.get_rank()] = len(rows)
    before = int(sum_over_ranks(counts)[: torch.distributed.get_rank()].sum())
    together = rows.new_zeros(int(counts.sum()), *rows.shape[1:])
    together[before : before + len(rows)] = rows
    return sum_over_ranks(together)


def from_first_rank(values: Tensor) -> Tensor:
    """Return rank 0's values, in place."""
    if several_ranks():
        torch.distributed.broadcast(values, 0)
    return values
