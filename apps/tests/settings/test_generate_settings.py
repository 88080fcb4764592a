"""Settings and recipes of generation: variants, the thesis' numbers, and what is refused."""

import itertools
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from probseq_apps.data.images import GenerationData
from probseq_apps.engine.trainer import Step
from probseq_apps.experiments.image_variants import DiffusionVariant, HvaeVariant
from probseq_apps.experiments.token_models import (
    build_prior,
    check_tokenizer,
    make_objective,
    tokenizer_config,
    tokenizer_loss,
    video_config,
)
from probseq_apps.settings.common import Pick
from probseq_apps.settings.generate import (
    GENERATE_RECIPES,
    TOKENIZER_RECIPES,
    GenerateSettings,
    PriorChoice,
    Sampling,
    TokenizerSettings,
    Training,
    Videos,
)
from probseq_apps.settings.models import (
    DIFFUSION_RECIPES,
    HVAE_RECIPES,
    DiffusionEvaluation,
    DiffusionSampling,
    DiffusionSettings,
    DiffusionTraining,
    Frames,
    HvaeSettings,
    SampleSettings,
    diffusion_arm,
)
from pseudovideo.diffusion.stages import Stage
from pseudovideo.diffusion.unet import build_unet
from pseudovideo.spec import DiffusionSpec, TokenizerSpec
from pseudovideo.tokenizers import build_tokenizer, paper_config

COLUMNS = [f"{data}-{frames}-frame" for data in ("cifar10", "celeba") for frames in (1, 8, 18)]
ALL = {**GENERATE_RECIPES.known, **DIFFUSION_RECIPES.known, **HVAE_RECIPES.known}


def stand_in(name, count=2):
    sizes = {"digits": (1, 16), "mnist": (1, 32), "cifar10": (3, 32), "celeba": (3, 64)}
    channels, side = sizes.get(name, (3, 32))
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, side, side), generator=generator)
    images = images.to(torch.uint8)
    return GenerationData(name, images, images, images)


def names(settings):
    return [arm.name for arm in settings.arms]


@pytest.mark.parametrize("name", ALL)
def test_recipes_survive_json(name):
    settings = ALL[name]()
    assert type(settings).from_dict(settings.to_dict()) == settings


def test_settings_and_recipes_load_no_torch():
    program = (
        "import sys; import probseq_apps.settings.models as r; "
        "[m() for t in (r.GENERATE_RECIPES, r.DIFFUSION_RECIPES, r.HVAE_RECIPES) "
        "for m in t.known.values()]; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.split() == ["False", "False"], found.stderr


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_table_5_2_has_the_numbers_of_tables_d1_to_d3(name):
    settings = GENERATE_RECIPES.load(name)
    data, frames = name.split("-")[0], int(name.split("-")[1])
    one = settings.one_tokenizer(settings.arms[0], "layernorm", 0)
    assert tokenizer_config(one, stand_in(data)) == paper_config(data, frames, stem="layernorm")
    training = one.train_config()
    assert (training.steps, training.batch_size, training.learning_rate) == (100_000, 64, 1e-4)
    assert (training.schedule, training.warmup_steps) == ("cosine", 1000)
    assert video_config(one.videos, frames).blur_rate == (0.01 if frames == 18 else 0.05)
    for kind, steps, sizes in (
        ("autoregressive", 100_000, (8, 144, 4)),
        ("masked", 200_000, (6, 512, 8)),
    ):
        prior = settings.one_prior("", kind, 0)
        training = prior.train_config()
        assert (training.steps, training.batch_size, training.warmup_steps) == (steps, 64, 1000)
        found = prior.sizes(kind)
        assert (found.depth, found.dim, found.num_heads) == sizes
    # No column is shown without the other stem and the controls.
    assert settings.stem == ("plain", "layernorm")
    assert len(settings.arms) == (1 if frames == 1 else 3)


@pytest.mark.parametrize("name", ["cifar10-18-frame", "celeba-8-frame"])
def test_a_recipe_of_paper_size_builds_its_models_and_a_narrow_one_does_a_step(name):
    recipe = GENERATE_RECIPES.load(name)
    data = stand_in(recipe.data)
    # Without the file of LPIPS, which nothing downloads.
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
        tokenizer_loss(videos, 0, objective, batch, step).loss.backward()
        trained = [p for p in objective.parameters() if p.requires_grad]
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained)


@pytest.mark.parametrize("name", DIFFUSION_RECIPES.known)
def test_recipes_of_diffusion_fit_their_data(name):
    settings = DIFFUSION_RECIPES.load(name)
    for arm in settings.arms:
        DiffusionVariant(settings.one_model(arm, 0)).check(stand_in(settings.data))


@pytest.mark.parametrize("name", HVAE_RECIPES.known)
def test_recipes_of_hvaes_fit_their_data(name):
    settings = HVAE_RECIPES.load(name)
    side = settings.reading.image_size or (16 if settings.data == "digits" else 32)
    for arm in settings.arms:
        _, config = HvaeVariant(settings.one_model(arm, 0)).config(side, 1)
        noise = settings.sizes.learned_noise_std if arm == "learned" else settings.sizes.noise_std
        assert config.noise_std == noise


def test_the_image_model_of_table_5_3_has_improved_ddpms_size():
    one = DiffusionVariant(DIFFUSION_RECIPES.load("table-5.3-cifar10").one_model("1-frame", 0))
    with torch.device("meta"):
        unet = build_unet(one.config(32, 3)[1], in_channels=3, out_channels=6)
    assert sum(p.numel() for p in unet.parameters()) == 39_629_062


@pytest.mark.parametrize("name", ["table-5.3-cifar10", "table-5.4-celeba", "table-5.5-cifar10"])
def test_arms_of_the_tables_have_its_stages_and_do_a_step_with_narrow_networks(name):
    settings = DIFFUSION_RECIPES.load(name)
    unet = replace(settings.unet, base_channels=8, num_res_blocks=1, num_groups=4)
    data = stand_in(settings.data)
    for arm in settings.arms:
        variant = DiffusionVariant(replace(settings.one_model(arm, 0), unet=unet))
        objective, model = variant.build(data)
        plan = getattr(model, "stages", [Stage((), (0,))])
        frames = variant.arm.frames
        if frames > 1:
            overall = len(plan) * model.config.num_steps
            assert overall == {4: 3000, 8: 5000}[frames]
        step = Step(0, 0, 0.0, torch.Generator().manual_seed(0))
        found = variant.loss(objective, variant.batch(data), step)
        found.loss.backward()
        # The error of an output of zeros: each noise's own mean square, which is about 1, times the
        # share of the stage that either video drew.
        shares = [len(stage.latent) * len(plan) / (plan[-1].latent[0] + 1) for stage in plan]
        errors = [(a + b) / 2 for a, b in itertools.product(shares, repeat=2)]
        assert float(found.parts["mse"]) in [pytest.approx(error, rel=0.1) for error in errors]


def test_data_choose_a_recipe_of_their_own():
    assert GENERATE_RECIPES(Pick(data="digits"))[0] == "digits-small"
    assert GENERATE_RECIPES(Pick(data="folder:mine"))[1].data == "folder:mine"
    assert DIFFUSION_RECIPES(Pick(data="folder:mine"))[0] == "folder-diffusion"
    assert HVAE_RECIPES(Pick(data="celeba"))[0] == "mnist-hvae"
    assert TOKENIZER_RECIPES(Pick())[1].frames == 8
    with pytest.raises(ValueError, match="did you mean 'cifar10-18-frame'"):
        GENERATE_RECIPES.load("cifar10-18-frames")


def test_a_warm_up_is_a_share_of_the_steps():
    for steps, share, expected in ((450, 1 / 3, 150), (3, 1 / 3, 1), (100, 0.999, 99), (7, 0, 0)):
        training = Training(steps=steps, warmup=share)
        assert training.train_config(GenerateSettings().machine, seed=0).warmup_steps == expected
    small = GENERATE_RECIPES.load("digits-small").training
    shorter = replace(small, steps=9).train_config(GenerateSettings().machine, seed=0)
    assert shorter.warmup_steps == 3


def test_every_video_has_a_control_of_identical_frames_and_all_share_one_of_half_patches():
    settings = GenerateSettings(frames=(1, 8, 18))
    assert names(settings) == [
        "1-frame",
        "8-frame",
        "8-frame-repeat",
        "18-frame",
        "18-frame-repeat",
        "1-frame-patch2",
    ]
    by_name = {arm.name: arm for arm in settings.arms}
    assert by_name["8-frame-repeat"].corruption == "repeat"
    assert by_name["8-frame"].corruption == "blur"
    assert (by_name["1-frame-patch2"].frames, by_name["1-frame-patch2"].patch_size) == (1, 2)
    assert names(GenerateSettings(frames=(1,))) == ["1-frame"]
    assert names(GenerateSettings(controls=False)) == ["1-frame", "8-frame"]
    repeat = GenerateSettings(frames=(8,), videos=Videos(corruption="repeat"))
    assert names(repeat) == ["8-frame", "1-frame-patch2"]


def test_the_controls_of_eight_frames_have_its_bits():
    settings = GenerateSettings()
    bits = [
        tokenizer_config(settings.one_tokenizer(arm, "plain", 0), stand_in("cifar10")).grid.bits
        for arm in settings.arms
    ]
    assert bits == [640, 2560, 2560, 2560]
    assert bits[1] == 4 * 8**2 * math.log2(1024)


def test_a_tokenizer_of_an_arm_has_its_patch_corruption_stem_and_seed():
    settings = GenerateSettings(seeds=(3,))
    arms = {arm.name: arm for arm in settings.arms}
    repeat = settings.one_tokenizer(arms["8-frame-repeat"], "layernorm", 3)
    found = (repeat.frames, repeat.videos.corruption, repeat.stem, repeat.seed)
    assert found == (8, "repeat", "layernorm", 3)
    patch = settings.one_tokenizer(arms["1-frame-patch2"], "plain", 3)
    assert (patch.frames, patch.tokenizer.patch_size) == (1, 2)
    config = tokenizer_config(patch, stand_in("cifar10"))
    assert (config.spatial_depth, config.temporal_depth, config.temporal_patch) == (8, 0, 1)


def test_priors_are_trained_where_they_are_asked_for():
    settings = GenerateSettings(priors=PriorChoice(prior_arms=("repeat",), prior_stem=("plain",)))
    wanted = [
        (arm.name, stem)
        for arm in settings.arms
        for stem in settings.stem
        if settings.has_priors(arm, stem)
    ]
    assert wanted == [("8-frame-repeat", "plain")]
    # Arms that a run lacks may be named beside those that it has.
    settings = GenerateSettings(frames=(1,), priors=PriorChoice(prior_arms=("frames", "patch")))
    assert [settings.has_priors(arm, "plain") for arm in settings.arms] == [True]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: GenerateSettings(frames=()), "frames must name at least one"),
        (lambda: GenerateSettings(frames=(8, 8)), "frames must not repeat"),
        (lambda: GenerateSettings(frames=(1, 3)), "frames must be 1 or even, got 3"),
        (lambda: TokenizerSettings(frames=7), "frames must be 1 or even, got 7"),
        (lambda: GenerateSettings(data="digit"), "did you mean 'digits'"),
        (
            lambda: GenerateSettings(tokenizer=TokenizerSpec(patch_size=3)),
            "patch_size must be even for the control",
        ),
        (
            lambda: GenerateSettings(tokenizer=TokenizerSpec(codebook_size=2**15 + 1)),
            "codebook_size must be at most 32768",
        ),
        (
            lambda: GenerateSettings(stem=("layernorm",)),
            "prior_stem must be among stem=layernorm, got plain",
        ),
        (
            lambda: GenerateSettings(frames=(1,), priors=PriorChoice(prior_arms=("repeat",))),
            r"prior_arms must name an arm of this run \(frames\), got repeat",
        ),
        (lambda: SampleSettings(model="m", prior="p"), "model is in place of tokenizer and prior"),
        (
            lambda: SampleSettings(model="m", sampling=Sampling(temperature=0.5)),
            "temperature is for tokenizer and prior",
        ),
        (
            lambda: SampleSettings(prior="p", diffusion=DiffusionSampling(sampler="ddim")),
            "sampler is for model",
        ),
        (lambda: DiffusionSampling(eta=0.5), "eta is for sampler=ddim"),
        (lambda: DiffusionSettings(arms=()), "arms must name at least one"),
        (lambda: DiffusionSettings(seeds=(1, 1)), "seeds must not repeat"),
        (lambda: DiffusionSettings(frames=Frames(context=4)), "context must be less than the 4"),
        (
            lambda: DiffusionSettings(sampling=DiffusionSampling(sampling_steps=1001)),
            "at most the 1000 diffusion steps",
        ),
        (
            lambda: DiffusionSettings(
                arms=("4-frame-blur",), evaluation=DiffusionEvaluation(likelihood_images=3)
            ),
            "likelihood_images is for 1-frame arms",
        ),
        (lambda: DiffusionSettings(init_weights="w.pt"), "4-frame-first-order is one of videos"),
        (
            lambda: DiffusionSettings(training=DiffusionTraining(steps=0)),
            "steps must be at least 1 without init_weights",
        ),
        (lambda: HvaeSettings(arms=("heat", "heat")), "arms must not repeat"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    ("name", "frames", "corruption", "steps"),
    [
        ("1-frame", 1, None, None),
        ("1-frame-4000", 1, None, 4000),
        ("4-frame-first-order", 4, "first-order-noise", None),
        ("2-frame-matched", 2, "matched-noise", None),
        ("12-frame-blur", 12, "high-order-blur", None),
    ],
)
def test_an_arms_name_tells_frames_corruption_and_steps(name, frames, corruption, steps):
    assert diffusion_arm(name) == (name, frames, corruption, steps)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("4-frame-highorder", "did you mean '4-frame-high-order'"),
        ("6-frame-fist-order", "did you mean '6-frame-first-order'"),
        ("4-frame", "unknown arm '4-frame'"),
        ("3-frame-blur", "1 frame or an even number"),
        ("1-frame-1", "at least 2 diffusion steps"),
    ],
)
def test_other_names_are_refused_with_the_nearest(name, said):
    with pytest.raises(ValueError, match=said):
        DiffusionSettings(arms=(name,))


def test_a_model_has_its_arms_own_context_and_steps():
    settings = DiffusionSettings(
        arms=("1-frame-4000", "4-frame-blur", "8-frame-blur"), process=DiffusionSpec(num_steps=500)
    )
    found = [DiffusionVariant(settings.one_model(arm, 0)).config(32, 3)[1] for arm in settings.arms]
    assert [config.num_steps for config in found] == [4000, 500, 500]
    assert [config.context for config in found[1:]] == [2, 4]
    named = replace(settings, frames=Frames(context=3))
    assert [named.context_of(diffusion_arm(arm)) for arm in settings.arms] == [0, 3, 3]
