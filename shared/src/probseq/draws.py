"""Random numbers of batches whose rows are computed in several places."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["RowGenerator", "batch_rows", "counted_rows", "draw_rows", "rows_here"]


class RowGenerator(torch.Generator):
    """A generator of numbers for whole batches, of which some rows are here.

    Processes that share a batch, and pieces of a batch that are computed one after the other, draw
    from generators of equal state, each for its own rows: what `draw_rows` returns for a row is
    then what it would be with the whole batch in one place.

    Attributes:
        rows: those of the batch that are here; none where others stand in for them, which a process
            without rows computes to take part in exchanges, and which count for nothing.
        total: number of rows of the batch.
        first: whether these are the first ones that are computed here.
        last: whether these are the last ones.
    """

    rows: slice = slice(0)
    total: int = 0
    first: bool = True
    last: bool = True


def draw_rows(
    draw: Callable[[int], Tensor], count: int, generator: torch.Generator | None
) -> Tensor:
    """Return numbers that are drawn for each row of a batch.

    Args:
        draw: draws the numbers of so many rows, from the generator.
        count: number of rows that are here.
        generator: of the draws. From a `RowGenerator` they are drawn for the whole batch, and the
            rows that are here are returned; the first ones where others stand in for them.
    """
    return rows_here(draw(batch_rows(count, generator)), count, generator)


def batch_rows(count: int, generator: torch.Generator | None) -> int:
    """Return how many rows the batch has of which so many are here."""
    return generator.total if isinstance(generator, RowGenerator) else count


def counted_rows(count: int, generator: torch.Generator | None) -> int:
    """Return how many of the rows that are here belong to the batch: 0 of those that stand in."""
    if not isinstance(generator, RowGenerator):
        return count
    return len(range(*generator.rows.indices(generator.total)))


def rows_here(values: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Return, of values of all rows of a batch, those of the rows that are here."""
    if not (counted := counted_rows(count, generator)):
        if len(values) < count:
            raise ValueError(f"the generator's total must be at least {count}, got {len(values)}")
        return values[:count]
    if counted != count:
        raise ValueError(f"count must be {counted}, the generator's rows, got {count}")
    return values[generator.rows] if isinstance(generator, RowGenerator) else values
