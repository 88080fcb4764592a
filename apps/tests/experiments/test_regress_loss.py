from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from probseq.graphs import TokenLayout, trim_tokens
from probseq.transformers import TransformerOutput
from probseq_apps.engine.trainer import Step
from probseq_apps.experiments.regress import (
    RegressionModel,
    function_values,
    regression_loss,
    regression_score,
)
from probseq_apps.methods.predict import Predictor
from probseq_apps.settings.methods import METHODS
from sgpa import LaplaceLikelihood

LAYOUT = TokenLayout(node_features=1, edge_features=1, identifiers=2)
MEAN, STD, SCALE, PENALTY = 3.0, 2.0, 0.7, 5.0


class FirstNumber(nn.Module):
    """Returns the first number of each sequence, and a fixed penalty; keeps what it was given."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.seen = []

    def forward(self, tokens, *, generator=None, num_samples=None):
        self.seen.append(tokens)
        return TransformerOutput(tokens[:, 0, :1] + self.bias, torch.tensor(PENALTY))


def make_model():
    return RegressionModel(FirstNumber(), LaplaceLikelihood(SCALE))


def batch(values):
    tokens = torch.zeros(len(values), 5, LAYOUT.width)
    tokens[:, :3] = 1.0
    tokens[:, 0, 0] = torch.tensor(values)
    return tokens


OUTPUTS = (0.5, -1.0, 2.0)
TARGETS = torch.tensor([4.0, 0.0, 7.0], dtype=torch.float64)


def expected_nll():
    standardised = (TARGETS.numpy() - MEAN) / STD
    return np.mean(np.log(2 * SCALE) + np.abs(standardised - OUTPUTS) / SCALE)


def loss(model, progress=0.0, weight=None):
    step = Step(0, 0, progress, torch.Generator())
    likelihood = model.likelihood
    return regression_loss(
        LAYOUT, (MEAN, STD), likelihood, weight, model, (batch(OUTPUTS), TARGETS), step
    )


def score(model, batches):
    values = partial(function_values, MEAN, STD)
    predictor = Predictor(METHODS["mle"], trim_tokens, values, 1, 4)
    with torch.no_grad():
        return regression_score(predictor, model, batches)


def test_the_loss_is_the_laplace_nll_of_standardised_targets():
    found = loss(make_model())
    assert found.loss.item() == pytest.approx(expected_nll(), rel=1e-6)
    assert found.parts["scale"].item() == pytest.approx(STD * SCALE)
    assert set(found.parts) == {"nll", "scale"}


def test_the_penalty_is_weighted_by_the_progress():
    found = loss(make_model(), progress=0.3, weight=lambda progress: 2.0 * progress)
    assert found.loss.item() == pytest.approx(expected_nll() + 0.6 * PENALTY, rel=1e-6)
    assert found.parts["penalty"].item() == PENALTY


def test_the_scale_of_the_likelihood_is_trained():
    model = make_model()
    loss(model).loss.backward()
    gradient = model.likelihood.raw_scale.grad.item()
    # d/dlog b of log 2b + |e|/b.
    standardised = (TARGETS.numpy() - MEAN) / STD
    expected = 1.0 - np.mean(np.abs(standardised - OUTPUTS)) / SCALE
    assert gradient == pytest.approx(expected, rel=1e-5)


def test_training_flips_eigenvectors_and_cuts_padding_and_scoring_flips_nothing():
    model = make_model()
    loss(model)
    (seen,) = model.transformer.seen
    assert seen.shape == (3, 3, LAYOUT.width)
    assert torch.equal(seen.abs(), batch(OUTPUTS)[:, :3].abs())
    signs = seen[:, 1, 2:6]
    assert (signs < 0).any()
    assert torch.equal(signs[:, :2], signs[:, 2:])
    assert (seen[:, 1, [0, 1, 6, 7]] == 1).all()
    score(model, [(batch(OUTPUTS), TARGETS)])
    assert torch.equal(model.transformer.seen[-1], batch(OUTPUTS)[:, :3])


def test_the_score_is_the_negative_error_in_the_targets_unit_over_unequal_batches():
    model = make_model()
    tokens = batch(OUTPUTS)
    batches = [(tokens[:2], TARGETS[:2]), (tokens[2:], TARGETS[2:])]
    predicted = MEAN + STD * np.array(OUTPUTS)
    expected = -np.abs(predicted - TARGETS.numpy()).mean()
    assert score(model, batches) == pytest.approx(expected, rel=1e-6)
