"""Random numbers of some rows are those of the whole batch."""

import pytest
import torch

from probseq.draws import RowGenerator, counted_rows, draw_rows


def generator(rows=None, total=7):
    source = RowGenerator() if rows else torch.Generator()
    if rows:
        source.rows, source.total = rows, total
    return source.manual_seed(3)


def draws(count, source):
    options = {"generator": source}
    normal = draw_rows(lambda n: torch.randn(n, 2, **options), count, source)
    return torch.cat([normal, draw_rows(lambda n: torch.rand(n, 1, **options), count, source)], 1)


@pytest.mark.parametrize("rows", [slice(0, 3), slice(3, 7), slice(6, 7)])
def test_rows_get_the_numbers_that_they_have_in_the_whole_batch(rows):
    whole = draws(7, generator())
    assert torch.equal(draws(rows.stop - rows.start, generator(rows)), whole[rows])


def test_after_the_draws_all_places_have_the_same_state():
    whole, part = generator(), generator(slice(2, 4))
    draws(7, whole), draws(2, part)
    assert torch.equal(whole.get_state(), part.get_state())


def test_rows_that_stand_in_get_numbers_and_count_for_nothing():
    whole, stand_in = generator(), generator(slice(7, 7))
    numbers = draws(7, whole)
    assert torch.equal(draws(1, stand_in), numbers[:1])
    assert torch.equal(whole.get_state(), stand_in.get_state())
    assert counted_rows(1, stand_in) == 0
    assert counted_rows(3, generator(slice(4, 7))) == counted_rows(3, whole) == 3


def test_another_number_of_rows_is_refused():
    with pytest.raises(ValueError, match="count must be 2, the generator's rows, got 3"):
        draws(3, generator(slice(0, 2)))
    with pytest.raises(ValueError, match="total must be at least 3, got 0"):
        draws(3, RowGenerator())
