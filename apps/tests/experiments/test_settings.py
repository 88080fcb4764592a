import json

import pytest

from probseq_apps.experiments.method_settings import CgptSettings, KepsvgpSettings, SgpaSettings
from probseq_apps.experiments.regress_settings import RegressSettings
from probseq_apps.experiments.saved import saved_settings
from probseq_apps.experiments.settings import (
    ClassifySettings,
    DataSettings,
    EvaluationSettings,
    ModelSettings,
    TrainingSettings,
)
from probseq_apps.options import Options
from probseq_apps.recipes import RECIPES


@pytest.mark.parametrize("name", RECIPES.known)
def test_settings_survive_the_way_through_json(name):
    settings = RECIPES.load(name)
    assert ClassifySettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_unknown_settings_are_refused_at_every_depth():
    values = ClassifySettings().to_dict()
    with pytest.raises(ValueError, match="unknown settings colour"):
        ClassifySettings.from_dict({**values, "colour": "blue"})
    values["model"] = {**values["model"], "width": 3}
    with pytest.raises(ValueError, match="unknown settings width"):
        ClassifySettings.from_dict(values)


def test_a_damaged_configuration_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        saved_settings(tmp_path, "classify", ClassifySettings.from_dict)


@pytest.mark.parametrize(
    "contents",
    [{}, {"recipe": "x", "settings": 3}, {"recipe": "x", "settings": {"model": {"dim": "a"}}}],
)
@pytest.mark.parametrize(
    ("kind", "cls"), [("classify", ClassifySettings), ("regress", RegressSettings)]
)
def test_wrong_contents_are_refused_with_the_file_s_name(contents, kind, cls, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"experiment": kind, **contents}))
    with pytest.raises(ValueError, match=r"config\.json is damaged or from another version"):
        saved_settings(tmp_path, kind, cls.from_dict)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ModelSettings(dropout=1.0), "dropout"),
        (lambda: ModelSettings(initial_variance=0.0), "initial_variance"),
        (lambda: SgpaSettings(kl_anneal=1.5), "kl_anneal"),
        (lambda: SgpaSettings(kl_scale=0.0), "kl_scale"),
        (lambda: TrainingSettings(epochs=0), "epochs"),
        (lambda: EvaluationSettings(num_samples=0), "num_samples"),
        (lambda: EvaluationSettings(ood=("svhn", "svhn")), "ood"),
        (lambda: EvaluationSettings(shift=True, severities=()), "severities"),
        (lambda: ClassifySettings(data="folder:"), "folder:"),
        (lambda: DataSettings(tokenizer="bpe:7"), "bpe:SIZE"),
        (lambda: CgptSettings(cgpt_noise=0.0), "cgpt_noise"),
        (lambda: CgptSettings(scgpt_inducing=0), "scgpt_inducing"),
        (lambda: CgptSettings(alpha=-1.0), "alpha"),
        (lambda: KepsvgpSettings(rank=0), "rank"),
        (lambda: KepsvgpSettings(ksvd_weight=float("inf")), "ksvd_weight"),
        (lambda: ClassifySettings(method=()), "method"),
        (lambda: ClassifySettings(seeds=(-1,)), "seeds"),
        (lambda: Options(threads=0), "threads"),
    ],
)
def test_values_out_of_range_are_refused_by_name(build, named):
    with pytest.raises(ValueError, match=named):
        build()
