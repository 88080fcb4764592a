"""`probseq generate hvae`: what a folder holds, going on after a stop, and what is refused."""

import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from PIL import Image

from probseq_apps.data.images import load_generation_data, to_unit
from probseq_apps.engine.files import ConfigMismatchError, DamagedFileError, read_json, write_json
from probseq_apps.experiments import image_models
from probseq_apps.experiments.image_models import load_model_images, open_model, variant_of
from probseq_apps.experiments.image_variants import HvaeVariant
from probseq_apps.experiments.reference import Process, Samples
from probseq_apps.options import Options
from probseq_apps.run import run
from probseq_apps.settings.generate import Features, Machine, Reading
from probseq_apps.settings.models import HvaeEvaluation, HvaeLevels, HvaeSettings, ModelTraining
from pseudovideo.spec import UNetSpec

TINY = HvaeSettings(
    reading=Reading(image_size=8),
    unet=UNetSpec(
        base_channels=8,
        channel_multipliers=(1, 2),
        num_res_blocks=1,
        attention_sizes=(4,),
        num_heads=2,
        num_groups=4,
    ),
    sizes=HvaeLevels(num_levels=4, sigma_max=5.0),
    training=ModelTraining(steps=6, batch_size=8, learning_rate=1e-3),
    evaluation=HvaeEvaluation(
        num_samples=20, bound_images=30, features=Features(classifier_steps=4)
    ),
    machine=Machine(device="cpu"),
)
NAMES = ("heat-seed0", "learned-seed0")
CPU = torch.device("cpu")


class Silent:
    """Reports have tests of their own, and their pictures take longer than these models."""

    def __init__(self, **_):
        pass

    def write(self, folder):
        return "reported"


def open_hvae(folder):
    return open_model(variant_of(folder), folder, device=CPU)


def generate_hvae(settings, options):
    return run(image_models.Hvae(settings), options, recipe="digits-hvae")


@pytest.fixture(scope="module", autouse=True)
def no_report():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_models, "hvae_report", Silent)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return generate_hvae(TINY, Options(run_dir=folder))


@pytest.fixture(scope="module")
def digits():
    return load_model_images(TINY, Options())


def results(folder):
    found = {f.stem: read_json(f) for f in (folder / "results").glob("*.json")}
    for result in found.values():
        result.pop("training_seconds", None)
        result.get("generation", {}).pop("seconds", None)
    return found


def test_results_hold_all_that_reports_take(whole):
    found = results(whole)
    assert set(found) == {*NAMES, "reference"}
    for name in NAMES:
        result = found[name]
        assert (result["arm"], result["seed"]) == (name.removesuffix("-seed0"), 0)
        assert (result["levels"], result["steps"], result["num_bound"]) == (4, 6, 30)
        drawn = result["generation"]
        assert (drawn["sampling_steps"], drawn["evaluations"]) == (4, 4)
        assert drawn["num_samples"] == 20
        assert drawn["is"] >= 1
    # Encoder and decoder are of one size.
    assert found[NAMES[1]]["parameters"] == 2 * found[NAMES[0]]["parameters"]


def test_each_encoder_has_its_own_noise(whole):
    for arm, noise in (("heat", 0.02), ("learned", 0.3)):
        assert results(whole)[f"{arm}-seed0"]["noise_std"] == noise
        hvae, _ = open_hvae(whole / "models" / f"{arm}-seed0")
        assert hvae.config.noise_std == noise


@pytest.mark.parametrize(("place", "other"), [(0, 1), (1, 0)])
def test_the_weights_of_the_other_encoder_are_refused(whole, tmp_path, place, other):
    folder = tmp_path / NAMES[place]
    shutil.copytree(whole / "models" / NAMES[place], folder)
    shutil.rmtree(folder / "pretrained")
    shutil.copytree(whole / "models" / NAMES[other] / "pretrained", folder / "pretrained")
    with pytest.raises(ValueError, match=r"pretrained must hold the model that .*config\.json"):
        open_hvae(folder)


@pytest.mark.parametrize(
    "name",
    ["config.json", "finished.json", "pretrained/config.json", "pretrained/model.safetensors"],
)
def test_a_flipped_byte_of_a_stored_model_is_refused_by_the_file_s_name(whole, tmp_path, name):
    folder = tmp_path / "model"
    shutil.copytree(whole / "models" / NAMES[0], folder)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(DamagedFileError) as caught:
        open_hvae(folder)
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("learned_noise_std", 0.25), ("num_levels", 5)])
def test_an_hvae_of_other_sizes_than_its_folders_is_refused(whole, tmp_path, name, value):
    folder = tmp_path / "model"
    shutil.copytree(whole / "models" / NAMES[1], folder)
    config = read_json(folder / "config.json")
    config["settings"]["sizes"][name] = value
    write_json(folder / "config.json", config)
    with pytest.raises(ValueError, match=f"with {name.removeprefix('learned_')}={value}, and"):
        open_hvae(folder)


def test_films_lead_from_the_last_latent_frame_to_the_sample(whole, digits):
    for name in NAMES:
        samples = Samples.load(whole / "samples" / f"{name}.npz")
        film = Process.load(whole / "process" / f"{name}.npz")
        assert film.done.tolist() == [0, 1, 2, 3, 4]
        assert film.frames.shape == (16, 5, 1, 1, 8, 8)
        last = film.frames[:, -1, 0].int() - samples.images[:16].int()
        assert last.abs().max() <= 1
    # A training image blurred over most of its 8 pixels is nearly even; standard normal is not.
    spread = [
        Process.load(whole / "process" / f"{name}.npz").frames[:, 0].float().std().item()
        for name in NAMES
    ]
    assert spread[0] < 30 < spread[1]


def test_pixels_above_127_are_white_and_all_others_black(digits):
    plain = load_generation_data("digits", image_size=8)
    for part in ("train", "validation", "test"):
        before, after = getattr(plain, part), getattr(digits, part)
        assert torch.equal(after == 255, before >= 128)
        assert set(after.unique().tolist()) == {0, 255}
    assert "pixels above 127 white" in digits.notes[-1]


def test_colour_is_not_binarised(tmp_path):
    for number in range(20):
        Image.new("RGB", (8, 8), (number, 2, 3)).save(tmp_path / f"{number}.png")
    settings = replace(TINY, data=f"folder:{tmp_path}")
    with pytest.raises(ValueError, match=r"binarize is for grey images, and .* has 3 channels"):
        load_model_images(settings, Options())


def test_the_classifier_and_the_reference_see_binarised_images(tmp_path, monkeypatch):
    seen = []

    def reference(data, *_, **__):
        seen.append(data)
        raise KeyboardInterrupt

    monkeypatch.setattr("probseq_apps.experiments.reference.Reference.of", reference)
    for binarize in (True, False):
        with pytest.raises(KeyboardInterrupt):
            generate_hvae(
                replace(TINY, binarize=binarize), Options(run_dir=tmp_path / str(binarize))
            )
    assert len(seen[0].train.unique()) == 2
    assert len(seen[1].train.unique()) > 10


def test_the_bound_is_a_mean_over_images_not_over_batches(whole, digits, monkeypatch):
    hvae, _ = open_hvae(whole / "models" / NAMES[0])

    class Found:
        def __init__(self, images):
            self.total = images.flatten(1).mean(1)

    monkeypatch.setattr(type(hvae), "bound", lambda self, images, generator: Found(images))
    evaluation = replace(TINY.evaluation, bound_images=251)
    variant = HvaeVariant(replace(TINY, evaluation=evaluation).one_model("heat", 0))
    found = variant.measure(hvae, digits)
    assert found["num_bound"] == 251
    assert found["bound"] == pytest.approx(float(to_unit(digits.test[:251]).mean()), abs=1e-6)


@pytest.mark.parametrize("stopped_at", [3, 10])
def test_a_stopped_run_goes_on_to_the_same_bits(whole, tmp_path, monkeypatch, capsys, stopped_at):
    """In the training of either arm."""
    inner, calls = HvaeVariant.loss, []

    def loss(*arguments):
        calls.append(None)
        if len(calls) == stopped_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(*arguments)

    folder = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(HvaeVariant, "loss", loss)
        with pytest.raises(SystemExit) as left:
            generate_hvae(TINY, Options(run_dir=folder))
    assert left.value.code == 143
    assert f"probseq generate hvae --run-dir {folder} --resume" in capsys.readouterr().err
    generate_hvae(TINY, Options(run_dir=folder, resume=True))
    assert results(folder) == results(whole)
    for name in NAMES:
        a, b = (Samples.load(f / "samples" / f"{name}.npz").images for f in (whole, folder))
        assert torch.equal(a, b)


def test_deleted_samples_are_drawn_anew(whole, tmp_path):
    folder = tmp_path / "lost"
    shutil.copytree(whole, folder)
    lost = folder / "samples" / f"{NAMES[0]}.npz"
    before = Samples.load(lost).images
    lost.unlink()
    generate_hvae(TINY, Options(run_dir=folder, resume=True))
    assert torch.equal(Samples.load(lost).images, before)


def test_another_blur_is_another_run(whole):
    other = replace(TINY, sizes=replace(TINY.sizes, sigma_max=6.0))
    with pytest.raises(ConfigMismatchError, match="sigma_max"):
        generate_hvae(other, Options(run_dir=whole, resume=True))


def test_a_size_that_the_unet_cannot_halve_is_refused_before_anything_is_written(tmp_path):
    unet = replace(TINY.unet, channel_multipliers=(1, 1, 1, 1, 1))
    with pytest.raises(ValueError, match="image_size must be a multiple of 16"):
        generate_hvae(replace(TINY, unet=unet), Options(run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
