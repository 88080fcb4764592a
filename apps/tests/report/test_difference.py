import math

import numpy as np
import pytest
from scipy import stats

from probseq_apps.report.compare import differs
from probseq_apps.report.papers import Value
from probseq_apps.report.summary import summarise


def paper(mean, deviation=None, runs=5, decimals=4):
    error = None if deviation is None else deviation / math.sqrt(runs)
    return Value("", mean, error, runs, decimals, target=True)


@pytest.mark.parametrize("gap", [0.005, 0.01, 0.015, 0.02, 0.03, 0.05])
@pytest.mark.parametrize("deviation", [0.001, 0.01])
def test_two_means_with_errors_are_judged_by_welch_s_t_test(gap, deviation):
    ours = [0.80 + gap, 0.81 + gap, 0.79 + gap]
    expected = stats.ttest_ind_from_stats(
        np.mean(ours), np.std(ours, ddof=1), 3, 0.8, deviation, 5, equal_var=False
    ).pvalue
    assert differs(paper(0.8, deviation), summarise(ours)) == (expected < 0.05)


@pytest.mark.parametrize("value", [0.79, 0.805, 0.82, 0.83, 0.84])
def test_a_single_run_is_one_more_draw_with_the_paper_s_scatter(value):
    deviation, runs = 0.01, 5
    # The 95% prediction interval of a normal sample.
    half = stats.t.ppf(0.975, runs - 1) * deviation * math.sqrt(1 + 1 / runs)
    assert differs(paper(0.8, deviation), summarise([value])) == (abs(value - 0.8) > half)


@pytest.mark.parametrize("value", [0.79, 0.81, 0.85, 0.9])
def test_a_paper_s_single_number_is_one_more_draw_with_our_scatter(value):
    ours = [0.80, 0.81, 0.79]
    half = stats.t.ppf(0.975, 2) * np.std(ours, ddof=1) * math.sqrt(1 + 1 / 3)
    assert differs(paper(value), summarise(ours)) == (abs(value - 0.8) > half)


def test_the_rate_of_false_marks_is_five_percent():
    generator = np.random.default_rng(0)
    marked = 0
    for _ in range(2000):
        theirs, ours = generator.normal(size=5), generator.normal(size=3)
        value = paper(theirs.mean(), theirs.std(ddof=1), decimals=12)
        marked += differs(value, summarise(list(map(float, ours))))
    # Welch's test is a little conservative with so few runs.
    assert 0.025 < marked / 2000 < 0.06


def test_without_any_error_nothing_is_claimed():
    assert not differs(paper(0.8), summarise([0.1]))


def test_what_is_not_defined_does_not_differ():
    assert not differs(paper(0.8, 0.01), summarise([0.8, None]))


def test_rounding_is_no_difference_and_exact_runs_are_told_apart():
    exact = summarise([0.80004, 0.80004])
    assert not differs(paper(0.8, 0.0), exact)
    assert differs(paper(0.8, 0.0, decimals=6), exact)
