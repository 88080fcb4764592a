import pytest
import torch
from torch import nn

from probseq.transformers import TransformerConfig, TransformerOutput, sequence_transformer
from probseq_apps.experiments.methods import BASE_METHODS
from probseq_apps.experiments.regress_model import RegressionModel
from probseq_apps.experiments.regress_prediction import (
    NumberPredictor,
    load_number_predictions,
    save_number_predictions,
)
from sgpa import LaplaceLikelihood, SGPAConfig

CPU = torch.device("cpu")
TARGETS = torch.arange(7.0, dtype=torch.float64)


class Sum(nn.Module):
    """Returns the sum of each sequence, plus a draw for each sample."""

    def forward(self, tokens, *, generator=None, num_samples=None):
        total = tokens.sum((1, 2))[:, None]
        if num_samples is None:
            return TransformerOutput(total, torch.zeros(()))
        noise = torch.randn(num_samples, len(tokens), 1, generator=generator)
        return TransformerOutput(total + noise, torch.zeros(()))


def sequences():
    return torch.rand(7, 4, 3, generator=torch.Generator().manual_seed(0))


def predict(method, *, seed=0, samples=5, model=None):
    predictor = NumberPredictor(
        BASE_METHODS[method], num_samples=samples, tokens=20_000, mean=10.0, std=3.0
    )
    model = RegressionModel(Sum(), LaplaceLikelihood(0.5)) if model is None else model
    return predictor.predict(model.eval(), sequences(), TARGETS, device=CPU, seed=seed)


def test_outputs_and_scale_come_back_in_the_targets_unit():
    found = predict("mle")
    expected = 10.0 + 3.0 * sequences().double().sum((1, 2))
    assert found.samples.shape == (1, 7)
    torch.testing.assert_close(found.samples[0], expected, rtol=0, atol=1e-5)
    assert found.scale.item() == pytest.approx(1.5)
    assert torch.equal(found.targets, TARGETS)


def test_a_sampled_method_has_all_its_samples_and_a_seed_draws_them_again():
    before = torch.get_rng_state()
    first, again, other = predict("sgpa"), predict("sgpa"), predict("sgpa", seed=1)
    assert first.samples.shape == (5, 7)
    assert torch.equal(first.samples, again.samples)
    assert not torch.equal(first.samples, other.samples)
    assert first.samples.std(0).min() > 0.1
    assert torch.equal(torch.get_rng_state(), before)


def sequence_model(dropout=0.0):
    torch.manual_seed(0)
    transformer = sequence_transformer(
        TransformerConfig(depth=1, dim=8, num_heads=2, hidden_dim=8, dropout=dropout),
        SGPAConfig(num_inducing=3),
        input_dim=3,
        max_length=4,
        num_outputs=1,
        positions=False,
    )
    return RegressionModel(transformer, LaplaceLikelihood())


def test_gp_attention_and_dropout_give_samples_that_differ():
    for method, dropout in (("sgpa", 0.0), ("mcd", 0.5)):
        found = predict(method, model=sequence_model(dropout))
        assert found.samples.shape == (5, 7)
        assert (found.samples.std(0) > 1e-4).all(), method


def test_predictions_survive_their_file(tmp_path):
    sets = {"test": predict("sgpa"), "ood/swapped-edges": predict("sgpa", seed=3)}
    save_number_predictions(tmp_path / "predictions.npz", sets)
    found = load_number_predictions(tmp_path / "predictions.npz")
    assert found.keys() == sets.keys()
    for name, predictions in sets.items():
        assert all(map(torch.equal, found[name], predictions))
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.npz"]
