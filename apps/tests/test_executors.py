"""Jobs in other processes: bars on the screen, lost workers, clusters."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from probseq_apps import executors, registry
from probseq_apps.cli import main
from probseq_apps.engine import log
from probseq_apps.engine.files import CONFIG, write_json
from probseq_apps.executors import LostJobError, Outcome, Work, do_in_parallel, stamp_of
from probseq_apps.experiment import Job, RunFolder, Workflow
from probseq_apps.options import Options, Output

TRAINED = ["classify", "--method", "mle", "kernel", "--seeds", "0", "1", "--epochs", "12"]
TRAINED += ["--checkpoint-every", "2", "--validate-every", "2", "--no-shift", "--ood"]
TRAINED += ["--device", "cpu"]
JOBS = [Job("first", 0), Job("second,x", 1), Job("third", 0)]


def command(*arguments):
    return [sys.executable, "-m", "probseq_apps", *map(str, arguments)]


def weights(folder):
    files = folder.glob("*/seed-*/checkpoints/step-*")
    return {
        (file.relative_to(folder), name): tensor.tolist()
        for file in files
        for name, tensor in load_file(file).items()
        if name != "state"
    }


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequential") / "run"
    subprocess.run(
        command(*TRAINED, "--workers", 1, "--run-dir", folder), check=True, capture_output=True
    )
    return folder


# -- Jobs of a workflow that only writes -----------------------------------------------------------


def load(settings, options):
    return "data"


def prepare(settings, data, at):
    (at.path / "shared").write_text("made once")


def write(settings, data, job, at):
    print(f"says {job.row}")
    (at.path / "models" / job.row).mkdir(parents=True)
    (at.path / "models" / job.row / "weights").write_bytes(bytes(range(256)))
    return {"seed": job.seed, "data": data, "shared": (at.path / "shared").read_text()}


def fail(settings, data, job, at):
    if job.row == "first":
        raise OSError(28, "No space left on device", "there")
    raise SystemExit(143)


def die(settings, data, job, at):
    os.kill(os.getpid(), signal.SIGKILL)


FLOW = Workflow(
    kind="write", command="write", load=load, prepare=prepare, run=write, report=lambda *_: ""
)


def work(folder, workflow=FLOW, **options):
    at = RunFolder(folder, "recipe")
    write_json(folder / CONFIG, {"experiment": "write"})
    return Work(workflow, Output(), Options(**options), at, Path.cwd(), stamp_of(at))


def test_a_job_works_in_a_folder_that_it_sees(tmp_path):
    task = work(tmp_path)
    prepare(None, None, task.at)
    assert task(JOBS[0]) == Outcome(text="says first\n")
    assert json.loads(task.at.results_file("first-seed0").read_text())["shared"] == "made once"


def test_a_job_brings_its_files_back_from_where_the_folder_is_not_seen(tmp_path):
    """Another machine has a folder of this name, of a run of the same settings, but another one."""
    task = work(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    other = RunFolder(tmp_path / "elsewhere", "recipe")
    shutil.copyfile(tmp_path / CONFIG, other.path / CONFIG)
    os.utime(other.path / CONFIG, ns=(1, 1))
    outcome = replace(task, at=other)(JOBS[1])
    assert [path.name for path in other.path.iterdir()] == [CONFIG]
    assert set(outcome.files) == {
        "models/second,x/weights",
        "results/second,x-seed1.json",
        "shared",
    }
    executors._take(outcome, task.at)
    assert (tmp_path / "models" / "second,x" / "weights").read_bytes() == bytes(range(256))
    assert task.at.once(JOBS[1].name, lambda: pytest.fail("done again"))["seed"] == 1


def test_every_workflow_with_jobs_goes_to_another_process():
    targets = [registry.load(entry.run) for entry in registry.REGISTRY.values()]
    flows = [each for each in targets if isinstance(each, Workflow) and each.jobs is not FLOW.jobs]
    assert len(flows) == 7
    assert [pickle.loads(pickle.dumps(flow)).kind for flow in flows] == [f.kind for f in flows]


def test_errors_come_back_as_outcomes_and_with_debug_as_they_are(tmp_path):
    failing = replace(FLOW, run=fail)
    outcome = work(tmp_path, failing)(JOBS[0])
    assert (outcome.error.errno, outcome.error.filename) == (28, "there")
    assert work(tmp_path, failing)(JOBS[1]).stopped
    with pytest.raises(OSError, match="No space left"):
        work(tmp_path, failing, debug=True)(JOBS[0])


def test_what_an_executor_needs_is_asked_for_before_anything_is_written(
    tmp_path, monkeypatch, capsys
):
    arguments = ["classify", "--run-dir", str(tmp_path / "run"), "--executor"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        assert main([*arguments, "ray"]) == 1
        assert "pip install 'probseq-apps[cluster]'" in capsys.readouterr().err
        patch.setenv("WORLD_SIZE", "2")
        assert main([*arguments, "ray"]) == 1
        assert "executor must be 'local' under torchrun" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_process_that_dies_is_told_with_its_signal_and_job(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # for a new process, `die` is in here
    with pytest.raises(LostJobError, match=r"SIGKILL .*first-seed0;"):
        do_in_parallel(work(tmp_path, replace(FLOW, run=die, report=load)), JOBS, 1, lambda: None)


# -- Workers of Ray that are lost or stopped -------------------------------------------------------


def wait_for(holds):
    for _ in range(30000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("waited for five minutes")


def children(pid):
    """Processes below a process, by their commands."""
    parents, commands = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, ValueError):
            continue
    below = [pid]
    for parent in below:
        below += [child for child, its in parents.items() if its == parent]
    return {child: commands[child] for child in below[1:] if child in commands}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for workers in /proc")
def test_a_job_whose_worker_of_ray_is_killed_goes_on_alike(tmp_path, sequential, report_of):
    pytest.importorskip("ray", reason="needs the extra cluster")
    folder = tmp_path / "run"
    arguments = command(*TRAINED, "--workers", 2, "--executor", "ray", "--run-dir", folder)
    with folder.with_suffix(".log").open("w") as file:
        process = subprocess.Popen(arguments, stdout=file, stderr=file)
    wait_for(lambda: list(folder.glob("*/seed-*/checkpoints/step-*")))
    assert not list(folder.glob("results/*"))
    victim = next(pid for pid, its in children(process.pid).items() if "ray::_call" in its)
    os.kill(victim, signal.SIGKILL)
    assert process.wait(600) == 0, folder.with_suffix(".log").read_text()
    assert report_of(folder) == report_of(sequential)
    assert weights(folder) == weights(sequential)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for workers in /proc")
def test_ctrl_c_saves_running_jobs_of_ray_and_cancels_others(tmp_path, sequential, report_of):
    pytest.importorskip("ray", reason="needs the extra cluster")
    folder, words = tmp_path / "run", ["--checkpoint-every", "12", "--executor", "ray"]
    arguments = command(*TRAINED, "--workers", 2, *words, "--run-dir", folder)
    # Shells ignore SIGINT in what they run in the background, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    signal.signal(signal.SIGINT, before)
    wait_for(lambda: len(list(folder.glob("*/seed-*/metrics.jsonl"))) >= 2)
    running = [file.parent for file in folder.glob("*/seed-*/metrics.jsonl")]
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=600)[0].decode()
    assert process.returncode == 130, said
    assert f"go on with: probseq classify --run-dir {folder} --resume" in said
    assert all(len(list(path.glob("checkpoints/step-*"))) == 1 for path in running)
    assert len(list(folder.glob("results/*"))) < 2  # one may have begun long before the other
    assert len(list(folder.glob("*/seed-*"))) < 4
    assert main(["classify", "--resume", "--run-dir", str(folder)]) == 0
    assert report_of(folder)["methods"] == report_of(sequential)["methods"]


# -- Progress --------------------------------------------------------------------------------------


def test_without_a_terminal_progress_is_a_line_a_minute_and_one_at_the_end(monkeypatch, capsys):
    with log.jobs_bar(3, 0) as bar:
        for second in range(150):
            now = time.monotonic() + second
            with monkeypatch.context() as patch:
                patch.setattr(log.time, "monotonic", lambda now=now: now)
                if second % 50 == 0:
                    bar.start(f"job {second}")
                with log.bar(total=10, desc="epoch", mininterval=0.0) as inner:
                    inner.update()
                bar.refresh()
                if second % 50 == 49:
                    bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert [line.partition(":")[0] for line in lines] == ["job 50", "job 100", "done"]
    assert "epoch" in lines[0]
    assert "3/3 jobs" in lines[-1]


class Here(Executor):
    """Does jobs at once, in this process."""

    def submit(self, work, job):
        future = Future()
        future.set_result(work(job))
        return future


def test_each_job_is_done_once_and_what_it_prints_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(executors, "open_executor", lambda *_: Here())
    task, ends = work(tmp_path), []
    prepare(None, None, task.at)
    do_in_parallel(task, JOBS, 1, lambda: ends.append(1))
    assert len(ends) == 3
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == ["says first", "says second,x", "says third"]
