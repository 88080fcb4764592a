"""Heads on features: against scikit-learn, and what they do with few classes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probseq.metrics.post_hoc import search_temperature
from probseq_apps.baselines.heads import choose_head, linear_probes, mlp_heads


def clouds(rows, classes, seed=0):
    """Features around a centre for each class, on scales of their own, and one that is constant."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centres = torch.randn(classes, 6, generator=torch.Generator().manual_seed(9))
    features = centres[labels] + torch.randn(rows, 6, generator=generator)
    scales = torch.tensor([0.01, 1.0, 100.0, 1.0, 1.0, 0.0])
    return features * scales + torch.tensor([5.0, 0.0, -300.0, 0.0, 1.0, 2.0]), labels


@pytest.mark.parametrize("classes", [2, 3])
def test_probes_are_scikit_learn_s_regressions_on_standardised_features(classes):
    (features, labels), (new, _) = clouds(200, classes), clouds(50, classes, seed=1)
    for strength, head in zip(
        (1e-4, 1e-3, 1e-2), linear_probes(features, labels, classes), strict=False
    ):
        expected = make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=1e-8))
        probs = expected.fit(features.double().numpy(), labels).predict_proba(new.double().numpy())
        found = head(new)[0].softmax(-1).double().numpy()
        np.testing.assert_allclose(found, probs, atol=2e-3)


def test_a_class_without_examples_stays_possible_and_improbable():
    features, labels = clouds(200, 3)
    labels = torch.tensor([0, 2, 3])[labels]
    for head in linear_probes(features, labels, 5):
        probs = head(features)[0].softmax(-1)
        assert 0.5 / 200 < probs[:, [1, 4]].mean() < 3 / 200
    with pytest.raises(ValueError, match=r"at least two classes, got \[1\] alone"):
        next(linear_probes(features, torch.ones(200, dtype=torch.long), 5))


def test_networks_differ_learn_and_are_drawn_with_the_seed():
    (features, labels), (new, truth) = clouds(300, 3), clouds(200, 3, seed=1)
    found = list(mlp_heads(features, labels, 3, seed=0))
    *_, again = mlp_heads(features, labels, 3, seed=0)
    logits = found[-1](new)
    assert torch.equal(logits, again(new))
    assert logits.shape == (5, 200, 3)
    assert (logits - logits.mean(0)).std() > 0.05
    first, last = (
        F.nll_loss(h(new).softmax(-1).mean(0).log(), truth) for h in (found[0], found[-1])
    )
    assert last < first < 1.1
    *_, probe = linear_probes(features, labels, 3)
    assert last < F.cross_entropy(probe(new)[0], truth) + 0.1


def test_what_is_chosen_is_measured_on_the_half_that_did_not_choose_it():
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(101, 3, generator=generator)
    labels = torch.randint(3, (101,), generator=generator)

    def scaled(factor):
        return lambda x: (factor * x)[None]

    choice = choose_head(map(scaled, (3.0, 0.1, 0.5, 1.0)), features, labels)
    losses, tempered = [], []
    even, odd = slice(0, None, 2), slice(1, None, 2)
    for known, other in ((even, odd), (odd, even)):
        best = min(
            (3.0, 0.1, 0.5, 1.0),
            key=lambda f: float(F.cross_entropy(f * features[known], labels[known])),
        )
        losses.append(float(F.cross_entropy(best * features[other], labels[other])))
        temperature = search_temperature((best * features[known]).log_softmax(-1), labels[known])
        logits = best * features[other] / temperature
        tempered.append(float(F.cross_entropy(logits, labels[other])))
    assert choice.nll == pytest.approx(np.mean(losses), rel=1e-5)
    assert choice.tempered_nll == pytest.approx(np.mean(tempered), rel=1e-4)
    whole = min((3.0, 0.1, 0.5, 1.0), key=lambda f: float(F.cross_entropy(f * features, labels)))
    assert torch.equal(choice.head(features)[0], whole * features)
