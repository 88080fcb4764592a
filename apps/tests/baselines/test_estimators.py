import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier

from probseq_apps.baselines import random_convolutions
from probseq_apps.baselines.estimators import fit_estimator
from probseq_apps.baselines.random_convolutions import RandomConvolutions
from probseq_apps.data.images import load_images
from probseq_apps.data.parts import Part
from probseq_apps.data.sequences import load_sequences
from probseq_apps.data.sets import with_labels
from probseq_apps.data.texts import TextData
from probseq_apps.data.tokenizers import build_vocabulary, encode_texts

TEXTS = ["a good film", "bad bad film", "good good", "a bad one", "good one", "bad"]
LABELS = torch.tensor([1, 0, 1, 0, 1, 0])


def test_logistic_regression_has_the_likeliest_penalty_of_the_validation_part():
    data = with_labels(load_images("digits"), 60)
    pixels = [
        (part.inputs.double().flatten(1).numpy() / 255 - data.mean[0]) / data.std[0]
        for part in (data.train, data.validation, data.test)
    ]
    labels = data.validation.targets.numpy()
    losses, probabilities = [], []
    for penalty in (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0):
        model = LogisticRegression(C=penalty, max_iter=1000).fit(pixels[0], data.train.targets)
        losses.append(log_loss(labels, model.predict_proba(pixels[1])))
        probabilities.append(model.predict_proba(pixels[2]))
    probs = fit_estimator("logreg", data, seed=0)(data.test)[0].exp().numpy()
    errors = [np.abs(probs - expected).max() for expected in probabilities]
    # The optimiser stops where its gradient is small, in float32 here.
    assert np.argmin(errors) == np.argmin(losses)
    assert min(errors) < 0.02


def test_nearest_neighbours_have_one_more_that_is_a_little_of_every_class():
    data = with_labels(load_images("digits"), 60)
    pixels = [part.inputs.double().flatten(1).numpy() for part in (data.train, data.test)]
    probs = fit_estimator("knn", data, seed=0)(data.test)[0].exp().double()
    closest = []
    for count in (1, 3, 5, 10, 30):
        model = KNeighborsClassifier(count).fit(pixels[0], data.train.targets)
        expected = (count * model.predict_proba(pixels[1]) + 0.1) / (count + 1)
        # Rounding may change which of equally far images are neighbours.
        closest.append(np.mean(np.abs(probs.numpy() - expected).max(1) < 1e-6))
    assert max(closest) > 0.99


@pytest.mark.parametrize("name", ["mlp", "gp"])
def test_few_labels_are_learned_and_a_class_without_any_is_possible(name):
    data = with_labels(load_images("digits"), 60)
    seen = data.train.targets != 3
    object.__setattr__(data, "train", data.train.rows(seen))
    log_probs, _ = fit_estimator(name, data, seed=2**40)(data.test)
    assert torch.isfinite(log_probs).all()
    assert log_probs[:, 3].max() < -80
    rest = data.test.targets != 3
    assert (log_probs.argmax(-1) == data.test.targets)[rest].double().mean() > 0.7


def test_texts_are_counts_weighted_by_inverse_document_frequency():
    vocab = build_vocabulary(TEXTS)
    tokens = encode_texts(vocab, TEXTS, max_length=4)
    whole, none = Part(tokens, LABELS), Part(tokens[:0], LABELS[:0])
    data = TextData(
        *("texts", whole, none, whole), class_names=("neg", "pos"), vocab=vocab, max_length=4
    )
    vectors = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit_transform(TEXTS)
    expected = LogisticRegression(C=1.0, max_iter=1000).fit(vectors, LABELS).predict_proba(vectors)
    np.testing.assert_allclose(
        fit_estimator("logreg", data, seed=0)(whole)[0].exp(), expected, atol=1e-3
    )


@pytest.mark.parametrize("name", ["logreg", "mlp", "knn", "gp"])
def test_every_estimator_takes_a_few_texts(name):
    vocab = build_vocabulary(TEXTS)
    whole = Part(encode_texts(vocab, TEXTS, max_length=4), LABELS)
    data = TextData(
        *("texts", whole, whole, whole), class_names=("neg", "pos"), vocab=vocab, max_length=4
    )
    log_probs, features = fit_estimator(name, data, seed=0)(whole)
    assert features.shape == (6, 0)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(6))


def standardised(train, rows):
    scale = train.std(0)
    return (rows - train.mean(0)) / np.where(scale > 0, scale, 1)


def test_sequences_are_means_and_deviations_of_their_frames_and_shares_of_convolutions(monkeypatch):
    data = with_labels(load_sequences("speakers", "label"), 90)
    parts = (data.train, data.validation, data.test)
    frames = [[x[~x[:, 0].isnan()].double().numpy() for x in part.inputs] for part in parts]
    moments = [np.array([np.r_[x.mean(0), x.std(0)] for x in part]) for part in frames]
    train, *others = (standardised(moments[0], each) for each in moments)
    losses, probabilities = [], []
    for penalty in (1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0):
        model = LogisticRegression(C=penalty, max_iter=1000).fit(train, data.train.targets)
        losses.append(log_loss(data.validation.targets, model.predict_proba(others[0])))
        probabilities.append(model.predict_proba(others[1]))
    log_probs, features = fit_estimator("logreg", data, seed=0)(data.test)
    probs = log_probs.exp()
    np.testing.assert_allclose(features, others[1], atol=1e-4)
    np.testing.assert_allclose(probs, probabilities[np.argmin(losses)], atol=5e-3)
    convolved, _ = fit_estimator("randconv", data, seed=0)(data.test)
    assert (convolved.argmax(1) == data.test.targets).double().mean() > 0.9
    # What a kernel's features are does not depend on the padding behind the frames.
    # They are long: all nine taps in all frames of a short one may be alike, and shares then jump.
    x = torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(0))
    frame = torch.arange(40) < torch.tensor([[16], [40], [32]])
    features = RandomConvolutions(x * frame[..., None], frame, seed=0, num_kernels=20)
    shares, largest = features(x[:1, :16], frame[:1, :16]).chunk(2, 1)
    alone = features((x * frame[..., None])[:1], frame[:1])
    torch.testing.assert_close(alone, torch.cat([shares, largest], 1))
    assert ((16 * shares) % 1 == 0).all()
    whole = features(x * frame[..., None], frame)
    monkeypatch.setattr(random_convolutions, "_NUMBERS_AT_ONCE", 40 * 20 * 2)  # two at a time
    torch.testing.assert_close(features(x * frame[..., None], frame), whole)
    # A kernel has one of two channels, the other, or both.
    scaled = [features(x * frame[..., None] * scale, frame) for scale in 1 + torch.eye(2)]
    plain = features(x * frame[..., None], frame)
    seen = torch.stack([(each != plain)[:, 20:].any(0) for each in scaled], 1).tolist()
    assert {*map(tuple, seen)} == {(True, False), (False, True), (True, True)}
