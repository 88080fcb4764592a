"""Recipes: those of the papers have their numbers, and all fit their data."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image

from probseq_apps.data.image_files import IMAGE_INFO
from probseq_apps.data.images import ImageData, load_images
from probseq_apps.data.parts import Part
from probseq_apps.data.sequences import load_sequences
from probseq_apps.data.texts import TextData
from probseq_apps.data.tokenizers import build_vocabulary
from probseq_apps.engine.trainer import TrainStep
from probseq_apps.experiments.classify import classification_loss, preparation
from probseq_apps.experiments.image_models import DiffusionMaker, HvaeMaker
from probseq_apps.experiments.tokens import PriorMaker, TokenizerMaker
from probseq_apps.methods.build import build
from probseq_apps.settings.classify import RECIPES, REGRESS_RECIPES
from probseq_apps.settings.common import DefaultSelectors
from probseq_apps.settings.generate import GENERATE_RECIPES
from probseq_apps.settings.methods import resolve
from probseq_apps.settings.models import DIFFUSION_RECIPES, HVAE_RECIPES
from probseq_apps.settings.online import ONLINE_RECIPES, ONLINE_VAE_RECIPES
from pseudovideo.diffusion.unet import build_unet
from pseudovideo.tokenizers import TokenizerConfig, build_tokenizer

ALL = {
    "classify": RECIPES,
    "regress": REGRESS_RECIPES,
    "online": ONLINE_RECIPES,
    "online_vae": ONLINE_VAE_RECIPES,
    "tokens": GENERATE_RECIPES,
    "diffusion": DIFFUSION_RECIPES,
    "hvae": HVAE_RECIPES,
}
COLUMNS = [f"{data}-{frames}-frame" for data in ("cifar10", "celeba") for frames in (1, 8, 18)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_recipes_survive_json_and_unknown_ones_are_refused_with_the_nearest(kind):
    for name in ALL[kind].by_name:
        settings = ALL[kind].load(name)
        assert type(settings).from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
        assert ALL[kind](DefaultSelectors(recipe=name)) == (name, settings)
    with pytest.raises(ValueError, match=f"did you mean {name!r}"):
        ALL[kind].load(f"{name}s")


def test_settings_and_recipes_load_no_torch():
    program = (
        "import sys, probseq_apps.registry as r; [load() for entry in r.REGISTRY.values() "
        "for load in getattr(r.load(entry.settings), 'by_name', {}).values()]; "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.split() == ["False", "False"], found.stderr


@pytest.mark.parametrize(
    ("kind", "data", "name"),
    [
        *[("classify", data, "mnist-small") for data in ("mnist", "fashion-mnist")],
        *[("classify", data, "cifar10-small") for data in ("svhn", "cifar100", "folder:x")],
        *[("classify", data, "imdb-small") for data in ("imdb", "csv:x")],
        ("regress", "csv:x", "zinc-small"),
        ("online", "solar", "solar-50"),
        ("online", "csv:x", "own-series"),
        ("online_vae", "csv:x", "moving-digits-small"),
        ("tokens", None, "digits-small"),
        ("tokens", "celeba", "celeba-8-frame"),
        ("tokens", "folder:x", "folder-small"),
        ("diffusion", "folder:x", "folder-diffusion"),
        ("diffusion", "cifar10", "ddpm-fast"),
        ("hvae", "celeba", "folder-hvae"),
        ("hvae", "folder:x", "folder-hvae"),
    ],
)
def test_data_without_a_recipe_have_one_that_suits_them(kind, data, name):
    found, settings = ALL[kind](DefaultSelectors(data=data))
    assert found == name
    assert settings.data == (data or "digits")


def test_other_data_change_what_a_recipe_says_of_its_own():
    settings = RECIPES(DefaultSelectors(recipe="sgpa-cifar10", data="svhn"))[1]
    assert settings.evaluation.ood == ("cifar100",)
    recipe = REGRESS_RECIPES.load("sgpa-zinc")
    own = REGRESS_RECIPES(DefaultSelectors(recipe="sgpa-zinc", data="csv:mine.csv"))[1]
    assert own == replace(recipe, data="csv:mine.csv")
    with pytest.raises(ValueError, match="did you mean 'two-moons'"):
        ONLINE_RECIPES(DefaultSelectors(data="twomoons"))


def test_recipes_of_folders_suit_the_number_and_the_size_of_pictures(tmp_path):
    for size, image_size in ((24, None), (30, 32), (300, 32)):
        Image.new("L", (size, size)).save(tmp_path / "a.png")
        settings = DIFFUSION_RECIPES(DefaultSelectors(data=f"folder:{tmp_path}"))[1]
        assert settings.reading.image_size == image_size
        assert 2 * settings.unet.base_channels == 32
    for number in range(1000):
        (tmp_path / f"{number}.jpg").touch()
    settings = DIFFUSION_RECIPES(DefaultSelectors(data=f"folder:{tmp_path}"))[1]
    assert (settings.unet.base_channels, settings.variants) == (32, ("1-frame",))


def imitation(settings):
    """Two training examples of the shape of a recipe's data."""
    labels = torch.tensor([0, 1])
    if settings.data in ("digits", "digit-sets"):
        return load_images(settings.data)
    if settings.data == "speakers":
        return load_sequences(settings.data, "label")
    if settings.is_text:
        vocab = build_vocabulary(["the cat sat on the mat"] * 5)
        split = Part(torch.randint(1, len(vocab), (2, settings.model.max_length)), labels)
        sizes = (vocab, settings.model.max_length)
        return TextData(settings.data, split, split, split, *sizes, class_names=("no", "yes"))
    info = IMAGE_INFO[settings.data]
    images = torch.randint(256, (2, info.channels, info.size, info.size), dtype=torch.uint8)
    split = Part(images, labels)
    about = {"class_names": info.class_names}
    return ImageData(settings.data, split, split, split, info.mean, info.std, **about)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES.by_name)
def test_every_method_of_every_recipe_takes_a_training_step(name):
    settings = RECIPES.load(name)
    data = imitation(settings)
    batch = (data.train.inputs[:2], data.train.targets[:2])
    for name in settings.trained():
        trained = resolve(name, settings)
        if trained.method.estimator:
            continue
        model = build(trained, data, seed=0)
        told = (preparation(data), lambda x, generator: x, trained.penalty_weight)
        loss = classification_loss(
            *told, model, batch, TrainStep(1, 0, 0.5, torch.Generator())
        ).loss
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.requires_grad]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
        assert torch.isfinite(loss)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_table_5_2_has_the_numbers_of_tables_d1_to_d3(name, stand_in):
    settings = GENERATE_RECIPES.load(name)
    data, frames = name.split("-")[0], int(name.split("-")[1])
    part = TokenizerMaker(settings, settings.variants[0], "layernorm", 0)
    depth = {"spatial_depth": 4, "temporal_depth": 4}
    if frames == 1:
        depth = {"spatial_depth": 8, "temporal_depth": 0, "temporal_patch": 1}
    size = {"cifar10": 32, "celeba": 64}[data]
    expected = TokenizerConfig(num_frames=frames, image_size=size, stem="layernorm", **depth)
    assert part.config(stand_in(data)) == expected
    assert part.videos.blur_rate == (0.01 if frames == 18 else 0.05)
    assert settings.training.train_config(settings.machine, seed=0).warmup_steps == 1000
    for kind, steps in (("autoregressive", 100_000), ("masked", 200_000)):
        training = settings.prior_training(kind).train_config(settings.machine, seed=0)
        assert (training.steps, training.warmup_steps, training.schedule) == (steps, 1000, "cosine")
    # No column is shown without the other stem and the controls.
    assert settings.stem == ("plain", "layernorm")
    assert len(settings.variants) == (1 if frames == 1 else 3)


@pytest.mark.parametrize("name", ["cifar10-18-frame", "celeba-8-frame"])
def test_a_recipe_of_paper_size_builds_its_models(name, stand_in):
    recipe = GENERATE_RECIPES.load(name)
    # Without the file of LPIPS, which nothing downloads.
    recipe = replace(recipe, loss=replace(recipe.loss, perceptual_weight=0.0))
    for variant in recipe.variants:
        part = TokenizerMaker(recipe, variant, "plain", 0)
        part.check(stand_in(recipe.data))
        with torch.device("meta"):
            whole = build_tokenizer(part.config(stand_in(recipe.data)))
        assert sum(p.numel() for p in whole.parameters()) > 30_000_000
        for kind in recipe.priors.prior:
            PriorMaker(recipe, kind, 0, {}).check(whole.grid)


@pytest.mark.slow
def test_recipes_of_diffusion_and_hvaes_fit_their_data(stand_in):
    for name in DIFFUSION_RECIPES.by_name:
        settings = DIFFUSION_RECIPES.load(name)
        for variant in settings.variants:
            images = stand_in(settings.data, settings.reading.image_size)
            DiffusionMaker(settings.model_settings(variant, 0)).check(images)
    for side in (24, 48, 96):
        for settings in (
            DIFFUSION_RECIPES.load("folder-diffusion"),
            HVAE_RECIPES.load("folder-hvae"),
        ):
            maker = DiffusionMaker if settings.variants[0] != "heat" else HvaeMaker
            for variant in settings.variants:
                maker(settings.model_settings(variant, 0)).check(stand_in("folder:images", side))
    for name in HVAE_RECIPES.by_name:
        settings = HVAE_RECIPES.load(name)
        side = settings.reading.image_size or (16 if settings.data == "digits" else 32)
        noise = {"heat": settings.sizes.noise_std, "learned": settings.sizes.learned_noise_std}
        for variant in settings.variants:
            _, config = HvaeMaker(settings.model_settings(variant, 0)).config(side, 1, {})
            assert config.noise_std == noise[variant]


def test_the_image_model_of_table_5_3_has_improved_ddpms_size():
    one = DiffusionMaker(DIFFUSION_RECIPES.load("table-5.3-cifar10").model_settings("1-frame", 0))
    with torch.device("meta"):
        unet = build_unet(one.config(32, 3, {})[1], in_channels=3, out_channels=6)
    assert sum(p.numel() for p in unet.parameters()) == 39_629_062


@pytest.mark.parametrize("name", ["table-5.3-cifar10", "table-5.4-celeba", "table-5.5-cifar10"])
def test_arms_of_the_tables_have_its_steps_over_all_stages(name, stand_in):
    settings = DIFFUSION_RECIPES.load(name)
    for variant in settings.variants:
        variant = DiffusionMaker(settings.model_settings(variant, 0))
        with torch.device("meta"):
            _, model = variant.build(stand_in(settings.data))
        frames, stages = variant.variant.frames, len(getattr(model, "stages", [()]))
        wanted = variant.variant.diffusion_steps or {1: 1000, 4: 3000, 8: 5000}[frames]
        assert stages * model.config.num_steps == wanted
