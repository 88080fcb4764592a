import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import ttest_rel

from probseq.metrics import evaluate
from probseq.summary import LABELS, best_names, difference, direction_of, judge, mean_of, summarise


def test_mean_error_and_interval_are_those_of_numpy_and_student():
    values = [0.91, 0.94, 0.90, 0.97]
    summary = summarise(values)
    assert summary.values == tuple(values)
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.standard_error == pytest.approx(stats.sem(values))
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert summary.interval == pytest.approx((high - low) / 2)
    one = summarise([0.5])
    assert (one.mean, one.standard_error, one.interval) == (0.5, None, None)
    assert summarise([0.5, None]).mean is None


def test_a_mean_over_metrics_is_taken_for_each_seed_first():
    mean = mean_of([summarise([0.0, 1.0]), summarise([1.0, 0.0])])
    assert (mean.values, mean.standard_error) == ((0.5, 0.5), 0.0)
    assert mean_of([summarise([None, 1.0]), summarise([1.0, 0.0])]).mean is None


@pytest.mark.parametrize("gap", [0.001, 0.02, 0.03, 0.04, 0.06, 0.1])
def test_two_means_are_told_apart_by_the_paired_t_test(gap):
    first, second = [0.10, 0.12, 0.14], [0.10 + gap, 0.11 + gap, 0.15 + gap]
    told_apart = ttest_rel(first, second).pvalue < 0.05
    assert difference(summarise(first), summarise(second)).resolved == told_apart
    best = best_names({"a": summarise(first), "b": summarise(second)}, "lower")
    assert best == ({"a"} if told_apart else frozenset())


def test_only_differences_that_the_seeds_support_are_marked():
    metric = {
        "good": summarise([0.10, 0.11, 0.12]),
        "as good": summarise([0.11, 0.11, 0.13]),
        "bad": summarise([0.50, 0.51, 0.52]),
        # A single number takes no part, nor does another number of seeds.
        "ensemble": summarise([0.01]),
        "fewer": summarise([0.11, 0.11]),
    }
    assert best_names(metric, "lower") == {"good", "as good"}
    assert best_names(metric, "higher") == {"bad"}
    noisy = {"a": summarise([0.1, 0.9, 0.5]), "b": summarise([0.2, 0.8, 0.3])}
    equal = {"a": summarise([0.5, 0.5]), "b": summarise([0.5, 0.5])}
    single = {"a": summarise([0.1]), "b": summarise([0.2])}
    for nothing in (noisy, equal, single):
        assert best_names(nothing, "lower") == frozenset()
    assert not difference(summarise([0.1]), summarise([0.2, 0.3])).resolved


def test_a_worse_method_is_not_marked_beside_a_better_one_because_its_seeds_scatter():
    metric = {
        "best": summarise([0.010, 0.011, 0.012]),
        "differs": summarise([0.050, 0.051, 0.052]),
        "scatters": summarise([0.010, 0.200, 0.400]),
    }
    assert best_names(metric, "lower") == {"best"}


def test_every_metric_of_classes_has_a_label_and_a_good_end():
    probs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], dtype=torch.float64)
    assert LABELS.keys() >= evaluate(probs, torch.tensor([0, 1, 1])).keys()
    assert direction_of("ood/svhn/entropy/auroc") == "higher"
    assert direction_of("test/nll") == "lower"
    assert direction_of("seconds") is None


def differences(mean, deviation, count):
    """Numbers of a given mean and sample standard deviation."""
    drawn = np.random.default_rng(0).standard_normal(count)
    return list(mean + deviation * (drawn - drawn.mean()) / drawn.std(ddof=1))


@pytest.mark.parametrize("effect", [0.1, 0.0, -0.1])
@pytest.mark.parametrize("mean", [-0.3, -0.05, 0.05, 0.12, 0.4])
@pytest.mark.parametrize("deviation", [0.01, 0.1, 1.0])
def test_a_claim_is_judged_by_the_interval_of_the_mean_difference(effect, mean, deviation):
    def verdict(count):
        values = differences(mean, deviation, count)
        low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        if high < effect:
            return "does not hold"
        return "holds" if mean >= effect and low > min(effect, 0.0) else "not resolved"

    found = judge(differences(mean, deviation, 4), effect)
    assert found.summary.mean == pytest.approx(mean)
    assert found.verdict == verdict(4)
    if found.seeds is not None:
        assert [verdict(n) == "not resolved" for n in (found.seeds - 1, found.seeds)] == [
            True,
            False,
        ]
    elif found.verdict == "not resolved":
        assert verdict(1000) == "not resolved"


def test_a_single_seed_and_seeds_that_miss_a_metric_resolve_nothing():
    assert judge([0.5], 0.1).verdict == judge([], 0.1).verdict == "not resolved"
    assert judge([0.5, 0.5, 0.5], 0.1).verdict == "holds"
    assert judge([0.0, 0.0], 0.1).verdict == "does not hold"
