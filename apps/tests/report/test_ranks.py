import numpy as np
import pytest
from scipy.stats import rankdata

from probseq_apps.report.ranks import average_ranks


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_ranks_with_ties_are_those_of_scipy(direction):
    generator = np.random.default_rng(0)
    # Few different values, so that many are equal.
    values = generator.integers(0, 3, size=(6, 5)) / 10
    methods = ["a", "b", "c", "d", "e"]
    tasks = [dict(zip(methods, row, strict=True)) for row in values]
    sign = -1 if direction == "higher" else 1
    expected = rankdata(sign * values, axis=1).mean(0)
    found = average_ranks(tasks, direction)
    assert list(found) == methods
    assert list(found.values()) == pytest.approx(expected)


def test_the_best_is_first():
    tasks = [{"good": 0.9, "bad": 0.1, "middle": 0.5}]
    assert average_ranks(tasks, "higher") == {"good": 1.0, "bad": 3.0, "middle": 2.0}
    assert average_ranks(tasks, "lower") == {"good": 3.0, "bad": 1.0, "middle": 2.0}


def test_equal_values_share_the_mean_of_their_places():
    assert average_ranks([{"a": 0.5, "b": 0.5, "c": 0.1}], "higher") == {"a": 1.5, "b": 1.5, "c": 3}


def test_a_method_is_averaged_over_the_tasks_that_have_it():
    tasks = [{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0, "c": 3.0}, {"c": 1.0}]
    assert average_ranks(tasks, "higher") == {"a": 2.0, "b": 2.0, "c": 1.0}


def test_a_task_with_one_method_ranks_nothing():
    assert average_ranks([{"a": 1.0}], "higher") == {}
