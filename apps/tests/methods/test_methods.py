import math
from dataclasses import replace

import pytest
import torch
from probseq_apps.baselines.temperature import fit_temperature
from torch import nn

from kepsvgp import KEPSVGPConfig
from probseq.transformers import TransformerOutput
from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.parts import Part
from probseq_apps.methods.build import build
from probseq_apps.methods.post_hoc import Predictions, apply_post_hoc, class_predictions
from probseq_apps.methods.predict import Predictor
from probseq_apps.settings.classify import ClassifySettings, ImageAndTextSettings
from probseq_apps.settings.methods import METHODS, parse_row
from sgpa import SGPAConfig

CPU = torch.device("cpu")
SETTINGS = ClassifySettings(
    model=ImageAndTextSettings(dim=16, hidden_dim=16, patch_size=4), kepsvgp=KEPSVGPConfig(rank=4)
)


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(name):
    state, data = torch.get_rng_state(), load_images("digits")
    first, second, other = (
        build(METHODS[name], SETTINGS, data, seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_images_get_rbf_kernels_and_each_name_its_own():
    exponential = replace(SETTINGS, model=replace(SETTINGS.model, kernel="exponential"))
    for name, settings, kernel in (
        ("kernel", SETTINGS, "rbf"),
        ("kernel-exponential", SETTINGS, "exponential"),
        ("sgpa", exponential, "exponential"),
        ("kernel-rbf", exponential, "rbf"),
    ):
        model = build(METHODS[name], settings, load_images("digits"), seed=0)
        assert {module.kernel_name for module in model.encoder.attention} == {kernel}


def test_the_dataset_weighting_counts_the_global_kl_once_for_all_training_examples():
    penalties = []
    for weighting in ("dataset", "sequence"):
        settings = replace(SETTINGS, sgpa=SGPAConfig(kl_weighting=weighting))
        model = build(METHODS["sgpa"], settings, load_images("digits"), seed=0).eval()
        generator = torch.Generator().manual_seed(0)
        penalties.append(model(torch.zeros(2, 1, 8, 8), generator=generator).penalty.item())
    assert 0 < penalties[0] < penalties[1]


def test_a_patch_that_does_not_divide_the_image_is_refused():
    split = Part(torch.zeros(4, 3, 9, 9, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    data = ImageData("nine", split, split, split, (0.0,) * 3, (1.0,) * 3, class_names=("a", "b"))
    with pytest.raises(ValueError, match="patch_size"):
        build(METHODS["mle"], SETTINGS, data, seed=0)


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


def predict(method, model, seed, **sizes):
    found = predictor(method, **sizes).predict(model.eval(), inputs(), device=CPU, seed=seed)
    return Predictions(*found, torch.zeros(9))


def inputs():
    return torch.randn(9, 3, generator=torch.Generator().manual_seed(0))


def test_a_deterministic_prediction_is_the_softmax_in_any_batch_size():
    whole, single = predict("mle", Noisy(), 0), predict("mle", Noisy(), 0, tokens=65_536)
    torch.testing.assert_close(whole.log_probs.exp(), inputs().softmax(-1))
    torch.testing.assert_close(whole.energy, -inputs().double().logsumexp(-1))
    torch.testing.assert_close(single.log_probs, whole.log_probs)


def test_a_sampled_prediction_is_the_mean_of_the_samples_softmax():
    found = predict("sgpa", Noisy(), 5)
    draws = inputs() + torch.randn((4, 9, 3), generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found.log_probs.exp(), draws.softmax(-1).mean(0))
    torch.testing.assert_close(found.energy, -draws.double().logsumexp(-1).mean(0))


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
    state = torch.get_rng_state()
    first, second, other = (predict(method, model, seed).log_probs for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_sets_are_predicted_by_name_with_their_targets_each_with_draws_of_its_own():
    sets = {name: lambda: Part(inputs(), torch.arange(9)) for name in ("test", "ood/other")}
    found = predictor("sgpa").sets(Noisy().eval(), sets, device=CPU, seed=3)
    assert list(found) == list(sets)
    assert not torch.equal(found["test"][0], found["ood/other"][0])
    assert torch.equal(found["test"][2], torch.arange(9))


def runs(count=3):
    """Predictions of the same examples."""
    generator, made = torch.Generator().manual_seed(0), []
    labels = {name: torch.randint(4, (40,), generator=generator) for name in ("validation", "test")}
    for _ in range(count):
        logits = {name: 3 * torch.randn(40, 4, generator=generator) for name in labels}
        made.append(
            {
                n: Predictions(x.log_softmax(-1), -x.logsumexp(-1), labels[n])
                for n, x in logits.items()
            }
        )
    return made


def test_temperature_scaling_fits_on_validation_and_applies_to_all_sets():
    base, none = apply_post_hoc(parse_row("mle"), runs())
    scaled, temperatures = apply_post_hoc(parse_row("mle+ts"), runs())
    assert none == []
    for sets, own, temperature in zip(base, scaled, temperatures, strict=True):
        known = sets["validation"]
        assert temperature == fit_temperature(known.log_probs, known.labels)
        for name, found in sets.items():
            expected = (found.log_probs / temperature).log_softmax(-1)
            torch.testing.assert_close(own[name].log_probs, expected)
            assert torch.equal(own[name].energy, found.energy)


@pytest.mark.parametrize("additions", ["", "+ts"])
def test_an_ensemble_is_the_mean_of_its_members_probabilities_scaled_first(additions):
    members, temperatures = apply_post_hoc(parse_row(f"mle{additions}"), runs())
    (found,), same = apply_post_hoc(parse_row(f"mle{additions}+ensemble"), runs())
    expected = torch.stack([sets["test"].log_probs.exp() for sets in members]).mean(0)
    torch.testing.assert_close(found["test"].log_probs.exp(), expected)
    energy = torch.stack([sets["test"].energy for sets in members]).mean(0)
    torch.testing.assert_close(found["test"].energy, energy)
    assert torch.equal(found["test"].labels, members[0]["test"].labels)
    assert same == temperatures
