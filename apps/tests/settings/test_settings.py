"""What follows from settings; what they refuse is in `test_cli.py`, as a user meets it."""

import json
import math
from dataclasses import replace

import pytest

from probseq_apps.engine.config import Machine
from probseq_apps.experiments.tokens import makers_of
from probseq_apps.settings.classify import ClassifySettings, RegressSettings
from probseq_apps.settings.generate import GenerateSettings, PriorChoice, StepTraining
from probseq_apps.settings.methods import METHODS, resolve


@pytest.mark.parametrize("base", METHODS)
def test_a_method_s_name_is_read_back_and_trained_once(base):
    method = METHODS[base]
    plain = method.baseline or method.estimator
    additions = ("ts", "ensemble") if plain else ("kflla", "ts", "ensemble")
    settings = ClassifySettings(method=tuple(dict.fromkeys((f"{base}+ts", "mle", base))))
    row = settings.row("+".join((base, *additions)))
    assert (row.name, row.method, row.additions) == (base, METHODS[base], additions)
    assert settings.trained() == list(dict.fromkeys((base, "mle")))


def test_a_row_has_settings_of_its_own_beside_those_of_all():
    own = {"kl_scale": [1, 0.1], "dropout": 0.2, "weight_decay": 0.3}
    rows = {"sgpa": own, "other": {"method": "sgpa", "dropout": 0.2}}
    settings = ClassifySettings(method=("sgpa+kflla", "mle", "other"), rows=rows)
    again = ClassifySettings.from_dict(json.loads(json.dumps(settings.to_dict())))
    assert (again, hash(again)) == (settings, hash(settings))  # executors keep work by its hash
    scales = []
    for name in ("sgpa,kl_scale=1", "sgpa,kl_scale=0.1"):
        trained = resolve(name, settings)
        of_row = trained.settings
        assert of_row.method == ("sgpa+kflla",)
        assert (of_row.model.dropout, of_row.training.weight_decay) == (0.2, 0.3)
        scales.append(trained.attention.kl_scale)
        assert replace(of_row.sgpa, kl_scale=settings.sgpa.kl_scale) == settings.sgpa
        assert replace(of_row.model, dropout=settings.model.dropout) == settings.model
    assert scales == [1.0, 0.1]
    assert settings.trained() == ["sgpa,kl_scale=1", "sgpa,kl_scale=0.1", "mle", "other"]
    assert resolve("other", settings).settings.model.dropout == 0.2
    assert settings.row("sgpa+ts").short_title.startswith("SGPA, kl scale 1 or 0.1, dropout 0.2")
    assert resolve("mle", settings).settings == replace(settings, method=("mle",), rows={})


def test_numbers_have_no_validation_loss_to_choose_by():
    with pytest.raises(ValueError, match="must have one value of each setting"):
        RegressSettings(method=("mcd",), rows={"mcd": {"dropout": [0.1, 0.2]}})


@pytest.mark.parametrize(
    ("base", "own", "message"),
    [
        ("sgpa", {"kl_scales": 0.1}, "unknown setting of 'sgpa' 'kl_scales'; did you mean 'kl_"),
        ("mle", {"epochs": 3}, "unknown setting of 'mle' 'epochs'"),
        ("kepsvgp-e", {"branches": "er"}, "unknown setting of 'kepsvgp-e' 'branches'"),
        ("mle", {"kernel": "rbf"}, "unknown setting of 'mle' 'kernel'"),
        ("sgpa", {"kl_scale": 2}, "row 'own': kl_scale must be above 0 and at most 1, got 2"),
        ("logreg", {"dropout": 0.1}, "it is no transformer"),
        ("spga", {}, "'sgpa'"),
    ],
)
def test_a_wrong_setting_of_a_row_is_named(base, own, message):
    with pytest.raises(ValueError, match=message):
        ClassifySettings(method=("own",), rows={"own": {"method": base, **own}})


def test_a_warm_start_of_a_method_that_is_not_compared_may_be_anything():
    settings = ClassifySettings.from_dict({"method": ("mle",), "warm_start": {"sgpa": 30}})
    assert (settings.warm_epochs("mle"), settings.warm_epochs("sgpa")) == (0, 30)


def test_a_warm_up_is_a_share_of_the_steps():
    for steps, share, expected in ((450, 1 / 3, 150), (3, 1 / 3, 1), (100, 0.999, 99), (7, 0, 0)):
        config = StepTraining(steps=steps, warmup=share).train_config(Machine(), seed=0)
        assert (config.steps, config.warmup_steps) == (steps, expected)


def test_tokenizers_of_the_arms_have_their_patch_and_corruption_and_controls_equal_bits(stand_in):
    makers = makers_of(GenerateSettings(stem=("layernorm",), priors=PriorChoice(prior=()))).values()
    ones = {maker.variant.name: maker for maker in makers}
    videos = ones["8-frame-repeat"].videos
    assert (videos.num_frames, videos.kind) == (8, "repeat")
    configs = {name: maker.config(stand_in("cifar10")) for name, maker in ones.items()}
    assert {config.stem for config in configs.values()} == {"layernorm"}
    patch = configs["1-frame-patch2"]
    assert (patch.patch_size, patch.spatial_depth, patch.temporal_depth) == (2, 8, 0)
    assert [config.grid.bits for config in configs.values()] == [640, 2560, 2560, 2560]
    assert configs["8-frame"].grid.bits == 4 * 8**2 * math.log2(1024)


@pytest.mark.parametrize(
    ("frames", "variants", "wanted"),
    [
        ((1, 8), ("repeat",), [("8-frame-repeat", "plain")]),
        # Variants that a run lacks may be named beside those that it has.
        ((1,), ("frames", "patch"), [("1-frame", "plain")]),
    ],
)
def test_priors_are_trained_where_they_are_asked_for(frames, variants, wanted):
    values = {"frames": frames, "priors": {"prior_variants": variants}}
    settings = GenerateSettings.from_dict(values)
    pairs = [(variant, stem) for variant in settings.variants for stem in settings.stem]
    assert [
        (variant.name, stem) for variant, stem in pairs if settings.has_priors(variant, stem)
    ] == wanted
