"""Pictures of `probseq online vae`."""

import json
from pathlib import Path

import numpy as np
import pytest

from probseq_apps.report.online_plots import draw_vae, frames_figure


def frames(tasks: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.random((tasks, 6)) for name in ("truth", "learned", "last")}


def test_each_task_has_its_column_and_each_method_two_rows() -> None:
    arrays = frames(3)
    figure = frames_figure({"a": arrays, "b": frames(3)}, (2, 3))
    axes = figure.axes
    assert len(axes) == 5 * 3
    assert [axis.get_title() for axis in axes[:3]] == ["Task 1", "Task 2", "Task 3"]
    labels = [axis.get_ylabel().replace("\n", " ") for axis in axes[::3]]
    assert labels == ["truth", "a then", "a at the end", "b then", "b at the end"]
    for place, name in ((1, "truth"), (4, "learned"), (7, "last")):
        picture = axes[place].images[0]
        np.testing.assert_array_equal(picture.get_array(), arrays[name][1].reshape(2, 3))
        # The same grey everywhere: a prediction that fades looks faded.
        assert picture.get_clim() == (0.0, 1.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    seed = {
        "tasks": 2,
        "matrix": {"rmse": [[0.1, None], [0.2, 0.1]]},
        "over_tasks": {"rmse": [0.1, 0.15]},
        "seconds": [1.0, 2.0],
        "lost_information": [0.0, 0.5],
    }
    report = {"settings": {}, "methods": {"ohsvgp": {"seeds": {"2": seed, "10": seed}}}}
    (tmp_path / "report.json").write_text(json.dumps(report), encoding="utf-8")
    (tmp_path / "frames").mkdir()
    for number, tasks in (("2", 2), ("10", 1)):
        np.savez(tmp_path / "frames" / f"ohsvgp-seed{number}.npz", **frames(tasks))
    return tmp_path


def test_a_film_has_its_frames_beside_the_metrics(run: Path) -> None:
    names = {path.stem for path in draw_vae(run, (2, 3))}
    assert {"frames", "matrix-rmse", "per-task-rmse"} <= names
    assert all((run / "plots" / f"{name}.png").stat().st_size > 1000 for name in names)


def test_channels_that_are_no_picture_have_none(run: Path) -> None:
    assert "frames" not in {path.stem for path in draw_vae(run, None)}
