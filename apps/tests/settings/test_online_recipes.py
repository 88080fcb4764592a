import pytest

from probseq_apps.settings.common import Pick
from probseq_apps.settings.online import ONLINE_RECIPES, OnlineSettings


@pytest.mark.parametrize("name", ONLINE_RECIPES.known)
def test_recipes_are_settings_that_survive_json(name):
    settings = ONLINE_RECIPES.load(name)
    assert OnlineSettings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("name", "num_tasks", "num_inducing"),
    [
        ("solar-50", 10, 50),
        ("solar-150", 10, 150),
        ("audio-100", 10, 100),
        ("audio-200", 10, 200),
        ("covid-15", 5, 15),
        ("covid-30", 5, 30),
        ("skillcraft-first", 10, 256),
        ("powerplant-l2", 10, 256),
        ("two-moons", 3, 20),
    ],
)
def test_the_figures_have_the_sizes_of_the_thesis(name, num_tasks, num_inducing):
    settings = ONLINE_RECIPES.load(name)
    assert settings.stream.num_tasks == num_tasks
    assert settings.model.num_inducing == num_inducing
    assert settings.model.learn_rate == 0.025  # 0.01 in Solar's units, whose lengthscale is 0.4
    assert len(settings.seeds) == 5
    assert settings.data == name.rpartition("-")[0] or name == settings.data
    if name.startswith(("solar", "audio")):
        assert settings.model.learn_steps == 1000
        assert {"grid", "ovc", "osgpr", "ovff"} <= set(settings.method)


def test_a_data_set_without_a_recipe_has_one_that_suits_it():
    assert ONLINE_RECIPES(Pick(data="solar"))[0] == "solar-50"
    name = ONLINE_RECIPES(Pick(data="csv:mine.csv"))[0]
    assert ONLINE_RECIPES(Pick(data="csv:mine.csv"))[1].data == "csv:mine.csv"
    assert ONLINE_RECIPES.load(name).model.hyperparameters == "first"
    with pytest.raises(ValueError, match="did you mean 'two-moons'"):
        ONLINE_RECIPES(Pick(data="twomoons"))


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'audio-100'"):
        ONLINE_RECIPES.load("audio100")
