"""What came in wrong is named, with what was expected, before any arithmetic."""

import inspect
from itertools import product

import pytest
import torch

from probseq import metrics as m

GOOD = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
LABELS = torch.tensor([0, 1])
SCORES = torch.tensor([0.1, 0.9])
FLAGS = torch.tensor([True, False])
NAN = float("nan")

ON_PROBS = [
    m.nll,
    m.accuracy,
    m.brier,
    m.matthews_correlation,
    m.calibration_bins,
    m.expected_calibration_error,
    m.maximum_calibration_error,
    m.KLMatching.fit,
]
ON_SCORES = [m.roc_curve, m.auroc, m.average_precision, m.fpr_at_tpr]
ON_CONFIDENCE = [m.risk_coverage_curve, m.aurc, m.e_aurc]

pytestmark = pytest.mark.usefixtures("plain_calls")


@pytest.mark.parametrize("metric", ON_PROBS)
@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.tensor([0.5, 0.5]), r"probs must have shape \(N, C\).*got \(2,\)"),
        (torch.empty(0, 2), r"probs must have shape \(N, C\).*got \(0, 2\)"),
        (torch.empty(2, 0), r"probs must have shape \(N, C\).*got \(2, 0\)"),
        (torch.ones(3, 2, 2) / 2, r"average over samples first"),
        (torch.tensor([[1, 0], [0, 1]]), r"probs must be a floating-point tensor, got torch.int64"),
        (torch.tensor([[NAN, 0.5], [0.5, 0.5]]), r"probs must be finite, got NaN"),
        (torch.tensor([[0.5, 0.6], [0.5, 0.5]]), r"sum to 1 within 0.0001.*row sum off by 0.1"),
        (torch.tensor([[1.5, -0.5], [0.5, 0.5]]), r"smallest entry of -0.5"),
        (torch.tensor([[torch.inf, 0.0], [0.5, 0.5]]), r"row sum off by inf: apply softmax"),
        (torch.tensor([[torch.inf, -torch.inf], [0.5, 0.5]]), r"smallest entry of -inf"),
        (torch.tensor([[3.0, -2.5], [0.1, 0.2]]), r"apply softmax to logits"),
    ],
)
def test_bad_probabilities_are_refused(metric, probs, message):
    with pytest.raises(ValueError, match=message):
        metric(probs, LABELS)


@pytest.mark.parametrize("metric", ON_PROBS)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0]), r"labels must have shape \(N,\)=\(2,\), got \(1,\)"),
        (torch.tensor([[0], [1]]), r"labels must have shape \(N,\)=\(2,\), got \(2, 1\)"),
        (torch.tensor([0, 2]), r"labels must lie in 0..1, got values from 0 to 2"),
        (torch.tensor([-1, 0]), r"labels must lie in 0..1, got values from -1 to 0"),
        (torch.tensor([0.0, 1.0]), r"labels must be integers, got torch.float32"),
        (torch.tensor([False, True]), r"labels must be integers, got torch.bool"),
    ],
)
def test_bad_labels_are_refused(metric, labels, message):
    with pytest.raises(ValueError, match=message):
        metric(GOOD, labels)


def test_sums_within_rounding_are_accepted():
    rounding = torch.tensor([[0.25, 0.75 + 5e-5], [0.5, 0.5 - 5e-5]])
    assert float(m.accuracy(rounding, 1 - LABELS)) == 1.0


def test_bfloat16_rows_of_a_thousand_classes_are_accepted():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(50, 1000, generator=generator).softmax(dim=1).bfloat16()
    assert float((probs.float().sum(dim=1) - 1).abs().max()) > 1e-4
    assert 0.0 <= float(m.accuracy(probs, torch.zeros(50, dtype=torch.int64))) <= 1.0


@pytest.mark.parametrize(
    ("metrics", "good"),
    [
        (ON_PROBS[:-1], (GOOD, LABELS)),  # a class method cannot be unwrapped
        (ON_SCORES + ON_CONFIDENCE, (SCORES, FLAGS)),
        ([m.rmse, m.mae], (SCORES, SCORES)),
        ([m.search_temperature], (GOOD.log(), LABELS)),
    ],
)
def test_arrays_are_taken_and_what_is_neither_is_refused_by_name(metrics, good):
    for metric, place in product(metrics, (0, 1)):
        function = inspect.unwrap(metric)
        expected = function(*good)
        found = function(*(value.numpy() for value in good))
        assert str(found) == str(expected)
        wrong = [good[place].tolist() if k == place else value for k, value in enumerate(good)]
        with pytest.raises(TypeError, match="must be a tensor or an array, got list"):
            function(*wrong)


@pytest.mark.parametrize("metric", ON_SCORES + ON_CONFIDENCE)
@pytest.mark.parametrize(
    ("scores", "flags", "message"),
    [
        (SCORES[:, None], FLAGS, r"(scores|confidence) must have shape \(N,\), got \(2, 1\)"),
        (torch.empty(0), torch.empty(0, dtype=torch.bool), r"must not be empty, got shape \(0,\)"),
        (torch.tensor([NAN, 1.0]), FLAGS, r"(scores|confidence) must be finite, got 1 NaN or inf"),
        (torch.tensor([torch.inf, 1.0]), FLAGS, r"must be finite, got 1 NaN or infinite"),
        (torch.tensor([1, 2]), FLAGS, r"must be a floating-point tensor, got torch.int64"),
        (SCORES, FLAGS[:1], r"(positive|correct) must have shape \(N,\)=\(2,\), got \(1,\)"),
        (SCORES, LABELS, r"(positive|correct) must be boolean, got torch.int64"),
    ],
)
def test_bad_scores_and_flags_are_refused(metric, scores, flags, message):
    with pytest.raises(ValueError, match=message):
        metric(scores, flags)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("metric", [m.roc_curve, m.auroc, m.fpr_at_tpr])
def test_one_class_has_no_roc(metric, flag):
    with pytest.raises(ValueError, match=f"positive must hold both .* got 2 times {flag}"):
        metric(SCORES, torch.tensor([flag, flag]))


def test_average_precision_needs_a_positive_only():
    with pytest.raises(ValueError, match="positive must hold a True, got 2 times False"):
        m.average_precision(SCORES, torch.tensor([False, False]))
    assert float(m.average_precision(SCORES, torch.tensor([True, True]))) == 1.0


def test_regression_refuses_shapes_that_would_broadcast():
    column = SCORES[:, None]
    for metric in (m.rmse, m.mae):
        with pytest.raises(ValueError, match=r"mean must have the shape of targets, \(2,\), got"):
            metric(column, SCORES)
