import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import logsumexp
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from probseq_apps.cli import main
from probseq_apps.engine.files import sole_use

TINY = [
    *("--depth", "2", "--dim", "16", "--heads", "2", "--hidden-dim", "16", "--patch-size", "4"),
    *("--sgpa.num-inducing", "4", "--num-samples", "3", "--threads", "1", "--device", "cpu"),
]
TWO_EPOCHS = [*TINY, "--epochs", "2", "--validate-every", "1", "--seeds", "0", "1"]
SMALL_EVALUATION = ["--corruptions", "contrast", "--severities", "1", "5", "--ood", "rotations"]
METHODS = ["mle", "kernel+ts", "kernel+ensemble", "mcd", "sgpa"]
BASES = {"mle": "mle", "kernel+ts": "kernel", "mcd": "mcd", "sgpa": "sgpa"}


def read_report(folder):
    return json.loads((folder / "report.json").read_text())


def without_seconds(report):
    for method in report["methods"].values():
        del method["train_seconds"]
    return report


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished experiment with all kinds of methods; its folder."""
    folder = tmp_path_factory.mktemp("classify") / "run"
    arguments = ["classify", "--method", *METHODS, *TWO_EPOCHS, *SMALL_EVALUATION]
    assert main([*arguments, "--run-dir", str(folder)]) == 0
    return folder


def stored(folder, method, seed):
    with np.load(folder / method / f"seed-{seed}" / "predictions.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("method", ["mle", "mcd", "sgpa"])
def test_the_report_holds_the_metrics_of_the_stored_predictions(finished, method):
    metrics = read_report(finished)["methods"][method]["metrics"]
    accuracies, losses, aurocs = [], [], []
    for seed in (0, 1):
        arrays = stored(finished, method, seed)
        probs, labels = np.exp(arrays["test/log_probs"].astype(np.float64)), arrays["test/labels"]
        probs /= probs.sum(1, keepdims=True)
        accuracies.append(accuracy_score(labels, probs.argmax(1)))
        losses.append(log_loss(labels, probs))
        outside = np.exp(arrays["ood/rotations/log_probs"])
        scores = -np.r_[probs.max(1), outside.max(1)]
        aurocs.append(roc_auc_score(np.r_[np.zeros(len(probs)), np.ones(len(outside))], scores))
    for name, values in (
        ("test/accuracy", accuracies),
        ("test/nll", losses),
        ("ood/rotations/max-softmax/auroc", aurocs),
    ):
        assert metrics[name]["values"] == pytest.approx(values, rel=1e-5)
        assert metrics[name]["mean"] == pytest.approx(np.mean(values), rel=1e-5)
        error = np.std(values, ddof=1) / np.sqrt(2)
        assert metrics[name]["standard_error"] == pytest.approx(error, rel=1e-3, abs=1e-6)


def test_post_hoc_rows_use_the_same_runs(finished):
    report = read_report(finished)["methods"]
    runs = [stored(finished, "kernel", seed) for seed in (0, 1)]
    labels = runs[0]["test/labels"]
    mean = logsumexp([run["test/log_probs"] for run in runs], axis=0) - np.log(2)
    ensemble = report["kernel+ensemble"]["metrics"]["test/nll"]
    assert ensemble["mean"] == pytest.approx(-mean[np.arange(len(labels)), labels].mean(), rel=1e-5)
    assert ensemble["standard_error"] is None
    temperatures = report["kernel+ts"]["temperatures"]
    scaled = runs[1]["test/log_probs"] / temperatures[1]
    scaled -= logsumexp(scaled, axis=1, keepdims=True)
    loss = report["kernel+ts"]["metrics"]["test/nll"]["values"][1]
    assert loss == pytest.approx(-scaled[np.arange(len(labels)), labels].mean(), rel=1e-5)
    assert sorted(path.name for path in finished.iterdir() if path.is_dir()) == sorted(
        {*BASES.values(), "plots", "results"}
    )


def test_the_report_says_how_it_came_about(finished):
    report = read_report(finished)
    assert report["recipe"] == "digits-small"
    assert report["settings"]["seeds"] == [0, 1]
    assert report["settings"]["training"]["epochs"] == 2
    assert report["data"]["test"] == len(stored(finished, "mle", 0)["test/labels"])
    assert {"torch", "probseq", "sgpa", "python"} <= report["versions"].keys()
    assert all(seconds > 0 for seconds in report["methods"]["sgpa"]["train_seconds"])
    markdown = (finished / "report.md").read_text()
    assert all(method in markdown for method in METHODS)
    for name in ("reliability", "risk-coverage", "ood-rotations", "shift"):
        assert (finished / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"plots/{name}.png" in markdown


def test_an_existing_run_is_left_alone_unless_asked(finished, capsys):
    before = (finished / "report.json").stat().st_mtime_ns
    arguments = ["classify", "--method", "mle", *TWO_EPOCHS, "--run-dir", str(finished)]
    assert main(arguments) == 1
    assert "already holds a run" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--resume", "--data", "digits"])
    assert stop.value.code == 2
    assert "settings.method" in capsys.readouterr().err
    assert (finished / "report.json").stat().st_mtime_ns == before


def test_finished_runs_are_not_run_again_and_the_flags_need_not_be_repeated(finished, capsys):
    before = without_seconds(read_report(finished))
    weights = finished / "sgpa" / "seed-1" / "predictions.npz"
    time_before = weights.stat().st_mtime_ns
    assert main(["classify", "--resume", "--run-dir", str(finished)]) == 0
    assert capsys.readouterr().out.count("finished before") == 8
    assert weights.stat().st_mtime_ns == time_before
    assert without_seconds(read_report(finished)) == before


def test_deleted_predictions_are_made_again(finished):
    before = stored(finished, "mcd", 1)
    (finished / "mcd" / "seed-1" / "predictions.npz").unlink()
    assert main(["classify", "--resume", "--run-dir", str(finished)]) == 0
    after = stored(finished, "mcd", 1)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_overwriting_deletes_the_old_runs_and_nothing_else(tmp_path):
    arguments = ["classify", *TWO_EPOCHS, "--seeds", "0", "--no-shift", "--ood"]
    folder = ["--run-dir", str(tmp_path / "run")]
    assert main([*arguments, "--method", "mle", *folder]) == 0
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert main([*arguments, "--method", "kernel", "--overwrite", *folder]) == 0
    assert not (tmp_path / "run" / "mle" / "seed-0").exists()
    assert list(read_report(tmp_path / "run")["methods"]) == ["kernel"]
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_folder_for_ood_is_looked_at_before_the_training_set(tmp_path, capsys):
    folder = f"folder:{tmp_path / 'none'}"
    assert main(["classify", "--data", "mnist", "--data-dir", "nowhere", "--ood", folder]) == 1
    assert "none does not exist" in capsys.readouterr().err


def test_a_folder_of_other_files_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "thesis.tex").touch()
    assert main(["classify", *TWO_EPOCHS, "--run-dir", str(tmp_path)]) == 1
    assert "thesis.tex" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_nothing_is_overwritten_that_is_no_experiment(tmp_path, capsys):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "mine.png").touch()
    (tmp_path / "config.json").write_text('{"mine": 1}')
    before = sorted(tmp_path.rglob("*"))
    assert main(["classify", *TWO_EPOCHS, "--overwrite", "--run-dir", str(tmp_path)]) == 1
    assert "no experiment to overwrite" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_folder_in_use_is_left_to_its_process(finished, capsys, flag):
    before = sorted(finished.rglob("*"))
    with sole_use(finished):
        assert main(["classify", "--run-dir", str(finished), flag]) == 1
    assert "another process works in" in capsys.readouterr().err
    assert sorted(finished.rglob("*")) == before


def test_resuming_needs_an_experiment(tmp_path, capsys):
    folder = tmp_path / "mistyped"
    assert main(["classify", *TWO_EPOCHS, "--resume", "--run-dir", str(folder)]) == 1
    assert "mistyped holds no experiment to resume" in capsys.readouterr().err
    assert not folder.exists()


def interruptible(folder):
    return [
        *("classify", *TINY, "--method", "sgpa", "--seeds", "0", "--no-shift", "--epochs", "8"),
        *("--warm-start.sgpa", "2", "--validate-every", "2", "--checkpoint-every", "2"),
        *("--run-dir", str(folder)),
    ]


def start(folder):
    command = [sys.executable, "-m", "probseq_apps.cli", *interruptible(folder)]
    # A file and not a pipe: nobody reads it, and a full pipe stops the writer.
    with folder.with_suffix(".log").open("w") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def final_weights(folder):
    checkpoints = sorted((folder / "sgpa" / "seed-0" / "checkpoints").glob("step-*"))
    return load_file(checkpoints[-1] / "model.safetensors")


def test_a_killed_experiment_resumes_to_the_same_numbers_and_weights(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(interruptible(whole)) == 0
    process = start(broken)
    deadline = time.monotonic() + 120
    while not list((broken / "sgpa" / "seed-0" / "checkpoints").glob("step-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "report.json").exists()
    assert main([*interruptible(broken), "--resume"]) == 0
    expected, found = final_weights(whole), final_weights(broken)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert without_seconds(read_report(broken)) == without_seconds(read_report(whole))
