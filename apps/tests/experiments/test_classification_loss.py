from functools import partial

import pytest
import torch
from sklearn.metrics import log_loss, matthews_corrcoef
from torch import nn

from probseq.metrics import accuracy, matthews_correlation
from probseq.transformers import TransformerOutput
from probseq_apps.engine.trainer import Step
from probseq_apps.experiments.classify import (
    classification_loss,
    classification_score,
    trim_padding,
)
from probseq_apps.methods.post_hoc import class_predictions
from probseq_apps.methods.predict import Predictor
from probseq_apps.settings.methods import METHODS

LOGITS = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
LABELS = torch.tensor([0, 1, 1])
PENALTY = 7.0


class Fixed(nn.Module):
    """Returns its inputs as logits, and a fixed penalty."""

    def forward(self, x, *, generator=None, num_samples=None):
        return TransformerOutput(x, torch.tensor(PENALTY))


def loss(progress, *, augment=lambda x, generator: x, weight=None):
    step = Step(0, 0, progress, torch.Generator())
    return classification_loss(
        lambda x: x.float(), augment, weight, Fixed(), (LOGITS, LABELS), step
    )


def test_without_a_penalty_the_loss_is_the_cross_entropy():
    found = loss(0.3)
    assert found.loss.item() == pytest.approx(log_loss(LABELS, LOGITS.double().softmax(-1)))
    assert set(found.parts) == {"nll"}


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_the_penalty_counts_with_the_weight_of_the_moment(progress):
    found = loss(progress, weight=lambda share: 0.5 * share)
    expected = log_loss(LABELS, LOGITS.double().softmax(-1)) + 0.5 * progress * PENALTY
    assert found.loss.item() == pytest.approx(expected, rel=1e-6)
    assert found.parts["penalty"].item() == PENALTY
    assert found.parts["nll"].item() == pytest.approx(log_loss(LABELS, LOGITS.double().softmax(-1)))


def test_training_batches_are_augmented_and_then_prepared():
    found = loss(0.0, augment=lambda x, generator: -x)
    assert found.loss.item() == pytest.approx(log_loss(LABELS, (-LOGITS).double().softmax(-1)))


def test_scores_count_over_batches_of_unequal_sizes():
    batches = [(LOGITS[:2], LABELS[:2]), (LOGITS[2:], LABELS[2:])]
    predictor = Predictor(METHODS["mle"], lambda x: x.float(), class_predictions, 1, 1)
    score = partial(classification_score, predictor)
    assert score(accuracy, Fixed(), batches) == pytest.approx(2 / 3)
    expected = matthews_corrcoef(LABELS, LOGITS.argmax(-1))
    assert score(matthews_correlation, Fixed(), batches) == pytest.approx(expected)


def test_padding_that_all_texts_share_is_cut_off():
    tokens = torch.tensor([[5, 3, 0, 0], [4, 0, 0, 0]])
    assert torch.equal(trim_padding(tokens), tokens[:, :2])
    assert trim_padding(torch.zeros(2, 4, dtype=torch.int64)).shape == (2, 1)
