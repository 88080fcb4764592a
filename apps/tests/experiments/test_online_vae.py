"""`probseq online vae`: settings, tasks, runs, and going on with a run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probseq_apps.data.names import DataError
from probseq_apps.data.series import ChannelSeries
from probseq_apps.engine.files import ConfigMismatchError
from probseq_apps.experiment import Job
from probseq_apps.experiments.online_vae import (
    OnlineVae,
    build_vae,
    load_progress,
    measure,
    save_progress,
)
from probseq_apps.experiments.streams import Task, cut_channels
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.run import run
from probseq_apps.settings.common import Pick, saved_settings
from probseq_apps.settings.online import (
    ONLINE_VAE_RECIPES,
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


def online_vae(settings: OnlineVaeSettings, options: Options) -> Path:
    return run(OnlineVae(settings), options, recipe="moving-digits-small")


def line_series(n: int, channels: int = 2) -> ChannelSeries:
    time = 10.0 + 2.0 * np.arange(n)
    values = np.stack([time * (channel + 1) for channel in range(channels)], axis=1)
    names = tuple(f"c{channel}" for channel in range(channels))
    return ChannelSeries("lines", time, values, names, "time")


def film() -> tuple[Task, ...]:
    return OnlineVae(TINY).load(Options())[1][0]


def csv_of_waves(path: Path, n: int = 60) -> Path:
    t = np.linspace(0.0, 6.0, n)
    rows = [f"{a},{np.sin(a)},{np.cos(a)},{np.sin(a) * np.cos(a)}" for a in t]
    path.write_text("\n".join(["time,u,v,w", *rows]) + "\n", encoding="utf-8")
    return path


def test_tasks_are_cut_in_time_and_counted_in_lengths_of_the_first() -> None:
    first, second = cut_channels(line_series(21), TINY.stream, seed=0)
    everything = torch.cat([first.x, first.test_x, second.x, second.test_x]).sort().values
    # Ten steps in the first task, eleven in the second: what is left over is in the last.
    torch.testing.assert_close(everything, torch.arange(21).double() / 9)
    assert float(first.x.max()) == 1.0
    assert float(second.x.min()) > 1.0
    assert len(first.test_x) == len(second.test_x) == 2


def test_a_task_length_leaves_later_steps_out() -> None:
    tasks = cut_channels(line_series(21), ChannelSettings(num_tasks=2, task_length=5), seed=0)
    assert [len(task.x) + len(task.test_x) for task in tasks] == [5, 5]


def test_channels_are_standardised_by_what_the_first_task_learns() -> None:
    series = line_series(40)
    series.values[:, 1] = np.arange(40) >= 20  # constant in the first task
    first, second = cut_channels(series, TINY.stream, seed=0)
    torch.testing.assert_close(first.y.mean(0), torch.zeros(2).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(first.y[:, 0].std(), torch.tensor(1.0).double())
    assert set(second.y[:, 1].tolist()) == {1.0}
    assert float(second.y[:, 0].min()) > 1.0


def test_pixels_stay_grey_levels() -> None:
    everything = torch.cat([part for task in film() for part in (task.y, task.test_y)])
    assert float(everything.min()) >= 0.0
    assert 0.8 < float(everything.max()) <= 1.0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(DataError, match="holds 5 time steps, too few for 2 tasks of 3 or more"):
        cut_channels(line_series(5), TINY.stream, seed=0)
    stream = ChannelSettings(num_tasks=2, task_length=11)
    with pytest.raises(DataError, match="too few for 2 tasks of 11"):
        cut_channels(line_series(21), stream, seed=0)
    still = line_series(20)
    still.time[:] = 4.0
    with pytest.raises(DataError, match="the first task must take time"):
        cut_channels(still, TINY.stream, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "mnist"}, "unknown data set 'mnist'"),
        ({"data": "csv:"}, "csv:"),
        ({"method": ("ohsvpg",)}, "ohsvgp"),
        ({"method": ()}, "method must be .*not empty"),
        ({"seeds": (0, 0)}, "seeds must be .*without repetitions"),
        ({"seeds": (-1,)}, "at least 0"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OnlineVaeSettings(**change)


def test_recipes_hold_the_numbers_of_the_thesis() -> None:
    era5 = ONLINE_VAE_RECIPES.load("ohsvgp-era5-50")
    assert (era5.stream.num_tasks, era5.stream.task_length) == (10, 186)
    assert (era5.model.num_latents, era5.model.num_inducing) == (20, 50)
    assert (era5.training.epochs, era5.training.learning_rate) == (20, 0.005)
    assert ONLINE_VAE_RECIPES.load("ohsvgp-era5-100").model.num_inducing == 100
    for build in ONLINE_VAE_RECIPES.known.values():
        assert OnlineVaeSettings.from_dict(json.loads(json.dumps(build().to_dict()))) == build()
    assert (
        ONLINE_VAE_RECIPES(Pick(recipe="ohsvgp-era5-50", data="csv:mine.csv"))[1].data
        == "csv:mine.csv"
    )
    with pytest.raises(ValueError, match="ohsvgp-era5-50"):
        ONLINE_VAE_RECIPES.load("ohsvgp-era5-5")


def test_metrics_over_all_tasks_pool_those_of_each() -> None:
    tasks = cut_channels(line_series(30), TINY.stream, seed=0)
    model = build_vae("ohsvgp", 2, TINY.model, seed=0)
    found, over = measure(model, tasks, 3, torch.Generator())
    sizes = [len(task.test_x) for task in tasks]
    pooled = sum(n * each["rmse"] ** 2 for n, each in zip(sizes, found, strict=True))
    assert over["rmse"] == pytest.approx((pooled / sum(sizes)) ** 0.5)
    nlpd = sum(n * each["nlpd"] for n, each in zip(sizes, found, strict=True))
    assert over["nlpd"] == pytest.approx(nlpd / sum(sizes))


def learn(tasks: tuple[Task, ...], folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What seed 0 of ohsvgp measures, and its pictures."""
    folder.mkdir(exist_ok=True)
    series = OnlineVae(TINY).load(Options())[0]
    at = RunFolder(folder, "recipe")
    found = OnlineVae(TINY).run(Job("ohsvgp", 0), (series, {0: tasks}), at)
    with np.load(folder / "frames" / "ohsvgp-seed0.npz") as arrays:
        return found, dict(arrays)


def test_a_run_that_stopped_between_tasks_ends_as_if_it_had_not(tmp_path: Path) -> None:
    whole, pictures = learn(film(), tmp_path / "whole")
    learn(film()[:1], tmp_path / "half")
    again, same = learn(film(), tmp_path / "half")
    for name in ("matrix", "over_tasks", "lost_information"):
        assert again[name] == whole[name]
    assert pictures.keys() == same.keys() == {"truth", "learned", "last", "sha256"}
    for name in pictures:
        assert np.array_equal(pictures[name], same[name])


def test_a_damaged_model_file_is_named(tmp_path: Path) -> None:
    model = build_vae("ohsvgp", 2, TINY.model, seed=0)
    file = tmp_path / "model.safetensors"
    assert load_progress(file, model) == ([], {})
    save_progress(file, model, [], {})
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_progress(file, model)


def test_methods_of_a_seed_start_from_equal_networks() -> None:
    one, other = (build_vae(method, 3, TINY.model, seed=4) for method in ("ovc", "osvgp"))
    for a, b in zip(one.encoder.parameters(), other.encoder.parameters(), strict=True):
        assert torch.equal(a, b)
    assert build_vae("ovc", 3, replace(TINY.model, carry=False), seed=4).carry is False


def test_a_film_ends_in_tables_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = online_vae(TINY, Options(run_dir=tmp_path / "run"))
    text = capsys.readouterr().out
    for word in ("256 channels", "ohsvgp", "osvgp", "RMSE", "NLPD", "forgetting"):
        assert word in text
    report = json.loads((folder / "report.json").read_text("utf-8"))
    found = report["methods"]["ohsvgp"]["seeds"]["0"]
    assert found["tasks"] == 2
    assert found["matrix"]["rmse"][0][1] is None
    assert np.isfinite(np.array(found["matrix"]["nlpd"][1], dtype=float)).all()
    plots = {path.stem for path in (folder / "plots").glob("*.png")}
    assert {"frames", "matrix-rmse", "per-task-nlpd", "per-task-rmse", "over-tasks"} <= plots
    saved = saved_settings(folder, "online-vae", OnlineVaeSettings)
    assert saved == ("moving-digits-small", TINY)
    assert "old posterior carried along: yes" in (folder / "report.md").read_text("utf-8")
    # Going on with it does nothing again.
    before = (folder / "results" / "ohsvgp-seed0.json").stat().st_mtime_ns
    online_vae(TINY, Options(run_dir=folder, resume=True))
    assert (folder / "results" / "ohsvgp-seed0.json").stat().st_mtime_ns == before
    other = replace(TINY, model=replace(TINY.model, carry=False))
    with pytest.raises(ConfigMismatchError, match="carry"):
        online_vae(other, Options(run_dir=folder, resume=True))
    online_vae(TINY, Options(run_dir=folder, overwrite=True))
    assert (folder / "results" / "ohsvgp-seed0.json").stat().st_mtime_ns > before


def test_channels_of_ones_own_and_no_carried_site(tmp_path: Path) -> None:
    settings = replace(
        TINY,
        data=f"csv:{csv_of_waves(tmp_path / 'waves.csv')}",
        method=("ovc", "ovc-per-dim"),
        seeds=(0, 1),
        model=replace(TINY.model, carry=False),
    )
    folder = online_vae(settings, Options(run_dir=tmp_path / "run"))
    assert not (folder / "plots" / "frames.png").exists()
    text = (folder / "report.md").read_text("utf-8")
    assert "old posterior carried along: no" in text
    assert "±" in text
    assert "standard deviations" in text


def test_nothing_is_written_where_data_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "few.csv"
    file.write_text("time,u\n0,1\n1,2\n", encoding="utf-8")
    settings = replace(TINY, data=f"csv:{file}")
    with pytest.raises(DataError, match="too few for 2 tasks"):
        online_vae(settings, Options(run_dir=tmp_path / "run"))
    with pytest.raises(ValueError, match="download must be off"):
        online_vae(TINY, Options(run_dir=tmp_path / "run", download=True))
    assert not (tmp_path / "run").exists()


def test_a_method_that_fails_is_named_with_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("ohsvgp.vae.OnlineSVGPVAE.fit_task", broken)
    monkeypatch.setattr("probseq_apps.experiments.online_vae._warm_up", lambda _: None)
    with pytest.raises(RuntimeError, match="ohsvgp, seed 0, task 1: no"):
        learn(film(), tmp_path)
