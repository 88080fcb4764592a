"""Calibration after training: what is chosen, what is left alone, what is refused."""

import copy
import gc
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from probseq.metrics import fit_temperature
from probseq.transformers import (
    deviations,
    fine_tune,
    penalty,
    remove_attention,
    sample_predictions,
)
from sgpa import calibrate, load_calibrated, replace_attention, tune_deviation


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
    expected = (0.0, 1.0, pytest.approx(nll(plain, labels), rel=1e-5), {})
    assert found.candidates["as it is"] == expected
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
    found = calibrated(model, inputs, labels, deviations=(6.0,))
    assert found.candidates[found.chosen].deviation == 0.0
    assert str(model) == text
    assert torch.equal(model(inputs)["logits"], plain)
    temperature = found.candidates[found.chosen].temperature
    assert_close(found(inputs), (plain / temperature).log_softmax(-1))


def test_where_labels_are_random_far_from_the_data_a_deviation_is_chosen_and_stays():
    # Far away the model is as sure and knows nothing.
    model, inputs, labels = shifted_case()
    found = calibrated(model, inputs, labels, deviations=(0.3, 1.0, 3.0, 10.0), num_samples=32)
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


def shifted_case():
    """A classifier, and inputs of which every third is far away and has a random label."""
    model, inputs, labels = case(scale=6.0, sharpness=6.0)
    inputs[::3] *= 3.0
    labels[::3] = torch.randint(3, (len(labels[::3]),), generator=torch.Generator().manual_seed(4))
    return model, inputs, labels


@pytest.mark.slow
def test_tuned_scales_are_candidates_and_differ_from_head_to_head():
    model, inputs, labels = shifted_case()
    found = calibrated(model, inputs, labels, deviations=(1.0,), num_samples=8, tuning_steps=60)
    nlls = {name: candidate.nll for name, candidate in found.candidates.items()}
    assert list(nlls)[4:] == ["tuned deviation", "tuned deviation and temperature"]
    assert nlls["tuned deviation"] < nlls["deviation"]
    assert found.chosen.startswith("tuned deviation")
    (process,) = deviations(model).values()
    first, second = process.deviation.flatten().tolist()
    assert abs(first - second) > 0.01
    assert found.candidates[found.chosen].deviation == pytest.approx((first + second) / 2)
    assert process.kernel.lengthscale.std(-1).min() > 0.001


def test_a_last_batch_of_one_example_is_tuned_on_by_its_half_alone():
    model, inputs, labels = case(scale=1.0)
    batches = [(inputs[:10], labels[:10]), (inputs[10:11], labels[10:11])]
    given = {"num_inducing": 16, "num_samples": 2, "deviations": (1.0,), "tuning_steps": 3}
    found = calibrate(model, inputs, batches, **given)
    whole = calibrate(remove_attention(model), inputs, [(inputs[:11], labels[:11])], **given)
    for name in ("as it is", "temperature"):
        assert found.candidates[name].nll == pytest.approx(whole.candidates[name].nll)
    assert math.isfinite(found.candidates["tuned deviation"].nll)


def test_keyword_arguments_that_are_no_tensors_reach_the_model():
    model, inputs, labels = case(scale=1.0)
    plain = model.forward
    model.forward = lambda tokens, double: plain(tokens * (2.0 if double else 1.0))
    given = {"num_inducing": 16, "num_samples": 2, "deviations": (1.0,), "tuning_steps": 2}
    named = {"tokens": inputs, "double": True}
    found = calibrate(model, {"tokens": inputs[:50], "double": True}, [(named, labels)], **given)
    del model.forward
    other = calibrate(remove_attention(model), 2.0 * inputs[:50], [(2.0 * inputs, labels)], **given)
    for name, own in found.candidates.items():
        assert own[:3] == other.candidates[name][:3]


def test_other_candidates_can_be_used_and_the_first_again():
    model, inputs, labels = shifted_case()
    text = str(model)
    plain = model(inputs)["logits"].log_softmax(-1).detach()
    found = calibrated(model, inputs, labels, deviations=(10.0,), num_samples=32)
    first, chosen = found(inputs, generator=torch.Generator().manual_seed(0)), found.chosen
    found.use("as it is")
    assert str(model) == text
    assert_close(found(inputs), plain)
    found.use(chosen)
    assert torch.equal(found(inputs, generator=torch.Generator().manual_seed(0)), first)
    with pytest.raises(ValueError, match=r"name must be among as it is, .* got 'best'"):
        found.use("best")
    with pytest.raises(ValueError, match=r"call remove_attention\(model\) first"):
        calibrated(model, inputs, labels)


def test_rho_is_chosen_as_sigma_is():
    model, inputs, labels = shifted_case()
    given = {"deviations": (3.0,), "num_samples": 8}
    nlls = {
        rho: calibrated(model, inputs, labels, rho=rho, **given).candidates["deviation"].nll
        for rho in ((0.1,), (2.0,), (0.1, 2.0))
        if remove_attention(model)
    }
    assert nlls[0.1, 2.0] == pytest.approx(min(nlls[0.1,], nlls[2.0,]), rel=1e-6)
    assert nlls[0.1,] != nlls[2.0,]


def test_what_is_saved_predicts_as_before_beside_the_same_weights_alone(tmp_path):
    model, inputs, labels = shifted_case()
    found = calibrated(model, inputs, labels, deviations=(10.0,), num_samples=32, tuning_steps=3)
    assert found.candidates[found.chosen].deviation
    expected = found(inputs, generator=torch.Generator().manual_seed(0))
    found.save(tmp_path / "kept")
    remove_attention(model)
    again = load_calibrated(tmp_path / "kept", model.train())
    assert torch.equal(again(inputs, generator=torch.Generator().manual_seed(0)), expected)
    assert again.chosen == found.chosen
    assert again.candidates[again.chosen][:3] == found.candidates[found.chosen][:3]
    other = case(scale=6.0)[0]
    other.head.bias.data += 1e-6
    text = str(other)
    with pytest.raises(ValueError, match=r"model must have the weights that .*kept was made for"):
        load_calibrated(tmp_path / "kept", other)
    assert str(other) == text
    content = (tmp_path / "kept/deviation.npz").read_bytes()
    (tmp_path / "kept/deviation.npz").write_bytes(content[:-1] + b"x")
    with pytest.raises(ValueError, match=r"deviation\.npz is damaged"):
        load_calibrated(tmp_path / "kept", remove_attention(model))
    (tmp_path / "kept/calibration.json").write_text("{}")
    with pytest.raises(ValueError, match=r"calibration\.json is damaged"):
        load_calibrated(tmp_path / "kept", model)


def test_a_temperature_alone_is_saved_too(tmp_path):
    model, inputs, labels = case(scale=6.0)
    found = calibrated(model, inputs, labels, deviations=(0.0,))
    assert found.chosen == "temperature"
    found.save(tmp_path)
    assert torch.equal(load_calibrated(tmp_path, model)(inputs), found(inputs))


def test_a_model_without_attention_that_is_known_gets_a_temperature_and_a_warning():
    _, inputs, labels = case(scale=6.0)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(32, 3)).eval()
    labels = torch.where(torch.arange(400) % 4 > 0, plain(inputs).argmax(-1), labels)
    given = {"tuning_steps": 3}
    with pytest.warns(UserWarning, match="deviation are left out: model must have attention that"):
        found = calibrate(plain, inputs, [(inputs, labels)], **given)
    temperature = fit_temperature(plain(inputs).double().log_softmax(-1), labels)
    assert found.candidates["temperature"].temperature == pytest.approx(temperature, rel=1e-5)
    assert not any(one.deviation for one in found.candidates.values())
    silent = calibrate(plain, inputs, [(inputs, labels)], deviations=(0.0,))
    assert silent.candidates["temperature"] == found.candidates["temperature"]
    with pytest.raises(ValueError, match="model must have attention that is known"):
        calibrate(plain, inputs, [(inputs, labels)], layers=[0])


def test_a_temperature_at_its_bound_is_told():
    model, inputs, _ = case(scale=6.0)
    wrong = model(inputs)["logits"].argmin(-1)
    with pytest.warns(UserWarning, match="the temperature 20 is a bound of the search"):
        found = calibrated(model, inputs, wrong, deviations=(0.0,))
    assert found.chosen == "temperature"


def test_predictions_of_one_deviation_are_held_at_a_time():
    model, inputs, labels = case(scale=6.0)
    alive, plain = [], model.forward

    def forward(tokens):
        if len(tokens) == len(inputs):  # the first of each deviation
            found = (each for each in gc.get_objects() if type(each) is torch.Tensor)
            alive.append(sum(each.numel() == len(inputs) * 3 for each in found))
        return plain(tokens)

    model.forward = forward
    deviations = (0.1, 0.2, 0.3, 1.0, 3.0)
    given = {"num_inducing": 8, "num_samples": 1, "deviations": deviations}
    calibrate(model, inputs[:50], [(inputs, labels)], **given)
    assert len(alive) >= 6
    assert max(alive) <= alive[0]


def test_tuning_moves_scales_alone():
    model, inputs, labels = shifted_case()
    replace_attention(model, calibration=inputs[:50], num_inducing=8)
    batches = list(zip(inputs.split(100), labels.split(100), strict=True)) * 5

    def moved(train):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        train()
        assert all(parameter.requires_grad for parameter in model.parameters())
        after = model.state_dict().items()
        return {name for name, value in after if not torch.equal(value, before[name])}

    own = "attention.deviation.process."
    scales = {f"{own}kernel.raw_lengthscale", f"{own}kernel.raw_outputscale"}
    assert moved(lambda: tune_deviation(model, batches)) == scales


class Checkpointed(Classifier):
    """Recomputes its attention for gradients, by hand."""

    reentrant = False

    def forward(self, tokens):
        plain = super().forward
        call = lambda x: plain(x)["logits"]  # noqa: E731
        return {"logits": checkpoint(call, tokens, use_reentrant=self.reentrant)}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # without gradients
@pytest.mark.parametrize("reentrant", [False, True])
def test_tuning_of_a_model_that_recomputes_activations_follows_the_draws(reentrant):
    model, inputs, labels = shifted_case()
    inputs.requires_grad_()  # else the older form has no gradients
    replace_attention(model, calibration=inputs[:50], num_inducing=8)
    other = copy.deepcopy(model)
    other.__class__, other.reentrant = Checkpointed, reentrant
    for each in (model, other):
        tune_deviation(each, [(inputs, labels)] * 5)
    found, expected = (deviations(each)["attention"].kernel.state_dict() for each in (other, model))
    assert_close(found, expected)
    before = replace_attention(case(scale=6.0)[0], calibration=inputs[:50], num_inducing=8)
    assert not torch.allclose(
        expected["raw_outputscale"], deviations(before)["attention"].kernel.raw_outputscale
    )
    with pytest.raises(ValueError, match="generator must be None inside torch"):
        sample_predictions(other, inputs, generator=torch.Generator())
    with torch.no_grad():
        sample_predictions(other, inputs, generator=torch.Generator())


def test_fine_tuning_starts_at_the_model_with_a_small_deviation_and_moves_its_scales_most():
    model, inputs, labels = shifted_case()
    batches = list(zip(inputs.split(100), labels.split(100), strict=True))

    def put(model, calibration):
        return replace_attention(model, calibration=calibration, num_inducing=8)

    def tuned(steps, seed=0):
        model = shifted_case()[0]
        given = {"uncertainty": put, "steps": steps, "every": steps, "seed": seed}
        given |= {"learning_rates": (1e-3, 1e-2)}
        return fine_tune(model, batches, [(inputs[:60], labels[:60])], num_samples=4, **given)

    given = {"steps": 1, "every": 1, "learning_rates": (1e-9, 1e-9)}
    start = fine_tune(model, batches, [(inputs[:60], labels[:60])], uncertainty=put, **given)
    assert float(penalty(start.model).detach()) < 1.0
    plain = shifted_case()[0](inputs)["logits"]
    noise = (start.model(inputs)["logits"] - plain).std() / plain.std()
    assert 0.0 < noise < 0.5
    one, again, other = tuned(40), tuned(40), tuned(40, seed=1)
    (first, second, third) = (
        next(iter(deviations(each.model).values())) for each in (one, again, other)
    )
    assert torch.equal(first.inducing_inputs, second.inducing_inputs)
    assert not torch.equal(first.inducing_inputs, third.inducing_inputs)
    assert one.losses[40] < one.losses[0] - 0.05
    (before,) = deviations(start.model).values()
    moved = (first.kernel.raw_outputscale - before.kernel.raw_outputscale).abs().mean()
    assert moved > 0.3


def test_fine_tuning_reads_masks_and_lower_blocks_as_they_were_computed_once(monkeypatch):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 3), nn.Linear(8, 3)

        def forward(self, tokens, hidden):
            return self.head(self.encoder(tokens, src_key_padding_mask=hidden)[:, 0])

    inputs, labels = data(30, 1), torch.arange(30) % 3
    batch = {"tokens": inputs, "hidden": torch.arange(4) > torch.arange(30)[:, None] % 4}

    def put(model, calibration):
        return replace_attention(model, calibration=calibration, num_inducing=8)

    def tuned():
        torch.manual_seed(0)
        given = {"steps": 4, "every": 4, "learning_rates": (1e-2, 1e-2), "num_samples": 3}
        return fine_tune(Reader(), [(batch, labels)], [(batch, labels)], uncertainty=put, **given)

    found = tuned()
    monkeypatch.setattr("probseq.transformers.fine_tuning._Lower.record", lambda *_: None)
    expected = tuned()
    assert found.losses[4] == pytest.approx(expected.losses[4], rel=1e-4)
    assert abs(found.losses[4] - found.losses[0]) > 1e-4
    one, other = (
        each(batch, generator=torch.Generator().manual_seed(0)) for each in (found, expected)
    )
    assert_close(one, other, rtol=1e-3, atol=1e-4)
    encoder = found.model.encoder
    assert not encoder.use_nested_tensor
    remove_attention(found.model)
    assert encoder.use_nested_tensor


def test_tuning_without_deviations_or_with_infinite_losses_is_refused():
    model, inputs, labels = case(scale=1.0)
    with pytest.raises(ValueError, match="model must have a deviation"):
        tune_deviation(model, [(inputs, labels)])
    replace_attention(model, calibration=inputs, num_inducing=8)
    with pytest.raises(ValueError, match="the loss must stay finite"):
        tune_deviation(model, [(inputs * math.inf, labels)])
    with pytest.raises(ValueError, match="labels must be int64"):
        tune_deviation(model, [(inputs, labels[:5])])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1, got 0"),
        ({"deviations": ()}, "deviations must be at least 0"),
        ({"deviations": (-1.0,)}, "deviations must be at least 0"),
        (
            {"deviations": (0.0,), "tuning_steps": 1},
            "deviations must have one above 0",
        ),
        ({"tuning_steps": -1}, "tuning_steps must be a whole number of at least 1"),
        ({"rho": ()}, "rho must have at least one"),
        ({"layers": "first"}, "layers must be 'last', 'all', indices or names"),
        ({"rho": (math.nan,)}, "rho must be positive and finite"),
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
    empty = (inputs[:0], labels[:0])
    with pytest.raises(ValueError, match="examples in each batch, got an empty batch"):
        calibrate(model, inputs, [(inputs, labels), empty])
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match=r"called outside torch\.inference_mode"),
    ):
        calibrated(model, inputs, labels)
    with pytest.raises(ValueError, match="labels must be from 0 to 2"):
        calibrated(model, inputs, labels + 1)
    # As many in all, but not batch by batch.
    moved = [(inputs[:100], labels[:150]), (inputs[100:], labels[150:])]
    for wrong in (moved, [(inputs, labels[:300])]):
        with pytest.raises(ValueError, match=r"labels must be int64 of shape \(batch,\)"):
            calibrate(model, inputs[:50], wrong, num_inducing=16)
    with pytest.raises(ValueError, match="validation must have labels that are whole numbers"):
        calibrate(model, inputs[:50], [(inputs, labels.float())], num_inducing=16)
    with pytest.raises(ValueError, match=r"model must be in evaluation mode: call model\.eval"):
        calibrated(model.train(), inputs, labels)
    model.eval().head.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="model must give finite log-probabilities"):
        calibrated(model, inputs, labels)
    assert str(model) == text
