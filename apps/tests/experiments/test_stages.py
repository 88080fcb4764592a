"""`probseq generate tokenizer`, `prior`, `sample` and `evaluate`, one after the other."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from probseq_apps.engine.files import ConfigMismatchError, RunExistsError
from probseq_apps.experiments import token_models
from probseq_apps.experiments.draws import Evaluate, Sample
from probseq_apps.experiments.reference import Samples
from probseq_apps.experiments.tokens import PriorStage, TokenizerStage
from probseq_apps.options import Options
from probseq_apps.run import run
from probseq_apps.settings.common import Pick
from probseq_apps.settings.generate import (
    GENERATE_RECIPES,
    PRIOR_RECIPES,
    TOKENIZER_RECIPES,
    Machine,
    PriorSettings,
    PriorSizes,
    Training,
)
from probseq_apps.settings.models import (
    EvaluateSettings,
    SampleSettings,
    evaluate_defaults,
    sample_defaults,
)
from pseudovideo.spec import TokenizerSpec

TINY = replace(
    TOKENIZER_RECIPES(Pick())[1],
    frames=2,
    tokenizer=TokenizerSpec(dim=16, num_heads=2, depth=1, codebook_size=8, code_dim=4),
    training=Training(steps=4, batch_size=16, warmup=0.25),
    machine=Machine(device="cpu"),
)
SIZES = PriorSizes(dim=16, depth=1, num_heads=2, steps=4, warmup=0.25)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages") / "t"
    return run(TokenizerStage(TINY), Options(run_dir=folder), recipe="mnist-small")


@pytest.fixture(scope="module")
def prior(tokenizer):
    settings = PriorSettings(
        tokenizer=str(tokenizer), prior="masked", masked=SIZES, machine=TINY.machine
    )
    return run(PriorStage(settings), Options(run_dir=tokenizer.parent / "p"), recipe="mnist-small")


def weights(folder):
    return load_file(folder / "pretrained" / "model.safetensors")


def test_a_stopped_tokenizer_names_the_command_and_goes_on_to_the_same_bits(
    tokenizer, tmp_path, monkeypatch, capsys
):
    inner, calls = token_models.tokenizer_loss, []

    def loss(*arguments):
        calls.append(None)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(*arguments)

    folder = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(token_models, "tokenizer_loss", loss)
        with pytest.raises(SystemExit):
            run(TokenizerStage(TINY), Options(run_dir=folder), recipe="r")
    said = capsys.readouterr().err
    assert f"go on with: probseq generate tokenizer --run-dir {folder} --resume" in said
    run(TokenizerStage(TINY), Options(run_dir=folder, resume=True), recipe="r")
    one, other = weights(tokenizer), weights(folder)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_other_settings_are_another_run_and_an_overwritten_one_starts_anew(tokenizer, tmp_path):
    with pytest.raises(RunExistsError, match="resume"):
        run(TokenizerStage(TINY), Options(run_dir=tokenizer), recipe="r")
    other = replace(TINY, seed=1)
    options = Options(run_dir=tokenizer, resume=True)
    with pytest.raises(ConfigMismatchError, match=r"settings\.seed"):
        run(TokenizerStage(other), options, recipe="mnist-small")
    folder = tmp_path / "t"
    run(TokenizerStage(other), Options(run_dir=folder), recipe="r")
    run(TokenizerStage(TINY), Options(run_dir=folder, overwrite=True), recipe="r")
    one, same = weights(tokenizer), weights(folder)
    assert all(torch.equal(one[name], same[name]) for name in one)


def test_a_folder_of_another_stage_is_no_tokenizer_and_no_prior(tokenizer, prior, tmp_path):
    for settings, said in (
        (SampleSettings(tokenizer=str(prior), prior=str(prior)), "tokenizer must be a folder of"),
        (SampleSettings(tokenizer=str(tokenizer), prior=str(tokenizer)), "prior must be a folder"),
        (SampleSettings(model=str(tokenizer)), "model must be a folder in models/"),
    ):
        with pytest.raises(FileNotFoundError, match=said):
            run(Sample(settings), Options(run_dir=tmp_path / "s"), recipe="")
    assert not (tmp_path / "s").exists()


def test_samples_are_drawn_and_measured_with_the_settings_of_the_recipe(
    tokenizer, prior, tmp_path, capsys
):
    recipe = GENERATE_RECIPES.load("mnist-small")
    assert PRIOR_RECIPES(Pick(tokenizer=str(tokenizer)))[0] == "mnist-small"
    settings = sample_defaults(Pick(tokenizer=str(tokenizer), prior=(str(prior),)))
    assert settings.sampling == recipe.sampling
    settings = replace(settings, tokenizer=str(tokenizer), prior=str(prior), num=3, device="cpu")
    run(Sample(settings), Options(run_dir=tmp_path / "s"), recipe="")
    file = tmp_path / "s" / "samples.npz"
    assert Samples.load(file).videos.shape == (3, 2, 1, 16, 16)
    names = {path.name for path in (tmp_path / "s" / "plots").iterdir()}
    assert names == {"samples.png", "samples-videos.png", "samples.gif"}
    defaults = evaluate_defaults(Pick(tokenizer=str(tokenizer)))
    assert defaults.features.classifier_steps == recipe.evaluation.features.classifier_steps
    capsys.readouterr()
    evaluated = EvaluateSettings(
        samples=str(file),
        device="cpu",
        features=replace(defaults.features, classifier_steps=2),
    )
    run(Evaluate(evaluated), Options(run_dir=tmp_path / "e"), recipe="")
    told = capsys.readouterr()
    # Nothing but the numbers is on standard output.
    assert told.out == (tmp_path / "e" / "metrics.json").read_text("utf-8")
    assert "metrics.json" in told.err


def test_images_of_another_size_are_not_measured(tokenizer, prior, tmp_path):
    settings = SampleSettings(tokenizer=str(tokenizer), prior=str(prior), num=3, device="cpu")
    run(Sample(settings), Options(run_dir=tmp_path / "s"), recipe="")
    file = str(tmp_path / "s" / "samples.npz")
    reading = replace(EvaluateSettings().reading, image_size=8)
    evaluated = EvaluateSettings(samples=file, reading=reading, device="cpu")
    with pytest.raises(ValueError, match=r"samples must have images of .*\(1, 8, 8\) as digits"):
        run(Evaluate(evaluated), Options(run_dir=tmp_path / "e"), recipe="")
