from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.special import log_softmax, logsumexp
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from torch import nn

from probseq.metrics import SCORES
from probseq.metrics.post_hoc import search_temperature
from probseq.transformers import TransformerOutput
from probseq_apps.cli import main
from probseq_apps.data.images import load_images
from probseq_apps.data.names import DataError
from probseq_apps.data.parts import Part
from probseq_apps.engine.config import EpochTraining
from probseq_apps.engine.files import read_finished
from probseq_apps.engine.trainer import TrainStep
from probseq_apps.experiments.classify import classification_loss, make_test_sets, warm_start_config
from probseq_apps.options import Options
from probseq_apps.report.classify import with_chosen_scores
from probseq_apps.settings.classify import RECIPES, EvaluationSettings

TINY = [
    *("--data", "digits"),
    *("--depth", "2", "--dim", "16", "--heads", "2", "--hidden-dim", "16", "--patch-size", "4"),
    *("--sgpa.num-inducing", "4", "--num-samples", "3", "--threads", "1", "--device", "cpu"),
]
TWO_EPOCHS = [*TINY, "--epochs", "2", "--validate-every", "1", "--seeds", "0", "1"]
SMALL_EVALUATION = ["--corruptions", "contrast", "--severities", "1", "5", "--ood", "rotations"]
CHOICE = "choice"
NAMES = ("test", "validation", "ood/unknown", "validation/unknown")
ROWS = [
    "logreg",
    "mle",
    "kernel+ts",
    "kernel+ensemble",
    "kernel+ts+ensemble",
    "mcd",
    "sgpa",
    CHOICE,
]
OWN = """[settings.rows]
choice = {method = "mle", dropout = [0.0, 0.9]}
undropped = {method = "mcd", dropout = 0.0}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished experiment with all kinds of methods; its folder."""
    folder = tmp_path_factory.mktemp("classify") / "run"
    own = folder.with_name("own.toml")
    own.write_text(OWN)
    arguments = [
        "classify",
        "--config",
        str(own),
        "--method",
        *ROWS,
        *TWO_EPOCHS,
        *SMALL_EVALUATION,
    ]
    assert main([*arguments, "--run-dir", str(folder)]) == 0
    return folder


def stored(folder, method, seed):
    with np.load(folder / method / f"seed-{seed}" / "predictions.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("method", ["mle", "mcd", "sgpa"])
def test_the_report_holds_the_metrics_of_the_stored_predictions(finished, report_of, method):
    metrics = report_of(finished)["methods"][method]["metrics"]
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


def test_post_hoc_rows_use_the_same_runs(finished, report_of):
    report = report_of(finished)["methods"]
    runs = [stored(finished, "kernel", seed) for seed in (0, 1)]
    labels, temperatures = runs[0]["test/labels"], report["kernel+ts"]["temperatures"]
    for run, temperature in zip(runs, temperatures, strict=True):
        known = (run[f"validation/{name}"] for name in ("log_probs", "labels"))
        assert temperature == pytest.approx(search_temperature(*map(torch.from_numpy, known)))
    plain = [run["test/log_probs"] for run in runs]
    scaled = [log_softmax(x / t, axis=1) for x, t in zip(plain, temperatures, strict=True)]
    for row, members in (
        ("kernel+ts", scaled[1:]),
        ("kernel+ensemble", plain),
        ("kernel+ts+ensemble", scaled),
    ):
        mean = logsumexp(members, axis=0) - np.log(len(members))
        found = report[row]["metrics"]["test/nll"]
        expected = -mean[np.arange(len(labels)), labels].mean()
        assert found["values"][-1] == pytest.approx(expected, rel=1e-5)
        assert (found["standard_error"] is None) == ("ensemble" in row)
    folders = {path.name for path in finished.iterdir() if path.is_dir()}
    rows = {"logreg", "mle", "choice,dropout=0.0", "choice,dropout=0.9", "kernel", "mcd", "sgpa"}
    assert folders == rows | {"plots", "results"}


def test_ensembles_take_seeds_in_turn(tmp_path, report_of):
    chosen = ["--method", "mle+ensemble", "--ensemble-size", "2", "--seeds", "3", "1", "2", "0"]
    more = [*chosen, *TINY, "--epochs", "1", "--no-shift", "--ood", "--run-dir", str(tmp_path)]
    assert main(["classify", *more]) == 0
    losses = []
    for seeds in ((3, 1), (2, 0)):
        members = [stored(tmp_path, "mle", seed) for seed in seeds]
        mean = np.mean([np.exp(one["test/log_probs"]) for one in members], axis=0)
        losses.append(log_loss(members[0]["test/labels"], mean))
    found = report_of(tmp_path)["methods"]["mle+ensemble"]["metrics"]["test/nll"]
    assert found["values"] == pytest.approx(losses, rel=1e-5)


def test_of_several_values_that_of_lowest_validation_loss_is_taken(finished, report_of):
    row = report_of(finished)["methods"][CHOICE]
    for seed in (0, 1):
        losses, shown = {}, {}
        for variant in ("choice,dropout=0.0", "choice,dropout=0.9"):
            arrays = stored(finished, variant, seed)
            for part, found in (("validation", losses), ("test", shown)):
                logs, labels = (arrays[f"{part}/{name}"] for name in ("log_probs", "labels"))
                found[variant] = -logs[np.arange(len(labels)), labels].mean()
        best = min(losses, key=losses.__getitem__)
        assert row["chosen"][seed] == best
        assert row["metrics"]["test/nll"]["values"][seed] == pytest.approx(shown[best], rel=1e-5)


def test_the_report_says_what_attention_adds_and_costs(finished, report_of):
    report = report_of(finished)["methods"]
    arrays = stored(finished, "sgpa", 1)
    logs, labels = (arrays[f"without-attention/{name}"] for name in ("log_probs", "labels"))
    found = report["sgpa"]["metrics"]["without-attention/accuracy"]["values"][1]
    assert found == pytest.approx((logs.argmax(1) == labels).mean())
    assert not np.allclose(logs, arrays["test/log_probs"])
    assert min(report["sgpa"]["metrics"]["test/penalty"]["values"]) > 0
    assert report["mle"]["metrics"]["test/penalty"]["values"] == [None, None]


def test_finished_runs_are_not_run_again(finished, report_of, capsys):
    before, kept = report_of(finished), finished / "sgpa" / "seed-1" / "predictions.npz"
    time_before = kept.stat().st_mtime_ns
    assert main(["classify", "--resume", "--run-dir", str(finished)]) == 0
    assert "14 of 14 jobs are finished" in capsys.readouterr().out
    assert kept.stat().st_mtime_ns == time_before
    assert report_of(finished) == before
    kept.rename(kept.with_suffix(".aside"))
    assert main(["classify", "--resume", "--run-dir", str(finished)]) == 1
    assert "sgpa-seed1.json too, and resume" in capsys.readouterr().err
    kept.with_suffix(".aside").rename(kept)


def test_another_configuration_is_no_resumption(finished, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["classify", "--method", "mle", "--run-dir", str(finished), "--resume"])
    assert stop.value.code == 2
    assert "settings.method" in capsys.readouterr().err
    assert main(["classify", "--method", "mle", *TWO_EPOCHS, "--run-dir", str(finished)]) == 1
    assert "already holds a run" in capsys.readouterr().err


def test_a_finished_run_is_trained_further_and_not_less(tmp_path, report_of, capsys):
    few = ["--method", "logreg", "mle", "--train-size", "60", "--seeds", "0", "--no-shift", "--ood"]
    command = ["classify", *TINY, *few, "--run-dir", str(tmp_path / "run")]
    assert main([*command, "--epochs", "1"]) == 0
    before = stored(tmp_path / "run", "mle", 0)["test/log_probs"]
    training = tmp_path / "run" / "mle" / "seed-0"
    steps = read_finished(training)["steps"]
    assert main([*command, "--epochs", "3", "--resume"]) == 0
    assert read_finished(training)["steps"] == 3 * steps
    assert not np.array_equal(stored(tmp_path / "run", "mle", 0)["test/log_probs"], before)
    with pytest.raises(SystemExit):
        main([*command, "--epochs", "1", "--resume"])
    assert "training.epochs: 3 in the run, 1 now" in capsys.readouterr().err


SGPA = ["classify", *TINY, "--method", "sgpa", "--seeds", "0", "--no-shift"]


@pytest.mark.slow
def test_a_killed_experiment_resumes_to_the_same_numbers_and_weights(tmp_path, killed, report_of):
    arguments = [*SGPA, "--epochs", "8", "--validate-every", "2", "--checkpoint-every", "2"]
    arguments += ["--warm-start.sgpa", "2"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*arguments, "--run-dir", str(whole)]) == 0
    killed(arguments, broken, "sgpa/seed-0/checkpoints/step-*")
    found, expected = (
        load_file(max(folder.glob("sgpa/seed-0/checkpoints/step-*"))) for folder in (broken, whole)
    )
    assert expected.keys() == found.keys()
    weights = expected.keys() - {"state"}
    assert all(np.array_equal(expected[name], found[name]) for name in weights)
    assert report_of(broken) == report_of(whole)


@pytest.mark.slow
def test_killed_workers_resume_to_the_numbers_of_one_process(tmp_path, killed, report_of):
    arguments = ["classify", "--method", "mle", "kernel", *TWO_EPOCHS, "--no-shift"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*arguments, "--run-dir", str(whole)]) == 0
    killed([*arguments, "--workers", "2"], broken, "results/*")
    assert report_of(broken) == report_of(whole)


# -- Losses and scores ----------------------------------------------------------------------------

LOGITS = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
LABELS = torch.tensor([0, 1, 1])
PENALTY = 7.0


class Fixed(nn.Module):
    """Returns its inputs as logits, and a fixed penalty."""

    def forward(self, x, *, generator=None, num_samples=None):
        return TransformerOutput(x, torch.tensor(PENALTY))


@pytest.mark.parametrize(("weight", "expected"), [(None, 0.0), (lambda p: 0.5 * p, 0.15)])
def test_the_loss_is_the_cross_entropy_of_augmented_inputs_and_the_weighted_penalty(
    weight, expected
):
    step, batch = TrainStep(0, 0, 0.3, torch.Generator()), (LOGITS, LABELS)
    found = classification_loss(
        lambda x: x.float(), lambda x, generator: -x, weight, Fixed(), batch, step
    )
    nll = log_loss(LABELS, (-LOGITS).double().softmax(-1))
    assert found.loss.item() == pytest.approx(nll + expected * PENALTY, rel=1e-6)
    assert found.terms["nll"].item() == pytest.approx(nll)
    assert ("penalty" in found.terms) == (weight is not None)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_warm_start_ends_where_the_full_schedule_would_be(schedule):
    rates = {"learning_rate": 5e-4, "final_learning_rate": 1e-5, "schedule": schedule}
    settings, steps = EpochTraining(epochs=60, warmup_epochs=5, **rates), 400
    config, full = warm_start_config(settings, 20, seed=3), settings.train_config(seed=3)
    assert (config.epochs, config.select) == (20, "last")
    last = config.step_size(20 * steps - 1, steps)
    assert last == pytest.approx(full.step_size(20 * steps - 1, steps), rel=1e-3)
    assert config.step_size(5, steps) == full.step_size(5, steps)


# -- What is predicted and measured ---------------------------------------------------------------


def make(data, folder=None, **settings):
    evaluation = EvaluationSettings(shift=True, **settings)
    whole = replace(RECIPES.load("digits-small"), data=data.name, evaluation=evaluation)
    return make_test_sets(data, whole, Options(data_dir=folder))


def test_images_too_small_to_corrupt_are_refused_before_anything_is_trained():
    data = load_images("digits")
    small = replace(data, test=Part(data.test.inputs[..., :4, :4], data.test.targets))
    with pytest.raises(ValueError, match="8x8"):
        make(small)


def test_published_corruptions_are_those_asked_for(tmp_path):
    data = replace(load_images("digits"), name="cifar10")
    (tmp_path / "CIFAR-10-C").mkdir()
    for name in ("fog", "frost", "snow", "labels"):
        np.save(tmp_path / "CIFAR-10-C" / f"{name}.npy", np.zeros(5, dtype=np.uint8))
    for asked, listed in (
        ({}, {"fog", "frost", "snow"}),
        ({"corruptions": ("fog", "contrast")}, {"fog"}),
    ):
        found = make(data, tmp_path, severities=(1, 5), **asked)
        shifted = {name for name in found if name.startswith("cifar-c/")}
        assert shifted == {f"cifar-c/{name}/{severity}" for name in listed for severity in (1, 5)}
    with pytest.raises(DataError, match="none of the corruptions contrast"):
        make(data, tmp_path, corruptions=("contrast",))


def test_rows_of_one_class_are_refused_before_anything_is_written(tmp_path, capsys):
    arguments = ["--method", "logreg", "--train-size", "1", "--seeds", "3", "4"]
    assert main(["classify", *TINY, *arguments, "--run-dir", str(tmp_path / "run")]) == 1
    assert "'logreg' needs training examples of two classes, and seed 3" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_dropout_that_drops_nothing_is_refused_before_anything_is_trained(tmp_path, capsys):
    (tmp_path / "own.toml").write_text(OWN)
    arguments = ["--config", str(tmp_path / "own.toml"), "--method", "undropped"]
    arguments += ["--run-dir", str(tmp_path / "run")]
    assert main(["classify", *TINY, *arguments]) == 1
    assert "'undropped' needs dropout above 0" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_score_that_tells_the_unknown_is_chosen_by_the_validation_of_other_seeds():
    known = "validation/unknown"
    values = {"entropy": [0.9, 0.9, 0.2], "nearest": [0.6, 0.3, 0.8]}
    entries = [
        {f"{known}/{score}/auroc": own[seed] for score, own in values.items()}
        | {f"ood/unknown/{score}/auroc": 10 * seed + n for n, score in enumerate(values)}
        for seed in range(3)
    ]
    found, scores = with_chosen_scores(entries)
    # Means over the other two seeds: .55, .55, .9 by entropy and .55, .7, .45 by distance.
    assert scores[1:] == ["nearest", "entropy"]
    assert [entry["ood/unknown/chosen/auroc"] for entry in found[1:]] == [11, 20]
    assert with_chosen_scores(entries[:1])[1] == ["entropy"]
    assert with_chosen_scores([{"ood/svhn/entropy/auroc": 0.5}] * 2)[1] == []
    # A seed whose unknown classes have no validation examples chooses nothing for the others.
    for rest in (entries[:2], entries[1::-1]):
        assert (
            with_chosen_scores([{"test/nll": 0.1}, *rest])[1]
            == with_chosen_scores([{f"{known}/{score}/auroc": 0.0 for score in values}, *rest])[1]
        )


def test_scores_of_features_are_distances_from_what_the_last_layer_makes_of_training_data(
    tmp_path, report_of
):
    short = ["--method", "logreg", "mcd", "--unknown", "3", "7", "--train-size", "60"]
    short += [*TINY, "--epochs", "2", "--seeds", "0", "1", "--no-shift", "--ood"]
    assert main(["classify", *short, "--dropout", "0.3", "--run-dir", str(tmp_path)]) == 0
    found = report_of(tmp_path)["methods"]
    # The distances of pictures' pixels are left out.
    assert np.isnan(stored(tmp_path, "logreg", 0)["test/scores"]).all()
    for run in (stored(tmp_path, "mcd", seed) for seed in (0, 1)):
        assert all(np.isfinite(run[f"{name}/scores"]).all() for name in NAMES)
        assert {name.rpartition("/")[0] for name in run} == {*NAMES, "without-attention"}
    assert set(found["mcd"]["scores"]) <= {"max-softmax", "entropy", *SCORES}
    assert set(found["logreg"]["scores"]) <= {"max-softmax", "entropy"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["speakers", "digit-sets", "digits-few", "digits-small", "imdb-small"]
)
def test_softmax_attention_is_at_least_as_good_as_logistic_regression(
    recipe, tmp_path, report_of, request
):
    folder = tmp_path / "run"
    short = ["--method", "logreg", "mle", "--run-dir", str(folder)]
    if recipe == "imdb-small":
        short += ["--seeds", "0", "--data-dir", str(request.getfixturevalue("shared_data"))]
    else:
        short += ["--no-shift", "--ood", "--seeds", "0", "1"]
    assert main(["classify", "--recipe", recipe, *short]) == 0
    methods = report_of(folder)["methods"]
    linear, softmax = (methods[name]["metrics"]["test/accuracy"] for name in ("logreg", "mle"))
    # Of 359 test images one standard error is .013: .70 against .27, .93 to .92, .98 to .97;
    # of 10,000 reviews .0036: .851 against .845.
    assert softmax["mean"] >= linear["mean"] - 0.013
