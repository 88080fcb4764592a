"""Variants of the tables: their names, and what they mean."""

from dataclasses import replace

import pytest

from pseudovideo.spec import ClassSpec, CorruptionSpec, DiffusionSpec, UNetSpec, VideoSpec
from pseudovideo.variants import DiffusionVariant, token_variants


@pytest.mark.parametrize(
    ("lengths", "corruption", "controls", "names"),
    [
        (
            (1, 8, 18),
            "blur",
            True,
            "1-frame 8-frame 8-frame-repeat 18-frame 18-frame-repeat 1-frame-patch2",
        ),
        ((1,), "blur", True, "1-frame"),
        ((1, 8), "blur", False, "1-frame 8-frame"),
        ((8,), "repeat", True, "8-frame 1-frame-patch2"),
    ],
)
def test_every_video_has_a_control_of_identical_frames_and_all_share_one_of_half_patches(
    lengths, corruption, controls, names
):
    variants = token_variants(lengths, 4, corruption, controls=controls)
    assert [variant.name for variant in variants] == names.split()
    for variant in variants:
        wanted = "repeat" if variant.kind == "repeat" else corruption
        assert (variant.corruption, variant.patch_size) == (
            wanted,
            2 if variant.kind == "patch" else 4,
        )


@pytest.mark.parametrize(
    ("name", "frames", "corruption", "steps"),
    [
        ("1-frame", 1, None, None),
        ("1-frame-4000", 1, None, 4000),
        ("4-frame-first-order", 4, "first-order-noise", None),
        ("2-frame-matched", 2, "matched-noise", None),
        ("12-frame-blur", 12, "high-order-blur", None),
        ("4-frame-first-order-blur", 4, "blur", None),
    ],
)
def test_an_arms_name_tells_frames_corruption_and_steps(name, frames, corruption, steps):
    assert DiffusionVariant.parse(name) == (name, frames, corruption, steps)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "4-frame-highorder",
            "unknown variant '4-frame-highorder'; did you mean '4-frame-high-order'",
        ),
        ("6-frame-fist-order", "did you mean '6-frame-first-order'"),
        ("3-frame-blur", "an even number, half as context, got '3-frame-blur'"),
        ("1-frame-1", "at least 2 diffusion steps, got '1-frame-1'"),
    ],
)
def test_other_names_are_refused_with_the_nearest(name, said):
    with pytest.raises(ValueError, match=said):
        DiffusionVariant.parse(name)


def test_a_model_has_its_arms_own_context_and_steps_and_the_videos_their_levels():
    variants = [
        DiffusionVariant.parse(name) for name in ("1-frame-4000", "4-frame-blur", "8-frame-blur")
    ]
    given = {"unet": UNetSpec(), "process": DiffusionSpec(num_steps=500)}
    found = [variant.config(32, 3, **given, frames=VideoSpec(one_way=True)) for variant in variants]
    assert [config.num_steps for config in found] == [4000, 500, 500]
    sizes = [(config.num_frames, config.context, config.one_way) for config in found[1:]]
    assert sizes == [(4, 2, True), (8, 4, True)]
    assert [variant.context(VideoSpec(context=3)) for variant in variants] == [0, 3, 3]
    classes = ClassSpec(num_classes=2, label_dropout=0.1, class_names=("a", "b"))
    for variant, plain in zip(variants, found, strict=True):
        known = variant.config(32, 3, **given, frames=VideoSpec(one_way=True), classes=classes)
        assert known == replace(plain, **classes.to_dict())
    videos = variants[1].videos(CorruptionSpec(blur_rate=0.2, beta_max=0.3))
    assert (videos.num_frames, videos.kind) == (4, "high-order-blur")
    assert (videos.blur_rate, videos.beta_max) == (0.2, 0.3)
