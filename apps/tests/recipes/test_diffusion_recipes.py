"""Recipes of `generate diffusion` and `generate hvae`: the thesis' numbers, and that all start."""

import itertools
from dataclasses import replace

import pytest
import torch

from probseq_apps.data.images import GenerationData
from probseq_apps.engine.trainer import Step
from probseq_apps.experiments.diffusion_model import (
    arm_videos,
    build_model,
    check_model,
    diffusion_loss,
)
from probseq_apps.experiments.diffusion_settings import DiffusionSettings
from probseq_apps.experiments.generate_models import unet_config
from probseq_apps.experiments.hvae_model import binarized, build_hvae, hvae_loss
from probseq_apps.experiments.hvae_settings import HvaeSettings
from probseq_apps.recipes.diffusion import (
    DIFFUSION_RECIPES,
)
from probseq_apps.recipes.hvae import HVAE_RECIPES
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.diffusion.stages import Stage, stages
from pseudovideo.diffusion.unet import build_unet

PAPER = {
    "table-5.3-cifar10": (
        "1-frame",
        "4-frame-first-order",
        "4-frame-high-order",
        "8-frame-first-order",
        "8-frame-high-order",
    ),
    "table-5.4-cifar10": ("1-frame", "1-frame-4000", "4-frame-high-order"),
    "table-5.5-cifar10": (
        "4-frame-high-order",
        "4-frame-blur",
        "8-frame-high-order",
        "8-frame-blur",
    ),
    "matched-noise-cifar10": ("4-frame-first-order", "4-frame-matched", "4-frame-high-order"),
    "table-5.3-celeba": (
        "1-frame",
        "4-frame-first-order",
        "4-frame-high-order",
        "8-frame-first-order",
        "8-frame-high-order",
    ),
    "table-5.4-celeba": ("1-frame", "1-frame-4000", "4-frame-high-order"),
}


def stand_in(name, count=2):
    sizes = {"digits": (1, 16), "mnist": (1, 32), "cifar10": (3, 32), "celeba": (3, 64)}
    channels, side = sizes.get(name, (3, 32))
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, side, side), generator=generator)
    images = images.to(torch.uint8)
    return GenerationData(name, images, images, images)


@pytest.mark.parametrize("name", DIFFUSION_RECIPES.known)
def test_recipes_of_diffusion_survive_json_and_fit_their_data(name):
    settings = DIFFUSION_RECIPES.load(name)
    assert DiffusionSettings.from_dict(settings.to_dict()) == settings
    for arm in settings.arms:
        check_model(settings.one_model(arm, 0), stand_in(settings.data))


@pytest.mark.parametrize("name", PAPER)
def test_recipes_of_the_tables_have_their_arms_and_the_numbers_of_table_d4(name):
    settings = DIFFUSION_RECIPES.load(name)
    assert settings.arms == PAPER[name]
    training = settings.training.train_config(settings.machine, seed=0)
    assert (training.steps, training.batch_size, training.learning_rate) == (500_000, 32, 1e-4)
    assert (training.schedule, training.ema_decay, training.warmup_steps) == (
        "constant",
        0.9999,
        0,
    )
    sizes = unet_config(settings.unet, stand_in(settings.data))
    assert (sizes.base_channels, sizes.num_res_blocks) == (128, 2)
    # Four levels, which is what the table calls layers.
    expected = (1, 2, 2, 2) if settings.data == "cifar10" else (1, 2, 3, 4)
    assert sizes.channel_multipliers == expected
    assert settings.evaluation.num_samples == 10_000
    assert settings.sampling.sampling_steps is None
    for arm in settings.arms:
        one = settings.one_model(arm, 0)
        frames = one.parsed_arm.frames
        assert one.diffusion_steps == (4000 if arm == "1-frame-4000" else 1000)
        if frames > 1:
            assert one.context == frames // 2
            overall = len(stages(frames, one.context)) * one.diffusion_steps
            assert overall == {4: 3000, 8: 5000}[frames]
            assert arm_videos(one).beta_max == 0.05


def test_the_image_model_of_table_5_3_has_improved_ddpms_size():
    settings = DIFFUSION_RECIPES.load("table-5.3-cifar10")
    with torch.device("meta"):
        sizes = unet_config(settings.unet, stand_in("cifar10"))
        unet = build_unet(sizes, in_channels=3, out_channels=6)
    assert sum(p.numel() for p in unet.parameters()) == 39_629_062


@pytest.mark.parametrize("name", ["table-5.3-cifar10", "table-5.4-celeba", "table-5.5-cifar10"])
def test_arms_of_the_tables_do_a_step_with_narrow_networks(name):
    settings = DIFFUSION_RECIPES.load(name)
    unet = replace(settings.unet, base_channels=8, num_res_blocks=1, num_groups=4)
    data = stand_in(settings.data)
    for arm in settings.arms:
        one = replace(settings.one_model(arm, 0), unet=unet)
        model = build_model(one, data)
        batch = (data.train, torch.arange(2))
        step = Step(0, 0, 0.0, torch.Generator().manual_seed(0))
        found = diffusion_loss(arm_videos(one), 0, DiffusionObjective(model), batch, step)
        found.loss.backward()
        # The error of an output of zeros: each noise's own mean square, which is about 1, times the
        # share of the stage that either video drew.
        plan = getattr(model, "stages", [Stage((), (0,))])
        shares = [len(stage.latent) * len(plan) / (plan[-1].latent[0] + 1) for stage in plan]
        errors = [(a + b) / 2 for a, b in itertools.product(shares, repeat=2)]
        assert float(found.parts["mse"]) in [pytest.approx(error, rel=0.1) for error in errors]
        assert float(model.get_parameter(last_weight(model)).grad.abs().max()) > 0


def last_weight(model):
    return next(n for n, _ in model.named_parameters() if n.endswith("conv_out.weight"))


def test_data_choose_recipes_of_their_own():
    assert DIFFUSION_RECIPES.suits("digits") == "digits-diffusion"
    assert DIFFUSION_RECIPES.suits("cifar10") == "ddpm-fast"
    assert DIFFUSION_RECIPES.suits("folder:mine") == "folder-diffusion"
    assert HVAE_RECIPES.suits("digits") == "digits-hvae"
    assert HVAE_RECIPES.suits("mnist") == "mnist-hvae"


def test_unknown_recipes_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean 'table-5\.5-cifar10'"):
        DIFFUSION_RECIPES.load("table-5.5-cifar")
    with pytest.raises(ValueError, match=r"did you mean 'table-5\.1'"):
        HVAE_RECIPES.load("table-51")


@pytest.mark.parametrize("name", HVAE_RECIPES.known)
def test_recipes_of_hvaes_survive_json_and_both_arms_do_a_step_with_narrow_networks(name):
    settings = HVAE_RECIPES.load(name)
    assert HvaeSettings.from_dict(settings.to_dict()) == settings
    assert settings.binarize
    assert settings.sizes.num_levels == 18
    side = settings.reading.image_size or {"digits": 16, "mnist": 32}[settings.data]
    images = stand_in(settings.data).train[..., :side, :side]
    data = binarized(GenerationData(settings.data, images, images, images))
    unet = replace(settings.unet, base_channels=8, num_res_blocks=1, num_groups=4)
    for arm in settings.arms:
        hvae = build_hvae(replace(settings.one_model(arm, 0), unet=unet), data)
        with torch.device("meta"):
            build_hvae(settings.one_model(arm, 0), data)
        step = Step(0, 0, 0.0, torch.Generator().manual_seed(0))
        found = hvae_loss(hvae, (data.train,), step)
        found.loss.backward()
        assert torch.isfinite(found.loss)
        assert float(hvae.get_parameter("decoder.conv_out.weight").grad.abs().max()) > 0


def test_table_5_1_is_of_binarised_mnist_at_its_own_size():
    settings = HVAE_RECIPES.load("table-5.1")
    assert (settings.data, settings.reading.image_size, settings.binarize) == ("mnist", 28, True)
    assert settings.arms == ("heat", "learned")
    sizes = settings.sizes
    assert (sizes.sigma_min, sizes.sigma_max, sizes.delta_factor) == (0.5, 20.0, 1.25)
