import subprocess
import sys

import pytest

from probseq_apps.cli import main, parse

TELL_TORCH = """
import sys
from probseq_apps.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    print(stop.code, "torch" in sys.modules, "numpy" in sys.modules)
"""


def exit_code(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["classify", "--epoch", "3"], "--epochs"),
        (["classify", "--method", "sgpaa"], "'sgpa'"),
        (["classify", "--method", "kernel+tss"], "'ts'"),
        (["classify", "--data", "cifar-10"], "'cifar10'"),
        (["classify", "--recipe", "sgpa-cifar"], "'sgpa-cifar10'"),
        (["classify", "--corruptions", "gausian_noise"], "'gaussian_noise'"),
        (["clasify"], "'classify'"),
        (["online", "--method", "ohsvpg"], "'ohsvgp'"),
        (["online", "--recipe", "solar-51"], "'solar-50'"),
        (["online", "live", "--horizn", "2"], "--horizon"),
        (["online", "vae", "--recipe", "moving-digits"], "'moving-digits-small'"),
    ],
)
def test_unknown_names_exit_2_with_the_nearest_before_torch_is_imported(arguments, nearest):
    finished = subprocess.run(
        [sys.executable, "-c", TELL_TORCH, *arguments], capture_output=True, text=True, check=False
    )
    assert finished.stdout.split() == ["2", "False", "False"]
    assert nearest in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--depth", "0"], "depth"),
        (["--depth", "two"], "--depth"),
        (["--dim", "30", "--heads", "4"], "num_heads"),
        (["--seeds"], "seeds"),
        (["--seeds", "0", "0"], "seeds"),
        (["--method", "sgpa+ensemble", "--seeds", "1"], "two seeds"),
        (["--method", "sgpa+ensemble+ts"], "ts+ensemble"),
        (["--lr", "0"], "learning_rate"),
        (["--severities", "6"], "severities"),
        (["--ood", "cola"], "ood"),
        (["--data", "cola", "--shift"], "shift"),
        (["--resume"], "run_dir"),
        (["--resume", "--overwrite", "--run-dir", "x"], "exclude"),
        (["--epochs", "5", "--warm-start.sgpa", "5"], "warm_start.sgpa"),
    ],
)
def test_impossible_settings_exit_2_and_are_named(arguments, named, capsys):
    assert exit_code(["classify", *arguments]) == 2
    assert named in capsys.readouterr().err


def test_every_setting_comes_from_the_recipe_and_flags_override_it():
    command = parse(
        ["classify", "--recipe", "sgpa-cifar10", "--epochs", "700", "--seeds", "4", "5"]
    )
    assert command.recipe == "sgpa-cifar10"
    assert command.settings.data == "cifar10"
    assert command.settings.training.epochs == 700
    assert command.settings.seeds == (4, 5)
    assert command.settings.training.batch_size == 100
    assert command.settings.sgpa.num_inducing == 32


def test_a_flag_equal_to_a_global_default_still_overrides_the_recipe():
    command = parse(["classify", "--recipe=sgpa-cifar10", "--depth", "2", "--no-shift", "--ood"])
    assert command.settings.model.depth == 2
    assert not command.settings.evaluation.shift
    assert command.settings.evaluation.ood == ()


def test_without_a_recipe_the_data_set_chooses_a_small_one():
    assert parse(["classify"]).recipe == "digits-small"
    assert parse(["classify", "--data", "svhn"]).recipe == "cifar10-small"
    text = parse(["classify", "--data", "csv:reviews.csv"])
    assert text.recipe == "cola-small"
    assert text.settings.data == "csv:reviews.csv"


def test_a_recipe_on_other_data_does_not_count_those_data_as_unknown():
    command = parse(["classify", "--recipe", "sgpa-cifar10", "--data", "svhn"])
    assert command.settings.evaluation.ood == ("cifar100",)


def test_the_version_is_that_of_the_distribution(capsys):
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"probseq {version('probseq-apps')}\n"


def test_help_lists_commands_and_defaults(capsys):
    assert main([]) == 0
    assert "classify" in capsys.readouterr().out
    assert exit_code(["classify", "--recipe", "sgpa-imdb", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "global inducing inputs M of each head" in text
    assert "(default: 50)" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--data", "mnist"], "--data-dir"),
        (["--data", "mnist", "--data-dir", "not-there"], "not-there"),
        (["--data", "cola", "--data-dir", "."], "in_domain_train.tsv"),
        (["--data", "folder:not-there"], "not-there"),
        (["--ood", "svhn"], "svhn"),
        (["--patch-size", "3"], "patch_size"),
        (["--device", "cuda:99"], "cuda:99"),
    ],
)
def test_failures_exit_1_with_one_line_and_write_nothing(
    arguments, named, tmp_path, monkeypatch, capsys
):
    (tmp_path / "some-file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["classify", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("probseq: error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["some-file"]


def test_debug_shows_where_an_error_came_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="not-there"):
        main(["classify", "--data", "mnist", "--data-dir", "not-there", "--debug"])
