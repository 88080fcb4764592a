import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import rankdata, ttest_ind

from probseq_apps.report.summary import average_ranks, best_names, mean_of, order_of, summarise


def test_mean_and_standard_error_are_those_of_numpy():
    values = [0.91, 0.94, 0.90, 0.97]
    summary = summarise(values)
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.standard_error == pytest.approx(np.std(values, ddof=1) / math.sqrt(4))
    assert summary.values == tuple(values)


def test_one_value_has_no_standard_error_and_a_missing_one_no_mean():
    assert summarise([0.5]).standard_error is None
    assert summarise([0.5]).mean == 0.5
    assert summarise([0.5, None]).mean is None


def test_only_differences_that_the_seeds_support_are_marked():
    metric = {
        "good": summarise([0.10, 0.11, 0.12]),
        "as good": summarise([0.11, 0.11, 0.13]),
        "bad": summarise([0.50, 0.51, 0.52]),
    }
    assert best_names(metric, "lower") == {"good", "as good"}
    assert best_names(metric, "higher") == {"bad"}


@pytest.mark.parametrize("gap", [0.001, 0.02, 0.03, 0.04, 0.06, 0.1])
def test_a_mark_stands_for_welch_s_t_test(gap):
    first, second = [0.10, 0.12, 0.14], [0.10 + gap, 0.11 + gap, 0.15 + gap, 0.13 + gap]
    told_apart = ttest_ind(first, second, equal_var=False).pvalue < 0.05
    best = best_names({"a": summarise(first), "b": summarise(second)}, "lower")
    assert best == ({"a"} if told_apart else frozenset())


def test_nothing_is_marked_where_nothing_can_be_told_apart():
    noisy = {"a": summarise([0.1, 0.9, 0.5]), "b": summarise([0.2, 0.8, 0.3])}
    assert best_names(noisy, "lower") == frozenset()
    equal = {"a": summarise([0.5, 0.5]), "b": summarise([0.5, 0.5])}
    assert best_names(equal, "lower") == frozenset()


def test_single_numbers_and_ensembles_are_not_compared():
    metric = {
        "ensemble": summarise([0.01]),
        "a": summarise([0.10, 0.11, 0.12]),
        "b": summarise([0.50, 0.51, 0.52]),
    }
    assert best_names(metric, "lower") == {"a"}
    assert best_names({"a": summarise([0.1]), "b": summarise([0.2])}, "lower") == frozenset()


def test_a_worse_method_is_not_marked_beside_a_better_one_because_its_seeds_scatter():
    metric = {
        "best": summarise([0.010, 0.011, 0.012]),
        "differs": summarise([0.050, 0.051, 0.052]),
        "scatters": summarise([0.010, 0.200, 0.400]),
    }
    assert best_names(metric, "lower") == {"best"}


def test_a_mean_over_metrics_is_taken_for_each_seed_first():
    mean = mean_of([summarise([0.0, 1.0]), summarise([1.0, 0.0])])
    assert (mean.values, mean.standard_error) == ((0.5, 0.5), 0.0)
    assert mean_of([summarise([None, 1.0]), summarise([1.0, 0.0])]).mean is None


def test_orders_follow_the_good_end():
    low, high = summarise([1.0, 1.1, 0.9]), summarise([2.0, 2.1, 1.9])
    assert order_of(high, low, "higher") == "better"
    assert order_of(high, low, "lower") == "worse"
    assert order_of(low, low, "lower") == "equal"
    assert order_of(high, summarise([1.0]), "higher") == "undecided"


def test_the_interval_is_students():
    values = [1.0, 2.0, 4.0]
    low, high = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem(values))
    assert summarise(values).interval == pytest.approx((high - low) / 2)
    assert summarise([1.0]).interval is None


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
