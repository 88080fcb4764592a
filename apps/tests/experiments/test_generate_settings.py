"""Settings of `probseq generate`: names, arms, what is refused, and what files keep."""

import json
import math
from dataclasses import replace
from typing import get_args

import pytest

from probseq_apps.data.names import DataError
from probseq_apps.engine.config import TrainConfig
from probseq_apps.experiments.generate_arms import all_arms, run_name
from probseq_apps.experiments.generate_groups import (
    CorruptionName,
    LossSettings,
    MachineSettings,
    ReadingSettings,
    StemName,
    TokenizerSettings,
    TokenizerTraining,
)
from probseq_apps.experiments.generate_prior_groups import (
    AutoregressiveSettings,
    MaskedSettings,
    PriorChoice,
    PriorTraining,
    SamplingSettings,
)
from probseq_apps.experiments.generate_settings import (
    GENERATE,
    EvaluateSettings,
    GenerateSettings,
    OnePriorSettings,
    OneTokenizerSettings,
    saved_generate,
)
from probseq_apps.experiments.saved import config_values
from pseudovideo.corruptions import CORRUPTIONS
from pseudovideo.tokenizers import STEMS


def test_names_are_those_of_the_package():
    assert get_args(CorruptionName) == CORRUPTIONS
    assert get_args(StemName) == STEMS


def test_every_video_has_a_control_of_identical_frames_and_all_share_one_of_half_patches():
    arms = all_arms((1, 8, 18), 4, "blur", controls=True)
    assert [arm.name for arm in arms] == [
        "1-frame",
        "8-frame",
        "8-frame-repeat",
        "18-frame",
        "18-frame-repeat",
        "1-frame-patch2",
    ]
    by_name = {arm.name: arm for arm in arms}
    assert by_name["8-frame-repeat"].corruption == "repeat"
    assert by_name["8-frame"].corruption == "blur"
    assert (by_name["1-frame-patch2"].frames, by_name["1-frame-patch2"].patch_size) == (1, 2)


def test_the_controls_of_eight_frames_have_its_bits():
    def bits(arm):
        slots = 1 if arm.frames == 1 else arm.frames // 2
        return slots * (32 // arm.patch_size) ** 2 * math.log2(1024)

    _, video, repeat, patch = all_arms((1, 8), 4, "blur", controls=True)
    assert bits(video) == bits(repeat) == bits(patch) == 2560


def test_images_alone_need_no_controls_and_may_do_without():
    assert [arm.name for arm in all_arms((1,), 4, "blur", controls=True)] == ["1-frame"]
    assert [arm.name for arm in all_arms((1, 8), 4, "blur", controls=False)] == [
        "1-frame",
        "8-frame",
    ]


def test_identical_frames_are_their_own_control():
    names = [arm.name for arm in all_arms((8,), 4, "repeat", controls=True)]
    assert names == ["8-frame", "1-frame-patch2"]


def test_a_tokenizer_of_an_arm_has_its_patch_corruption_stem_and_seed():
    settings = GenerateSettings(seeds=(3,))
    arms = {arm.name: arm for arm in settings.arms}
    repeat = settings.one_tokenizer(arms["8-frame-repeat"], "layernorm", 3)
    assert (repeat.frames, repeat.videos.corruption, repeat.stem, repeat.seed) == (
        8,
        "repeat",
        "layernorm",
        3,
    )
    patch = settings.one_tokenizer(arms["1-frame-patch2"], "plain", 3)
    assert (patch.frames, patch.tokenizer.patch_size) == (1, 2)
    assert patch.training == settings.training
    assert run_name("8-frame", "plain", 3) == "8-frame-plain-seed3"


def test_priors_are_trained_where_they_are_asked_for():
    settings = GenerateSettings(priors=PriorChoice(prior_arms=("repeat",), prior_stem=("plain",)))
    wanted = [
        (arm.name, stem)
        for arm in settings.arms
        for stem in settings.stem
        if settings.has_priors(arm, stem)
    ]
    assert wanted == [("8-frame-repeat", "plain")]


def test_arms_that_a_run_lacks_may_be_named_beside_those_that_it_has():
    settings = GenerateSettings(frames=(1,), priors=PriorChoice(prior_arms=("frames", "patch")))
    assert [settings.has_priors(arm, "plain") for arm in settings.arms] == [True]
    without = PriorChoice(prior=(), prior_stem=("layernorm",), prior_arms=("repeat",))
    assert GenerateSettings(frames=(1,), stem=("plain",), priors=without).priors == without


def test_settings_survive_their_file(tmp_path):
    settings = GenerateSettings(
        data="folder:my images",
        frames=(1, 18),
        loss=LossSettings(perceptual_weight=0.1, lpips_weights="vgg.pth"),
        sampling=SamplingSettings(top_k=5),
    )
    config = config_values(GENERATE, "digits-small", settings.to_dict())
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert saved_generate(tmp_path) == ("digits-small", settings)
    assert saved_generate(tmp_path / "elsewhere") is None
    for one in (
        settings.one_tokenizer(settings.arms[0], "plain", 0),
        settings.one_prior("runs/here", "masked", 0),
    ):
        assert type(one).from_dict(json.loads(json.dumps(one.to_dict()))) == one


@pytest.mark.parametrize("frames", [(7,), (1, 3), (0,), (-2,)])
def test_odd_and_empty_videos_are_refused(frames):
    with pytest.raises(ValueError, match=f"frames must be 1 or even, got {frames[-1]}"):
        GenerateSettings(frames=frames)
    with pytest.raises(ValueError, match="frames must be 1 or even"):
        OneTokenizerSettings(frames=frames[-1])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: GenerateSettings(frames=()), "frames"),
        (lambda: GenerateSettings(frames=(8, 8)), "frames"),
        (lambda: GenerateSettings(seeds=(0, 0)), "seeds"),
        (lambda: GenerateSettings(stem=()), "stem"),
        (lambda: GenerateSettings(tokenizer=TokenizerSettings(patch_size=3)), "half patches"),
        (lambda: TokenizerSettings(dim=30, num_heads=4), "num_heads"),
        (lambda: TokenizerSettings(codebook_size=40_000), "codebook_size"),
        (lambda: TokenizerSettings(codebook_size=1), "codebook_size"),
        (lambda: LossSettings(perceptual_weight=-1.0), "perceptual_weight"),
        (lambda: MaskedSettings(masked_dim=30, masked_num_heads=4), "masked_num_heads"),
        (lambda: SamplingSettings(top_p=0.0), "top_p"),
        (lambda: SamplingSettings(num_steps=0), "num_steps"),
        (lambda: EvaluateSettings(), "samples or tokenizer"),
        (lambda: PriorChoice(prior=("masked", "masked")), "prior"),
        (
            lambda: GenerateSettings(
                stem=("plain",), priors=PriorChoice(prior_stem=("layernorm",))
            ),
            "prior_stem must be among stem=plain, got layernorm",
        ),
        (lambda: GenerateSettings(priors=PriorChoice(prior_stem=())), "prior_stem .* got none"),
        (
            lambda: GenerateSettings(
                frames=(1,), priors=PriorChoice(prior_arms=("patch", "repeat"))
            ),
            r"prior_arms must name an arm of this run \(frames\), got patch, repeat",
        ),
        (
            lambda: TokenizerTraining(learning_rate=1e-3, final_learning_rate=2e-3),
            "^final_learning",
        ),
    ],
)
def test_impossible_settings_are_refused_and_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_a_warm_up_longer_than_the_training_of_a_prior_is_refused_at_once():
    with pytest.raises(ValueError, match="prior_warmup_steps must be less than the 200000 steps"):
        OnePriorSettings(prior="masked", training=PriorTraining(prior_warmup_steps=200_000))
    settings = GenerateSettings()
    with pytest.raises(ValueError, match="prior_warmup_steps"):
        replace(settings, prior_training=PriorTraining(prior_warmup_steps=150_000))


def test_an_unknown_data_set_is_refused_with_the_nearest():
    with pytest.raises(DataError, match="did you mean 'celeba'"):
        GenerateSettings(data="celebA-hq")


def test_one_tokenizer_and_one_prior_have_every_setting_of_the_comparison():
    groups = {
        "reading": ReadingSettings(image_size=24),
        "loss": LossSettings(adversarial_weight=0.2),
        "training": TokenizerTraining(steps=5000),
        "machine": MachineSettings(device="cpu", precision="bf16"),
    }
    priors = {
        "autoregressive": AutoregressiveSettings(ar_dim=8),
        "masked": MaskedSettings(masked_dim=16),
    }
    training = PriorTraining(prior_batch_size=3)
    settings = GenerateSettings(data="mnist", prior_training=training, **groups, **priors)
    arm = settings.arms[1]
    expected = OneTokenizerSettings(data="mnist", frames=8, stem="layernorm", seed=5, **groups)
    assert settings.one_tokenizer(arm, "layernorm", 5) == expected
    assert settings.one_prior("here", "masked", 5) == OnePriorSettings(
        tokenizer="here",
        prior="masked",
        seed=5,
        training=training,
        machine=groups["machine"],
        **priors,
    )


def test_every_setting_of_the_training_reaches_the_loop():
    machine = MachineSettings(device="cpu", precision="bf16", tensorboard=True)
    common = {
        "schedule": "cosine",
        "select": "last",
        "checkpoint_every": 10,
        "seed": 5,
        "device": "cpu",
        "precision": "bf16",
        "tensorboard": True,
    }
    tokenizer = TokenizerTraining(
        steps=70,
        batch_size=3,
        learning_rate=0.2,
        final_learning_rate=0.1,
        warmup_steps=6,
        weight_decay=0.3,
        grad_clip=0.4,
    )
    assert tokenizer.train_config(machine, seed=5) == TrainConfig(
        steps=70,
        batch_size=3,
        learning_rate=0.2,
        final_learning_rate=0.1,
        warmup_steps=6,
        weight_decay=0.3,
        grad_clip=0.4,
        **common,
    )
    prior = PriorTraining(
        prior_batch_size=3,
        prior_learning_rate=0.2,
        prior_warmup_steps=6,
        prior_weight_decay=0.3,
        prior_ema_decay=0.9,
    )
    assert prior.train_config(machine, 70, seed=5) == TrainConfig(
        steps=70,
        batch_size=3,
        learning_rate=0.2,
        final_learning_rate=0.0,
        warmup_steps=6,
        weight_decay=0.3,
        grad_clip=1.0,
        ema_decay=0.9,
        **common,
    )
