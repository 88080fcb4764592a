import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score

from probseq_apps.cli import main, parse
from probseq_apps.data.molecules import load_molecules
from probseq_apps.methods.build import build
from probseq_apps.settings.classify import RegressSettings
from probseq_apps.settings.methods import METHODS as KNOWN
from probseq_apps.settings.methods import BackboneSettings
from sgpa import LaplaceLikelihood

pytest.importorskip("rdkit")

TINY = [
    *(
        "--depth",
        "1",
        "--dim",
        "8",
        "--heads",
        "2",
        "--hidden-dim",
        "8",
        "--sgpa.num-inducing",
        "3",
    ),
    *("--num-samples", "3", "--batch-size", "16", "--threads", "1", "--device", "cpu"),
]
METHODS = ["mle", "kernel", "mcd", "sgpa", "sgpa+ensemble"]


def molecules(folder, name="own.csv"):
    """Chains with a few other atoms; their number of oxygens is to be predicted."""
    rows = ["smiles,oxygens"]
    for length in range(2, 8):
        for oxygens in range(5):
            rows.append(f"{'C' * length}{'OC' * oxygens},{oxygens}")
    path = folder / name
    path.write_text("\n".join(rows) + "\n")
    return path


def arguments(path, *more):
    return ["regress", "--data", f"csv:{path}", "--target", "oxygens", *TINY, *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished experiment with all kinds of methods; its folder."""
    folder = tmp_path_factory.mktemp("regress")
    more = ["--method", *METHODS, "--epochs", "2", "--seeds", "0", "1"]
    assert main(arguments(molecules(folder), *more, "--run-dir", str(folder / "run"))) == 0
    return folder / "run"


def read_report(folder):
    return json.loads((folder / "report.json").read_text())


def without_seconds(report):
    for method in report["methods"].values():
        del method["train_seconds"]
    return report


def stored(folder, method, seed):
    with np.load(folder / method / f"seed-{seed}" / "predictions.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("method", ["mle", "mcd", "sgpa"])
def test_the_report_holds_the_metrics_of_the_stored_predictions(finished, method):
    metrics = read_report(finished)["methods"][method]["metrics"]
    errors, losses, aurocs = [], [], []
    for seed in (0, 1):
        arrays = stored(finished, method, seed)
        samples, scale, truth = (arrays[f"test/{name}"] for name in ("samples", "scale", "targets"))
        assert samples.shape == ((1 if method == "mle" else 3), 3)
        errors.append(np.abs(samples.mean(0) - truth).mean())
        densities = np.exp(-np.abs(samples - truth) / scale) / (2 * scale)
        losses.append(-np.log(densities.mean(0)).mean())
        variances = [samples.var(0), arrays["ood/swapped-edges/samples"].var(0)]
        aurocs.append(roc_auc_score([0, 0, 0, 1, 1, 1], np.concatenate(variances)))
    assert metrics["test/mae"]["values"] == pytest.approx(errors)
    assert metrics["test/nll"]["values"] == pytest.approx(losses)
    assert metrics["test/nll"]["mean"] == pytest.approx(np.mean(losses))
    auroc = metrics["ood/swapped-edges/variance/auroc"]
    if method == "mle":
        assert auroc["mean"] is None
    else:
        assert auroc["values"] == pytest.approx(aurocs)


def test_an_ensemble_is_the_mixture_of_its_seeds(finished):
    runs = [stored(finished, "sgpa", seed) for seed in (0, 1)]
    truth = runs[0]["test/targets"]
    densities = [
        np.exp(-np.abs(run["test/samples"] - truth) / run["test/scale"]) / 2 / run["test/scale"]
        for run in runs
    ]
    nll = read_report(finished)["methods"]["sgpa+ensemble"]["metrics"]["test/nll"]
    assert nll["values"] == pytest.approx([-np.log(np.concatenate(densities).mean(0)).mean()])
    assert nll["standard_error"] is None


def test_the_report_says_how_it_came_about(finished):
    report = read_report(finished)
    assert (report["experiment"], report["recipe"]) == ("regress", "zinc-small")
    assert report["settings"]["reading"]["target"] == "oxygens"
    assert report["data"]["train"] == 24
    assert {"torch", "probseq", "sgpa", "python"} <= report["versions"].keys()
    assert all(seconds > 0 for seconds in report["methods"]["sgpa"]["train_seconds"])
    markdown = (finished / "report.md").read_text()
    assert all(method in markdown for method in METHODS)
    names = ["predicted", "coverage", "error-by-variance"]
    for name in (*names, "ood-swapped-edges", "ood-swapped-edges-roc"):
        assert (finished / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"plots/{name}.png" in markdown


def test_finished_runs_are_not_run_again_and_the_flags_need_not_be_repeated(finished, capsys):
    before = without_seconds(read_report(finished))
    time_before = (finished / "sgpa" / "seed-1" / "predictions.npz").stat().st_mtime_ns
    assert main(["regress", "--resume", "--run-dir", str(finished)]) == 0
    assert capsys.readouterr().out.count("finished before") == 8
    assert (finished / "sgpa" / "seed-1" / "predictions.npz").stat().st_mtime_ns == time_before
    assert without_seconds(read_report(finished)) == before


def test_an_existing_run_is_left_alone_unless_asked(finished, tmp_path, capsys):
    more = ["--method", "mle", "--epochs", "1", "--run-dir", str(finished)]
    assert main(arguments(molecules(tmp_path), *more)) == 1
    assert "already holds a run" in capsys.readouterr().err
    assert main(["classify", "--resume", "--run-dir", str(finished)]) == 1
    assert "of kind regress, and none of kind classify to resume" in capsys.readouterr().err


def test_without_swapped_edges_nothing_is_said_about_them(tmp_path):
    more = ["--method", "mcd", "--seeds", "0", "--epochs", "1", "--no-ood"]
    folder = tmp_path / "run"
    assert main(arguments(molecules(tmp_path), *more, "--run-dir", str(folder))) == 0
    assert not any("ood" in name for name in read_report(folder)["methods"]["mcd"]["metrics"])
    assert not list((folder / "plots").glob("ood*"))
    assert main(arguments(molecules(tmp_path), *more, "--run-dir", str(folder), "--overwrite")) == 0


def test_a_table_of_numbers_is_learned_from(tmp_path):
    rows = ["a,b,oxygens", *(f"{k},{k % 3},{2 * k + k % 3}" for k in range(40))]
    path = tmp_path / "numbers.csv"
    path.write_text("\n".join(rows) + "\n")
    folder = tmp_path / "run"
    more = ["--method", "mle", "sgpa", "--seeds", "0", "--epochs", "2", "--run-dir", str(folder)]
    numbers = ["regress", "--data", f"csv:{path}", "--target", "oxygens", *TINY]
    assert main([*numbers, *more]) == 0
    for method in read_report(folder)["methods"].values():
        assert method["metrics"]["test/rmse"]
        assert not any(name.startswith("ood/") for name in method["metrics"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--smiles-column", "mol"], "one column 'mol'"),
        (["--test-size", "40"], "too few"),
        (["--max-atoms", "3"], "at most max_atoms=3"),
        (["--download"], "download must be off"),
        (["--data", "csv:nowhere.csv"], "nowhere.csv does not exist"),
        (["--data", "zinc"], "--data-dir"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_line_before_anything_is_written(
    tmp_path, capsys, more, message
):
    path = molecules(tmp_path)
    folder = tmp_path / "run"
    assert main([*arguments(path, *more), "--run-dir", str(folder)]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not folder.exists()


def test_the_recipe_gives_the_settings_and_flags_override_them():
    command = parse(["regress", "--recipe", "sgpa-zinc", "--epochs", "7"])
    assert command.recipe == "sgpa-zinc"
    assert (command.settings.model.depth, command.settings.training.epochs) == (8, 7)
    assert parse(["regress"]).recipe == "zinc-small"
    with pytest.raises(SystemExit) as stop:
        parse(["regress", "--recipe", "zinc"])
    assert stop.value.code == 2


def interruptible(path, folder):
    more = ["--method", "sgpa", "--seeds", "0", "--epochs", "12", "--checkpoint-every", "2"]
    return arguments(path, *more, "--validate-every", "3", "--run-dir", str(folder))


def final_weights(folder):
    checkpoints = sorted((folder / "sgpa" / "seed-0" / "checkpoints").glob("step-*"))
    return load_file(checkpoints[-1] / "model.safetensors")


def test_a_killed_experiment_resumes_to_the_same_numbers_and_weights(tmp_path):
    path = molecules(tmp_path)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(interruptible(path, whole)) == 0
    command = [sys.executable, "-m", "probseq_apps.cli", *interruptible(path, broken)]
    with (tmp_path / "log").open("w") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    deadline = time.monotonic() + 120
    while not list((broken / "sgpa" / "seed-0" / "checkpoints").glob("step-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "report.json").exists()
    assert main([*interruptible(path, broken), "--resume"]) == 0
    expected, found = final_weights(whole), final_weights(broken)
    assert "likelihood.raw_scale" in expected
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert without_seconds(read_report(broken)) == without_seconds(read_report(whole))


def test_a_model_learns_to_count(tmp_path):
    more = ["--method", "mle", "--seeds", "0", "--epochs", "150", "--lr", "1e-2", "--no-ood"]
    more += ["--validate-every", "50", "--checkpoint-every", "150", "--dropout", "0"]
    assert main(arguments(molecules(tmp_path), *more, "--run-dir", str(tmp_path / "run"))) == 0
    # The mean absolute deviation of 0, ..., 4 is 1.2.
    metrics = read_report(tmp_path / "run")["methods"]["mle"]["metrics"]
    assert metrics["test/mae"]["mean"] < 0.6
    assert stored(tmp_path / "run", "mle", 0)["test/scale"] < 0.6


@pytest.mark.parametrize("name", ["mfvi", "cgpt", "scgpt", "kepsvgp", "kepsvgp-e", "mcd-softmax"])
def test_every_other_method_gives_a_number_a_molecule_with_a_gradient(tmp_path, name):
    settings = RegressSettings(
        data=f"csv:{molecules(tmp_path)}",
        method=(name,),
        model=BackboneSettings(depth=2, dim=8, num_heads=2, hidden_dim=8, pooling="cls"),
    )
    data = load_molecules(settings.data, target="oxygens")
    model = build(KNOWN[name], settings, data, seed=0)
    output = model(data.train.inputs[:4], generator=torch.Generator().manual_seed(0))
    assert output.logits.shape == (4, 1)
    weight = KNOWN[name].config(settings).penalty_weight(0.7)
    likelihood = LaplaceLikelihood().log_prob(output.logits, data.train.targets[:4].float())
    loss = weight * output.penalty - likelihood.mean()
    assert torch.isfinite(loss)
    loss.backward()
    without = [key for key, value in model.named_parameters() if value.grad is None]
    assert not without
    sampled = model.eval()(data.train.inputs[:4], num_samples=3).logits
    assert sampled.shape == (3, 4, 1)
