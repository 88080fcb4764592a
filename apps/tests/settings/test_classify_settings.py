import json

import pytest

from probseq_apps.options import Options
from probseq_apps.settings.classify import (
    RECIPES,
    ClassifySettings,
    DataSettings,
    EvaluationSettings,
    ImageAndTextSettings,
    ImageTrainingSettings,
    WarmStart,
)


@pytest.mark.parametrize("name", RECIPES.known)
def test_settings_survive_the_way_through_json(name):
    settings = RECIPES.load(name)
    assert ClassifySettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_unknown_settings_are_refused_at_every_depth():
    values = ClassifySettings().to_dict()
    with pytest.raises(ValueError, match="unknown setting 'colour'"):
        ClassifySettings.from_dict({**values, "colour": "blue"})
    values["sgpa"] = {**values["sgpa"], "width": 3}
    with pytest.raises(ValueError, match="unknown setting 'width'"):
        ClassifySettings.from_dict(values)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ImageAndTextSettings(dim=30), "num_heads must divide dim=30"),
        (lambda: ImageTrainingSettings(warmup_epochs=30), "warmup_epochs must be less"),
        (lambda: EvaluationSettings(ood=("svhn", "svhn")), "ood must not repeat"),
        (lambda: EvaluationSettings(ood=("cola",)), "ood must name image sets"),
        (lambda: EvaluationSettings(shift=True, severities=()), "severities must name at least"),
        (lambda: EvaluationSettings(severities=(6,)), "severities"),
        (lambda: EvaluationSettings(corruptions=("gausian_noise",)), "gaussian_noise"),
        (lambda: DataSettings(tokenizer="bpe:7"), "bpe:SIZE"),
        (lambda: ClassifySettings(data="folder:"), "folder:"),
        (lambda: ClassifySettings(method=()), "method must name at least one"),
        (lambda: ClassifySettings(seeds=(-1,)), "seeds"),
        (lambda: ClassifySettings(method=("sgpa+ensemble",), seeds=(3,)), "two seeds"),
        (
            lambda: ClassifySettings(data="cola", evaluation=EvaluationSettings(shift=True)),
            "shift is for images",
        ),
        (
            lambda: ClassifySettings(warm_start=WarmStart(sgpa=30)),
            "warm_start.sgpa must leave more than warmup_epochs=0 of epochs=30, got 30",
        ),
        (lambda: Options(threads=0), "threads"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(build, named):
    with pytest.raises(ValueError, match=named):
        build()


def test_a_warm_start_of_a_method_that_is_not_compared_may_be_anything():
    settings = ClassifySettings(method=("mle",), warm_start=WarmStart(sgpa=30))
    assert settings.warm_epochs("mle") == 0
    assert settings.warm_epochs("sgpa") == 30
