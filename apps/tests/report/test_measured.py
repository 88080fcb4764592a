import json
import os

import pytest

from probseq_apps.report.measured import SECONDS_PER_EPOCH, find_runs, read_run


def test_a_run_gives_values_over_the_seeds_and_its_settings(write_run):
    run = read_run(write_run("a", {"sgpa": {"test/nll": [0.5, 0.7]}}, training__epochs=60))
    assert run.values("sgpa", "test/nll") == ("test/nll", (0.5, 0.7))
    assert run.values("sgpa", "test/ece") is None
    assert run.values("mle", "test/nll") is None
    assert (run.data, run.recipe, run.seeds["sgpa"]) == ("cifar10", "sgpa-cifar10", (0, 1))
    assert run.setting("training.epochs") == 60
    assert run.setting("training.nothing") is run.setting("nothing.at.all") is None
    assert run.values("sgpa", SECONDS_PER_EPOCH) == (SECONDS_PER_EPOCH, (2.0, 2.0))


def test_a_star_is_the_mean_of_all_that_match_for_each_seed(write_run):
    found = {
        "ood/svhn/entropy/auroc": [0.5, 0.6],
        "ood/folder:/data/LSUN/entropy/auroc": [0.7, 0.9],
        "ood/svhn/energy/auroc": [0.1, 0.1],
        "ood/svhn/entropy/fpr95": [0.0, 0.0],
    }
    run = read_run(write_run("a", {"sgpa": found}))
    assert run.values("sgpa", "ood/*/entropy/auroc")[1] == pytest.approx((0.6, 0.75))
    assert run.values("sgpa", "ood/*lsun*/entropy/auroc")[1] == (0.7, 0.9)
    assert run.values("sgpa", "ood/*/*/auroc")[1] == pytest.approx((1.3 / 3, 1.6 / 3))


def test_a_mean_over_something_undefined_is_undefined(write_run):
    found = {"ood/a/energy/auroc": [0.5, None], "ood/b/energy/auroc": [0.5, 0.5]}
    run = read_run(write_run("a", {"sgpa": found}))
    assert run.values("sgpa", "ood/*/energy/auroc")[1] == (0.5, None)


def test_published_corruptions_are_preferred_to_those_made_here(write_run):
    made = {"shift/severity-1/ece": [0.2]}
    run = read_run(write_run("a", {"sgpa": made, "mle": made | {"cifar-c/severity-1/ece": [0.3]}}))
    assert run.values("sgpa", "{shift}/severity-1/ece") == ("shift/severity-1/ece", (0.2,))
    assert run.values("mle", "{shift}/severity-1/ece") == ("cifar-c/severity-1/ece", (0.3,))


def test_an_ensemble_has_no_seconds_of_its_own(write_run):
    folder = write_run("a", {"mle": {"test/nll": [1.0, 2.0]}, "mle+ensemble": {"test/nll": [0.9]}})
    run = read_run(folder)
    assert run.values("mle+ensemble", SECONDS_PER_EPOCH) is None
    assert run.seeds["mle+ensemble"] == (0, 1)


@pytest.mark.parametrize(("augment", "expected"), [("none", False), ("three-augment", True)])
def test_augmentation_is_read_from_the_settings(write_run, augment, expected):
    run = read_run(write_run("a", {"mle": {"test/nll": [1.0]}}, training__augment=augment))
    assert run.augmented == expected


def test_runs_are_found_one_level_down_newest_first_and_once(write_run, tmp_path):
    for age, name in enumerate(("new", "old")):
        folder = write_run(name, {"mle": {"test/nll": [1.0]}})
        os.utime(folder / "report.json", (1e9 - age, 1e9 - age))
    (tmp_path / "runs" / "unfinished").mkdir()
    runs, notes = find_runs([tmp_path / "runs", tmp_path / "runs" / "old"])
    assert [run.folder.name for run in runs] == ["new", "old"]
    assert notes == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must hold a finished run \(report.json\)"):
        find_runs([tmp_path])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not a report of this version"),
        (json.dumps({"experiment": "classify"}), "not a report of this version: KeyError"),
        (json.dumps({"experiment": "other"}), "of the experiment 'other'"),
    ],
)
def test_a_damaged_or_foreign_report_is_left_out_with_a_note(write_run, tmp_path, text, reason):
    write_run("good", {"mle": {"test/nll": [1.0]}})
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "report.json").write_text(text)
    runs, (note,) = find_runs([tmp_path / "runs"])
    assert [run.folder.name for run in runs] == ["good"]
    assert "bad" in note
    assert reason in note
