import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from probseq.metrics import calibration_bins, expected_calibration_error, maximum_calibration_error


def loop_bins(confidence, hit, num_bins):
    """The definition, one prediction at a time: bin b is (b/B, (b+1)/B], the first one holds 0."""
    groups = [[] for _ in range(num_bins)]
    for p, h in zip(confidence, hit, strict=True):
        for b in range(num_bins):
            if (b / num_bins < p <= (b + 1) / num_bins) or (p == 0 and b == 0):
                groups[b].append((p, h))
    return groups


def loop_errors(confidence, hit, num_bins=15):
    groups = loop_bins(confidence, hit, num_bins)
    gaps = [abs(np.mean([h - p for p, h in g])) for g in groups if g]
    weights = [len(g) / len(confidence) for g in groups if g]
    return float(np.dot(weights, gaps)), max(gaps)


def pairs(probs, labels, mode):
    probs, labels = probs.numpy(), labels.numpy()
    if mode == "top":
        return probs.max(1), (probs.argmax(1) == labels).astype(float)
    return probs.ravel(), np.eye(probs.shape[1])[labels].ravel()


@pytest.mark.parametrize("mode", ["top", "classwise"])
@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_errors_equal_a_loop_over_predictions(make_probs, mode, num_bins):
    probs, labels = make_probs()
    ece, mce = loop_errors(*pairs(probs, labels, mode), num_bins)
    assert float(expected_calibration_error(probs, labels, num_bins, mode)) == pytest.approx(
        ece, rel=1e-10
    )
    assert float(maximum_calibration_error(probs, labels, num_bins, mode)) == pytest.approx(
        mce, rel=1e-10
    )


@pytest.mark.parametrize(("norm", "ours"), [("l1", 0), ("max", 1)])
def test_top_label_errors_equal_torchmetrics_away_from_edges(make_probs, norm, ours):
    # torchmetrics' bins are [lo, hi): the same where no probability lies on an edge.
    probs, labels = make_probs()
    theirs = multiclass_calibration_error(probs, labels, num_classes=5, n_bins=15, norm=norm)
    mine = (expected_calibration_error, maximum_calibration_error)[ours](probs, labels)
    assert float(mine) == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.parametrize("mode", ["top", "classwise"])
def test_bins_hold_counts_means_and_hit_rates(make_probs, mode):
    probs, labels = make_probs(num_samples=60)
    bins = calibration_bins(probs, labels, 10, mode)
    groups = loop_bins(*pairs(probs, labels, mode), 10)
    assert bins.count.tolist() == [len(g) for g in groups]
    assert bins.edges.tolist() == [b / 10 for b in range(11)]
    for b, group in enumerate(groups):
        p, h = np.mean(group, axis=0) if group else (0.0, 0.0)
        assert float(bins.confidence[b]) == pytest.approx(p, abs=1e-12)
        assert float(bins.accuracy[b]) == pytest.approx(h, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_edge_belongs_to_the_bin_below_and_zero_to_the_first(dtype):
    # 3/15, 5/15, ... as the dtype has them; the second class holds the rest.
    for numerator in range(16):
        p = torch.tensor(numerator / 15, dtype=dtype)
        bins = calibration_bins(torch.stack([p, 1 - p])[None], torch.tensor([0]), 15, "classwise")
        assert bins.count[max(numerator - 1, 0)] >= 1
        assert int(bins.count.sum()) == 2


def test_probabilities_that_round_above_one_stay_in_the_last_bin():
    probs = torch.tensor([[1.0 + 1e-6, 0.0]])
    assert calibration_bins(probs, torch.tensor([0]), 15).count.tolist() == [0] * 14 + [1]


def test_calibrated_predictions_have_an_error_that_vanishes_with_their_number():
    generator = torch.Generator().manual_seed(3)
    errors = []
    for num_samples in (1_000, 100_000):
        logits = 2 * torch.randn(num_samples, 4, generator=generator, dtype=torch.float64)
        probs = logits.softmax(dim=1)
        labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
        errors.append(
            [
                float(expected_calibration_error(probs, labels, mode=mode))
                for mode in ("top", "classwise")
            ]
        )
    # The noise of a bin is about sqrt(p(1-p)/n_b): 0.5 * sqrt(15/1e5) = 0.006 at most.
    assert max(errors[1]) < 0.006
    assert errors[1][0] < 0.3 * errors[0][0]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), mode=st.sampled_from(["top", "classwise"]))
def test_errors_are_ordered_and_do_not_depend_on_the_order_of_samples(seed, mode):
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(50, 3, generator=generator, dtype=torch.float64)).softmax(dim=1)
    labels = torch.randint(3, (50,), generator=generator)
    order = torch.randperm(50, generator=generator)
    ece = float(expected_calibration_error(probs, labels, mode=mode))
    mce = float(maximum_calibration_error(probs, labels, mode=mode))
    assert 0 <= ece <= mce <= 1
    shuffled = float(expected_calibration_error(probs[order], labels[order], mode=mode))
    assert shuffled == pytest.approx(ece, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_inputs_give_nearly_the_same(make_probs, dtype):
    # One bin: rounding cannot move a prediction to another one.
    probs, labels = make_probs(num_samples=400)
    low = float(expected_calibration_error(probs.to(dtype), labels, 1, "classwise"))
    top = float(expected_calibration_error(probs.to(dtype), labels, 1))
    exact = float(expected_calibration_error(probs, labels, 1))
    assert low == pytest.approx(0.0, abs=1e-3)
    assert top == pytest.approx(exact, abs=5e-3)
    assert exact > 0.02
