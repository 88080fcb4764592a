"""Recipes of `probseq generate`: the thesis' numbers, and that each of its columns starts."""

from dataclasses import replace

import pytest
import torch

from probseq_apps.data.images import GenerationData
from probseq_apps.engine.trainer import Step
from probseq_apps.experiments.generate_groups import LossSettings
from probseq_apps.experiments.generate_prior import build_prior
from probseq_apps.experiments.generate_settings import GenerateSettings
from probseq_apps.experiments.generate_tokenizer import (
    check_tokenizer,
    make_objective,
    tokenizer_config,
    tokenizer_loss,
    video_config,
)
from probseq_apps.recipes.generate import (
    GENERATE_RECIPES,
)
from probseq_apps.settings.common import Pick
from pseudovideo.tokenizers import build_tokenizer, paper_config

PAPER = [f"{data}-{frames}-frame" for data in ("cifar10", "celeba") for frames in (1, 8, 18)]


def stand_in(name, count=2):
    side = 64 if name.startswith("celeba") else 32
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, side, side), generator=generator).to(torch.uint8)
    return GenerationData(name, images, images, images)


@pytest.mark.parametrize("name", GENERATE_RECIPES.known)
def test_recipes_are_settings_that_survive_json(name):
    settings = GENERATE_RECIPES.load(name)
    assert GenerateSettings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("name", PAPER)
def test_a_column_of_table_5_2_has_the_numbers_of_tables_d1_to_d3(name):
    settings = GENERATE_RECIPES.load(name)
    frames = int(name.split("-")[1])
    arm = settings.arms[0]
    for stem in ("plain", "layernorm"):
        one = settings.one_tokenizer(arm, stem, 0)
        expected = paper_config(name.split("-")[0], frames, stem=stem)
        assert tokenizer_config(one, stand_in(name)) == expected
    training = one.training.train_config(one.machine, seed=0)
    assert (training.steps, training.batch_size, training.learning_rate) == (100_000, 64, 1e-4)
    assert training.schedule == "cosine"
    assert video_config(one.videos, frames).blur_rate == (0.01 if frames == 18 else 0.05)
    steps = {kind: settings.one_prior("", kind, 0).steps for kind in settings.priors.prior}
    assert steps == {"autoregressive": 100_000, "masked": 200_000}
    prior = settings.one_prior("", "masked", 0)
    assert prior.training.train_config(prior.machine, prior.steps, seed=0).batch_size == 64
    sizes = prior.autoregressive
    assert (sizes.ar_depth, sizes.ar_dim, sizes.ar_num_heads) == (8, 144, 4)
    sizes = prior.masked
    assert (sizes.masked_depth, sizes.masked_dim, sizes.masked_num_heads) == (6, 512, 8)
    assert settings.loss.perceptual_weight == 0.1
    assert settings.evaluation.num_samples == 50_000
    # No column is shown without the other stem and the controls.
    assert settings.stem == ("plain", "layernorm")
    assert len(settings.arms) == (1 if frames == 1 else 3)


@pytest.mark.parametrize("name", PAPER)
def test_a_paper_recipe_builds_its_models_and_does_a_step(name):
    recipe = GENERATE_RECIPES.load(name)
    data = stand_in(name)
    # Without the file of LPIPS, which nothing downloads; the step is of narrow models.
    recipe = replace(recipe, loss=replace(recipe.loss, perceptual_weight=0.0))
    for arm in recipe.arms:
        one = recipe.one_tokenizer(arm, "plain", 0)
        check_tokenizer(one, data)
        with torch.device("meta"):
            whole = build_tokenizer(tokenizer_config(one, data))
            for kind in recipe.priors.prior:
                build_prior(recipe.one_prior("", kind, 0), whole.grid, None)
        assert sum(p.numel() for p in whole.parameters()) > 30_000_000
        narrow = replace(
            one,
            tokenizer=replace(one.tokenizer, dim=16, num_heads=2, depth=1, codebook_size=8),
            loss=replace(one.loss, adversarial_start=0),
        )
        objective = make_objective(narrow, data)
        batch = (data.train, torch.arange(2))
        step = Step(0, 0, 0.0, torch.Generator().manual_seed(0))
        videos = video_config(narrow.videos, arm.frames)
        found = tokenizer_loss(videos, 0, objective, batch, step)
        found.loss.backward()
        assert torch.isfinite(found.loss)
        trained = [p for p in objective.parameters() if p.requires_grad]
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained)


def test_the_miniature_of_the_stem_has_its_size():
    settings = GENERATE_RECIPES.load("cifar10-small")
    one = settings.one_tokenizer(settings.arms[0], "plain", 0)
    images = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    with torch.device("meta"):
        config = tokenizer_config(one, GenerationData("cifar10", images, images, images))
        tokenizer = build_tokenizer(config)
    assert 1.5e6 < sum(p.numel() for p in tokenizer.parameters()) < 1.9e6
    assert (config.codebook_size, config.image_size, one.training.steps) == (512, 16, 1200)
    assert settings.loss == LossSettings()
    assert settings.priors.prior == ()


def test_data_choose_a_recipe_of_their_own():
    assert GENERATE_RECIPES.suits("digits") == "digits-small"
    assert GENERATE_RECIPES(Pick(data="folder:mine"))[1].data == "folder:mine"


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'cifar10-18-frame'"):
        GENERATE_RECIPES.load("cifar10-18-frames")
