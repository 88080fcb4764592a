import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from damage import full_disk
from probseq_apps import cli
from probseq_apps.cli import main, parse
from probseq_apps.experiments import online
from probseq_apps.registry import REGISTRY

# Arguments of wrong commands, and what the message says; the golden list has as many others.
WRONG = {
    "clasify": "'classify'",
    "generate difusion": "'diffusion'",
    "bench nothing": "known: attention",
    "classify --epoch 3": "--epochs",
    "classify --method sgap": "'sgpa'",
    "classify --method kernel+": "addition to 'kernel' must be named",
    "classify --method kernel+ts+ts": "each addition once, in the order kflla+ts+ensemble",
    "classify --method sngp+kflla": "leave out kflla",
    "classify --method": "method must be a list, each entry a string, not empty",
    "classify --method resnet": "unknown method 'resnet'; known: logreg, mlp",
    "classify --recipe=": "recipe must be named, one of speakers",
    "classify --nope": "Unrecognized options: --nope",
    "config": "config needs a command",
    "classify --method mle+ensemble --ensemble-size 2": "must divide the number of seeds, 3, got 2",
    "classify --seeds -1": "a whole number of at least 0",
    "classify --data folder:": "needs a path",
    "classify --recipe sgpa-cifar": "'sgpa-cifar10'",
    "classify --shift --severities": "must not be empty with shift",
    "classify --ood svhn svhn": "without repetitions",
    "classify --data cola --ood svhn": "ood is for images",
    "classify --data cola --augment crop-flip": "augment is for images",
    "classify --data sequences:x.csv --patch-size 2": "patch_size is for images",
    "classify --data sequences:x.csv --text-column y": "has no text_column",
    "classify --data sequences:x.npz --label-column y": "has no label_column",
    "classify --depth two": "--depth: must be a number, got 'two'",
    "classify --device gpu": "device must be auto, cpu, cuda or cuda:N",
    "classify --warmup-epochs 200": "warmup_epochs must be less than epochs=200",
    "classify --epochs 5 --warm-start.sgpa 5": "warmup_epochs=0 of epochs=5, got 5",
    "classify --data csv:x --tokenizer bpe:7": "bpe:SIZE",
    "classify --threads 0": "threads",
    "classify --resume": "run_dir",
    "classify --overwrite": "overwrite needs run_dir",
    "classify --schedule cosin": "did you mean 'cosine'? known: linear, cosine",
    "classify --workers two": "--workers: cannot be read from ['two']",
    "classify --data LICENSE": "did you mean 'csv:LICENSE'?",
    "classify --config nowhere.toml": "nowhere.toml",
    "config online --recipe solar-51": "'solar-50'",
    "regress --data csv:": "needs a path",
    "regress --method svdkl+ensemble": "is for classes: leave out svdkl",
    "regress --method sgpa+ts": "leave out ts",
    "regress --patch-size 2": "--patch-size",
    "online --method osgpr osvgp": "the same method",
    "online --method ohsvgp-adam": "needs another likelihood than gaussian",
    "online --method osvgp-at-once --hyperparameters online": "cannot change its hyperparameters",
    "online --target a --inputs a b": "each once, got a, b, a",
    "online --target time": "each once, got time, time",
    "online --series s --target x y": "series needs one target",
    "online live --page 8000": "`probseq forecast FILE`",
    "online pyproject.toml": "`probseq forecast FILE`",
    "forecast --replay": "replay needs state",
    "forecast --sort": "sort needs a FILE",
    "forecast --horizon=-3": "horizon must be above 0, got -3",
    "forecast --horizon 0": "horizon must be above 0, got 0",
    "forecast --false-alarms few/day": "such as 0.002 or 1/day, got 'few/day'",
    "forecast --out answers.txt": "out must end in .csv or .jsonl, got answers.txt",
    "forecast a.csv --out a.csv": "a.csv would be overwritten",
    "online vae --method ohsvpg": "'ohsvgp'",
    "generate run --frames": "not empty",
    "generate run --frames 1 3": "1 or even",
    "generate run --tokenizer.patch-size 3": "patch_size must be even for the control",
    "generate run --tokenizer.codebook-size 32769": "at most 32768",
    "generate run --stem layernorm": "prior_stem must be of this run (layernorm), got plain",
    "generate run --frames 1 --prior-variants repeat": "of this run (frames), got repeat",
    "generate sample": "model must be given: name the folder of a trained one",
    "generate diffusion --variants 6-frame-fist-order": "'6-frame-first-order'",
    "generate diffusion --variants 4-frame": "unknown variant '4-frame'",
    "generate diffusion --variants 3-frame-blur": "1 frame or an even number",
    "generate diffusion --variants 1-frame-1": "at least 2 diffusion steps",
    "generate diffusion --eta 0.5": "eta is for sampler=ddim",
    "generate diffusion --variants 4-frame-blur --likelihood-images 3": "is for 1-frame variants",
    "generate hvae --label-dropout 0.2": "label_dropout needs labels, got 0.2 without them",
    "generate run --guidance 2": "guidance needs labels, got 2.0 without them",
    "generate hvae --labels --label-dropout 1": "label_dropout must be in [0, 1)",
    "generate hvae --labels --label-dropout 0 --guidance 0": "guidance needs label_dropout above 0",
    "generate diffusion --labels --guidance -1": "guidance must be finite and not negative",
    "generate hvae --recipe mnist-hvea": "'mnist-hvae'",
    "generate hvae --variants heat heat": "without repetitions",
    "generate hvae --steps 0": "steps must be a whole number of at least 1",
    "bench attention --shape": "not empty",
    "bench streams --repeats 0": "repeats",
}
RUN_ALL = """
import contextlib, io, json, sys
from probseq_apps.cli import main
said = []
for command in json.loads(sys.argv[1]):
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(error):
        try:
            code = main(command.split())
        except SystemExit as stop:
            code = stop.code
    said.append((code, error.getvalue()))
json.dump((said, "torch" in sys.modules, "numpy" in sys.modules), sys.stdout)
"""


@pytest.fixture(scope="module")
def answers():
    """What wrong commands say, all in one process, and whether torch and numpy were loaded."""
    command = [sys.executable, "-c", RUN_ALL, json.dumps(list(WRONG))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, torch, numpy = json.loads(done.stdout)
    return dict(zip(WRONG, said, strict=True)), torch, numpy


@pytest.mark.parametrize("command", WRONG)
def test_wrong_usage_exits_2_and_says_what_is_wrong(command, answers):
    code, said = answers[0][command]
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("probseq: error: ")
    assert WRONG[command] in said


def test_wrong_usage_is_refused_before_torch_and_numpy_are_imported(answers):
    assert answers[1:] == (False, False)


def exit_code(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.mark.parametrize(
    ("command", "line"),
    [("generate diffusion", "generate diffusion: digits\n"), ("generate export", "")],
)
def test_the_first_line_is_there_before_torch_is_imported(command, line, monkeypatch, capsys):
    load = cli.load

    def checked(name):
        if name == REGISTRY[command].run:
            raise ValueError(f"first came {capsys.readouterr().out!r}")
        return load(name)

    monkeypatch.setattr(cli, "load", checked)
    given = ["--model", "m", "--pipeline", "p"] if command == "generate export" else []
    assert main([*command.split(), *given]) == 1
    assert f"first came {line!r}" in capsys.readouterr().err


def test_every_setting_comes_from_the_recipe_and_flags_override_it():
    """Also flags that say what holds without a recipe."""
    words = "classify --recipe sgpa-cifar10 --epochs 700 --seeds 4 5 --depth 2 --no-shift --ood"
    recipe, settings = parse(words.split())[1:3]
    assert (recipe, settings.data, settings.seeds) == ("sgpa-cifar10", "cifar10", (4, 5))
    assert (settings.training.epochs, settings.training.batch_size) == (700, 100)
    assert (settings.model.depth, settings.sgpa.num_inducing) == (2, 32)
    assert (settings.evaluation.shift, settings.evaluation.ood) == (False, ())


def test_help_lists_commands_and_flags_and_those_of_groups_where_all_are_asked_for(capsys):
    def told(*words):
        assert (main(words) if len(words) < 2 else exit_code(words)) == 0
        return capsys.readouterr().out

    assert all(entry.examples for entry in REGISTRY.values())
    of_trained = ("--resume", "--model")
    for line in (line for entry in REGISTRY.values() for line in entry.examples):
        if not any(word in line for word in of_trained):
            parse(line.partition("probseq ")[2].split())

    assert told("--version") == f"probseq {version('probseq-apps')}\n"
    assert "classify" in told() == told("help")
    assert "bench streams --regimes" in told("help", "bench", "streams")
    short, whole = told("classify", "--help"), told("classify", "--help-all")
    assert len(short.splitlines()) < 90
    assert ("--method" in short, "--dropout" in short, "training" in short) == (True, False, True)
    assert {"--method", "--epochs", "--sgpa.num-inducing"} <= set(whole.split())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--data", "mnist"], "--data-dir"),
        (["--data", "mnist", "--data-dir", "not-there"], "not-there"),
        (["--data", "cola", "--data-dir", "."], "in_domain_train.tsv"),
        (["--data", "folder:not-there"], "not-there"),
        (["--recipe", "digits-few", "--ood", "svhn"], "svhn"),
        (["--recipe", "digits-few", "--patch-size", "3"], "patch_size"),
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


def test_a_configuration_is_printed_and_read_and_flags_override_it(tmp_path, capsys):
    asked = ["--recipe", "solar-50", "--seeds", "3", "--num-inducing", "7"]
    assert main(["config", "online", *asked]) == 0
    file = tmp_path / "config.json"
    file.write_text(capsys.readouterr().out)
    command = parse(["online", "--config", str(file), "--num-tasks", "4"])
    assert command.recipe == "solar-50"
    wanted = parse(["online", *asked, "--num-tasks", "4"])
    assert command.settings == wanted.settings
    toml = tmp_path / "own.toml"
    toml.write_text('recipe = "sgpa-cifar10"\n[settings.training]\nlearning_rate = 1e-4\n')
    training = parse(["classify", "--config", str(toml)]).settings.training
    assert (training.learning_rate, training.batch_size) == (1e-4, 100)
    assert main(["config", "classify", "--recipe", "sgpa-cifar10"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["data"] == "cifar10"


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "3",
        "settings = 3",
        "settings = {depht = 3}",
        "settings = {data = 5}",
        "recipe = ['x']\n[settings]",
        "'\xe9'",
    ],
)
def test_files_that_are_no_configuration_exit_2(tmp_path, text, capsys):
    (tmp_path / "own.toml").write_text(text, encoding="latin-1")
    assert exit_code(["classify", "--config", str(tmp_path / "own.toml")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("probseq: error: ")
    assert "own.toml" in error


@pytest.mark.slow
def test_output_that_nobody_reads_to_its_end_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "probseq_apps", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_online_with_the_command_that_goes_on(
    number, code, tmp_path, monkeypatch, capsys
):
    signalled = replace(online.WORKFLOW, run=lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(online, "WORKFLOW", signalled)
    before = signal.getsignal(signal.SIGTERM)
    # What a shell starts in the background ignores Ctrl-C.
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = ["online", "--data", "toy", "--method", "ohsvgp", "--run-dir", str(tmp_path / "r")]
    ended = main(arguments) if code == 130 else exit_code(arguments)
    signal.signal(signal.SIGINT, interrupts)
    assert ended == code
    hint = f"stopped; go on with: probseq online --run-dir {tmp_path / 'r'} --resume\n"
    assert capsys.readouterr().err.startswith(hint)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_in_the_middle_of_a_run_is_one_line_that_names_the_file(
    tmp_path, monkeypatch, capsys
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "r" / "figure.png"))

    monkeypatch.setattr(online, "WORKFLOW", replace(online.WORKFLOW, run=full))
    arguments = ["online", "--data", "toy", "--method", "ohsvgp", "--run-dir", str(tmp_path / "r")]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "figure.png cannot be written: No space left on device; make room" in said


def test_a_full_disk_is_one_line_of_a_command_without_runs_too(tmp_path, capsys):
    rows = np.random.default_rng(0).normal(size=(300, 3))
    np.savez(tmp_path / "val.npz", logits=rows, labels=rows.argmax(1))
    words = ["--logits", str(tmp_path / "val.npz"), "--output-dir", str(tmp_path / "out")]
    with full_disk(100):
        assert main(["calibrate", *words]) == 1
    message = capsys.readouterr().err
    assert message.endswith("File too large; make room or name another folder\n")
    assert f"{tmp_path / 'out'}" in message
    readings, answers = tmp_path / "readings.csv", tmp_path / "answers.csv"
    readings.write_text("t,v\n" + "".join(f"{n},{row[0]}\n" for n, row in enumerate(rows)))
    with full_disk(100):
        assert main(["forecast", str(readings), "--out", str(answers)]) == 1
    assert f"{answers} cannot be written: File too large" in capsys.readouterr().err


@pytest.mark.slow
def test_torchrun_starts_two_processes_that_train_together(tmp_path):
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = [torchrun, "--standalone", "--nproc-per-node", "2", "-m", "probseq_apps", "classify"]
    command += ["--method", "mle", "--seeds", "0", "--epochs", "1", "--device", "cpu"]
    command += ["--no-shift", "--ood", "--run-dir", str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 method, 1 seed ->") == 1
    assert done.stderr.count("1/1 jobs") == 1
    assert (tmp_path / "two" / "report.json").is_file()
