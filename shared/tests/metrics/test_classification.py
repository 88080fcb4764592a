import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probseq.metrics import accuracy, brier, matthews_correlation, nll

METRICS = [nll, accuracy, brier, matthews_correlation]


def test_nll_equals_sklearn_log_loss(make_probs):
    probs, labels = make_probs()
    expected = sklearn.metrics.log_loss(labels.numpy(), probs.numpy(), labels=range(5))
    assert float(nll(probs, labels)) == pytest.approx(expected, rel=1e-12)


def test_nll_of_an_impossible_label_is_finite_and_set_by_the_dtype():
    labels = torch.tensor([1])
    for dtype in (torch.float32, torch.float64):
        probs = torch.tensor([[1.0, 0.0]], dtype=dtype)
        expected = -math.log(torch.finfo(dtype).tiny)
        assert float(nll(probs, labels)) == pytest.approx(expected, rel=1e-12)


def test_nll_is_lowest_when_the_probabilities_are_the_label_frequencies():
    labels = torch.tensor([0] * 7 + [1] * 3)

    def at(p: float) -> float:
        return float(nll(torch.tensor([[p, 1 - p]], dtype=torch.float64).expand(10, 2), labels))

    entropy = -0.7 * math.log(0.7) - 0.3 * math.log(0.3)
    assert at(0.7) == pytest.approx(entropy, rel=1e-12)
    assert at(0.7) < min(at(0.65), at(0.75))


def test_accuracy_equals_sklearn(make_probs):
    probs, labels = make_probs()
    expected = sklearn.metrics.accuracy_score(labels.numpy(), probs.numpy().argmax(1))
    assert float(accuracy(probs, labels)) == expected


def test_ties_predict_the_first_class():
    probs = torch.full((2, 4), 0.25)
    assert float(accuracy(probs, torch.tensor([0, 0]))) == 1.0
    assert float(accuracy(probs, torch.tensor([1, 3]))) == 0.0


def test_brier_equals_the_sum_over_classes(make_probs):
    probs, labels = make_probs()
    total = 0.0
    for p, y in zip(probs.numpy(), labels.tolist(), strict=True):
        total += sum((p[c] - (c == y)) ** 2 for c in range(5))
    assert float(brier(probs, labels)) == pytest.approx(total / 257, rel=1e-12)


def test_brier_of_two_classes_is_twice_sklearns():
    probs = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.9, 0.1]], dtype=torch.float64)
    labels = torch.tensor([1, 1, 0])
    expected = 2 * sklearn.metrics.brier_score_loss([1, 1, 0], probs[:, 1].numpy())
    assert float(brier(probs, labels)) == pytest.approx(expected, rel=1e-12)


def test_brier_runs_from_zero_to_two():
    sure = torch.tensor([[1.0, 0.0]])
    assert float(brier(sure, torch.tensor([0]))) == 0.0
    assert float(brier(sure, torch.tensor([1]))) == 2.0


@pytest.mark.parametrize("num_classes", [2, 5])
def test_matthews_correlation_equals_sklearn(make_probs, num_classes):
    probs, labels = make_probs(num_classes=num_classes)
    expected = sklearn.metrics.matthews_corrcoef(labels.numpy(), probs.numpy().argmax(1))
    assert expected > 0.1
    assert float(matthews_correlation(probs, labels)) == pytest.approx(expected, rel=1e-12)


def test_matthews_correlation_is_one_minus_one_and_zero_at_its_limits():
    labels = torch.tensor([0, 1, 1, 0])
    right = torch.eye(2)[labels]
    assert float(matthews_correlation(right, labels)) == 1.0
    assert float(matthews_correlation(1 - right, labels)) == -1.0
    assert float(matthews_correlation(torch.tensor([[0.9, 0.1]]).expand(4, 2), labels)) == 0.0
    assert float(matthews_correlation(right, torch.zeros(4, dtype=torch.int64))) == 0.0


@pytest.mark.parametrize("metric", METRICS)
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31))
def test_the_order_of_samples_does_not_matter(metric, seed):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(40, 3, generator=generator, dtype=torch.float64).softmax(dim=1)
    labels = torch.randint(3, (40,), generator=generator)
    order = torch.randperm(40, generator=generator)
    assert float(metric(probs[order], labels[order])) == pytest.approx(
        float(metric(probs, labels)), abs=1e-12
    )


@pytest.mark.parametrize("metric", METRICS)
def test_relabelling_the_classes_does_not_matter(make_probs, metric):
    probs, labels = make_probs()
    new_of_old = torch.tensor([3, 0, 4, 1, 2])
    moved = torch.empty_like(probs)
    moved[:, new_of_old] = probs
    assert float(metric(moved, new_of_old[labels])) == pytest.approx(
        float(metric(probs, labels)), rel=1e-12
    )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
)
def test_lower_precision_inputs_give_nearly_the_same(make_probs, metric, dtype, tolerance):
    probs, labels = make_probs(num_samples=400)
    low = metric(probs.to(dtype), labels)
    assert low.dtype == torch.float64
    assert float(low) == pytest.approx(float(metric(probs, labels)), abs=tolerance)


def test_the_mean_does_not_drift_over_a_million_samples():
    # A running float32 sum of 1e6 terms would be off in the third digit or so.
    probs = torch.tensor([[0.9, 0.1]]).expand(1_000_000, 2)
    labels = torch.zeros(1_000_000, dtype=torch.int64)
    assert float(nll(probs, labels)) == pytest.approx(-math.log(np.float32(0.9)), rel=1e-9)


def test_nll_and_brier_pass_gradients(make_probs):
    probs, labels = make_probs(num_samples=6)
    logits = probs.log().requires_grad_()
    for metric in (nll, brier):
        assert torch.autograd.gradcheck(lambda z, m=metric: m(z.softmax(1), labels), (logits,))


def test_integer_labels_of_any_width_are_taken(make_probs):
    probs, labels = make_probs()
    assert float(nll(probs, labels.to(torch.int32))) == float(nll(probs, labels))
