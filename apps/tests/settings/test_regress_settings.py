import pytest

from probseq_apps.settings.classify import REGRESS_RECIPES, RegressSettings
from probseq_apps.settings.common import Pick
from probseq_apps.settings.methods import BackboneSettings, trained_methods


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
        (lambda: BackboneSettings(patch_size=2), "patch_size"),
    ],
)
def test_impossible_settings_are_refused_and_named(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build()


@pytest.mark.parametrize("name", REGRESS_RECIPES.known)
def test_recipes_are_settings_that_survive_json(name):
    settings = REGRESS_RECIPES.load(name)
    assert RegressSettings.from_dict(settings.to_dict()) == settings


def test_the_thesis_recipe_has_a_method_for_each_row_of_its_tables():
    settings = REGRESS_RECIPES.load("sgpa-zinc")
    # Table B.10: SDP MLE, MLE, MCD, MFVI, SGPA, DE, SGPAE; B.32 has SDP MCD, too.
    rows = {"mle", "kernel", "mcd", "mfvi", "sgpa", "kernel+ensemble", "sgpa+ensemble"}
    assert rows | {"mcd-softmax"} == set(settings.method)
    assert len(trained_methods(settings.method)) == 6


def test_other_data_keep_the_recipe_but_not_its_split_and_columns():
    recipe = REGRESS_RECIPES.load("zinc-small")
    assert REGRESS_RECIPES(Pick(data="zinc")) == ("zinc-small", recipe)
    other = REGRESS_RECIPES(Pick(data="csv:mine.csv"))[1]
    assert other.data == "csv:mine.csv"
    assert (other.model, other.training) == (recipe.model, recipe.training)
