import numpy as np
import pytest
import torch
from scipy.stats import beta
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from probseq.metrics import Predictions, ensemble, evaluate_sets
from probseq.metrics.sets import trusted_shares

GROUPS = {"noise": ("gaussian_noise", "shot_noise"), "digital": ("contrast",)}


def predictions(seed, classes=4, rows=200):
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return Predictions(logits.log_softmax(-1), -logits.logsumexp(-1), labels)


def test_shift_is_averaged_over_corruptions_and_over_their_groups():
    names = ("gaussian_noise/3", "shot_noise/3", "fog/3", "fog/5")
    sets = {f"shift/{name}": predictions(number) for number, name in enumerate(names)}
    values = evaluate_sets({"test": predictions(9, classes=2), **sets}, GROUPS)
    noise = [values["shift/gaussian_noise/3/nll"], values["shift/shot_noise/3/nll"]]
    assert values["shift/noise-3/nll"] == pytest.approx(np.mean(noise))
    every = [*noise, values["shift/fog/3/nll"]]
    assert values["shift/severity-3/nll"] == pytest.approx(np.mean(every))
    assert values["shift/severity-5/ece"] == values["shift/fog/5/ece"]
    assert "shift/fog/3/e-aurc" not in values
    two = predictions(9, classes=2)
    expected = matthews_corrcoef(two.labels.numpy(), two.log_probs.argmax(1).numpy())
    assert values["test/mcc"] == pytest.approx(expected)


def test_a_mean_over_corruptions_without_failures_in_one_leaves_that_one_out():
    sure = 5.0 * torch.eye(4, dtype=torch.float64)
    right = Predictions(sure.log_softmax(-1), torch.zeros(4, dtype=torch.float64), torch.arange(4))
    found = predictions(1)
    values = evaluate_sets({"test": found, "shift/fog/3": found, "shift/contrast/3": right}, GROUPS)
    assert values["shift/contrast/3/failure-auroc"] is None
    assert values["shift/digital-3/failure-auroc"] is None
    assert values["shift/severity-3/failure-auroc"] == values["test/failure-auroc"]


def test_energies_and_validation_data_reach_the_detectors():
    sets = {"test": predictions(0), "ood/other": predictions(1, rows=150)}
    values = evaluate_sets({**sets, "validation": predictions(2)}, GROUPS)
    positive = np.r_[np.zeros(200), np.ones(150)]
    energy = torch.cat([found.energy for found in sets.values()]).numpy()
    assert values["ood/other/energy/auroc"] == pytest.approx(roc_auc_score(positive, energy))
    assert "ood/other/kl-matching/auroc" in values
    assert not any("kl-matching" in name for name in evaluate_sets(sets, GROUPS))


def test_an_ensemble_is_the_mean_of_probabilities_and_energies():
    members = [predictions(seed) for seed in range(3)]
    found = ensemble(members)
    expected = torch.stack([member.log_probs.exp() for member in members]).mean(0)
    torch.testing.assert_close(found.log_probs.exp(), expected)
    energy = torch.stack([member.energy for member in members]).mean(0)
    torch.testing.assert_close(found.energy, energy)
    assert torch.equal(found.labels, members[0].labels)
    scaled = members[0].scaled(2.0)
    expected = (members[0].log_probs / 2.0).log_softmax(-1)
    torch.testing.assert_close(scaled.log_probs, expected)
    assert torch.equal(scaled.energy, members[0].energy)


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
