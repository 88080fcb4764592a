"""Which steps are kept: by exact fractions, by hand, and what is refused."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.schedules import cosine_betas, spaced_steps


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
    assert spaced_steps(7, 1) == (0,)


def test_numbers_of_numpy_serve(plain_calls):
    assert spaced_steps(10, np.int64(4)) == (0, 3, 6, 9)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "count must be a whole number of at least 1, got 0"),
        (11, "count must be at most the 10 steps, got 11"),
        (True, "count must be a whole number of at least 1, got True"),
        (2.5, r"count must be a whole number of at least 1, got 2\.5"),
    ],
)
def test_what_leaves_no_process_is_refused(count, message, plain_calls):
    with pytest.raises(ValueError, match=message):
        spaced_steps(10, count)


@pytest.mark.parametrize("timesteps", [(), (0, 1), (0, 2, 1), (0, 1, 1), (-1, 0, 1), (0, 1, 10)])
def test_numbers_that_are_no_steps_are_refused(timesteps):
    with pytest.raises(ValueError, match=r"timesteps must be 3 ascending numbers of 0\.\.9"):
        GaussianDiffusion(cosine_betas(3), timesteps=timesteps, original_steps=10)
