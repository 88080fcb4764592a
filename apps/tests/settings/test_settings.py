"""What follows from settings; what they refuse is in `test_cli.py`, as a user meets it."""

import math

import pytest

from probseq_apps.experiments.tokens import TokenizerPart
from probseq_apps.settings.classify import ClassifySettings
from probseq_apps.settings.generate import GenerateSettings, TokenizerSettings
from probseq_apps.settings.methods import METHODS, parse_row, trained_methods


@pytest.mark.parametrize("base", METHODS)
def test_a_method_s_name_is_read_back_and_trained_once(base):
    additions = ("ts", "ensemble") if METHODS[base].baseline else ("kflla", "ts", "ensemble")
    row = parse_row("+".join((base, *additions)))
    assert (row.method, row.additions) == (METHODS[base], additions)
    assert trained_methods((f"{base}+ts", "mle", base)) == tuple(dict.fromkeys((base, "mle")))


def test_a_warm_start_of_a_method_that_is_not_compared_may_be_anything():
    settings = ClassifySettings.from_dict({"method": ("mle",), "warm_start": {"sgpa": 30}})
    assert (settings.warm_epochs("mle"), settings.warm_epochs("sgpa")) == (0, 30)


def test_a_warm_up_is_a_share_of_the_steps():
    for steps, share, expected in ((450, 1 / 3, 150), (3, 1 / 3, 1), (100, 0.999, 99), (7, 0, 0)):
        training = {"steps": steps, "warmup": share}
        config = TokenizerSettings.from_dict({"training": training}).train_config()
        assert (config.steps, config.warmup_steps) == (steps, expected)


def test_tokenizers_of_the_arms_have_their_patch_and_corruption_and_controls_equal_bits(stand_in):
    settings = GenerateSettings(seeds=(3,))
    ones = {arm.name: settings.one_tokenizer(arm, "layernorm", 3) for arm in settings.arms}
    repeat = ones["8-frame-repeat"]
    found = (repeat.frames, repeat.videos.corruption, repeat.stem, repeat.seed)
    assert found == (8, "repeat", "layernorm", 3)
    configs = {name: TokenizerPart(one).config(stand_in("cifar10")) for name, one in ones.items()}
    patch = configs["1-frame-patch2"]
    assert (patch.patch_size, patch.spatial_depth, patch.temporal_depth) == (2, 8, 0)
    assert [config.grid.bits for config in configs.values()] == [640, 2560, 2560, 2560]
    assert configs["8-frame"].grid.bits == 4 * 8**2 * math.log2(1024)


@pytest.mark.parametrize(
    ("frames", "arms", "wanted"),
    [
        ((1, 8), ("repeat",), [("8-frame-repeat", "plain")]),
        # Arms that a run lacks may be named beside those that it has.
        ((1,), ("frames", "patch"), [("1-frame", "plain")]),
    ],
)
def test_priors_are_trained_where_they_are_asked_for(frames, arms, wanted):
    values = {"frames": frames, "priors": {"prior_arms": arms}}
    settings = GenerateSettings.from_dict(values)
    pairs = [(arm, stem) for arm in settings.arms for stem in settings.stem]
    assert [(arm.name, stem) for arm, stem in pairs if settings.has_priors(arm, stem)] == wanted
