"""`probseq generate run`: what a folder holds, going on after a kill, and starting anew."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from probseq_apps.engine.files import ConfigMismatchError, RunExistsError, read_json, write_json
from probseq_apps.experiments import reference
from probseq_apps.experiments.reference import Samples
from probseq_apps.experiments.tokens import Tokens
from probseq_apps.options import Options
from probseq_apps.run import run
from probseq_apps.settings.common import config_values
from probseq_apps.settings.generate import (
    GENERATE,
    Features,
    GenerateSettings,
    Machine,
    PriorChoice,
    PriorSizes,
    PriorTraining,
    TokensEvaluation,
    Training,
)
from pseudovideo.spec import TokenizerSpec

PRIOR = PriorSizes(dim=16, depth=1, num_heads=2, steps=4, warmup=0.25)
TINY = GenerateSettings(
    frames=(1, 2),
    stem=("plain",),
    tokenizer=TokenizerSpec(dim=16, num_heads=2, depth=1, codebook_size=8, code_dim=4),
    training=Training(steps=4, batch_size=16, warmup=0.25, learning_rate=1e-3),
    priors=PriorChoice(prior_arms=("frames",)),
    autoregressive=PRIOR,
    masked=PRIOR,
    prior_training=PriorTraining(batch_size=16),
    evaluation=TokensEvaluation(
        num_samples=20, num_images=30, features=Features(classifier_steps=4)
    ),
    machine=Machine(device="cpu"),
)
ARMS = ("1-frame", "2-frame", "2-frame-repeat", "1-frame-patch2")
TIMES = {"seconds", "training_seconds", "tokenizer_seconds"}


def generate(settings, options):
    return run(Tokens(settings), options, recipe="digits-small")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never interrupted."""
    return generate(TINY, Options(run_dir=tmp_path_factory.mktemp("runs") / "whole"))


def measured(folder):
    """All results but for the times."""

    def timeless(values):
        return {
            key: timeless(value) if isinstance(value, dict) else value
            for key, value in values.items()
            if key not in TIMES
        }

    files = sorted((folder / "results").glob("*.json"))
    return {file.name: timeless(read_json(file)) for file in files}


def weights(folder):
    files = sorted(folder.glob("*/*/pretrained/model.safetensors"))
    return {str(file.relative_to(folder)): load_file(file) for file in files}


def assert_same(one, other):
    assert measured(one) == measured(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensors in first.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, second[name][key]), f"{name}: {key}"
    for file in (one / "samples").glob("*.npz"):
        a, b = Samples.load(file), Samples.load(other / "samples" / file.name)
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.videos, b.videos)


def test_a_run_leaves_results_models_samples_pictures_and_a_report(whole):
    report = json.loads((whole / "report.json").read_text("utf-8"))
    assert [found["arm"] for found in report["results"]] == list(ARMS)
    assert [found["arm"] for found in report["floors"]] == list(ARMS)
    bits = {found["arm"]: found["bits"] for found in report["results"]}
    # One slot of 4x4 tokens from 8 codes; half patches have four times as many.
    assert bits == dict(zip(ARMS, (48, 48, 48, 192), strict=True))
    generated = {found["arm"] for found in report["results"] if found.get("generation")}
    assert generated == {"1-frame", "2-frame"}
    for found in report["results"]:
        assert found["steps"] == 4
        assert found["reconstruction"]["num_images"] == 30
        for prior in found.get("generation", {}).values():
            assert prior["num_samples"] == 20
            # Four steps teach a uniform prior over eight codes little.
            assert 1.0 < prior["nats_per_token"] < 3.0
    text = (whole / "report.md").read_text("utf-8")
    pictures = {path.name for path in (whole / "plots").iterdir()}
    assert all(f"plots/{name}" in text for name in pictures)
    assert {"summary.png", "pseudo-videos.png", "reconstructions-plain.png"} <= pictures
    assert "samples-masked-2-frame-plain-seed0.gif" in pictures
    assert len(weights(whole)) == len(ARMS) + 4


def test_a_finished_run_is_only_reported_again(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.glob("*/*/metrics.jsonl")}
    report = (whole / "report.md").read_text("utf-8")
    generate(TINY, Options(run_dir=whole, resume=True))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (whole / "report.md").read_text("utf-8") == report


def test_deleted_samples_are_drawn_anew_and_what_cannot_be_has_a_remedy(whole, tmp_path, capsys):
    folder = tmp_path / "lost"
    shutil.copytree(whole, folder)
    name = "masked-2-frame-plain-seed0"
    (folder / "samples" / f"{name}.npz").unlink()
    shutil.rmtree(folder / "plots")
    generate(TINY, Options(run_dir=folder, resume=True))
    assert f"samples of {name} are not there and are drawn anew" in capsys.readouterr().out
    assert_same(whole, folder)
    assert (folder / "plots" / f"samples-{name}.gif").exists()
    (folder / "samples" / f"{name}.npz").unlink()
    shutil.rmtree(folder / "priors" / name)
    with pytest.raises(FileNotFoundError, match=r"delete .*results/2-frame-plain-seed0\.json"):
        generate(TINY, Options(run_dir=folder, resume=True))
    (folder / "results" / "2-frame-plain-seed0.json").unlink()
    generate(TINY, Options(run_dir=folder, resume=True))
    assert_same(whole, folder)


def test_more_images_than_there_are_is_said(tmp_path, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(reference.Reference, "of", stop)
    for asked, said in ((360, True), (359, False)):
        settings = replace(TINY, evaluation=replace(TINY.evaluation, num_images=asked))
        with pytest.raises(KeyboardInterrupt):
            generate(settings, Options(run_dir=tmp_path / str(asked)))
        out = capsys.readouterr().out
        assert (f"num_images={asked}: all 359 test images are reconstructed" in out) == said


def test_other_settings_and_foreign_folders_are_refused(whole, tmp_path):
    with pytest.raises(RunExistsError, match="resume"):
        generate(TINY, Options(run_dir=whole))
    other = replace(TINY, tokenizer=replace(TINY.tokenizer, codebook_size=16))
    with pytest.raises(ConfigMismatchError, match="codebook_size"):
        generate(other, Options(run_dir=whole, resume=True))
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RunExistsError, match="no experiment"):
        generate(TINY, Options(run_dir=tmp_path, overwrite=True))


@pytest.mark.parametrize(
    "until", ["tokenizers/2-frame-plain-seed0/config.json", "priors/masked-1-frame-plain-seed0"]
)
def test_a_killed_run_goes_on_to_the_same_bits(whole, tmp_path, until):
    folder = tmp_path / "killed"
    folder.mkdir()
    config = config_values(GENERATE, "digits-small", TINY.to_dict())
    write_json(folder / "config.json", config)
    program = "import sys; from probseq_apps.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "generate", "run", "--run-dir", str(folder)]
    process = subprocess.Popen(
        [*command, "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while not (folder / until).exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "report.md").exists()
    generate(TINY, Options(run_dir=folder, resume=True))
    assert_same(whole, folder)


def test_an_overwritten_run_starts_anew(whole, tmp_path):
    folder = tmp_path / "again"
    generate(replace(TINY, seeds=(1,)), Options(run_dir=folder))
    generate(TINY, Options(run_dir=folder, overwrite=True))
    assert_same(whole, folder)
    assert not list(folder.glob("*/*seed1*"))
