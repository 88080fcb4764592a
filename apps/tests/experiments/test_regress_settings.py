import json

import pytest

from probseq_apps.experiments.method_settings import SgpaSettings
from probseq_apps.experiments.regress_settings import (
    MoleculeSettings,
    RegressEvaluationSettings,
    RegressSettings,
    parse_regression_method,
    regress_config,
    saved_regress,
)
from probseq_apps.experiments.settings import ModelSettings, TrainingSettings


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: RegressSettings(data="digits"), "unknown data set 'digits'.*known: zinc, csv:"),
        (lambda: RegressSettings(data="csv:"), "needs a path"),
        (lambda: RegressSettings(method=()), "method must name at least one"),
        (lambda: RegressSettings(method=("mle", "mle")), "repeat"),
        (lambda: RegressSettings(method=("sgpaa",)), "did you mean 'sgpa'"),
        (lambda: RegressSettings(method=("sngp",)), "'sngp' is for classification"),
        (lambda: RegressSettings(method=("svdkl+ensemble",)), "is for classification"),
        (lambda: RegressSettings(method=("sgpa+ts",)), "must leave out ts"),
        (lambda: RegressSettings(method=("mle+kflla",)), "must leave out kflla"),
        (lambda: RegressSettings(method=("sgpa+ensemble",), seeds=(3,)), "two seeds"),
        (lambda: RegressSettings(seeds=(-1,)), "seeds must be at least 0"),
        (lambda: RegressSettings(training=TrainingSettings(augment="crop-flip")), "augment"),
        (lambda: RegressSettings(model=ModelSettings(patch_size=2)), "patch_size"),
        (lambda: RegressSettings(model=ModelSettings(max_length=9)), "max_length"),
        (lambda: RegressSettings(sgpa=SgpaSettings(warm_start_epochs=1)), "warm_start_epochs"),
        (lambda: MoleculeSettings(test_size=0), "test_size must be at least 1"),
        (lambda: MoleculeSettings(max_atoms=0), "max_atoms must be at least 1"),
        (lambda: RegressEvaluationSettings(num_samples=0), "num_samples must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_and_named(build, named):
    with pytest.raises(ValueError, match=named):
        build()


def test_methods_that_mean_something_for_numbers_are_read():
    method = parse_regression_method("sgpa+ensemble")
    assert (method.base.name, method.ensemble) == ("sgpa", True)


def test_settings_survive_the_file_of_their_experiment(tmp_path):
    settings = RegressSettings(
        data="csv:mine.csv",
        method=("mle", "sgpa+ensemble"),
        seeds=(4, 5),
        reading=MoleculeSettings(target_column="logp", test_size=7),
        evaluation=RegressEvaluationSettings(ood=False),
    )
    assert saved_regress(tmp_path) is None
    config = regress_config("zinc-small", settings)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert saved_regress(tmp_path) == ("zinc-small", settings)
    (tmp_path / "config.json").write_text(json.dumps({**config, "experiment": "classify"}))
    assert saved_regress(tmp_path) is None
