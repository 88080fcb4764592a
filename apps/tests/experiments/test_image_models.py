"""`probseq generate diffusion` and `hvae`: what a folder holds, and going on after a stop."""

import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from probseq_apps.cli import main
from probseq_apps.data.images import load_generation_data
from probseq_apps.engine.checkpoints import load_latest_checkpoint
from probseq_apps.engine.config import Machine
from probseq_apps.engine.files import ConfigMismatchError, read_json
from probseq_apps.experiments import generate_common
from probseq_apps.experiments.generate_common import load_samples
from probseq_apps.experiments.image_models import (
    DIFFUSION_WORKFLOW,
    HVAE_WORKFLOW,
    DiffusionMaker,
    HvaeMaker,
    find_maker,
    read_image_model,
    train_maker,
)
from probseq_apps.options import Options
from probseq_apps.run import run
from probseq_apps.settings.generate import Features, Reading
from probseq_apps.settings.models import (
    DiffusionEvaluation,
    DiffusionSampling,
    DiffusionSettings,
    HvaeEvaluation,
    HvaeLevels,
    HvaeSettings,
    ModelTraining,
)
from pseudovideo.spec import DiffusionSpec, UNetSpec

UNET = UNetSpec(
    **{"base_channels": 8, "channel_multipliers": (1, 2), "num_res_blocks": 1},
    **{"attention_sizes": (4,), "num_heads": 2, "num_groups": 4},
)
SHARED = {"reading": Reading(image_size=8), "unet": UNET, "machine": Machine(device="cpu")}
FEATURES = {"num_samples": 20, "features": Features(classifier_steps=4)}
STEPS = {"steps": 6, "batch_size": 8, "learning_rate": 1e-3}
DIFFUSION = DiffusionSettings(
    **SHARED,
    variants=("1-frame", "4-frame-high-order"),
    process=DiffusionSpec(num_steps=40),
    training=ModelTraining(**STEPS),
    sampling=DiffusionSampling(sampling_steps=3),
    evaluation=DiffusionEvaluation(
        **FEATURES, likelihood_images=2, frame_error_images=4, frame_error_samples=2
    ),
)
HVAE = HvaeSettings(
    **SHARED,
    sizes=HvaeLevels(num_levels=4, sigma_max=5.0),
    training=ModelTraining(**STEPS),
    evaluation=HvaeEvaluation(**FEATURES, bound_images=30),
)
DIFFUSIONS, HVAES = DIFFUSION_WORKFLOW, HVAE_WORKFLOW
KINDS = {DIFFUSIONS: DIFFUSION, HVAES: HVAE}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_report")]
both = pytest.mark.parametrize("kind", KINDS)


def generate(kind, settings=None, **options):
    return run(kind, settings or KINDS[kind], Options(**options), recipe="r")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, no_report):
    """Runs that were never interrupted."""
    folder = tmp_path_factory.mktemp("runs")
    return {kind: generate(kind, run_dir=folder / kind.kind) for kind in KINDS}


@pytest.fixture(scope="module")
def digits():
    return load_generation_data("digits", image_size=8)


def names(kind):
    return [job.name for job in kind.jobs(KINDS[kind])]


def opened(folder):
    assert find_maker(folder)
    return read_image_model(folder)


def one_model(settings=DIFFUSION, variant="1-frame", seed=0):
    return DiffusionMaker(settings.model_settings(variant, seed))


def results(folder):
    found = {file.stem: read_json(file) for file in (folder / "results").glob("*.json")}
    for result in found.values():
        result.pop("training_seconds", None)
        result.get("generation", {}).pop("seconds", None)
    return found


def assert_same(kind, one, other):
    assert results(one) == results(other)
    for name in names(kind):
        first, second = (
            load_file(f / "models" / name / "pretrained/model.safetensors") for f in (one, other)
        )
        assert all(torch.equal(first[key], second[key]) for key in first.keys() | second.keys())
        a, b = (load_samples(f / "samples" / f"{name}.npz") for f in (one, other))
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.videos, b.videos)


def test_results_hold_all_that_reports_take(whole):
    found = results(whole[DIFFUSIONS])
    assert set(found) == {*names(DIFFUSIONS), "reference"}
    image, video = (found[name] for name in names(DIFFUSIONS))
    assert image["corruption"] is image["context"] is image["frame_errors"] is None
    # Two images tell little, but six steps leave a bound of some bits.
    assert image["num_likelihood"] == 2
    assert 1 < image["bits_per_dim"] < 20
    assert (video["corruption"], video["context"]) == ("high-order-noise", 2)
    assert (video["bits_per_dim"], video["num_likelihood"]) == (None, 0)
    errors = video["frame_errors"]
    assert (errors["frames"], errors["num_images"], errors["num_samples"]) == ([3, 4], 4, 2)
    # Two frames at once, then twice one given two: 3·(2 + 3 + 3) frames.
    assert [r["generation"]["evaluations"] for r in (image, video)] == [3, 24]
    assert video["parameters"] > image["parameters"]
    found = results(whole[HVAES])
    heat, learned = (found[name] for name in names(HVAES))
    assert learned["parameters"] == 2 * heat["parameters"]  # encoder and decoder of one size
    assert (heat["noise_std"], learned["noise_std"]) == (0.02, 0.3)
    assert (heat["levels"], heat["num_bound"], heat["generation"]["evaluations"]) == (4, 30, 4)
    for result in (image, video, heat, learned):
        assert (result["steps"], result["seed"]) == (6, 0)
        assert result["generation"]["num_samples"] == 20
        assert result["generation"]["fd_name"] == "FD(classifier)"


def test_a_diffusion_model_is_written_as_a_pipeline_of_diffusers(whole, tmp_path, capsys):
    diffusers = pytest.importorskip("diffusers")
    folder = whole[DIFFUSIONS] / "models" / "1-frame-seed0"
    words = ["generate", "export", "--model", str(folder), "--pipeline"]
    assert main([*words, str(tmp_path / "p"), "--license", "mit"]) == 0
    assert capsys.readouterr().out == f"pipeline: {tmp_path / 'p'}\n"
    pipeline = diffusers.DDPMPipeline.from_pretrained(tmp_path / "p")
    x, t = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3])
    model = opened(folder)
    with torch.no_grad():
        found = pipeline.unet(x, t).sample
        torch.testing.assert_close(found, model(x, model.diffusion.model_times(t)))
    card = (tmp_path / "p" / "README.md").read_text("utf-8")
    assert "license: mit" in card
    assert "trained on digits" in card
    assert main([*words, str(tmp_path / "p")]) == 1
    assert "pipeline must be a new or an empty folder" in capsys.readouterr().err
    words[3] = str(whole[HVAES] / "models" / "heat-seed0")
    assert main([*words, str(tmp_path / "q")]) == 1
    assert "model must be one of diffusion" in capsys.readouterr().err
    assert not (tmp_path / "q").exists()


@both
def test_samples_are_last_frames_and_weights_are_the_average(whole, kind):
    for name in names(kind):
        samples = load_samples(whole[kind] / "samples" / f"{name}.npz")
        assert torch.equal(samples.videos[:, -1], samples.images)
        folder = whole[kind] / "models" / name
        checkpoint = load_latest_checkpoint(folder / "checkpoints")
        stored = load_file(folder / "pretrained/model.safetensors")
        assert all(torch.equal(t, checkpoint.ema[f"model.{key}"]) for key, t in stored.items())


@pytest.mark.parametrize(
    ("kind", "maker", "at"),
    [(DIFFUSIONS, DiffusionMaker, 2), (DIFFUSIONS, DiffusionMaker, 9), (HVAES, HvaeMaker, 10)],
)
def test_a_stopped_run_names_the_command_and_goes_on_to_the_same_bits(
    whole, tmp_path, monkeypatch, capsys, kind, maker, at
):
    """In the first variant's training, and in the second one's; epochs are longer than either."""
    inner, calls = maker.loss, []

    def loss(*arguments):
        calls.append(None)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(*arguments)

    folder = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(maker, "loss", loss)
        patch.setattr(generate_common, "training_seconds", lambda *_: 0.0)
        with pytest.raises(SystemExit) as left:
            generate(kind, run_dir=folder)
    assert left.value.code == 143
    assert f"go on with: probseq {kind.command} --run-dir {folder}" in capsys.readouterr().err
    generate(kind, run_dir=folder, resume=True)
    assert_same(kind, whole[kind], folder)
    for name in names(kind):
        a, b = (
            load_latest_checkpoint(f / "models" / name / "checkpoints")
            for f in (whole[kind], folder)
        )
        for part in ("weights", "ema"):
            x, y = getattr(a, part), getattr(b, part)
            assert all(torch.equal(x[key], y[key]) for key in x)


def test_a_run_is_trained_further_on_its_own_data_alone_and_draws_without_them(tmp_path, capsys):
    pictures, folder = tmp_path / "pictures", tmp_path / "run"
    pictures.mkdir()
    for number in range(30):
        Image.new("L", (8, 8), 8 * number).save(pictures / f"{number:02}.png")
    settings = replace(HVAE, data=f"folder:{pictures}", binarize=False, variants=("heat",))
    generate(HVAES, settings, run_dir=folder)
    training = replace(settings.training, steps=9)
    file = pictures / "07.png"
    before = file.read_bytes()
    Image.new("L", (8, 8), 255).save(file)
    for changed in (settings, replace(settings, training=training)):
        with pytest.raises(ConfigMismatchError, match="the data are others"):
            generate(HVAES, changed, run_dir=folder, resume=True)
    file.write_bytes(before)
    before = load_samples(folder / "samples" / "heat-seed0.npz").images
    generate(HVAES, replace(settings, training=training), run_dir=folder, resume=True)
    assert results(folder)["heat-seed0"]["steps"] == 9
    drawn = load_samples(folder / "samples" / "heat-seed0.npz").images
    assert not torch.equal(before, drawn)
    with pytest.raises(ConfigMismatchError, match="steps"):
        generate(HVAES, settings, run_dir=folder, resume=True)
    shutil.rmtree(pictures)
    words = f"generate sample --model {folder}/models/heat-seed0 --num 20 --device cpu"
    words = [*words.split(), "--png", str(tmp_path / "png")]
    assert main([*words, "--run-dir", str(tmp_path / "a")]) == 0
    assert torch.equal(load_samples(tmp_path / "a" / "samples.npz").images, drawn)
    assert main([*words, "--run-dir", str(tmp_path / "b")]) == 1
    assert "png must be a new or an empty folder" in capsys.readouterr().err


def test_bf16_trains_with_channels_last_and_goes_on_to_the_same_bits(tmp_path, digits, monkeypatch):
    one = one_model(replace(DIFFUSION, machine=Machine(device="cpu", precision="bf16")))
    inner, layouts = DiffusionMaker.loss, []

    def loss(maker, objective, *arguments):
        weight = objective.model.unet.down_blocks[0].resnets[0].conv1.weight
        layouts.append(weight.is_contiguous(memory_format=torch.channels_last))
        if len(layouts) == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(maker, objective, *arguments)

    told = {"recipe": "r"}
    monkeypatch.setattr(DiffusionMaker, "loss", loss)
    train_maker(one, digits, tmp_path / "whole", **told)
    with pytest.raises(SystemExit):
        train_maker(one, digits, tmp_path / "cut", **told)
    train_maker(one, digits, tmp_path / "cut", **told)
    assert layouts == [True] * 12
    a, b = (load_file(tmp_path / n / "pretrained/model.safetensors") for n in ("whole", "cut"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_pixels_above_127_are_white_all_others_black_and_colour_is_not_binarised(tmp_path, digits):
    binary = generate_common.load_images(HVAE, Options())
    for part in ("train", "validation", "test"):
        before, after = getattr(digits, part), getattr(binary, part)
        assert torch.equal(after == 255, before >= 128)
        assert set(after.unique().tolist()) == {0, 255}
    assert "pixels above 127 white" in binary.notes[-1]
    assert torch.equal(
        generate_common.load_images(replace(HVAE, binarize=False), Options()).test, digits.test
    )
    for number in range(20):
        Image.new("RGB", (8, 8), (number, 2, 3)).save(tmp_path / f"{number}.png")
    with pytest.raises(ValueError, match=r"binarize is for grey images, and .* has 3 channels"):
        generate_common.load_images(replace(HVAE, data=f"folder:{tmp_path}"), Options())
