import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    log_loss,
    matthews_corrcoef,
    roc_auc_score,
)

from probseq_apps.experiments.classify import evaluate_sets
from probseq_apps.methods.post_hoc import Predictions


def predictions(seed, classes=4, rows=200, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return Predictions(logits.log_softmax(-1), -logits.logsumexp(-1), labels)


def test_test_metrics_agree_with_scikit_learn():
    found = predictions(0)
    probs, labels = found.log_probs.exp().numpy(), found.labels.numpy()
    values = evaluate_sets({"test": found})
    predicted = probs.argmax(1)
    assert values["test/accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert values["test/nll"] == pytest.approx(log_loss(labels, probs))
    one_hot = np.eye(4)[labels]
    assert values["test/brier"] == pytest.approx(((probs - one_hot) ** 2).sum(1).mean())
    auroc = roc_auc_score(predicted == labels, probs.max(1))
    assert values["test/failure-auroc"] == pytest.approx(auroc)
    assert "test/mcc" not in values


def test_two_classes_have_a_matthews_correlation():
    found = predictions(1, classes=2)
    expected = matthews_corrcoef(found.labels.numpy(), found.log_probs.argmax(1).numpy())
    assert evaluate_sets({"test": found})["test/mcc"] == pytest.approx(expected)


def test_failures_of_a_model_without_failures_have_no_auroc():
    sure = 5.0 * torch.eye(3, dtype=torch.float64)
    found = Predictions(sure.log_softmax(-1), torch.zeros(3, dtype=torch.float64), torch.arange(3))
    values = evaluate_sets({"test": found})
    assert values["test/accuracy"] == 1.0
    assert values["test/failure-auroc"] is None
    assert values["test/failure-fpr95"] is None


def test_shift_is_averaged_over_corruptions_and_over_their_groups():
    sets = {
        "test": predictions(0),
        "shift/gaussian_noise/3": predictions(1),
        "shift/shot_noise/3": predictions(2),
        "shift/fog/3": predictions(3),
        "shift/fog/5": predictions(4),
    }
    values = evaluate_sets(sets)
    noise = [values["shift/gaussian_noise/3/nll"], values["shift/shot_noise/3/nll"]]
    assert values["shift/noise-3/nll"] == pytest.approx(np.mean(noise))
    every = [*noise, values["shift/fog/3/nll"]]
    assert values["shift/severity-3/nll"] == pytest.approx(np.mean(every))
    assert values["shift/severity-5/ece"] == values["shift/fog/5/ece"]


def test_under_shift_all_columns_of_the_papers_tables_are_measured():
    found = predictions(1)
    values = evaluate_sets({"test": found, "shift/fog/3": found})
    names = ("accuracy", "nll", "ece", "mce", "brier", "aurc", "failure-auroc", "failure-fpr95")
    for name in names:
        assert values[f"shift/severity-3/{name}"] == values[f"test/{name}"]
        assert values[f"shift/weather-3/{name}"] == values[f"test/{name}"]
    assert "shift/fog/3/e-aurc" not in values


def test_a_mean_over_corruptions_without_failures_in_one_leaves_that_one_out():
    sure = 5.0 * torch.eye(4, dtype=torch.float64)
    right = Predictions(sure.log_softmax(-1), torch.zeros(4, dtype=torch.float64), torch.arange(4))
    found = predictions(1)
    values = evaluate_sets({"test": found, "shift/fog/3": found, "shift/contrast/3": right})
    assert (
        values["shift/contrast/3/failure-auroc"] is values["shift/digital-3/failure-auroc"] is None
    )
    assert values["shift/severity-3/failure-auroc"] == values["test/failure-auroc"]


def test_out_of_distribution_metrics_agree_with_scikit_learn():
    test, outside = predictions(0), predictions(1, rows=150, sharpness=1.0)
    values = evaluate_sets({"validation": predictions(2), "test": test, "ood/other": outside})
    positive = np.r_[np.zeros(200), np.ones(150)]
    probs = torch.cat([test.log_probs, outside.log_probs]).exp().numpy()
    largest = -probs.max(1)
    assert values["ood/other/max-softmax/auroc"] == pytest.approx(roc_auc_score(positive, largest))
    entropy = -(probs * np.log(probs)).sum(1)
    precision = average_precision_score(positive, entropy)
    assert values["ood/other/entropy/aupr-out"] == pytest.approx(precision)
    energy = torch.cat([test.energy, outside.energy]).numpy()
    assert values["ood/other/energy/auroc"] == pytest.approx(roc_auc_score(positive, energy))
    typical = np.stack(
        [
            p.log_probs.exp()[p.labels == k].mean(0).numpy()
            for p in [predictions(2)]
            for k in range(4)
        ]
    )
    matching = (probs * (np.log(probs) - np.log(typical[probs.argmax(1)]))).sum(1)
    assert values["ood/other/kl-matching/auroc"] == pytest.approx(roc_auc_score(positive, matching))


def test_kl_matching_needs_validation_examples_of_every_class():
    few = Predictions(*(tensor[:2] for tensor in predictions(2)))
    sets = {"test": predictions(0), "ood/other": predictions(1)}
    assert not any("kl-matching" in name for name in evaluate_sets({**sets, "validation": few}))
    assert not any("kl-matching" in name for name in evaluate_sets(sets))
