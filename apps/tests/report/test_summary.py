import math

import numpy as np
import pytest
from scipy.stats import ttest_ind

from probseq_apps.report.summary import best_names, summarise


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
