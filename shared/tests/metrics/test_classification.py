import math

import pytest
import sklearn.metrics
import torch

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
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
)
def test_lower_precision_inputs_give_nearly_the_same(make_probs, metric, dtype, tolerance):
    probs, labels = make_probs(num_samples=400)
    low = metric(probs.to(dtype), labels)
    assert low.dtype == torch.float64
    assert float(low) == pytest.approx(float(metric(probs, labels)), abs=tolerance)


def test_nll_and_brier_pass_gradients(make_probs):
    probs, labels = make_probs(num_samples=6)
    logits = probs.log().requires_grad_()
    for metric in (nll, brier):
        assert torch.autograd.gradcheck(lambda z, m=metric: m(z.softmax(1), labels), (logits,))


def test_integer_labels_of_any_width_are_taken(make_probs):
    probs, labels = make_probs()
    assert float(nll(probs, labels.to(torch.int32))) == float(nll(probs, labels))
