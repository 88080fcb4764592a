import pytest

from probseq_apps.experiments.method_settings import CgptSettings, SgpaSettings
from probseq_apps.experiments.methods import BASE_METHODS
from probseq_apps.experiments.objectives import penalty_weight
from probseq_apps.experiments.settings import ClassifySettings


def weight(name, progress, **groups):
    return penalty_weight(BASE_METHODS[name], ClassifySettings(**groups), progress)


@pytest.mark.parametrize(
    ("anneal", "progress", "expected"),
    [(0.5, 0.0, 0.0), (0.5, 0.25, 0.5), (0.5, 0.5, 1.0), (0.5, 0.9, 1.0), (0.0, 0.0, 1.0)],
)
def test_sgpa_s_kl_rises_linearly_over_its_share_of_the_training(anneal, progress, expected):
    assert weight("sgpa", progress, sgpa=SgpaSettings(kl_anneal=anneal)) == expected


def test_a_tempered_kl_ends_at_its_scale():
    settings = SgpaSettings(kl_anneal=0.5, kl_scale=0.2)
    assert weight("sgpa", 0.25, sgpa=settings) == pytest.approx(0.1)
    assert weight("sgpa", 1.0, sgpa=settings) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["cgpt", "scgpt"])
def test_alpha_moves_linearly_over_the_whole_training(name):
    settings = CgptSettings(alpha_start=0.5, alpha=0.9)
    found = [weight(name, progress, cgpt=settings) for progress in (0.0, 0.5, 1.0)]
    assert found == pytest.approx([0.5, 0.7, 0.9])


@pytest.mark.parametrize("name", ["mfvi", "svdkl", "kepsvgp", "kepsvgp-e"])
def test_other_penalties_count_in_full(name):
    assert weight(name, 0.0) == 1.0
