"""Settings of `probseq generate diffusion`: arms by name, and what is refused."""

from dataclasses import replace

import pytest

from probseq_apps.experiments.diffusion_arms import diffusion_arm
from probseq_apps.experiments.diffusion_groups import (
    DiffusionEvaluationSettings,
    DiffusionSampling,
    DiffusionTraining,
    FrameSettings,
    ProcessSettings,
)
from probseq_apps.experiments.diffusion_settings import DiffusionSettings, OneDiffusionSettings
from pseudovideo.diffusion.schedules import linear_betas


@pytest.mark.parametrize(
    ("name", "frames", "corruption", "steps"),
    [
        ("1-frame", 1, None, None),
        ("1-frame-4000", 1, None, 4000),
        ("4-frame-first-order", 4, "first-order-noise", None),
        ("8-frame-high-order", 8, "high-order-noise", None),
        ("2-frame-matched", 2, "matched-noise", None),
        ("12-frame-blur", 12, "high-order-blur", None),
    ],
)
def test_an_arms_name_tells_frames_corruption_and_steps(name, frames, corruption, steps):
    arm = diffusion_arm(name)
    assert arm == (name, frames, corruption, steps)
    assert arm.is_video == (frames > 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("4-frame-highorder", "did you mean '4-frame-high-order'"),
        ("6-frame-fist-order", "did you mean '6-frame-first-order'"),
        ("1-frames", "did you mean '1-frame'"),
        ("4-frame", "unknown arm '4-frame'"),
        ("1-frame-high-order", "unknown arm"),
        ("0-frame-blur", "unknown arm"),
        ("3-frame-blur", "1 frame or an even number"),
        ("1-frame-1", "at least 2 diffusion steps"),
    ],
)
def test_other_names_are_refused_with_the_nearest(name, said):
    with pytest.raises(ValueError, match=said):
        DiffusionSettings(arms=(name,))


def test_the_context_is_half_of_the_frames_unless_it_is_named():
    settings = DiffusionSettings(arms=("1-frame", "4-frame-blur", "8-frame-blur"))
    assert [settings.one_model(arm, 0).context for arm in settings.arms] == [0, 2, 4]
    named = replace(settings, frames=FrameSettings(context=3))
    assert [named.one_model(arm, 0).context for arm in settings.arms] == [0, 3, 3]


def test_an_arms_own_number_of_steps_goes_before_that_of_all():
    settings = DiffusionSettings(
        arms=("1-frame", "1-frame-4000"), process=ProcessSettings(diffusion_steps=500)
    )
    assert settings.one_model("1-frame", 0).diffusion_steps == 500
    assert settings.one_model("1-frame-4000", 0).diffusion_steps == 4000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arms": ()}, "arms must name at least one"),
        ({"arms": ("1-frame", "1-frame")}, "arms must not repeat"),
        ({"seeds": (1, 1)}, "seeds must not repeat"),
        ({"seeds": (-1,)}, "seeds must be at least 0"),
        ({"frames": FrameSettings(context=4)}, "context must be less than the 4 frames of 4-frame"),
        ({"sampling": DiffusionSampling(sampling_steps=1001)}, "at most the 1000 diffusion steps"),
        (
            {
                "arms": ("4-frame-blur",),
                "evaluation": DiffusionEvaluationSettings(likelihood_images=3),
            },
            "likelihood_images is for 1-frame arms",
        ),
        ({"init_weights": "weights.pt"}, "4-frame-first-order is one of videos"),
        ({"training": DiffusionTraining(steps=0)}, "steps must be at least 1 without init_weights"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        DiffusionSettings(**changes)


@pytest.mark.parametrize(
    ("group", "values", "said"),
    [
        (DiffusionSampling, {"sampling_steps": 1}, "sampling_steps must be at least 2"),
        (DiffusionSampling, {"eta": 0.5}, "eta is for sampler=ddim"),
        (DiffusionSampling, {"eta": 1.5, "sampler": "ddim"}, "eta must be in"),
        (DiffusionEvaluationSettings, {"frame_error_samples": 1}, "frame_error_samples must be"),
        (DiffusionTraining, {"ema_decay": 1.0}, "ema_decay must be below 1"),
        (DiffusionTraining, {"steps": 5, "warmup_steps": 5}, "warmup_steps must be less than"),
        (FrameSettings, {"beta_max": 1.0}, "beta_min and beta_max"),
        (FrameSettings, {"blur_rate": float("nan")}, "blur_rate must be a finite number, got nan"),
        (ProcessSettings, {"diffusion_steps": 20}, "diffusion_steps must be at least 21 with"),
    ],
)
def test_numbers_out_of_range_are_refused(group, values, said):
    with pytest.raises(ValueError, match=said):
        group(**values)


def test_the_linear_schedule_takes_as_few_steps_as_its_betas_allow():
    assert float(linear_betas(ProcessSettings(diffusion_steps=21).diffusion_steps).max()) < 1
    with pytest.raises(ValueError, match="at least 21"):
        linear_betas(20)
    assert ProcessSettings(diffusion_steps=20, schedule="cosine").diffusion_steps == 20


def test_ancestral_sampling_has_no_eta_and_ddim_has_one():
    assert DiffusionSampling().noise is None
    assert DiffusionSampling(sampler="ddim").noise == 0.0
    assert DiffusionSampling(sampler="ddim", eta=0.3).noise == 0.3


def test_one_models_settings_survive_json_and_carry_the_runs():
    settings = DiffusionSettings(process=ProcessSettings(schedule="cosine"), seeds=(3,))
    one = settings.one_model("4-frame-high-order", 3)
    assert one.process.schedule == "cosine"
    assert OneDiffusionSettings.from_dict(one.to_dict()) == one
    with pytest.raises(ValueError, match="unknown settings"):
        DiffusionSettings.from_dict({"arm": "1-frame"})
