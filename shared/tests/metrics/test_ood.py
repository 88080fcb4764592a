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
    feature_scores,
    max_softmax_score,
    ood_metrics,
    sample_scores,
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


def test_the_scores_of_samples_are_their_energy_their_disagreement_and_their_variance():
    logits = 3.0 * np.random.default_rng(0).normal(size=(6, 20, 4))
    found = {n: score.numpy() for n, score in sample_scores(torch.from_numpy(logits)).items()}
    energies = -scipy.special.logsumexp(logits, axis=-1)
    np.testing.assert_allclose(found["energy"], energies.mean(0), rtol=1e-12)
    probs = scipy.special.softmax(logits, axis=-1)
    # The mutual information is the mean divergence of a sample from the mean of all.
    divergence = scipy.stats.entropy(probs, probs.mean(0, keepdims=True), axis=-1).mean(0)
    np.testing.assert_allclose(found["information"], divergence, rtol=1e-9)
    covariance = [np.cov(logits[:, n].T, bias=True) for n in range(20)]
    centring = np.eye(4) - 1 / 4
    expected = [np.trace(centring @ each @ centring) for each in covariance]
    np.testing.assert_allclose(found["logit-variance"], expected, rtol=1e-9)
    # Nothing that is added to all logits of a sample alike reaches the last two.
    lifted = sample_scores(torch.from_numpy(logits + np.arange(6.0)[:, None, None]))
    for name in ("information", "logit-variance"):
        np.testing.assert_allclose(lifted[name].numpy(), found[name], rtol=1e-9)
    assert list(sample_scores(torch.from_numpy(logits[:1]))) == ["energy"]


@pytest.mark.parametrize(("count", "dim"), [(60, 5), (12, 20)])
def test_distances_of_features_equal_those_by_the_inverse_covariance(count, dim):
    generator = np.random.default_rng(1)
    train, x = generator.normal(size=(count, dim)), 2.0 * generator.normal(size=(30, dim))
    labels = np.arange(count) % 3
    train += labels[:, None]
    means = np.stack([train[labels == each].mean(0) for each in range(3)])
    residuals = train - means[labels]
    covariance = residuals.T @ residuals / count
    covariance += 1e-3 * np.trace(covariance) / dim * np.eye(dim)
    inverse = np.linalg.inv(covariance)
    squares = [[(each - mean) @ inverse @ (each - mean) for mean in means] for each in x]
    nearest = [np.linalg.norm(train - each, axis=1).min() for each in x]
    # A class that no example has, number 1 of 0, 1, 2 and 5, counts for nothing.
    numbers = torch.from_numpy(np.array([0, 2, 5])[labels])
    found = feature_scores(torch.from_numpy(x), torch.from_numpy(train), numbers)
    np.testing.assert_allclose(found["mahalanobis"].numpy(), np.min(squares, 1), rtol=1e-8)
    np.testing.assert_allclose(found["nearest"].numpy(), nearest, rtol=1e-8)


def test_distances_of_examples_that_are_all_alike_are_finite():
    x = torch.tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    found = feature_scores(x, torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    assert found["nearest"].tolist() == [0.0, 1.0]
    assert found["mahalanobis"].tolist() == [0.0, 1.0]
    # A single example of each class: squares of the distance from the nearest one.
    single = feature_scores(8 * torch.eye(3), torch.eye(3), torch.arange(3))
    assert single["mahalanobis"].tolist() == [49.0] * 3


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
