from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from probseq.metrics import (
    aurc,
    e_aurc,
    evaluate,
    search_temperature,
    select_with_error,
    selective_error,
)

distinct_samples = st.lists(
    st.tuples(st.integers(-1000, 1000), st.booleans()),
    min_size=1,
    max_size=30,
    unique_by=lambda sample: sample[0],
)


def unzip(samples):
    confidence, correct = zip(*samples, strict=True)
    return torch.tensor(confidence, dtype=torch.float64) / 1000, torch.tensor(correct)


def make_confidence(num_samples=200, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.random(num_samples)
    correct = rng.random(num_samples) < confidence
    return torch.from_numpy(confidence), torch.from_numpy(correct)


def loop_aurc(confidence, correct):
    ranked = sorted(zip(confidence, correct, strict=True), key=lambda s: s[0], reverse=True)
    errors, area = 0, 0.0
    for k, (_, right) in enumerate(ranked, start=1):
        errors += not right
        area += errors / k / len(ranked)
    return area


@settings(deadline=None, max_examples=40)
@given(samples=distinct_samples)
def test_aurc_equals_a_loop(samples):
    confidence, correct = unzip(samples)
    expected = loop_aurc(confidence.tolist(), correct.tolist())
    assert float(aurc(confidence, correct)) == pytest.approx(expected, abs=1e-12)


def test_under_ties_the_area_is_the_mean_over_all_orders():
    confidence = [0.9, 0.5, 0.5, 0.5, 0.2]
    correct = [True, False, True, True, False]
    orders = [[correct[0], *each, correct[4]] for each in permutations(correct[1:4])]
    expected = sum(loop_aurc(confidence, order) for order in orders) / len(orders)
    for order in orders:
        found = float(aurc(torch.tensor(confidence), torch.tensor(order)))
        assert found == pytest.approx(expected, abs=1e-12)
    probs = torch.tensor([1.0, 1.0, 1.0]).double()  # a saturated softmax
    assert float(aurc(probs, torch.tensor([True, False, True]))) == pytest.approx(1 / 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_renormalised_once(dtype):
    logits = 3 * torch.randn(500, 200, generator=torch.Generator().manual_seed(0))
    labels = logits.softmax(-1).multinomial(1, generator=torch.Generator().manual_seed(1))[:, 0]
    probs = logits.softmax(-1)
    found, expected = (evaluate(each, labels) for each in (probs.to(dtype), probs))
    assert found["nll"] == pytest.approx(expected["nll"], rel=0.02)


def test_logarithms_of_zeros_are_named():
    with pytest.raises(ValueError, match="NaN or infinite entries of 20: clip probabilities of 0"):
        search_temperature(torch.eye(2).repeat(5, 1).log(), torch.zeros(10).long())


@pytest.mark.parametrize("errors", [1, 7, 49])
def test_the_ideal_area_is_the_finite_sum(errors):
    num_samples = 50
    confidence, _ = make_confidence(num_samples)
    correct = torch.arange(num_samples) >= errors
    ideal = sum(j / (num_samples - errors + j) for j in range(1, errors + 1)) / num_samples
    excess = float(aurc(confidence, correct)) - float(e_aurc(confidence, correct))
    assert excess == pytest.approx(ideal, rel=1e-12)


def test_the_ideal_area_tends_to_the_papers_formula():
    gaps = []
    for num_samples in (100, 10_000):
        confidence, correct = make_confidence(num_samples)
        rate = 1 - correct.double().mean()
        limit = rate + (1 - rate) * torch.log1p(-rate)
        gaps.append(float(aurc(confidence, correct) - limit - e_aurc(confidence, correct)))
    # The difference is O(1/N): the sum exceeds the integral by about r/2N.
    assert 0 < gaps[1] < 0.02 * gaps[0]


@pytest.mark.parametrize("flag", [True, False])
def test_excess_is_zero_where_all_or_none_are_correct(flag):
    confidence, _ = make_confidence(20)
    correct = torch.full((20,), flag)
    assert float(e_aurc(confidence, correct)) == 0.0
    assert float(aurc(confidence, correct)) == (0.0 if flag else 1.0)


def test_the_error_among_the_surest_is_a_mean_over_those_of_least_variance():
    errors = torch.tensor([3.0, -1.0, 2.0, -0.5], dtype=torch.float64)
    coverage, error = selective_error(errors, errors.square())
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert error.tolist() == pytest.approx([0.5, 0.75, 3.5 / 3, 6.5 / 4])


def selective_data(generator, size):
    """Confidences whose share of errors is 0.3 (1 - c)², and 0.1 on the whole."""
    confidence = torch.rand(size, generator=generator, dtype=torch.float64)
    correct = torch.rand(size, generator=generator) >= 0.3 * (1 - confidence) ** 2
    return confidence, correct


@pytest.mark.slow
@pytest.mark.parametrize(("num_coverages", "least"), [(1, 10), (4, 1)])
def test_errors_among_the_accepted_exceed_what_was_wanted_in_a_twentieth_of_samples(
    num_coverages, least
):
    # All accepted are wrong in 0.1 of cases, a little more than what is wanted: whoever accepts
    # them breaks the guarantee, which may happen in 0.05 of 1000 samples. A binomial count of that
    # mean is below 72 with 0.999; with one coverage nothing of the level is lost.
    generator, exceeded = torch.Generator().manual_seed(0), 0
    for _ in range(1000):
        data = selective_data(generator, 1000)
        selection = select_with_error(*data, 0.0999, num_coverages=num_coverages)
        exceeded += selection.coverage == 1.0
    assert least <= exceeded < 72


def test_a_threshold_near_the_best_is_chosen():
    # 1 - √0.2 is the lowest that has no more than 0.02 errors above it: a coverage of .447.
    selections = [
        select_with_error(*selective_data(torch.Generator().manual_seed(seed), 20_000), 0.02)
        for seed in range(5)
    ]
    assert all(0.35 <= selection.coverage <= 0.4 for selection in selections)
    assert all(selection.error < selection.bound <= 0.02 for selection in selections)


def test_bounds_are_those_of_clopper_and_pearson():
    confidence, correct = selective_data(torch.Generator().manual_seed(1), 500)
    selection = select_with_error(confidence, correct, 0.2, level=0.9, num_coverages=1)
    wrong = int((~correct).sum())
    expected = stats.beta.ppf(0.9, wrong + 1, 500 - wrong)
    assert selection.coverage == 1.0
    assert selection.error == wrong / 500
    assert selection.bound == pytest.approx(expected, abs=1e-12)


def test_too_few_examples_guarantee_nothing():
    selection = select_with_error(torch.rand(20), torch.ones(20, dtype=torch.bool), 0.05)
    assert selection == (torch.inf, 0.0, 0.0, 0.0)


def test_equal_confidences_are_accepted_together_or_not_at_all():
    confidence = torch.tensor([0.9] * 500 + [0.4] * 500)
    correct = torch.ones(1000, dtype=torch.bool)
    correct[500:700] = False
    selection = select_with_error(confidence, correct, 0.05)
    accepted = confidence > selection.threshold
    assert int(accepted.sum()) == 500
    assert selection.coverage == 0.5
