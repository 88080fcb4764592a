"""Published weights of improved DDPM: read into the network that computes the same."""

import pickle
from dataclasses import replace

import pytest
import torch
from improved_ddpm import ImprovedDDPM, randomised

from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.integrations.improved_ddpm import CIFAR10, IMAGENET64, load_improved_ddpm
from pseudovideo.spec import ImageDiffusionConfig

CONFIG = ImageDiffusionConfig(
    image_size=16,
    base_channels=8,
    channel_multipliers=(1, 2, 2),
    num_res_blocks=3,
    attention_sizes=(8, 4),
    num_heads=4,
    num_groups=4,
    dropout=0.3,
    num_steps=4000,
    schedule="cosine",
)


def theirs(config=CONFIG, outputs=6):
    return randomised(ImprovedDDPM(config, config.channels, outputs).eval(), 0)


@pytest.fixture
def saved(tmp_path):
    """A file of weights, with changes to it."""

    def save(weights):
        path = tmp_path / "weights.pt"
        torch.save(weights, path)
        return path

    return save


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, image_size=8, channel_multipliers=(1, 2, 3, 4), attention_sizes=(4, 2)),
        replace(CONFIG, channels=1, num_heads=1, num_res_blocks=1, attention_sizes=(4,)),
    ],
    ids=["cifar", "imagenet", "grey"],
)
@torch.no_grad()
def test_a_file_of_theirs_computes_here_what_it_computes_there(config, saved):
    other = theirs(config, 2 * config.channels)
    model = load_improved_ddpm(saved(other.state_dict()), config)
    assert isinstance(model, ImageDiffusion)
    assert not model.training
    x = torch.randn(2, config.channels, config.image_size, config.image_size).double()
    # What their networks are told of steps 3 and 2,501 of 4,000.
    times = model.diffusion.model_times(torch.tensor([3, 2501]))
    torch.testing.assert_close(times, torch.tensor([0.75, 625.25]), rtol=1e-6, atol=0)
    expected = other.double()(x, times)
    assert expected.std() > 0.1
    torch.testing.assert_close(model.double()(x, times), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_another_number_of_heads_is_another_network(saved):
    path = saved(theirs().state_dict())
    x, times = torch.randn(1, 3, 16, 16), torch.tensor([3.0])
    found = [load_improved_ddpm(path, replace(CONFIG, num_heads=h))(x, times) for h in (2, 4)]
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize(("config", "millions"), [(CIFAR10, 52.5), (IMAGENET64, 121.1)])
def test_settings_of_the_published_models_give_networks_of_their_size(config, millions):
    with torch.device("meta"):
        other = ImprovedDDPM(config, 3, 6)
    count = sum(parameter.numel() for parameter in other.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.05)
    assert (config.num_steps, config.schedule, config.num_res_blocks) == (4000, "cosine", 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_res_blocks": 2}, "num_res_blocks=2 as config says, got 3"),
        ({"base_channels": 16}, "base_channels=16 as config says, got 8"),
        ({"channels": 1}, "channels=1 as config says, got 3"),
        ({"channel_multipliers": (1, 2, 4)}, r"channel_multipliers=\(1, 2, 4\) .* got \(1, 2, 2\)"),
        ({"channel_multipliers": (1, 2)}, "channel_multipliers="),
        ({"attention_sizes": (16,)}, r"attention_sizes=\(16,\) as config says, got \(8, 4\)"),
    ],
)
def test_another_architecture_is_refused_in_the_settings_words(changes, message, saved):
    config = replace(CONFIG, **{"attention_sizes": (8,)} | changes)
    if "attention_sizes" not in changes:
        config = replace(config, attention_sizes=(8, 4) if len(config.sizes) == 3 else (8,))
    with pytest.raises(ValueError, match=message):
        load_improved_ddpm(saved(theirs().state_dict()), config)


def test_sizes_with_attention_may_stand_in_any_order(saved):
    config = replace(CONFIG, attention_sizes=(4, 8))
    assert load_improved_ddpm(saved(theirs().state_dict()), config).config is config


def without(name):
    return lambda weights: weights.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("input_blocks.0.0.weight"), "has no tensor 'input_blocks.0.0.weight'"),
        (without("output_blocks.4.1.qkv.bias"), "must hold output_blocks.4.1.qkv.bias"),
        (without("time_embed.2.weight"), "must hold time_embed.2.weight"),
        (lambda weights: weights.update(extra=torch.ones(1)), "1 tensors .* first .* is extra"),
        (
            lambda weights: weights.update({"label_emb.weight": torch.ones(10, 32)}),
            "unconditional model, got one of 10 classes",
        ),
        (
            lambda weights: weights.update({"out.0.weight": torch.ones(9)}),
            r"out.0.weight of shape \(8,\), got \(9,\)",
        ),
        (
            lambda weights: weights.update({"middle_block.1.qkv.weight": torch.ones(16, 48, 1)}),
            r"middle_block.1.qkv.weight of shape \(48, 16, 1\), got \(16, 48, 1\)",
        ),
        (
            lambda weights: weights.update(
                {"input_blocks.1.0.emb_layers.1.weight": torch.ones(8, 32)}
            ),
            "the time scales and shifts",
        ),
    ],
)
def test_tensors_that_miss_or_are_too_many_are_refused_by_name(change, message, saved):
    weights = theirs().state_dict()
    change(weights)
    with pytest.raises(ValueError, match=message):
        load_improved_ddpm(saved(weights), CONFIG)


def test_models_without_learned_variances_are_refused(saved):
    with pytest.raises(ValueError, match="learned variances, of 6 outputs, got 3"):
        load_improved_ddpm(saved(theirs(outputs=3).state_dict()), CONFIG)


def test_heads_that_do_not_divide_the_file_s_attention_are_refused_with_the_settings():
    with pytest.raises(ValueError, match="num_heads must divide"):
        replace(CONFIG, num_heads=3)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pt"):
        load_improved_ddpm(tmp_path / "nowhere.pt", CONFIG)
    with pytest.raises(FileNotFoundError, match="published weights"):
        load_improved_ddpm(tmp_path, CONFIG)


class Harm:
    ran = False

    def __reduce__(self):
        return (setattr, (Harm, "ran", True))


@pytest.mark.parametrize("writer", ["torch", "pickle", "nothing", "text"])
def test_a_file_with_code_or_with_no_tensors_is_refused_and_nothing_in_it_runs(writer, tmp_path):
    path = tmp_path / "weights.pt"
    if writer == "torch":
        torch.save({"input_blocks.0.0.weight": Harm()}, path)
    elif writer == "pickle":
        path.write_bytes(pickle.dumps(Harm(), protocol=2))
    else:
        path.write_bytes(b"" if writer == "nothing" else b"no weights at all")
    said = "must hold tensors and nothing that would have to be run"
    with pytest.raises(ValueError, match=said) as refused:
        load_improved_ddpm(path, CONFIG)
    assert not Harm.ran
    assert "weights_only" not in str(refused.value)
    assert ("setattr" in str(refused.value)) == (writer in ("torch", "pickle"))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([torch.ones(1)], "must hold tensors by their names, got a list"),
        (
            {"state_dict": {"a": torch.ones(1)}, "step": 3},
            "got a value of type dict under 'state_dict': save that part alone",
        ),
        ({"step": 3}, "must hold tensors by their names, got a value of type int under 'step'"),
    ],
)
def test_tensors_that_have_no_names_are_refused(weights, message, saved):
    with pytest.raises(ValueError, match=message):
        load_improved_ddpm(saved(weights), CONFIG)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value, saved):
    weights = theirs().state_dict()
    weights["middle_block.0.in_layers.2.bias"][3] = value
    with pytest.raises(ValueError, match=r"middle_block.0.in_layers.2.bias of finite numbers"):
        load_improved_ddpm(saved(weights), CONFIG)
