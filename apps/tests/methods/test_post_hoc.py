import pytest
import torch

from probseq.metrics import fit_temperature
from probseq_apps.methods.post_hoc import Predictions, apply_post_hoc
from probseq_apps.settings.methods import parse_row


def runs(count=3):
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        sets = {}
        for name in ("validation", "test", "ood/rotations"):
            logits = 3 * torch.randn(40, 4, generator=generator)
            labels = torch.randint(4, (40,), generator=generator)
            sets[name] = Predictions(logits.log_softmax(-1), -logits.logsumexp(-1), labels)
        # The runs predict the same examples.
        made.append(
            {k: v._replace(labels=made[0][k].labels if made else v.labels) for k, v in sets.items()}
        )
    return made


def test_a_base_method_keeps_its_predictions():
    row, row_temperatures = apply_post_hoc(parse_row("mle"), runs())
    assert len(row) == 3
    assert row_temperatures == []
    assert torch.equal(row[1]["test"].log_probs, runs()[1]["test"].log_probs)


def test_temperature_scaling_fits_on_validation_and_applies_to_all_sets():
    row, row_temperatures = apply_post_hoc(parse_row("mle+ts"), runs())
    for sets, scaled, temperature in zip(runs(), row, row_temperatures, strict=True):
        validation = sets["validation"]
        assert temperature == fit_temperature(validation.log_probs, validation.labels)
        for name, predictions in sets.items():
            expected = (predictions.log_probs / temperature).softmax(-1)
            torch.testing.assert_close(scaled[name].log_probs.exp(), expected)
            assert torch.equal(scaled[name].energy, predictions.energy)


def test_an_ensemble_is_one_entry_with_the_mean_of_the_probabilities():
    row, _ = apply_post_hoc(parse_row("mle+ensemble"), runs())
    assert len(row) == 1
    expected = torch.stack([sets["test"].log_probs.exp() for sets in runs()]).mean(0)
    torch.testing.assert_close(row[0]["test"].log_probs.exp(), expected)
    assert torch.equal(row[0]["test"].labels, runs()[0]["test"].labels)


def test_an_ensemble_of_scaled_members_scales_first():
    scaled, scaled_temperatures = apply_post_hoc(parse_row("mle+ts"), runs())
    both, both_temperatures = apply_post_hoc(parse_row("mle+ts+ensemble"), runs())
    members = [sets["test"].log_probs.exp() for sets in scaled]
    expected = torch.stack(members).mean(0)
    torch.testing.assert_close(both[0]["test"].log_probs.exp(), expected)
    assert both_temperatures == scaled_temperatures


def test_temperature_scaling_without_validation_data_is_refused():
    without = [{"test": sets["test"]} for sets in runs()]
    with pytest.raises(ValueError, match="validation data"):
        apply_post_hoc(parse_row("mle+ts"), without)
