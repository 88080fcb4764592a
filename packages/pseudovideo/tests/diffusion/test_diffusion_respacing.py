"""Which steps are kept: by exact fractions, by hand, and what is refused."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudovideo.diffusion.respacing import check_timesteps, spaced_steps


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 4000), st.data())
def test_even_steps_are_the_nearest_whole_numbers(num_steps, data):
    count = data.draw(st.integers(2, num_steps))
    steps = spaced_steps(num_steps, count)
    assert len(steps) == count
    assert (steps[0], steps[-1]) == (0, num_steps - 1)
    assert all(b > a for a, b in pairwise(steps))
    exact = [Fraction(i * (num_steps - 1), count - 1) for i in range(count)]
    # A tie may fall to either side.
    assert all(
        abs(step - place) <= Fraction(501, 1000) for step, place in zip(steps, exact, strict=True)
    )


def test_even_steps_by_hand():
    assert spaced_steps(10, 4) == (0, 3, 6, 9)
    assert spaced_steps(1000, 3) == (0, 500, 999)
    assert spaced_steps(7, 7) == tuple(range(7))


def test_sections_are_spaced_each_for_itself():
    steps = spaced_steps(300, [10, 15, 20])
    assert steps == spaced_steps(300, "10,15,20") == spaced_steps(300, (10, 15, 20))
    counts = [sum(100 * i <= step < 100 * (i + 1) for step in steps) for i in range(3)]
    assert counts == [10, 15, 20]
    assert steps[:10] == (0, 11, 22, 33, 44, 55, 66, 77, 88, 99)


def test_sections_share_out_what_is_left_over_from_the_front():
    # 11 steps are 4, 4 and 3.
    assert spaced_steps(11, [2, 2, 2]) == (0, 3, 4, 7, 8, 10)
    assert spaced_steps(11, [1, 1, 1]) == (0, 4, 8)


def test_whole_numbers_of_other_kinds_serve():
    assert spaced_steps(10, np.int64(4)) == spaced_steps(10, torch.tensor(4)) == (0, 3, 6, 9)
    assert spaced_steps(10, np.array([2, 3]).tolist()) == spaced_steps(10, (np.int32(2), 3))


def test_ddim_steps_have_an_even_stride_from_the_first_on():
    assert spaced_steps(1000, "ddim25") == tuple(range(0, 1000, 40))
    assert spaced_steps(10, "ddim4") == (0, 3, 6, 9)
    assert spaced_steps(10, "ddim1") == (0,)
    # 334 gives three steps as 400 would: the smaller stride is taken.
    assert spaced_steps(1000, "ddim3") == (0, 334, 668)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (0, "spec must leave at least one step in each section, got 0"),
        (-3, "at least one step"),
        ([], "at least one step"),
        ("10,0", "at least one step in each section, got '10,0'"),
        (11, "at most 10 steps of a section of 10, got 11"),
        ([6, 1], "at most 5 steps of a section of 5"),
        (True, "spec must be whole numbers.* got True"),
        (2.5, "whole numbers"),
        ([2, 2.0], "whole numbers"),
        ([True, 2], "whole numbers"),
        ("ten", "whole numbers, as a string with commas between, or 'ddimN', got 'ten'"),
        ("", "whole numbers"),
        ("2.5", "whole numbers"),
        ("ddim", "'ddimN' with a whole number N of at least 1, got 'ddim'"),
        ("ddim0", "at least 1"),
        ("ddim6", "'ddimN' with N steps at an even stride of 10, which 'ddim6' is not"),
        ("ddim11", "even stride of 10"),
    ],
)
def test_what_leaves_no_process_is_refused(spec, message, plain_calls):
    with pytest.raises(ValueError, match=message):
        spaced_steps(10, spec)


@pytest.mark.parametrize("timesteps", [(), (0, 1), (0, 2, 1), (0, 1, 1), (-1, 0, 1), (0, 1, 10)])
def test_numbers_that_are_no_steps_are_refused(timesteps):
    with pytest.raises(ValueError, match=r"timesteps must be 3 ascending numbers of 0\.\.9"):
        check_timesteps(timesteps, 3, 10)
