"""The penalised loss, against torch.distributions and sums term by term."""

import inspect
import math

import pytest
import torch
from torch.distributions import Categorical
from torch.testing import assert_close

from probseq.transformers import categorical_log_likelihood, penalised_loss


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(5, 3), (4, 5, 3)])
def test_categorical_log_likelihood_is_that_of_the_distribution(shape):
    logits, labels = draw(*shape), torch.tensor([0, 2, 1, 1, 0])
    expected = Categorical(logits=logits).log_prob(labels.expand(shape[:-1]))
    assert_close(categorical_log_likelihood(logits, labels), expected)


def test_the_loss_is_the_mean_over_samples_and_sequences_plus_the_scaled_penalty():
    log_likelihood, penalty = draw(3, 4), torch.tensor(7.0, dtype=torch.float64)
    out = penalised_loss(log_likelihood, penalty, penalty_scale=0.25)
    nll = sum(-log_likelihood[s, b] for s in range(3) for b in range(4)) / 12
    assert_close(out.nll, nll)
    assert out.penalty is penalty
    assert_close(out.loss, nll + 7.0 / 4)
    assert_close(penalised_loss(log_likelihood, penalty).loss, nll + 7.0)


@pytest.mark.parametrize(
    ("log_likelihood", "penalty", "scale", "message"),
    [
        (torch.zeros(5), torch.zeros(()), -0.5, r"penalty_scale must be .* got -0\.5"),
        (torch.zeros(5), torch.zeros(()), math.nan, "penalty_scale must be finite and not neg"),
        (torch.zeros(5), torch.zeros(()), math.inf, "penalty_scale must be finite and not neg"),
        (torch.zeros(5), torch.zeros(5), 1.0, "penalty must be one number"),
        (torch.zeros(5).long(), torch.zeros(()), 1.0, "log_likelihood must be of a floating dtype"),
        (torch.zeros(3, 0), torch.zeros(()), 1.0, r"log_likelihood must .* got shape \(3, 0\)"),
    ],
)
def test_terms_that_make_no_sense_are_refused(log_likelihood, penalty, scale, message):
    # Unwrapped, because shape checks switched on here would refuse first.
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(penalised_loss)(log_likelihood, penalty, penalty_scale=scale)


def test_labels_of_another_shape_or_type_or_out_of_range_are_refused():
    log_likelihood = inspect.unwrap(categorical_log_likelihood)
    for labels in (torch.zeros(4).long(), torch.zeros(5, 1).long(), torch.zeros(5)):
        with pytest.raises(ValueError, match=r"labels must be int64 of shape \(batch,\)=\(5,\)"):
            log_likelihood(torch.zeros(3, 5, 2), labels)
    with pytest.raises(ValueError, match="labels must be from 0 to 1, got"):
        log_likelihood(torch.zeros(3, 1, 2), torch.tensor([2]))
