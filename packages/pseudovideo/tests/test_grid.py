"""Token grids: what they count, and what they refuse."""

import math

import pytest

from pseudovideo.spec import TokenGrid


def test_bits_are_the_logarithm_of_the_number_of_different_grids() -> None:
    grid = TokenGrid(codebook_size=3, shape=(2, 1, 4))
    assert grid.num_tokens == 8
    assert grid.bits == pytest.approx(math.log2(3**8), abs=1e-12)


def test_grids_differ_when_only_their_order_does() -> None:
    one = TokenGrid(codebook_size=4, shape=(2, 3, 5))
    assert one == TokenGrid(codebook_size=4, shape=(2, 3, 5))
    assert one != TokenGrid(codebook_size=4, shape=(3, 2, 5))


@pytest.mark.parametrize(
    ("size", "shape", "message"),
    [
        (1, (1, 1, 1), "codebook_size must be a whole number of at least 2, got 1"),
        (8, (1, 0, 2), r"shape must be .*, got 1, 0, 2"),
        (8, (4, 4), r"shape of the grid must be \(time, height, width\).*got \(4, 4\)"),
    ],
)
def test_an_empty_grid_is_refused(
    size: int, shape: tuple[int, int, int], message: str, plain_calls: None
) -> None:
    with pytest.raises(ValueError, match=message):
        TokenGrid(codebook_size=size, shape=shape)
