import itertools

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from probseq.metrics import auroc, average_precision, fpr_at_tpr, roc_curve

# Few distinct values: most examples have ties across the classes.
tied_samples = st.lists(
    st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0]), st.booleans()),
    min_size=2,
    max_size=40,
)


def unzip(samples):
    scores, positive = zip(*samples, strict=True)
    assume(any(positive) and not all(positive))
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(positive)


def make_scores(num_samples=300, seed=0, decimals=None):
    rng = np.random.default_rng(seed)
    positive = rng.random(num_samples) < 0.4
    scores = rng.normal(size=num_samples) + positive
    if decimals is not None:
        scores = scores.round(decimals)
    return torch.from_numpy(scores), torch.from_numpy(positive)


@settings(deadline=None, max_examples=40)
@given(samples=tied_samples)
def test_auroc_counts_pairs_with_half_for_ties(samples):
    scores, positive = unzip(samples)
    pairs = itertools.product(scores[positive].tolist(), scores[~positive].tolist())
    wins = [1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs]
    assert float(auroc(scores, positive)) == pytest.approx(np.mean(wins), abs=1e-14)


@settings(deadline=None, max_examples=40)
@given(samples=tied_samples)
def test_average_precision_equals_sklearn_under_ties(samples):
    scores, positive = unzip(samples)
    expected = sklearn.metrics.average_precision_score(positive.numpy(), scores.numpy())
    assert float(average_precision(scores, positive)) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("decimals", [None, 1, 0])
def test_areas_and_curve_equal_sklearn(decimals):
    scores, positive = make_scores(decimals=decimals)
    fpr, tpr, _ = sklearn.metrics.roc_curve(
        positive.numpy(), scores.numpy(), drop_intermediate=False
    )
    curve = roc_curve(scores, positive)
    np.testing.assert_allclose(curve.fpr.numpy(), fpr, atol=1e-15)
    np.testing.assert_allclose(curve.tpr.numpy(), tpr, atol=1e-15)
    expected = sklearn.metrics.roc_auc_score(positive.numpy(), scores.numpy())
    assert expected > 0.6
    assert float(auroc(scores, positive)) == pytest.approx(expected, rel=1e-12)
    expected = sklearn.metrics.average_precision_score(positive.numpy(), scores.numpy())
    assert float(average_precision(scores, positive)) == pytest.approx(expected, rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(samples=tied_samples, seed=st.integers(0, 2**31))
def test_neither_order_nor_monotone_maps_change_a_ranking(samples, seed):
    scores, positive = unzip(samples)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    for metric in (auroc, average_precision, fpr_at_tpr):
        before = float(metric(scores, positive))
        assert float(metric(scores[order], positive[order])) == before
        assert float(metric(scores.exp() * 7 - 2, positive)) == before


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 1.0])
@settings(deadline=None, max_examples=40)
@given(samples=tied_samples)
def test_first_point_at_a_tpr_equals_a_search_over_thresholds(level, samples):
    scores, positive = unzip(samples)
    for threshold in sorted(set(scores.tolist()), reverse=True):
        if float((scores[positive] >= threshold).double().mean()) >= level:
            expected = float((scores[~positive] >= threshold).double().mean())
            break
    assert float(fpr_at_tpr(scores, positive, level)) == expected


def test_a_rate_of_exactly_19_in_20_counts_as_95_percent():
    scores = torch.arange(21, 0, -1).double()
    positive = torch.tensor([True] * 19 + [False, True])
    assert float(fpr_at_tpr(scores, positive, 0.95)) == 0.0


@pytest.mark.parametrize("tpr", [0.0, 1.5])
def test_a_rate_that_no_point_has_is_refused(tpr):
    with pytest.raises(ValueError, match=rf"tpr must lie in \(0, 1\], got {tpr}"):
        fpr_at_tpr(torch.tensor([1.0, 0.0]), torch.tensor([True, False]), tpr)
