"""Classes of HVAEs: the decoder's, the heat prior's, and guidance."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudovideo.hvae import HVAE, HeatHVAE, LearnedEncoderHVAE, heat_blur
from pseudovideo.sampling import draw_noise, draw_seed

Make = Callable[..., Any]
KINDS = [HeatHVAE, LearnedEncoderHVAE]
LABELS = torch.tensor([0, 1, 2, 1, 0])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shaken(kind: type[HVAE], config: Any, **classes: Any) -> HVAE:
    """Weights that are nowhere zero, in float64."""
    torch.manual_seed(0)
    model = kind(replace(config, **classes)).double().eval().requires_grad_(False)
    generator = seeded(5)
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_one_class_is_a_model_of_none(kind: type[HVAE], tiny: Make, few: Tensor) -> None:
    images, zeros = few.double(), torch.zeros(5, dtype=torch.int64)
    known = shaken(kind, tiny(), num_classes=1)
    weights = dict(known.state_dict())
    vector = weights.pop("decoder.class_embedding.weight")[0]
    name = "decoder.time_embedding.linear_2.bias"
    weights[name] = weights[name] + vector
    plain = shaken(kind, tiny())
    plain.load_state_dict(weights)
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(
        known.bound(images, zeros, generator=seeded(1)).total,
        plain.bound(images, generator=seeded(1)).total,
        **close,
    )
    torch.testing.assert_close(
        known.training_losses(images, zeros, generator=seeded(2))["loss"],
        plain.training_losses(images, generator=seeded(2))["loss"],
        **close,
    )
    torch.testing.assert_close(
        known.sample(3, images=images, image_labels=zeros, generator=seeded(3)),
        plain.sample(3, images=images, generator=seeded(3)),
        **close,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_guided_samples_are_those_of_the_formula(
    kind: type[HVAE], guidance: float, tiny: Make, few: Tensor
) -> None:
    images, labels, none = few.double(), torch.tensor([2, 0, 1]), torch.full((3,), 3)
    model = shaken(kind, tiny(num_levels=3), num_classes=3, label_dropout=0.2)
    given = {"images": images, "image_labels": LABELS, "generator": seeded(4)}
    drawn = model.sample(3, labels=labels, guidance=guidance, **given)
    numbers, seed = torch.arange(3), draw_seed(seeded(4))
    prior = {"labels": labels, "image_labels": LABELS} if guidance else {}
    z = model.draw_prior(numbers, images, seed=seed, **prior)
    for level in (3, 2, 1):
        t = torch.full((3,), level)
        told, free = model.decode(z, t, labels), model.decode(z, t, none)
        z = (1 - guidance) * free + guidance * told
        if level > 1:
            noise = draw_noise(numbers, (1, 8, 8), seed=seed, step=level - 1).double()
            z = z + model.config.delta * noise
    torch.testing.assert_close(drawn, z.clamp(-1, 1), rtol=1e-9, atol=1e-11)


def test_the_prior_of_a_class_is_its_blurred_images(tiny: Make, few: Tensor) -> None:
    # Little noise and little blur: the image behind each z_T can be told.
    model = HeatHVAE(replace(tiny(noise_std=0.05, sigma_max=0.6), num_classes=3))
    labels = torch.arange(3000) % 3
    z = model.draw_prior(torch.arange(3000), few, seed=3, labels=labels, image_labels=LABELS)
    blurred = heat_blur(few, torch.full((5,), 0.6, dtype=torch.float64))
    chosen = (z[:, None] - blurred).square().mean((2, 3, 4)).argmin(1)
    assert torch.equal(LABELS[chosen], labels)
    counts = chosen.bincount(minlength=5)
    assert counts[2] == 1000
    # Both images of a class come as often: five standard deviations of a binomial count.
    assert (counts[[0, 1, 3, 4]] - 500).abs().max() < 5 * (1000 / 4) ** 0.5


def test_the_learned_encoder_is_not_told_the_class(tiny: Make) -> None:
    named = {"class_names": ("a", "b", "c"), "class_counts": (1, 2, 3)}
    model = LearnedEncoderHVAE(replace(tiny(), num_classes=3, **named))
    assert not any("encoder.class" in name for name in model.state_dict())
    assert model.state_dict()["decoder.class_embedding.weight"].shape[0] == 3
