import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probseq.metrics import (
    KLMatching,
    energy_score,
    entropy_score,
    max_softmax_score,
    ood_metrics,
    ood_roc,
)


def test_max_softmax_is_minus_the_largest_probability(make_probs):
    probs, _ = make_probs()
    np.testing.assert_array_equal(max_softmax_score(probs).numpy(), -probs.numpy().max(1))


def test_entropy_equals_scipy_with_zero_times_log_zero_as_zero(make_probs):
    probs, _ = make_probs()
    expected = scipy.stats.entropy(probs.numpy(), axis=1)
    np.testing.assert_allclose(entropy_score(probs).numpy(), expected, rtol=1e-12)
    edge = entropy_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    assert edge.tolist() == pytest.approx([0.0, math.log(2)])


def test_energy_equals_scipy():
    logits = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = -scipy.special.logsumexp(logits.numpy(), axis=1)
    np.testing.assert_allclose(energy_score(logits).numpy(), expected, rtol=1e-12)


def loop_kl(probs, val_probs, groups):
    """Scores by scipy's KL, one sample at a time."""
    typical = [val_probs[groups == k].mean(0) for k in range(probs.shape[1])]
    return np.array([scipy.stats.entropy(p, typical[p.argmax()]) for p in probs])


def test_kl_matching_by_true_class_scores_against_the_predicted_class(make_probs):
    val_probs, val_labels = make_probs(seed=1)
    probs, _ = make_probs(seed=2)
    scores = KLMatching.fit(val_probs, val_labels).score(probs)
    expected = loop_kl(probs.numpy(), val_probs.numpy(), val_labels.numpy())
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-9)


def test_a_typical_distribution_has_no_divergence():
    probs = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    detector = KLMatching.fit(probs, torch.tensor([0, 1]))
    assert detector.score(probs).tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    assert float(detector.score(torch.tensor([[0.5, 0.5]]))) > 0.05


def test_kl_matching_stays_finite_where_a_typical_probability_is_zero():
    detector = KLMatching.fit(torch.eye(2), torch.tensor([0, 1]))
    score = float(detector.score(torch.tensor([[0.9, 0.1]])))
    expected = 0.9 * math.log(0.9) + 0.1 * math.log(0.1 / torch.finfo(torch.float32).tiny)
    assert score == pytest.approx(expected, rel=1e-6)


def test_a_class_that_the_fit_never_saw():
    val_probs = torch.tensor([[0.6, 0.3, 0.1], [0.3, 0.6, 0.1]])
    labels = torch.tensor([0, 1])
    unseen = torch.tensor([[0.1, 0.1, 0.8]])
    with pytest.raises(ValueError, match=r"predict classes that had labels .* classes \[2\]"):
        KLMatching.fit(val_probs, labels).score(unseen)


def test_every_detector_grows_with_ood():
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(4, (600,), generator=generator)
    noise = torch.randn(600, 4, generator=generator, dtype=torch.float64)
    confident = noise + 5 * torch.eye(4, dtype=torch.float64)[labels]
    detector = KLMatching.fit(confident[:300].softmax(1), labels[:300])
    inside, outside = confident[300:], noise[300:]
    scores = [max_softmax_score, entropy_score, detector.score]
    for score in scores:
        result = ood_metrics(score(inside.softmax(1)), score(outside.softmax(1)))
        assert float(result["auroc"]) > 0.85
    result = ood_metrics(energy_score(inside), energy_score(outside))
    assert float(result["auroc"]) > 0.9


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), decimals=st.sampled_from([0, 1, 8]))
def test_metrics_equal_sklearn_with_the_positive_class_of_their_names(seed, decimals):
    rng = np.random.default_rng(seed)
    inside = rng.normal(size=37).round(decimals)
    outside = (0.7 + rng.normal(size=23)).round(decimals)
    result = ood_metrics(torch.from_numpy(inside), torch.from_numpy(outside))
    scores = np.concatenate([inside, outside])
    is_out = np.arange(60) >= 37
    fpr, tpr, _ = sklearn.metrics.roc_curve(is_out, scores, drop_intermediate=False)
    expected = {
        "auroc": sklearn.metrics.roc_auc_score(is_out, scores),
        "aupr_out": sklearn.metrics.average_precision_score(is_out, scores),
        "aupr_in": sklearn.metrics.average_precision_score(~is_out, -scores),
        "fpr95": fpr[np.argmax(tpr >= 0.95)],
    }
    assert {k: float(v) for k, v in result.items()} == pytest.approx(expected, abs=1e-12)


def test_the_roc_of_other_data_has_the_area_that_is_measured():
    inside, outside = torch.tensor([0.1, 0.4, 0.4]), torch.tensor([0.3, 0.4, 0.9])
    fpr, tpr = ood_roc(inside, outside)
    area = float(ood_metrics(inside, outside)["auroc"])
    assert float(torch.trapezoid(tpr, fpr)) == pytest.approx(area) == pytest.approx(2 / 3)
