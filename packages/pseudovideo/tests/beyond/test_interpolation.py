"""What lies between two samples."""

import math

import pytest
import torch

from pseudovideo.beyond.interpolation import interpolate, slerp
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.hvae import HeatHVAE, LearnedEncoderHVAE
from pseudovideo.spec import HVAEConfig, ImageDiffusionConfig, VideoDiffusionConfig

UNET = {
    **{"image_size": 8, "channels": 1, "base_channels": 8, "channel_multipliers": (1, 2)},
    **{"num_res_blocks": 1, "attention_sizes": (4,), "num_heads": 2, "num_groups": 4},
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    made = {
        "image": ImageDiffusion(ImageDiffusionConfig(**UNET, num_steps=30)),
        "video": VideoDiffusion(
            VideoDiffusionConfig(**UNET, num_steps=30, num_frames=4, context=2)
        ),
        "heat": HeatHVAE(HVAEConfig(**UNET, num_levels=4)),
        "learned": LearnedEncoderHVAE(HVAEConfig(**UNET, num_levels=4)),
    }
    for model in made.values():  # networks that begin with zeros say nothing
        for parameter in model.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
    return made


def test_points_of_an_arc_turn_evenly_and_keep_their_length():
    a, b = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    found = slerp(a, b, torch.tensor([0.0, 1 / 3, 1.0]))
    expected = [[3 * math.cos(x), 3 * math.sin(x)] for x in (0, math.pi / 6, math.pi / 2)]
    assert torch.allclose(found[0], torch.tensor(expected), atol=1e-6)
    # Parallel latents have no angle: the straight line.
    assert torch.allclose(slerp(a, 2 * a, torch.tensor([0.5])), 1.5 * a[:, None])


def test_the_middle_of_independent_noise_is_noise():
    a, b = (torch.randn(400, 64, generator=generator(seed)).double() for seed in (1, 2))
    middle = slerp(a, b, torch.tensor([0.5]))[:, 0]
    assert float(middle.std()) == pytest.approx(1.0, abs=0.03)
    # On the straight line it would be too short.
    assert float(((a + b) / 2).std()) < 0.75


@pytest.mark.parametrize("name", ["image", "video", "heat", "learned"])
def test_ends_are_samples_and_points_between_change_gradually(models, name):
    model, images = models[name], None
    if name == "heat":
        images = torch.rand(6, 1, 8, 8, generator=generator()) * 2 - 1
    steps = {"num_steps": 5} if name in ("image", "video") else {}
    found = interpolate(model, 2, points=9, images=images, generator=generator(3), **steps)
    assert found.shape == (2, 9, 1, 8, 8)
    drawn = dict(steps, eta=0.0) if steps else {"images": images}
    sampled = model.sample(4, generator=generator(3), **drawn)
    sampled = sampled if sampled.ndim == 4 else sampled[:, -1]
    assert torch.allclose(found[:, 0], sampled[:2].clamp(-1, 1), atol=1e-4)
    if steps:  # the same numbers and no noise on the way
        assert torch.allclose(found[:, -1], sampled[2:].clamp(-1, 1), atol=1e-4)
    jumps = (found[:, 1:] - found[:, :-1]).flatten(2).norm(dim=2)
    assert float(jumps.max()) < float((found[:, -1] - found[:, 0]).flatten(1).norm(dim=1).max())


@pytest.mark.parametrize("kind", [ImageDiffusion, VideoDiffusion, HeatHVAE, LearnedEncoderHVAE])
def test_both_ends_are_samples_of_the_pair_s_class(kind):
    torch.manual_seed(1)
    classes = {"num_classes": 3, "label_dropout": 0.5}
    images, image_labels = torch.rand(6, 1, 8, 8, generator=generator()), torch.arange(6) % 3
    if kind in (ImageDiffusion, VideoDiffusion):
        own = {"num_frames": 4, "context": 2} if kind is VideoDiffusion else {}
        model = kind(kind.config_class(**UNET, **classes, **own, num_steps=30))
        given, quiet = {"num_steps": 4}, {"eta": 0.0}
    else:
        model = kind(HVAEConfig(**UNET, **classes, num_levels=4))
        given, quiet = {"images": images, "image_labels": image_labels}, {}
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    given |= {"guidance": 3.0}
    labels = torch.tensor([2, 0])

    def between(labels):
        return interpolate(model, 2, labels=labels, points=3, generator=generator(3), **given)

    found = between(labels)
    sampled = model.sample(4, labels=labels.repeat(2), generator=generator(3), **given, **quiet)
    sampled = sampled if sampled.ndim == 4 else sampled[:, -1]
    assert torch.allclose(found[:, 0], sampled[:2].clamp(-1, 1), atol=1e-4)
    if quiet:
        assert torch.allclose(found[:, -1], sampled[2:].clamp(-1, 1), atol=1e-4)
    assert not torch.allclose(found, between(labels.flip(0)), atol=1e-3)
    with pytest.raises(ValueError, match="labels must be int64 of shape"):
        between(labels[:1])


def test_bad_counts_are_refused(models):
    with pytest.raises(ValueError, match="points must be at least 2, got 1"):
        interpolate(models["image"], 1, points=1)
    with pytest.raises(ValueError, match="n must be"):
        interpolate(models["image"], 0)
    with pytest.raises(ValueError, match="images must be the training images"):
        interpolate(models["heat"], 1)
