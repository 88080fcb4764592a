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
def test_what_is_no_tensor_is_refused_by_name(metrics, good):
    for metric, place in product(metrics, (0, 1)):
        for wrong in (good[place].numpy(), good[place].tolist()):
            given = [wrong if k == place else value for k, value in enumerate(good)]
            with pytest.raises(TypeError, match=f"must be a tensor, got {type(wrong).__name__}"):
                inspect.unwrap(metric)(*given)


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


@pytest.mark.parametrize("metric", ON_CONFIDENCE)
def test_selective_metrics_name_their_own_arguments(metric):
    with pytest.raises(ValueError, match=r"^confidence must"):
        metric(torch.tensor([NAN, 1.0]), FLAGS)
    with pytest.raises(ValueError, match=r"^correct must"):
        metric(SCORES, LABELS)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("metric", [m.roc_curve, m.auroc, m.fpr_at_tpr])
def test_one_class_has_no_roc(metric, flag):
    with pytest.raises(ValueError, match=f"positive must hold both .* got 2 times {flag}"):
        metric(SCORES, torch.tensor([flag, flag]))


def test_average_precision_needs_a_positive_only():
    with pytest.raises(ValueError, match="positive must hold a True, got 2 times False"):
        m.average_precision(SCORES, torch.tensor([False, False]))
    assert float(m.average_precision(SCORES, torch.tensor([True, True]))) == 1.0


@pytest.mark.parametrize("tpr", [0.0, 1.5, -0.1, NAN])
def test_rates_outside_their_range_are_refused(tpr):
    with pytest.raises(ValueError, match=r"tpr must lie in \(0, 1\], got"):
        m.fpr_at_tpr(SCORES, FLAGS, tpr=tpr)


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="mode must be 'first' or 'nearest', got 'last'"):
        m.fpr_at_tpr(SCORES, FLAGS, mode="last")
    with pytest.raises(ValueError, match="mode must be 'top' or 'classwise', got 'all'"):
        m.calibration_bins(GOOD, LABELS, mode="all")


def test_a_histogram_needs_a_bin():
    with pytest.raises(ValueError, match="num_bins must be a whole number of at least 1, got 0"):
        m.calibration_bins(GOOD, LABELS, num_bins=0)
    # Unwrapped, because the shape checks of the tests would refuse first.
    with pytest.raises(ValueError, match="num_bins must be a whole number of at least 1, got nan"):
        inspect.unwrap(m.calibration_bins)(GOOD, LABELS, num_bins=NAN)


@pytest.mark.parametrize("detector", [m.max_softmax_score, m.entropy_score])
def test_detectors_on_probabilities_refuse_logits(detector):
    with pytest.raises(ValueError, match="probs must be rows of probabilities"):
        detector(torch.tensor([[2.0, 1.0]]))


def test_energy_needs_finite_logits_and_a_positive_temperature():
    with pytest.raises(ValueError, match=r"logits must have shape \(N, C\), got \(2,\)"):
        m.energy_score(SCORES)
    with pytest.raises(ValueError, match="logits must be finite"):
        m.energy_score(torch.tensor([[NAN, 1.0]]))
    with pytest.raises(ValueError, match="temperature must be positive and finite, got -1"):
        m.energy_score(GOOD, temperature=-1.0)


def test_ood_metrics_name_the_side_that_is_wrong():
    with pytest.raises(ValueError, match="in_scores must not be empty"):
        m.ood_metrics(torch.empty(0), SCORES)
    with pytest.raises(ValueError, match="out_scores must be finite"):
        m.ood_metrics(SCORES, torch.tensor([NAN]))


def test_regression_refuses_shapes_that_would_broadcast():
    column = SCORES[:, None]
    for metric in (m.rmse, m.mae):
        with pytest.raises(ValueError, match=r"mean must have the shape of targets, \(2,\), got"):
            metric(column, SCORES)


def test_regression_refuses_nan_and_nothing():
    with pytest.raises(ValueError, match="targets must be finite"):
        m.rmse(SCORES, torch.tensor([NAN, 0.0]))
    with pytest.raises(ValueError, match="mean must not be empty"):
        m.mae(torch.empty(0), torch.empty(0))


def test_coverage_needs_two_draws():
    with pytest.raises(ValueError, match="samples must hold at least 2 draws"):
        m.coverage_calibration_error(torch.zeros(1, 2), SCORES)


def test_errors_and_variances_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="error and variance must have equal lengths, got 2 and 1"):
        m.selective_error(SCORES, SCORES[:1])
