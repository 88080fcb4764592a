"""Improved DDPM's UNet: against the same network written anew, and what it takes."""

import sys

import pytest
import torch
from diffusers.models.attention_processor import Attention, AttnProcessor
from diffusers.models.resnet import ResnetBlock2D
from improved_ddpm import ImprovedDDPM, published_weights, randomised
from tiny_video import UNET
from torch import nn

from probseq.errors import MissingExtraError
from pseudovideo.diffusion.unet import apply_unet, build_unet
from pseudovideo.spec import UNetConfig, UNetSpec, channel_multipliers_for

TINY = UNetConfig(**UNET)


def tiny(**changes):
    return UNetConfig(**{**TINY.__dict__, **changes})


def inputs(config, batch=2, channels=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    shape = (batch, channels or config.channels, config.image_size, config.image_size)
    x = torch.randn(shape, generator=generator, dtype=dtype)
    return x, torch.tensor([0.25, 730.0, 12.5][:batch], dtype=torch.float32)


def test_the_default_has_improved_ddpm_s_number_of_parameters():
    with torch.device("meta"):
        unet = build_unet(UNetConfig(), in_channels=3, out_channels=6)
    assert sum(parameter.numel() for parameter in unet.parameters()) == 39_629_062


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        tiny(image_size=16, channel_multipliers=(1, 2, 2), attention_sizes=(8, 4), channels=3),
        # As for 64 pixels: heads of every width, as many as ever.
        tiny(channel_multipliers=(1, 2, 3, 4), attention_sizes=(4, 2), num_heads=4),
        tiny(num_res_blocks=3, attention_sizes=(8, 4)),
        tiny(num_heads=1, attention_sizes=()),
    ],
    ids=["tiny", "colour", "64-pixels", "3-blocks", "middle-only"],
)
@torch.no_grad()
def test_it_computes_what_improved_ddpm_computes(config):
    unet = build_unet(config, in_channels=config.channels, out_channels=2).double()
    randomised(unet, 0)
    other = ImprovedDDPM(config, config.channels, 2).double()
    other.load_state_dict(published_weights(unet, config.num_heads))
    x, times = inputs(config, 3)
    expected = other(x, times)
    assert expected.std() > 0.1
    torch.testing.assert_close(unet(x, times).sample, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@torch.no_grad()
def test_at_64_pixels_it_is_theirs_in_every_size():
    config = UNetConfig(
        image_size=64, channel_multipliers=channel_multipliers_for(64), base_channels=32
    )
    unet = randomised(build_unet(config, in_channels=3, out_channels=6), 0)
    widths = {(m.query_dim, m.heads) for m in unet.modules() if isinstance(m, Attention)}
    assert widths == {(96, 4), (128, 4)}
    other = ImprovedDDPM(config, 3, 6)
    other.load_state_dict(published_weights(unet, 4))
    x, times = inputs(config, 1, dtype=torch.float32)
    torch.testing.assert_close(unet(x, times).sample, other(x, times), rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_heads_change_what_is_computed_and_both_kinds_of_attention_agree():
    outputs = []
    for heads in (1, 2, 4):
        config = tiny(num_heads=heads)
        unet = randomised(build_unet(config, in_channels=1, out_channels=2).double(), 0)
        x, times = inputs(config)
        outputs.append(unet(x, times).sample)
        # This one multiplies by the stored scale, and has its softmax in float32.
        for attention in (m for m in unet.modules() if isinstance(m, Attention)):
            attention.set_processor(AttnProcessor())
        torch.testing.assert_close(unet(x, times).sample, outputs[-1], rtol=1e-5, atol=1e-5)
    for first, second in ((0, 1), (1, 2)):
        assert (outputs[first] - outputs[second]).abs().max() > 1e-3


def test_it_starts_as_zero_and_so_does_every_branch():
    unet = build_unet(TINY, in_channels=2, out_channels=3)
    x, times = inputs(TINY, channels=2, dtype=torch.float32)
    assert torch.equal(unet(x, times).sample, torch.zeros(2, 3, 8, 8))
    hidden, time = torch.randn(2, 8, 4, 4), torch.randn(2, TINY.time_width)
    same = [m for m in unet.modules() if isinstance(m, ResnetBlock2D) and m.in_channels == 8]
    assert torch.equal(same[0](hidden, time), hidden)
    attention = next(m for m in unet.modules() if isinstance(m, Attention))
    hidden = torch.randn(2, 16, 4, 4)
    assert torch.equal(attention(hidden), hidden)


class Marked(nn.Module):
    """What stands for dropout: no two places are scaled alike, and it draws nothing."""

    def forward(self, x):
        return x * torch.linspace(0.0, 2.0, x[0].numel(), dtype=x.dtype).view_as(x[0])


@torch.no_grad()
def test_dropout_falls_where_theirs_does():
    config = tiny(dropout=0.4)
    unet = randomised(build_unet(config, in_channels=1, out_channels=2).double(), 0)
    other = ImprovedDDPM(config, 1, 2).double()
    other.load_state_dict(published_weights(unet, config.num_heads))
    x, times = inputs(config)
    without = unet(x, times).sample
    replaced = []
    for model in (unet, other):
        found = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
        assert {dropout.p for dropout in found} == {0.4}
        replaced.append(len(found))
        for dropout in found:
            holder = next(m for m in model.modules() if dropout in m.children())
            name = next(name for name, child in holder.named_children() if child is dropout)
            setattr(holder, name, Marked())
    assert replaced == [8, 8]
    expected = other(x, times)
    assert (expected - without).abs().max() > 1e-2
    torch.testing.assert_close(unet(x, times).sample, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize(
    ("weights", "given"), [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)]
)
def test_an_input_of_another_precision_takes_that_of_the_weights(weights, given):
    unet = randomised(build_unet(TINY, in_channels=1, out_channels=2), 0).to(weights)
    x, times = inputs(TINY, dtype=given)
    found = apply_unet(unet, x, times)
    assert found.dtype == weights
    assert torch.equal(found, unet(x.to(weights), times).sample)


@torch.no_grad()
def test_fractions_of_a_step_are_times_of_their_own():
    unet = randomised(build_unet(TINY, in_channels=1, out_channels=2), 0)
    x, _ = inputs(TINY, dtype=torch.float32)
    outputs = [apply_unet(unet, x, torch.full((2,), time)) for time in (3.0, 3.25, 3.5)]
    assert (outputs[0] - outputs[1]).abs().max() > 1e-4
    assert (outputs[1] - outputs[2]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("size", "widths", "attended"),
    [
        (12, (1, 2, 2), (12, 6)),
        (20, (1, 2, 2), (10,)),
        (24, (1, 2, 2), (12, 6)),
        (32, (1, 2, 2, 2), (16, 8)),
        (36, (1, 2, 2), (9,)),
        (48, (1, 2, 2, 2), (12, 6)),
        (64, (1, 2, 3, 4), (16, 8)),
        (96, (1, 2, 2, 2), (12,)),
    ],
)
def test_whatever_halves_twice_has_levels_and_attention(size, widths, attended):
    config = UNetSpec().for_images(size, 3)
    assert (config.channel_multipliers, config.attention_sizes) == (widths, attended)
    assert UNetSpec(attention_sizes=(size,)).for_images(size, 3).attention_sizes == (size,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 6, "channel_multipliers": (1, 1, 1)}, "image_size must be a multiple of 4"),
        ({"channel_multipliers": ()}, "channel_multipliers must name at least one"),
        (
            {"channel_multipliers": (1, 1, 1, 1), "attention_sizes": (), "num_groups": 8},
            "num_groups must be below the 8 channels of the last level",
        ),
        ({"attention_sizes": (16,)}, r"attention_sizes must be among .*\(8, 4\), got \(16,\)"),
        ({"num_groups": 3}, "base_channels must be even and a multiple of num_groups=3, got 8"),
        ({"base_channels": 9, "num_groups": 3}, "base_channels must be even"),
        ({"num_heads": 3}, "num_heads must divide the width .* 16, got 3"),
    ],
)
def test_what_makes_no_unet_is_refused_by_name(changes, message, plain_calls):
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_without_diffusers_the_extra_that_brings_it_is_named(monkeypatch):
    # None in the place of a module: its import fails as if it were not installed.
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pseudovideo\[diffusion\]'"):
        build_unet(TINY, in_channels=1, out_channels=2)
