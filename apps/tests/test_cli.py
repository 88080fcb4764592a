import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from probseq_apps.cli import main, parse

# Arguments of wrong commands, and what the message says.
WRONG = {
    "clasify": "'classify'",
    "generate difusion": "'diffusion'",
    "bench nothing": "known: attention",
    "classify --epoch 3": "--epochs",
    "classify --method sgpaa": "'sgpa'",
    "classify --method sgap": "'sgpa'",
    "classify --method kernel+tss": "'ts'",
    "classify --method kernel+": "unknown addition",
    "classify --method kernel+ts+ts": "each addition once, in the order kflla+ts+ensemble",
    "classify --method sgpa+ensemble+ts": "in the order kflla+ts+ensemble",
    "classify --method sngp+kflla": "leave out kflla",
    "classify --method sgpa+ensemble --seeds 1": "two seeds",
    "classify --method": "method must be",
    "classify --seeds": "seeds must be",
    "classify --seeds 0 0": "without repetitions",
    "classify --seeds -1": "a whole number of at least 0",
    "classify --data cifar-10": "'cifar10'",
    "classify --data folder:": "needs a path",
    "classify --recipe sgpa-cifar": "'sgpa-cifar10'",
    "classify --corruptions gausian_noise": "'gaussian_noise'",
    "classify --severities 6": "from 1 to 5",
    "classify --shift --severities": "must not be empty with shift",
    "classify --ood cola": "ood must name image sets",
    "classify --ood svhn svhn": "without repetitions",
    "classify --data cola --shift": "shift is for images",
    "classify --data cola --ood svhn": "ood is for images",
    "classify --data cola --augment crop-flip": "augment is for images",
    "classify --depth 0": "depth",
    "classify --depth two": "--depth",
    "classify --dim 30 --heads 4": "num_heads must divide dim=30",
    "classify --lr 0": "learning_rate",
    "classify --device gpu": "device must be auto, cpu, cuda or cuda:N",
    "classify --warmup-epochs 50": "warmup_epochs must be less than epochs=50",
    "classify --epochs 5 --warm-start.sgpa 5": "warmup_epochs=0 of epochs=5, got 5",
    "classify --data csv:x --tokenizer bpe:7": "bpe:SIZE",
    "classify --threads 0": "threads",
    "classify --resume": "run_dir",
    "classify --resume --overwrite --run-dir x": "exclude",
    "classify --help evalation": "'evaluation'",
    "classify --config nowhere.yaml": "nowhere.yaml",
    "config --recipe sgpa-cifar": "'sgpa-cifar10'",
    "regress --data digits": "known: zinc, csv:PATH",
    "regress --data csv:": "needs a path",
    "regress --method svdkl+ensemble": "is for classes: leave out svdkl",
    "regress --method sgpa+ts": "leave out ts",
    "regress --patch-size 2": "--patch-size",
    "online --method ohsvpg": "'ohsvgp'",
    "online --method osgpr osvgp": "the same method",
    "online --method ohsvgp-k": "for points of several dimensions",
    "online --data two-moons --method ovff": "for series",
    "online --data covid --method exact": "needs likelihood gaussian",
    "online --method ovff --hyperparameters online": "cannot change its hyperparameters",
    "online --recipe solar-51": "'solar-50'",
    "online --target-column a,a": "each once, got time, a, a",
    "online --series-column s --time-column x,y": "series_column needs one",
    "online --test-share 1": "test_share must be in (0, 1)",
    "online live --horizn 2": "--horizon",
    "online live --replay": "replay needs state",
    "online live --method osgpr": "unknown method 'osgpr'",
    "online live --likelihood poisson --offset 1": "offset must be 0",
    "online vae --method ohsvpg": "'ohsvgp'",
    "online vae --recipe moving-digits": "'moving-digits-small'",
    "generate run --recipe cifar10-8-frames": "'cifar10-8-frame'",
    "generate run --data celebA-hq": "celeba",
    "generate run --frames": "not empty",
    "generate run --frames 1 3": "1 or even",
    "generate run --patch-size 3": "--tokenizer.patch-size",
    "generate run --tokenizer.patch-size 3": "patch_size must be even for the control",
    "generate run --tokenizer.codebook-size 32769": "at most 32768",
    "generate run --stem layernorm": "prior_stem must be of this run (layernorm), got plain",
    "generate run --frames 1 --prior-arms repeat": "of this run (frames), got repeat",
    "generate tokenizer --frames 9": "frames must be 1 or even, got 9",
    "generate prior": "tokenizer must be given",
    "generate sample": "name the folder of a trained one, or name --model",
    "generate sample --model m --prior p": "model is in place of tokenizer and prior",
    "generate sample --model m --temperature 0.5": "temperature is for tokenizer and prior",
    "generate sample --tokenizer t --prior p --sampler ddim": "sampler is for model",
    "generate evaluate": "samples or tokenizer must be named",
    "generate diffusion --arms 4-frame-highorder": "'4-frame-high-order'",
    "generate diffusion --arms 6-frame-fist-order": "'6-frame-first-order'",
    "generate diffusion --arms 4-frame": "unknown arm '4-frame'",
    "generate diffusion --arms 3-frame-blur": "1 frame or an even number",
    "generate diffusion --arms 1-frame-1": "at least 2 diffusion steps",
    "generate diffusion --init-weights w.pt": "one of videos",
    "generate diffusion --eta 0.5": "eta is for sampler=ddim",
    "generate diffusion --context 4": "context must be less than the 4",
    "generate diffusion --sampling-steps 1001": "at most the 1000 diffusion steps",
    "generate diffusion --arms 4-frame-blur --likelihood-images 3": "is for 1-frame arms",
    "generate diffusion --steps 0": "steps must be at least 1 without init_weights",
    "generate hvae --recipe mnist-hvea": "'mnist-hvae'",
    "generate hvae --arms heat heat": "without repetitions",
    "generate hvae --steps 0": "steps must be a whole number of at least 1",
    "report": "--list",
    "report --table B.66": "B.6",
    "bench attention --shape": "not empty",
    "bench online --repeats 0": "repeats",
    "bench online --long 10": "long",
    "bench generate --json no/such/folder/x.json": "json",
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
    assert code == 2
    assert WRONG[command] in " ".join(said.replace("│", " ").split())


def test_wrong_usage_is_refused_before_torch_and_numpy_are_imported(answers):
    assert answers[1:] == (False, False)


def exit_code(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


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


def test_the_version_is_that_of_the_distribution(capsys):
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"probseq {version('probseq-apps')}\n"


def test_help_lists_commands_and_defaults(capsys):
    assert main([]) == 0
    assert "classify" in capsys.readouterr().out
    assert exit_code(["classify", "--recipe", "sgpa-imdb", "--help", "all"]) == 0
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


def test_help_shows_what_most_people_set_and_names_the_other_groups(capsys):
    assert exit_code(["classify", "--help"]) == 0
    short = capsys.readouterr().out
    assert "--method" in short
    assert "--epochs" not in short
    assert "training" in short
    assert exit_code(["classify", "--help", "training"]) == 0
    assert "--epochs" in capsys.readouterr().out


def test_a_configuration_is_printed_and_read_and_flags_override_it(tmp_path, capsys):
    asked = ["--recipe", "solar-50", "--seeds", "3", "--num-inducing", "7"]
    assert main(["config", "online", *asked]) == 0
    file = tmp_path / "config.json"
    file.write_text(capsys.readouterr().out)
    command = parse(["online", "--config", str(file), "--num-tasks", "4"])
    assert command.recipe == "solar-50"
    wanted = parse(["online", *asked, "--num-tasks", "4"])
    assert command.settings == wanted.settings
    yaml = tmp_path / "own.yaml"
    yaml.write_text("recipe: sgpa-cifar10\nsettings:\n  training: {learning_rate: 1e-4}\n")
    training = parse(["classify", "--config", str(yaml)]).settings.training
    assert (training.learning_rate, training.batch_size) == (1e-4, 100)
    assert main(["config", "--recipe", "sgpa-cifar10"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["data"] == "cifar10"


@pytest.mark.parametrize("text", ["[", "3", "settings: 3", "settings: {depht: 3}"])
def test_files_that_are_no_configuration_exit_2(tmp_path, text, capsys):
    (tmp_path / "own.yaml").write_text(text)
    assert exit_code(["classify", "--config", str(tmp_path / "own.yaml")]) == 2
    assert capsys.readouterr().err.startswith("probseq: error: ")


def test_info_tells_versions_devices_and_threads(capsys):
    assert main(["info"]) == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["probseq-apps", "probseq", "torch", "numpy", "python", "threads", "devices"]


def test_output_that_nobody_reads_to_its_end_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "probseq_apps", "report", "--list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_online_with_the_command_that_goes_on(
    number, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        "probseq_apps.experiments.online.Online.run", lambda *_: signal.raise_signal(number)
    )
    before = signal.getsignal(signal.SIGTERM)
    arguments = ["online", "--data", "toy", "--method", "ohsvgp", "--run-dir", str(tmp_path / "r")]
    ended = main(arguments) if code == 130 else exit_code(arguments)
    assert ended == code
    hint = f"stopped; go on with: probseq online --run-dir {tmp_path / 'r'} --resume\n"
    assert capsys.readouterr().err.startswith(hint)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_in_the_middle_of_a_run_is_one_line_that_names_the_file(
    tmp_path, monkeypatch, capsys
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "r" / "figure.png"))

    monkeypatch.setattr("probseq_apps.experiments.online.Online.run", full)
    arguments = ["online", "--data", "toy", "--method", "ohsvgp", "--run-dir", str(tmp_path / "r")]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "figure.png cannot be written: No space left on device; make room" in said


@pytest.mark.slow
def test_torchrun_starts_two_processes_that_train_together(tmp_path):
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = [torchrun, "--standalone", "--nproc-per-node", "2", "-m", "probseq_apps", "classify"]
    command += ["--method", "mle", "--seeds", "0", "--epochs", "1", "--device", "cpu"]
    command += ["--no-shift", "--ood", "--run-dir", str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[1/1] mle-seed0") == 1
    assert (tmp_path / "two" / "report.json").is_file()
