"""Bars of arms: what the legend names, and which panels there are."""

import json

import pytest
import torch
from matplotlib.figure import Figure

from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.report import generate_plots
from probseq_apps.report.generate_plots import Drawn, draw_hvae, save_bars
from probseq_apps.report.generate_tables import BOUND
from probseq_apps.report.results import REAL, groups_of, sample_measures

REAL_IMAGES = {"fd": 1.0, "is": 9.5}


@pytest.fixture
def figures(monkeypatch):
    """All figures that are saved, by the file's name; none is drawn."""
    saved = {}
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, file, **_: saved.update({file.name: figure})
    )
    return saved


def results_of(hvae_result, seeds):
    return [hvae_result(arm, s, 9.0 + s) for s in range(seeds) for arm in ("heat", "learned")]


@pytest.mark.parametrize(
    ("seeds", "real", "names"),
    [
        (2, REAL_IMAGES, ["a seed", REAL]),
        (1, REAL_IMAGES, [REAL]),
        (2, {"is": None}, ["a seed"]),
        (1, {"is": None}, []),
    ],
)
def test_the_legend_names_what_is_drawn_alone(tmp_path, figures, hvae_result, seeds, real, names):
    results = results_of(hvae_result, seeds)
    measures = [sample_measures(results)[1], BOUND]
    save_bars(groups_of(results), measures, real, tmp_path / "bars.png")
    found = [text.get_text() for legend in figures["bars.png"].legends for text in legend.texts]
    assert found == names


def test_the_bounds_of_encoders_that_do_not_compare_are_no_bars_and_their_losses_say_so(
    tmp_path, figures, hvae_result
):
    logs = {arm: [tmp_path / arm] for arm in ("heat", "learned")}
    for (run,) in logs.values():
        run.mkdir()
        row = {"step": 1, "loss": 2.5, "parts": {"steps": 2.0, "prior": 0.5, "mse": 0.1}}
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    images = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    data = GenerationData("digits", images, images, images)
    drawn = dict.fromkeys(logs, Drawn())
    results = results_of(hvae_result, 1)
    draw_hvae(tmp_path, results, REAL_IMAGES, data, seed=0, drawn=drawn, logs=logs)
    titles = [axes.get_title() for axes in figures["summary.png"].axes]
    assert titles == ["IS(classifier) ↑", "FD(classifier) ↓"]
    losses = [axes.get_title() for axes in figures["losses.png"].axes]
    assert ["arms don't compare" in title for title in losses] == [True, True, True, False]


@pytest.mark.parametrize(("drawn", "shown"), [(10, 10), (50, 36)])
def test_there_are_as_many_real_images_as_samples(tmp_path, monkeypatch, hvae_result, drawn, shown):
    images = torch.arange(50, dtype=torch.uint8)[:, None, None, None].expand(50, 1, 8, 8)
    data = GenerationData("digits", images, images, images)
    seen = {}

    def save(grids, file, *, title):
        seen.update(grids)
        return file

    monkeypatch.setattr(generate_plots, "save_sample_grids", save)
    models = {"heat": Drawn(images[:drawn], images[:4, None]), "learned": Drawn()}
    results = results_of(hvae_result, 1)
    draw_hvae(tmp_path, results, REAL_IMAGES, data, seed=0, drawn=models, logs={})
    assert list(seen) == [REAL, "heat"]
    assert torch.equal(seen[REAL], to_unit(images[:shown]))
    assert len(seen["heat"]) == shown
