import math

import pytest
import torch
from torch import nn

from probseq.transformers import TransformerOutput
from probseq_apps.engine.files import load_groups, save_groups
from probseq_apps.methods.post_hoc import Predictions, class_predictions
from probseq_apps.methods.predict import Predictor
from probseq_apps.settings.methods import METHODS

CPU = torch.device("cpu")


class Noisy(nn.Module):
    """Logits that depend on the inputs, and on draws where samples are asked for."""

    def forward(self, x, *, generator=None, num_samples=None):
        if num_samples is None:
            return TransformerOutput(x, x.new_zeros(()))
        noise = torch.randn((num_samples, *x.shape), generator=generator)
        return TransformerOutput(x + noise, x.new_zeros(()))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, *, generator=None, num_samples=None):
        assert num_samples is None
        return TransformerOutput(self.dropout(x), x.new_zeros(()))


def predictor(method, *, num_samples=4, tokens=1):
    return Predictor(METHODS[method], lambda x: x, class_predictions, num_samples, tokens)


def predict(method, model, x, seed, **sizes):
    found = predictor(method, **sizes).predict(model.eval(), x, device=CPU, seed=seed)
    return Predictions(*found, torch.zeros(len(x)))


def inputs(seed=0, rows=9):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))


def test_a_deterministic_prediction_is_the_softmax_in_any_batch_size():
    x = inputs()
    whole = predict("mle", Noisy(), x, 0)
    single = predict("mle", Noisy(), x, 0, tokens=65_536)
    torch.testing.assert_close(whole.log_probs.exp(), x.softmax(-1))
    torch.testing.assert_close(whole.energy, -x.double().logsumexp(-1))
    torch.testing.assert_close(single.log_probs, whole.log_probs)


def test_a_sampled_prediction_is_the_mean_of_the_samples_softmax():
    x = inputs()
    found = predict("sgpa", Noisy(), x, 5)
    noise = torch.randn((4, 9, 3), generator=torch.Generator().manual_seed(5))
    expected = torch.stack([(x + draw).softmax(-1) for draw in noise]).mean(0)
    torch.testing.assert_close(found.log_probs.exp(), expected)
    energy = torch.stack([-(x + draw).double().logsumexp(-1) for draw in noise]).mean(0)
    torch.testing.assert_close(found.energy, energy)


def test_monte_carlo_dropout_draws_a_mask_for_each_sample_and_input():
    model = Dropping().eval()
    log_probs, energy = predictor("mcd", num_samples=2000).batch(model, torch.ones(2, 2))
    # Each logit is 0 or 2 with equal chances: the mean softmax is ½, the mean energy known.
    torch.testing.assert_close(log_probs.exp(), torch.full((2, 2), 0.5), atol=0.05, rtol=0)
    energies = [math.log(2), 2 + math.log(2), 2 * math.log(1 + math.exp(2))]
    expected = -(energies[0] + energies[1] + energies[2]) / 4
    torch.testing.assert_close(energy, torch.full((2,), expected).double(), atol=0.1, rtol=0)
    assert energy[0] != energy[1]
    assert not model.dropout.training


@pytest.mark.parametrize(("method", "model"), [("sgpa", Noisy()), ("mcd", Dropping())])
def test_the_seed_decides_all_draws_and_the_global_generator_is_left_alone(method, model):
    x = inputs()
    state = torch.get_rng_state()
    first, second, other = (predict(method, model, x, seed) for seed in (1, 1, 2))
    assert torch.equal(first.log_probs, second.log_probs)
    assert not torch.equal(first.log_probs, other.log_probs)
    assert torch.equal(torch.get_rng_state(), state)


def test_predictions_are_stored_as_plain_arrays_and_read_back(tmp_path):
    log_probs = inputs().log_softmax(-1)
    stored = Predictions(log_probs, torch.arange(9.0), torch.arange(9) % 3)
    sets = {"test": stored, "shift/contrast/5": stored._replace(energy=torch.zeros(9))}
    save_groups(tmp_path / "predictions.npz", {k: v._asdict() for k, v in sets.items()})
    found = {k: Predictions(**v) for k, v in load_groups(tmp_path / "predictions.npz").items()}
    assert list(found) == list(sets)
    for name, predictions in sets.items():
        for wanted, given in zip(predictions, found[name], strict=True):
            assert torch.equal(wanted, given)
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.npz"]


def test_sets_are_predicted_by_name_with_their_targets_each_with_draws_of_its_own():
    sets = {name: lambda: (inputs(), torch.arange(9)) for name in ("test", "ood/other")}
    found = predictor("sgpa").sets(Noisy().eval(), sets, device=CPU, seed=3)
    assert list(found) == list(sets)
    assert not torch.equal(found["test"][0], found["ood/other"][0])
    assert torch.equal(found["test"][2], torch.arange(9))
