"""What the processes of `torch.distributed` have together; of one process, its own."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
import torch.distributed
from jaxtyping import Shaped
from torch import Tensor

from probseq.draws import RowGenerator

_alone = False  # while this process works and the others wait


def several_ranks() -> bool:
    """Return whether several processes work together."""
    known = torch.distributed.is_available() and torch.distributed.is_initialized()
    return known and not _alone


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


def mean_over_ranks(values: Tensor, rows: int) -> Tensor:
    """Return the mean over the rows of all ranks, of the mean over the rows of this one."""
    if not several_ranks():
        return values
    sums = sum_over_ranks(torch.cat((values.flatten() * rows, values.new_full((1,), rows))))
    return (sums[:-1] / sums[-1]).view_as(values)


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


def shared_rows(
    compute: Callable[[slice], Tensor], count: int, generator: torch.Generator | None
) -> Tensor:
    """Return values of the rows of a batch, some of which each rank computes.

    Args:
        compute: returns the values of some rows; it draws their numbers by `draw_rows`.
        count: number of rows of the batch.
        generator: of those numbers, in equal states on all ranks. Where it is no `RowGenerator`,
            this rank computes all rows.
    """
    if not isinstance(generator, RowGenerator):
        return compute(slice(0, count))
    rank, ranks = 0, 1
    if several_ranks():
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    rows = slice(count * rank // ranks, count * (rank + 1) // ranks)
    generator.rows, generator.total = rows, count
    size = rows.stop - rows.start
    # Without a row of its own a rank computes the first, so that the shape is known.
    values = compute(rows if size else slice(0, 1))
    return rows_of_ranks(values[:size])


def from_first_rank(values: Tensor) -> Tensor:
    """Return rank 0's values, in place."""
    if several_ranks():
        torch.distributed.broadcast(values, 0)
    return values
