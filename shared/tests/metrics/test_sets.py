import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import beta, entropy
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from probseq.metrics import SCORES, Predictions, class_predictions, ensemble, evaluate_sets
from probseq.metrics.sets import trusted_shares


def predictions(seed, classes=4, rows=200):
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    scores = torch.randn(rows, len(SCORES), generator=generator, dtype=torch.float64)
    scores[:, 0] = -logits.logsumexp(-1)
    return Predictions(logits.log_softmax(-1), scores, labels)


def test_shift_is_averaged_over_corruptions():
    names = ("gaussian_noise/3", "shot_noise/3", "fog/3", "fog/5")
    sets = {f"shift/{name}": predictions(number) for number, name in enumerate(names)}
    values = evaluate_sets({"test": predictions(9, classes=2), **sets})
    every = [values[f"shift/{name}/nll"] for name in names[:3]]
    assert values["shift/severity-3/nll"] == pytest.approx(np.mean(every))
    assert values["shift/severity-5/ece"] == values["shift/fog/5/ece"]
    assert "shift/fog/3/e-aurc" not in values
    two = predictions(9, classes=2)
    expected = matthews_corrcoef(two.labels.numpy(), two.log_probs.argmax(1).numpy())
    assert values["test/mcc"] == pytest.approx(expected)


def test_a_mean_over_corruptions_without_failures_in_one_leaves_that_one_out():
    sure = 5.0 * torch.eye(4, dtype=torch.float64)
    scores = torch.zeros(4, len(SCORES), dtype=torch.float64)
    right = Predictions(sure.log_softmax(-1), scores, torch.arange(4))
    found = predictions(1)
    values = evaluate_sets({"test": found, "shift/fog/3": found, "shift/contrast/3": right})
    assert values["shift/contrast/3/failure-auroc"] is None
    assert values["shift/severity-3/failure-auroc"] == values["test/failure-auroc"]


def test_scores_and_validation_data_reach_the_detectors():
    sets = {"test": predictions(0), "ood/other": predictions(1, rows=150)}
    known = {"validation": predictions(2), "validation/other": predictions(5, rows=30)}
    values = evaluate_sets({**sets, **known})
    for first, name, count in (("test", "ood/other", 150), ("validation", "validation/other", 30)):
        pair = ({**sets, **known}[each] for each in (first, name))
        scores = torch.cat([found.scores for found in pair]).numpy()
        positive = np.r_[np.zeros(200), np.ones(count)]
        for column, score in enumerate(SCORES):
            expected = roc_auc_score(positive, scores[:, column])
            assert values[f"{name}/{score}/auroc"] == pytest.approx(expected)
    assert "ood/other/kl-matching/auroc" in values
    # Fitted on the validation part itself, it would be too near to that.
    assert "validation/other/kl-matching/auroc" not in values
    assert not any("kl-matching" in name for name in evaluate_sets(sets))
    without = sets["test"]._replace(scores=sets["test"].scores.clone())
    without.scores[:, 1] = torch.nan
    found = evaluate_sets({**sets, "test": without})
    assert "ood/other/information/auroc" not in found


def test_an_ensemble_is_the_mean_of_probabilities_and_scores():
    members = [predictions(seed) for seed in range(3)]
    found = ensemble(members)
    probs = np.stack([member.log_probs.exp().numpy() for member in members])
    np.testing.assert_allclose(found.log_probs.exp().numpy(), probs.mean(0), atol=1e-12)
    expected = np.stack([member.scores.numpy() for member in members]).mean(0)
    np.testing.assert_allclose(found.scores.numpy()[:, [0, 2, 3, 4]], expected[:, [0, 2, 3, 4]])
    # Of members that draw nothing the disagreement is the mean divergence from their mean.
    silent = [each._replace(scores=torch.full_like(each.scores, torch.nan)) for each in members]
    expected = entropy(probs, probs.mean(0, keepdims=True), axis=-1).mean(0)
    np.testing.assert_allclose(ensemble(silent).scores.numpy()[:, 1], expected, atol=1e-12)
    assert torch.equal(found.labels, members[0].labels)
    scaled = members[0].scaled(2.0)
    expected = (members[0].log_probs / 2.0).log_softmax(-1)
    torch.testing.assert_close(scaled.log_probs, expected)
    assert torch.equal(scaled.scores, members[0].scores)


def test_an_ensemble_of_models_that_draw_has_the_information_of_all_their_draws():
    logits = np.random.default_rng(0).normal(size=(3, 5, 40, 4)) * 2.0
    members = []
    for own in logits:
        log_probs, scores = class_predictions(torch.from_numpy(own))
        distances = torch.zeros(40, len(SCORES) - scores.shape[1])
        labels = torch.zeros(40, dtype=torch.int64)
        members.append(Predictions(log_probs, torch.cat([scores, distances], 1), labels))
    probs = softmax(logits, -1).reshape(15, 40, 4)
    expected = entropy(probs, probs.mean(0, keepdims=True), axis=-1).mean(0)
    np.testing.assert_allclose(ensemble(members).scores[:, 1], expected, atol=2e-6)


@pytest.mark.parametrize("max_error", [0.35, 0.01])
def test_one_half_of_the_test_set_says_what_to_trust_of_the_other(max_error):
    test, other = predictions(3, rows=400), predictions(4, rows=90)
    values = trusted_shares({"test": test, "ood/x": other, "shift/a/1": other}, max_error)
    confidence, outside = (each.log_probs.amax(1).numpy() for each in (test, other))
    right = (test.log_probs.argmax(1) == test.labels).numpy()
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0)).numpy()
    thresholds, accepted = [], []
    for half, checked in ((order[:200], order[200:]), (order[200:], order[:200])):
        surest = half[np.argsort(-confidence[half])]
        threshold = np.inf
        for count in range(10, 200, 10):
            wrong = (~right[surest[:count]]).sum()
            if beta.ppf(1 - 0.05 / 20, wrong + 1, count - wrong) <= max_error:
                threshold = confidence[surest[count]]
        thresholds.append(threshold)
        accepted += checked[confidence[checked] > threshold].tolist()
    assert values["test/trusted"] == pytest.approx(len(accepted) / 400)
    assert bool(accepted) == (max_error == 0.35)
    error = pytest.approx((~right[accepted]).mean()) if accepted else None
    assert values["test/trusted-error"] == error
    refused = np.mean([outside <= threshold for threshold in thresholds])
    assert values["trusted-refused/x"] == pytest.approx(refused)
    assert values["corrupted/trusted"] == pytest.approx(1 - refused)
    assert values["test/surest"] == pytest.approx(0.9, abs=0.03)
