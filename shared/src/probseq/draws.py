"""Random numbers of batches whose rows are computed in several places."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["RowGenerator", "draw_rows"]


class RowGenerator(torch.Generator):
    """A generator of numbers for whole batches, of which some rows are here.

    Processes that share a batch, and pieces of a batch that are computed one after the other, draw
    from generators of equal state, each for its own rows: what `draw_rows` returns for a row is
    then what it would be with the whole batch in one place.

    Attributes:
        rows: those of the batch that are here.
        total: number of rows of the batch.
    """

    rows: slice = slice(0)
    total: int = 0


def draw_rows(
    draw: Callable[[int], Tensor], count: int, generator: torch.Generator | None
) -> Tensor:
    """Return numbers that are drawn for each row of a batch.

    Args:
        draw: draws the numbers of so many rows, from the generator.
        count: number of rows that are here.
        generator: of the draws. From a `RowGenerator` they are drawn for the whole batch, and the
            rows that are here are returned.

    Raises:
        ValueError: ``count`` is not the number of the generator's rows.
    """
    if not isinstance(generator, RowGenerator):
        return draw(count)
    drawn = draw(generator.total)[generator.rows]
    if len(drawn) != count:
        raise ValueError(f"count must be {len(drawn)}, the generator's rows, got {count}")
    return drawn
