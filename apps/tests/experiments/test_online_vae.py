"""`probseq online vae`: runs, and going on with a run."""

import json
from dataclasses import replace

import numpy as np
import pytest

from probseq_apps.engine.files import ConfigMismatchError
from probseq_apps.experiment import Job, RunFolder
from probseq_apps.experiments.online_vae import WORKFLOW, Channels, learn_channels, load
from probseq_apps.options import Options
from probseq_apps.run import run
from probseq_apps.settings.online import (
    ChannelSettings,
    OnlineVaeSettings,
    VaeSettings,
    VaeTrainingSettings,
)

TINY = OnlineVaeSettings(
    method=("ohsvgp", "osvgp"),
    seeds=(0,),
    stream=ChannelSettings(num_tasks=2, num_frames=24),
    model=VaeSettings(num_inducing=6, num_latents=2, hidden_dim=8),
    training=VaeTrainingSettings(epochs=2, prediction_samples=4),
)


def online_vae(settings, options):
    return run(WORKFLOW, settings, options, recipe="moving-digits-small")


def learn(tasks, folder):
    """What seed 0 of ohsvgp measures, and its pictures."""
    folder.mkdir(exist_ok=True)
    series = load(TINY, Options()).series
    at = RunFolder(folder, "recipe")
    found = learn_channels(TINY, Channels(series, {0: tasks}), Job("ohsvgp", 0), at)
    with np.load(folder / "frames" / "ohsvgp-seed0.npz") as arrays:
        return found, dict(arrays)


def test_a_run_that_stopped_between_tasks_ends_as_if_it_had_not(tmp_path):
    film = load(TINY, Options()).tasks[0]
    assert 0.8 < max(float(task.y.max()) for task in film) <= 1.0  # pixels stay as they are
    whole, pictures = learn(film, tmp_path / "whole")
    learn(film[:1], tmp_path / "half")
    again, same = learn(film, tmp_path / "half")
    for name in ("matrix", "over_tasks", "lost_information"):
        assert again[name] == whole[name]
    assert pictures.keys() == same.keys() == {"truth", "learned", "last"}
    assert all(np.array_equal(pictures[name], same[name]) for name in pictures)


def test_a_film_ends_in_tables_and_pictures(tmp_path, capsys):
    folder = online_vae(TINY, Options(run_dir=tmp_path / "run"))
    assert "256 channels" in capsys.readouterr().out
    report = json.loads((folder / "report.json").read_text("utf-8"))
    found = report["methods"]["ohsvgp"]["seeds"]["0"]
    assert found["matrix"]["rmse"][0][1] is None
    assert np.isfinite(np.array(found["matrix"]["nlpd"][1], dtype=float)).all()
    plots = {path.stem for path in (folder / "plots").glob("*.png")}
    assert {"frames", "per-task-nlpd", "per-task-rmse", "over-tasks"} <= plots
    other = replace(TINY, model=replace(TINY.model, carry=False))
    with pytest.raises(ConfigMismatchError, match="carry"):
        online_vae(other, Options(run_dir=folder, resume=True))


def test_channels_of_ones_own_have_no_frames_and_too_few_are_refused(tmp_path):
    t, file = np.linspace(0.0, 6.0, 60), tmp_path / "waves.csv"
    rows = [f"{a},{np.sin(a)},{np.cos(a)}" for a in t]
    own = replace(TINY, data=f"csv:{file}", method=("ovc", "ovc-per-dim"))
    file.write_text("\n".join(["time,u,v", *rows[:2]]) + "\n", encoding="utf-8")
    options = Options(run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="too few for 2 tasks"):
        online_vae(own, options)
    with pytest.raises(ValueError, match="download must be off"):
        online_vae(TINY, replace(options, download=True))
    assert not (tmp_path / "run").exists()
    file.write_text("\n".join(["time,u,v", *rows]) + "\n", encoding="utf-8")
    folder = online_vae(replace(own, model=replace(TINY.model, carry=False)), options)
    assert not (folder / "plots" / "frames.png").exists()
    text = (folder / "report.md").read_text("utf-8")
    assert "old posterior carried along: no" in text
    assert "standard deviations" in text
