"""Folders of experiments: what is kept in them, and what is said of them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from time import perf_counter, sleep

import pytest

from probseq.files import InUseError
from probseq_apps import run
from probseq_apps.engine import log
from probseq_apps.engine.files import read_json
from probseq_apps.experiment import Job, RunFolder, Workflow, by_row
from probseq_apps.options import Options
from probseq_apps.run import open_folder
from probseq_apps.settings.generate import Reading

FOLDERS = Workflow(
    kind="online",
    command="online",
    folders=("kept", "rows/seed-*"),
    load=lambda settings, options: None,
    report=lambda *_: "",
)


def open_one(options):
    return open_folder(FOLDERS, Reading(), None, options, recipe="own")


def test_results_are_made_once_and_those_that_are_not_finite_are_none(tmp_path):
    at, made = RunFolder(tmp_path, "own"), []
    for _ in range(2):
        found = at.once("ovc-seed0", lambda: made.append(1) or {"rmse": 0.25})
        assert found == read_json(tmp_path / "results" / "ovc-seed0.json") == {"rmse": 0.25}
    assert made == [1]
    with pytest.raises(ValueError, match="JSON"):
        at.once("ovc-seed1", lambda: {"rmse": float("nan")})
    assert at.has("ovc-seed0")
    assert not at.has("ovc-seed1")


def test_overwriting_deletes_what_the_experiment_kept_and_nothing_else(tmp_path):
    folder = tmp_path / "run"
    with open_one(Options(run_dir=folder)) as at:
        at.once("a", dict)
        for name in ("kept/a", "rows/seed-0/a", "rows/own/a"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text("")
    with open_one(Options(run_dir=folder, overwrite=True)):
        found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert found == {".lock", ".lock-a", "config.json", "rows/own/a"}


@pytest.mark.parametrize("asked", [{}, {"resume": True}, {"overwrite": True}])
def test_nobody_changes_the_folder_of_a_run_that_is_at_work(tmp_path, asked):
    with open_one(Options(run_dir=tmp_path)):
        before = (tmp_path / "config.json").stat().st_mtime_ns
        with pytest.raises(InUseError), open_one(Options(run_dir=tmp_path, **asked)):
            pass
        assert (tmp_path / "config.json").stat().st_mtime_ns == before


def test_a_job_that_is_at_work_elsewhere_is_waited_for(tmp_path, capsys):
    at, working = RunFolder(tmp_path, "own"), Event()

    def work():
        working.set()
        sleep(0.2)
        return {"rmse": 0.25}

    with ThreadPoolExecutor() as pool:
        orphan = pool.submit(at.once, "ovc-seed0", work)
        working.wait()
        assert at.once("ovc-seed0", lambda: 1 / 0) == {"rmse": 0.25} == orphan.result()
    assert "ovc-seed0 is at work in another process" in capsys.readouterr().out


def test_runs_that_start_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_one(Options()) as first, open_one(Options()) as second:
        assert first.path != second.path


@pytest.mark.parametrize(("workers", "minutes"), [(1, 20), (2, 13)])
def test_the_time_has_what_workers_need_to_start(tmp_path, monkeypatch, capsys, workers, minutes):
    monkeypatch.setattr(log, "started", perf_counter() - 180.0)
    monkeypatch.setattr(run, "do_in_parallel", lambda *_: None)
    jobs = [Job("row", seed) for seed in range(4)]
    work = {"jobs": lambda _: jobs, "seconds": lambda *_: dict.fromkeys(jobs, 300.0)}
    flow = replace(FOLDERS, **work, run=lambda *_: {})
    options = Options(run_dir=tmp_path / "run", workers=workers)
    run.run(flow, Reading(), options, recipe="own")
    assert f"about {minutes} minutes of training" in capsys.readouterr().out


def test_a_signal_names_the_command_that_goes_on(tmp_path, capsys):
    options = Options(run_dir=tmp_path / "run", data_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt), open_one(options):
        raise KeyboardInterrupt
    said = f"go on with: probseq online --run-dir {tmp_path}/run --resume --data-dir {tmp_path}\n"
    assert said in capsys.readouterr().err


def test_results_are_given_by_row_and_seed_in_the_order_of_the_jobs():
    jobs = [Job(row, seed) for seed in (4, 0) for row in ("ovc", "ohsvgp")]
    found = by_row({job: {"of": job.name} for job in jobs})
    assert list(found) == ["ovc", "ohsvgp"]
    assert found["ohsvgp"] == {"4": {"of": "ohsvgp-seed4"}, "0": {"of": "ohsvgp-seed0"}}
