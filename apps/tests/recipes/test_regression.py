import pytest

from probseq_apps.experiments.methods import base_methods
from probseq_apps.experiments.regress_settings import RegressSettings
from probseq_apps.recipes.regression import (
    REGRESS_RECIPES,
)
from probseq_apps.settings.common import Pick


@pytest.mark.parametrize("name", REGRESS_RECIPES.known)
def test_recipes_are_settings_that_survive_json(name):
    settings = REGRESS_RECIPES.load(name)
    assert RegressSettings.from_dict(settings.to_dict()) == settings


def test_the_thesis_recipe_has_the_sizes_of_its_appendix():
    settings = REGRESS_RECIPES.load("sgpa-zinc")
    assert (settings.model.depth, settings.model.num_heads) == (8, 8)
    assert (settings.model.dim, settings.model.hidden_dim) == (80, 80)
    assert (settings.model.dropout, settings.model.pooling) == (0.1, "mean")
    assert settings.sgpa.num_inducing == 10
    training = settings.training
    assert (training.epochs, training.batch_size, training.validate_every) == (500, 64, 10)
    assert (training.learning_rate, training.final_learning_rate) == (4e-4, 2e-6)
    assert (training.schedule, training.select) == ("linear", "best")
    assert settings.evaluation.num_samples == 10
    assert len(settings.seeds) == 3


def test_the_thesis_recipe_has_a_method_for_each_row_of_its_tables():
    settings = REGRESS_RECIPES.load("sgpa-zinc")
    # Table B.10: SDP MLE, MLE, MCD, MFVI, SGPA, DE, SGPAE; B.32 has SDP MCD, too.
    rows = {"mle", "kernel", "mcd", "mfvi", "sgpa", "kernel+ensemble", "sgpa+ensemble"}
    assert rows | {"mcd-softmax"} == set(settings.method)
    assert len(base_methods(settings.method)) == 6


def test_other_data_keep_the_recipe_but_not_its_split_and_columns():
    recipe = REGRESS_RECIPES.load("zinc-small")
    assert REGRESS_RECIPES(Pick(data="zinc")) == ("zinc-small", recipe)
    other = REGRESS_RECIPES(Pick(data="csv:mine.csv"))[1]
    assert other.data == "csv:mine.csv"
    assert (other.model, other.training) == (recipe.model, recipe.training)


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'zinc-small'"):
        REGRESS_RECIPES.load("zinc-smal")
