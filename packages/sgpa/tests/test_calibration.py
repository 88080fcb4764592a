"""Calibration after training: what is chosen, what is left alone, what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from probseq.metrics import fit_temperature
from probseq.transformers import deviations
from sgpa import calibrate


class Classifier(nn.Module):
    """Softmax attention over 4 tokens, and a linear head on their normalised mean."""

    def __init__(self, scale):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.scale = scale

    def forward(self, tokens):
        mixed = self.attention(tokens, tokens, tokens)[0]
        return {"logits": self.scale * self.head(nn.functional.layer_norm(mixed.mean(1), (8,)))}


def data(count, seed):
    """Sequences of four of six kinds of tokens."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randn(6, 8, generator=torch.Generator().manual_seed(9))
    chosen = torch.randint(6, (count, 4), generator=generator)
    return kinds[chosen] + 0.05 * torch.randn(count, 4, 8, generator=generator)


def case(scale, sharpness=1.0):
    """A classifier, inputs, and labels drawn from what it says at another sharpness."""
    torch.manual_seed(0)
    model = Classifier(scale).eval()
    inputs = data(400, 1)
    with torch.no_grad():
        probs = (model(inputs)["logits"] * sharpness / scale).softmax(-1)
    labels = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(2))[:, 0]
    return model, inputs, labels


def calibrated(model, inputs, labels, **options):
    given = {"num_inducing": 16, "num_samples": 4, **options}
    batches = list(zip(inputs.split(150), labels.split(150), strict=True))
    return calibrate(model, data(50, 3), batches, **given)


def nll(log_probs, labels):
    return float(-log_probs[torch.arange(len(labels)), labels].mean())


def test_candidates_are_measured_on_the_half_that_did_not_choose_them():
    model, inputs, labels = case(scale=6.0)
    with torch.no_grad():
        plain = model(inputs)["logits"].double().log_softmax(-1)
    found = calibrated(model, inputs, labels)
    even, odd = slice(0, None, 2), slice(1, None, 2)
    expected = []
    for own, other in ((even, odd), (odd, even)):
        temperature = fit_temperature(plain[own], labels[own])
        expected.append(nll((plain[other] / temperature).log_softmax(-1), labels[other]))
    assert found.candidates["temperature"].nll == pytest.approx(np.mean(expected), rel=1e-6)
    assert found.candidates["as it is"] == (0.0, 1.0, pytest.approx(nll(plain, labels), rel=1e-5))
    whole = fit_temperature(plain, labels)
    assert found.candidates["temperature"].temperature == pytest.approx(whole, rel=1e-5)
    assert found.candidates[found.chosen].nll == min(one.nll for one in found.candidates.values())


def test_an_overconfident_model_is_mended_and_a_calibrated_one_left_alone():
    model, inputs, labels = case(scale=6.0)
    with torch.no_grad():
        before = nll(model(inputs)["logits"].log_softmax(-1), labels)
    found = calibrated(model, inputs, labels)
    after = nll(found(inputs, generator=torch.Generator().manual_seed(0)), labels)
    assert found.chosen != "as it is"
    assert after < before - 0.1
    model, inputs, labels = case(scale=1.0)
    text, plain = str(model), model(inputs)["logits"].detach()
    found = calibrated(model, inputs, labels, tried=(6.0,))
    assert found.candidates[found.chosen].deviation == 0.0
    assert str(model) == text
    assert torch.equal(model(inputs)["logits"], plain)
    temperature = found.candidates[found.chosen].temperature
    assert_close(found(inputs), (plain / temperature).log_softmax(-1))


def test_where_labels_are_random_far_from_the_data_a_deviation_is_chosen_and_stays():
    model, inputs, labels = case(scale=6.0, sharpness=6.0)
    # Every third input is far away, where the model is as sure and knows nothing.
    inputs[::3] *= 3.0
    labels[::3] = torch.randint(3, (len(labels[::3]),), generator=torch.Generator().manual_seed(4))
    found = calibrated(model, inputs, labels, tried=(0.3, 1.0, 3.0, 10.0), num_samples=32)
    nlls = {name: candidate.nll for name, candidate in found.candidates.items()}
    assert nlls["deviation"] < nlls["temperature"] - 0.02
    assert "deviation" in found.chosen
    (process,) = deviations(model).values()
    assert_close(process.deviation.flatten(), torch.full((2,), found.candidates[found.chosen][0]))
    one, same, other = (
        found(inputs, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert_close(one.exp().sum(-1), torch.ones(400))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1, got 0"),
        ({"tried": ()}, "tried must be standard deviations of at least 0"),
        ({"tried": (-1.0,)}, "tried must be standard deviations of at least 0"),
        ({"layers": "first"}, "layers must be 'last', 'all', indices or names"),
        ({"rho": math.nan}, "rho must be positive and finite"),
    ],
)
def test_bad_arguments_are_refused_and_leave_the_model(options, message):
    model, inputs, labels = case(scale=1.0)
    text = str(model)
    with pytest.raises(ValueError, match=message):
        calibrated(model, inputs, labels, **options)
    assert str(model) == text


def test_bad_validation_data_and_models_are_refused_and_leave_the_model():
    model, inputs, labels = case(scale=1.0)
    text = str(model)
    with pytest.raises(ValueError, match="validation must have batches with at least two"):
        calibrate(model, inputs, [])
    with pytest.raises(ValueError, match="labels"):
        calibrated(model, inputs, labels + 1)
    with pytest.raises(ValueError, match=r"model must be in evaluation mode: call model\.eval"):
        calibrated(model.train(), inputs, labels)
    model.eval().head.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="model must give finite log-probabilities"):
        calibrated(model, inputs, labels)
    assert str(model) == text
