"""`probseq generate`: what is refused, when, and with which words."""

import json
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from probseq_apps.cli import main, parse
from probseq_apps.experiments.generate_prior_groups import SamplingSettings
from probseq_apps.experiments.generate_settings import GENERATE, saved_prior
from probseq_apps.experiments.saved import config_values
from probseq_apps.folder import resume_command
from probseq_apps.options import Options
from probseq_apps.recipes.generate import GENERATE_RECIPES

TELL_TORCH = """
import sys
from probseq_apps.cli import main, parse
try:
    main(sys.argv[1:])
except SystemExit as stop:
    print(stop.code, "torch" in sys.modules, "numpy" in sys.modules)
"""
# Tokens that take long, so that a signal comes while they are written.
SLOW_TOKENS = """
import sys, time
from probseq_apps.cli import main, parse
from pseudovideo import token_cache
encode = token_cache._encode
token_cache._encode = lambda *args: time.sleep(0.2) or encode(*args)
token_cache.write_token_cache.__kwdefaults__["batch_size"] = 8
sys.exit(main(sys.argv[1:]))
"""
DEVICE = ("--device", "cpu")
TOKENIZER = (
    *("--steps", "3", "--warmup-steps", "1", "--dim", "16", "--num-heads", "2"),
    *("--codebook-size", "8", *DEVICE),
)
PRIOR = (
    *("--masked-dim", "16", "--masked-depth", "1", "--masked-num-heads", "2"),
    *("--masked-steps", "3", "--prior-warmup-steps", "1", *DEVICE),
)


def exit_code(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["run", "--recipe", "cifar10-8-frames"], "'cifar10-8-frame'"),
        (["run", "--data", "celebA-hq"], "'celeba'"),
        (["run", "--frame", "8"], "--frames"),
        (["runn"], "'run'"),
        (["tokenizer", "--corupption", "blur"], "--corruption"),
        (["sample", "--temprature", "2"], "--temperature"),
    ],
)
def test_unknown_names_exit_2_with_the_nearest_before_torch_is_imported(arguments, nearest):
    finished = subprocess.run(
        [sys.executable, "-c", TELL_TORCH, "generate", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stdout.split() == ["2", "False", "False"]
    assert nearest in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--frames", "1", "7"], "frames must be 1 or even, got 7"),
        (["run", "--patch-size", "3"], "patch_size must be even"),
        (["run", "--stem", "norm"], "--stem"),
        (["run", "--codebook-size", "1"], "codebook_size must be at least 2, got 1"),
        (["tokenizer", "--frames", "9"], "frames must be 1 or even, got 9"),
        (["prior"], "tokenizer must be given"),
        (["sample", "--tokenizer", "x"], "prior must be given"),
        (["evaluate"], "samples or tokenizer"),
        (["evaluate", "--tokenizer", "t", "--num-images", "1"], "num_images must be at least 2"),
        (["run", "--resume"], "run_dir"),
    ],
)
def test_impossible_settings_exit_2_and_are_named(arguments, named, capsys):
    assert exit_code(["generate", *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--patch-size", "6"], "patch_size=6, got 16"),
        (["--data", "mnist"], "--data-dir"),
        (["--data", "folder:not-there"], "not-there"),
        (["--data", "folder:empty"], "empty"),
        (["--data", "folder:mixed"], "mixed"),
        (["--perceptual-weight", "0.1"], "lpips_weights"),
        (
            ["--perceptual-weight", "0.1", "--lpips-weights", "vgg.pth"],
            "lpips_weights must be a file of torchvision's VGG-16 weights, got vgg.pth",
        ),
        (["--perceptual-weight", "0.1", "--lpips-weights", "list.pth"], "lpips_weights must be"),
        (["--inception-weights", "inception.pth"], "inception_weights"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--recipe", "cifar10-8-frame", "--data", "digits"], "lpips_weights"),
    ],
)
def test_failures_exit_1_with_one_line_and_write_nothing(
    arguments, named, tmp_path, monkeypatch, capsys
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    for number in range(24):
        picture = Image.new("L", (16, 16 + 8 * (number % 2)), color=10 * number)
        picture.save(tmp_path / "mixed" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "run", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("probseq: error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "list.pth", "mixed"]


def test_every_setting_comes_from_the_recipe_and_flags_override_it():
    command = parse(["generate", "run", "--recipe", "celeba-18-frame", "--steps", "7000"])
    assert command.settings.data == "celeba"
    assert command.settings.frames == (18,)
    assert command.settings.training.steps == 7000
    assert command.settings.training.batch_size == 64
    one = parse(["generate", "tokenizer", "--recipe", "cifar10-18-frame", "--stem", "layernorm"])
    assert (one.settings.frames, one.settings.stem) == (18, "layernorm")
    assert parse(["generate", "run", "--data", "mnist"]).recipe == "mnist-small"
    assert parse(["generate", "run", "--data", "folder:mine"]).recipe == "folder-small"


def test_a_shorter_training_has_a_shorter_warm_up_unless_that_is_named():
    recipe = GENERATE_RECIPES.load("cifar10-small").training
    assert (recipe.steps, recipe.warmup_steps) == (1200, 100)
    for flags, steps, warmup in (
        (["--steps", "40"], 40, 3),
        (["--steps=2400"], 2400, 100),
        (["--steps", "40", "--warmup-steps", "30"], 40, 30),
    ):
        for step in ("run", "tokenizer"):
            found = parse(["generate", step, "--data", "cifar10", *flags]).settings.training
            assert (found.steps, found.warmup_steps) == (steps, warmup)
    recipe = GENERATE_RECIPES.load("digits-small")
    whole, steps = recipe.prior_training.prior_warmup_steps, recipe.masked.masked_steps
    flags = ["--masked-steps", str(steps // 2)]
    for command in (["run"], ["prior", "--tokenizer", "t", "--prior", "masked"]):
        settings = parse(["generate", *command, *flags]).settings
        training = settings.prior_training if command == ["run"] else settings.training
        assert training.prior_warmup_steps == whole // 2


def store(folder, config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_samples_are_drawn_and_measured_as_in_the_run_or_the_recipe(tmp_path):
    run = GENERATE_RECIPES.load("mnist-small")
    one = {"experiment": "generate-prior", "recipe": "mnist-small"}
    prior = one | {"settings": run.one_prior("t", "masked", 0).to_dict()}
    tokenizer = {"experiment": "generate-tokenizer", "recipe": "mnist-small"}
    tokenizer |= {"settings": run.one_tokenizer(run.arms[0], "plain", 0).to_dict()}
    store(tmp_path / "prior", prior)
    store(tmp_path / "tokenizer", tokenizer)
    features = replace(run.evaluation.features, classifier_steps=7)
    other = replace(
        run,
        sampling=SamplingSettings(temperature=0.7, top_k=3),
        evaluation=replace(run.evaluation, features=features),
    )
    store(tmp_path / "run", config_values(GENERATE, "mnist-small", other.to_dict()))
    store(tmp_path / "run" / "priors" / "p", prior)
    store(tmp_path / "run" / "tokenizers" / "t", tokenizer)

    def sampling(folder, *flags):
        arguments = ["sample", "--tokenizer", "t", "--prior", str(tmp_path / folder), *flags]
        return parse(["generate", *arguments]).settings.sampling

    assert run.sampling != SamplingSettings()
    assert sampling("prior") == run.sampling
    assert sampling("prior", "--temperature", "0.5") == replace(run.sampling, temperature=0.5)
    assert sampling("run/priors/p") == other.sampling
    assert sampling("nowhere") == SamplingSettings()

    def steps(flag, part, *flags):
        arguments = ["evaluate", flag, str(tmp_path / part), *flags]
        return parse(["generate", *arguments]).settings.features.classifier_steps

    assert steps("--tokenizer", "tokenizer") == run.evaluation.features.classifier_steps != 300
    assert steps("--tokenizer", "run/tokenizers/t") == 7
    assert steps("--samples", "run/samples/s.npz") == 7
    assert steps("--samples", "run/samples/s.npz", "--classifier-steps", "9") == 9
    assert steps("--samples", "samples.npz", "--data", "cifar10") == 300


def test_the_steps_one_by_one_and_what_each_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for frames, codes, folder in (("2", "8", "t"), ("1", "9", "u")):
        tokenizer = ["generate", "tokenizer", "--frames", frames, *TOKENIZER]
        assert main([*tokenizer, "--codebook-size", codes, "--run-dir", folder]) == 0
    prior = ["generate", "prior", "--prior", "masked", *PRIOR]
    assert main([*prior, "--tokenizer", "t", "--run-dir", "p"]) == 0
    assert main([*prior, "--tokenizer", "nowhere", "--run-dir", "q"]) == 1
    assert "tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "q").exists()

    sample = ["generate", "sample", "--prior", "p", "--num", "9", *DEVICE]
    assert main([*sample, "--tokenizer", "u", "--run-dir", "s"]) == 1
    err = capsys.readouterr().err
    assert "codebook_size=8" in err
    assert "got 9" in err
    assert not (tmp_path / "s").exists()
    assert main([*sample, "--tokenizer", "t", "--run-dir", "s"]) == 0
    names = {path.name for path in (tmp_path / "s" / "plots").iterdir()}
    assert names == {"samples.png", "samples-videos.png", "samples.gif"}
    with np.load(tmp_path / "s" / "samples.npz") as arrays:
        assert arrays["images"].shape == (9, 1, 16, 16)
        assert arrays["videos"].shape == (9, 2, 1, 16, 16)
        assert (arrays["videos"][:, -1] == arrays["images"]).all()

    measure = ["generate", "evaluate", "--samples", "s/samples.npz", "--tokenizer", "t", *DEVICE]
    capsys.readouterr()
    measure += ["--classifier-steps", "3", "--num-images", "20", "--run-dir", "e"]
    assert main(measure) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["generation"]["fd_name"] == "FD(classifier)"
    assert found["reconstruction"]["num_images"] == 20
    assert json.loads((tmp_path / "e" / "metrics.json").read_text("utf-8")) == found
    assert "e/metrics.json" in captured.err
    assert main(measure) == 1
    assert "overwrite" in capsys.readouterr().err
    classifier = tmp_path / "e" / "classifier" / "finished.json"
    before = classifier.stat().st_mtime_ns
    assert main([*measure, "--overwrite"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert classifier.stat().st_mtime_ns == before
    assert main([*sample, "--tokenizer", "t", "--num", "1", "--run-dir", "one"]) == 0
    assert main(["generate", "evaluate", "--samples", "one/samples.npz", *DEVICE]) == 1
    assert "at least 2 images" in capsys.readouterr().err
    assert main(["generate", "evaluate", "--samples", "nothing.npz", *DEVICE]) == 1
    assert "samples" in capsys.readouterr().err


def test_grey_tokenizers_refuse_colour_and_the_other_way_round(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    (tmp_path / "colour").mkdir()
    for number in range(24):
        pixels = torch.randint(0, 256, (16, 16, 3), generator=generator).to(torch.uint8).numpy()
        Image.fromarray(pixels).save(tmp_path / "colour" / f"{number}.png")
    tokenizer = ["generate", "tokenizer", "--frames", "1", *TOKENIZER]
    assert main([*tokenizer, "--run-dir", "t"]) == 0
    measure = ["generate", "evaluate", "--tokenizer", "t", "--device", "cpu"]
    capsys.readouterr()
    assert main([*measure, "--data", "folder:colour"]) == 1
    assert "(3, 16, 16)" in capsys.readouterr().err


def test_sigterm_outside_of_training_cleans_up_and_names_a_command_that_goes_on(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "tokenizer", "--frames", "1", *TOKENIZER, "--run-dir", "t"]) == 0
    folder = tmp_path / "p"
    prior = ["generate", "prior", "--prior", "masked", *PRIOR, "--tokenizer", "t"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TOKENS, *prior, "--run-dir", str(folder)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not list(folder.glob("tokens/.tmp-*/tokens.npy")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert list((folder / "tokens").iterdir()) == []
    (hint,) = [line for line in err.splitlines() if line.startswith("stopped; go on with: ")]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(shlex.split(hint.partition(": probseq ")[2])) == 0
    assert saved_prior(folder)[1].tokenizer == str(tmp_path / "t")


@pytest.mark.parametrize("step", ["run", "tokenizer", "prior", "sample", "evaluate"])
def test_sigterm_ends_every_step_with_143_and_the_old_handler_comes_back(step, monkeypatch, capsys):
    def terminated(*_, **__):
        signal.raise_signal(signal.SIGTERM)

    modules = {"sample": "generate_measure", "evaluate": "generate_measure"}
    module = f"probseq_apps.experiments.{modules.get(step, f'generate_{step}')}"
    name = "probseq_apps.run.run" if step == "run" else f"{module}.{step}_command"
    monkeypatch.setattr(name, terminated)
    before = signal.getsignal(signal.SIGTERM)
    named = ["--tokenizer", "t", "--prior", "p"][
        : {"sample": 4, "prior": 2, "evaluate": 2}.get(step, 0)
    ]
    assert exit_code(["generate", step, *named]) == 143
    assert capsys.readouterr().err == "probseq: terminated\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_hint_names_the_folder_of_the_data_absolutely(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = Options(run_dir=Path("my runs/a"), data_dir=Path("data"))
    assert resume_command("generate run", Path("my runs/a"), options) == (
        f"probseq generate run --run-dir 'my runs/a' --resume --data-dir {tmp_path / 'data'}"
    )
    assert resume_command("generate tokenizer", Path("t"), Options()) == (
        "probseq generate tokenizer --run-dir t --resume"
    )
