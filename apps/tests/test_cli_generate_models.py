"""`probseq generate diffusion`, `hvae` and `sample --model`: defaults, refusals, a whole way."""

import json
import subprocess
import sys

import numpy as np
import pytest

from probseq_apps.cli import main, parse
from probseq_apps.recipes.diffusion import DIFFUSION_RECIPES
from probseq_apps.recipes.hvae import HVAE_RECIPES

TELL_TORCH = """
import sys
from probseq_apps.cli import main, parse
try:
    main(sys.argv[1:])
except SystemExit as stop:
    print(stop.code, "torch" in sys.modules, "numpy" in sys.modules)
"""
UNET = (
    *("--image-size", "8", "--base-channels", "8", "--channel-multipliers", "1", "2"),
    *("--attention-sizes", "4", "--num-heads", "2", "--num-groups", "4"),
    *("--steps", "2", "--batch-size", "8", "--classifier-steps", "3", "--num-samples", "10"),
    *("--device", "cpu"),
)


def assert_own_samples(drawn, run):
    """The first images of a run, up to the round-off of another batch size."""
    with np.load(f"{drawn}/samples.npz") as few, np.load(run) as all_of_them:
        images = few["images"].astype(int)
        away = images - all_of_them["images"][: len(images)]
    assert abs(away).max() <= 1


def exit_code(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["diffusion", "--arms", "4-frame-highorder"], "'4-frame-high-order'"),
        (["diffusion", "--recipe", "table-5.3"], "'table-5.3-celeba'"),
        (["hvae", "--recipe", "mnist-hvea"], "'mnist-hvae'"),
        (["difusion"], "'diffusion'"),
        (["hvae", "--binarise"], "--binarize"),
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
        (["diffusion", "--context", "4"], "context must be less than the 4 frames"),
        (["diffusion", "--sampling-steps", "1001"], "at most the 1000 diffusion steps"),
        (["diffusion", "--seeds", "0", "0"], "seeds must not repeat"),
        (["diffusion", "--masks", "all"], "--masks"),
        (["diffusion", "--steps", "0"], "without init_weights"),
        (["diffusion", "--init-weights", "w.pt"], "one of videos"),
        (["hvae", "--num-levels", "1"], "num_levels must be at least 2"),
        (
            ["diffusion", "--diffusion-steps", "20", "--schedule", "linear"],
            "diffusion_steps must be at least 21",
        ),
        (["diffusion", "--blur-rate", "nan"], "blur_rate must be a finite number, got nan"),
        (
            ["sample"],
            "tokenizer must be given: name the folder of a trained one, or name --model",
        ),
        (["sample", "--model", "m", "--temperature", "0.5"], "temperature is for tokenizer and"),
        (["sample", "--model", "m", "--top-k", "5"], "top_k is for tokenizer and prior"),
        (["sample", "--model", "m", "--num-steps", "9"], "num_steps is for tokenizer and prior"),
        (
            ["sample", "--tokenizer", "t", "--prior", "p", "--sampling-steps", "5"],
            "sampling_steps is for model, a diffusion model",
        ),
        (
            ["sample", "--tokenizer", "t", "--prior", "p", "--sampler", "ddim"],
            "sampler is for model, a diffusion model",
        ),
        (["sample", "--model", "m", "--prior", "p"], "model is in place of tokenizer and prior"),
    ],
)
def test_impossible_settings_exit_2_and_are_named(arguments, named, capsys):
    assert exit_code(["generate", *arguments]) == 2
    assert named in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["diffusion", "--image-size", "10", "--channel-multipliers", "1", "2", "2"], "multiple"),
        (["diffusion", "--arms", "1-frame", "--init-weights", "no.pt"], "init_weights must be a"),
        (["diffusion", "--data", "mnist"], "--data-dir"),
        (["diffusion", "--inception-weights", "no.pth"], "inception_weights"),
        (["hvae", "--device", "cuda:99"], "cuda:99"),
        (["sample", "--model", "nothing"], "model must be a folder in models/"),
    ],
)
def test_failures_exit_1_with_one_line_and_write_nothing(
    arguments, named, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["generate", *arguments, "--run-dir", "run"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert not (tmp_path / "run").exists()


def test_defaults_are_those_of_the_recipe_that_suits_the_data():
    assert parse(["generate", "diffusion"]).settings == DIFFUSION_RECIPES.load("digits-diffusion")
    command = parse(["generate", "diffusion", "--data", "folder:mine"])
    assert (command.recipe, command.settings.data) == ("folder-diffusion", "folder:mine")
    assert parse(["generate", "diffusion", "--data", "cifar10"]).recipe == "ddpm-fast"
    assert parse(["generate", "hvae"]).settings == HVAE_RECIPES.load("digits-hvae")
    assert parse(["generate", "hvae", "--data", "mnist"]).recipe == "mnist-hvae"


def test_a_shorter_training_has_a_shorter_warm_up_and_a_named_one_stays():
    recipe = DIFFUSION_RECIPES.load("ddpm-fast")
    short = ["diffusion", "--recipe", "ddpm-fast", "--steps", str(recipe.training.steps // 10)]
    training = parse(["generate", *short]).settings.training
    assert training.warmup_steps == recipe.training.warmup_steps // 10
    named = parse(["generate", *short, "--warmup-steps", "7"]).settings.training
    assert named.warmup_steps == 7


def test_diffusion_models_train_sample_resume_and_are_drawn_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = ["generate", "diffusion", "--arms", "2-frame-blur", *UNET, "--sampling-steps", "2"]
    run += ["--diffusion-steps", "30", "--frame-error-images", "2", "--frame-error-samples", "2"]
    assert main([*run, "--run-dir", "r"]) == 0
    assert (tmp_path / "r" / "report.md").is_file()
    assert main(["generate", "diffusion", "--run-dir", "r", "--resume"]) == 0
    assert capsys.readouterr().out.count("finished before") == 1
    draw = ["generate", "sample", "--model", "r/models/2-frame-blur-seed0", "--device", "cpu"]
    # How the run drew is how this draws.
    assert parse(draw).settings.diffusion.sampling_steps == 2
    assert main([*draw, "--num", "3", "--run-dir", "s"]) == 0
    assert_own_samples("s", "r/samples/2-frame-blur-seed0.npz")
    with np.load(tmp_path / "s" / "samples.npz") as arrays:
        assert arrays["videos"].shape == (3, 2, 1, 8, 8)
        assert (arrays["videos"][:, -1] == arrays["images"]).all()
    assert (tmp_path / "s" / "plots" / "samples.gif").is_file()
    capsys.readouterr()
    assert main([*draw, "--sampling-steps", "31", "--run-dir", "t"]) == 1
    assert "at most the 30 diffusion steps" in capsys.readouterr().err
    measure = ["generate", "evaluate", "--samples", "s/samples.npz", "--image-size", "8"]
    assert main([*measure, "--classifier-steps", "3", "--device", "cpu", "--run-dir", "e"]) == 0
    assert json.loads(capsys.readouterr().out)["generation"]["num_samples"] == 3


def test_hvaes_train_resume_and_are_drawn_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = ["generate", "hvae", *UNET, "--num-levels", "3", "--bound-images", "5"]
    assert main([*run, "--run-dir", "r"]) == 0
    assert (tmp_path / "r" / "report.md").is_file()
    assert main(["generate", "hvae", "--run-dir", "r", "--resume"]) == 0
    assert capsys.readouterr().out.count("finished before") == 2
    assert main(["generate", "diffusion", "--run-dir", "r", "--resume"]) == 1
    said = "r holds an experiment of kind generate-hvae, and none of kind generate-diffusion"
    assert said in capsys.readouterr().err
    for arm in ("heat", "learned"):
        draw = ["generate", "sample", "--model", f"r/models/{arm}-seed0", "--device", "cpu"]
        assert main([*draw, "--num", "3", "--run-dir", f"s-{arm}"]) == 0
        with np.load(tmp_path / f"s-{arm}" / "samples.npz") as arrays:
            assert arrays["images"].shape == (3, 1, 8, 8)
        assert_own_samples(f"s-{arm}", f"r/samples/{arm}-seed0.npz")
    for flag in (("--sampling-steps", "2"), ("--sampler", "ddim")):
        assert main([*draw, *flag, "--run-dir", "t"]) == 1
        assert f"{flag[0][2:].replace('-', '_')} is for diffusion models" in capsys.readouterr().err
