"""`probseq generate diffusion`: what a folder holds, going on after a stop, and starting anew."""

import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from probseq_apps.data.images import load_generation_data, to_unit
from probseq_apps.engine.checkpoints import load_latest_checkpoint
from probseq_apps.engine.files import ConfigMismatchError, RunExistsError, read_json, write_json
from probseq_apps.experiments import image_models
from probseq_apps.experiments.image_models import open_model, train_model, variant_of
from probseq_apps.experiments.image_variants import DiffusionVariant
from probseq_apps.experiments.reference import Process, Samples
from probseq_apps.options import Options
from probseq_apps.run import run
from probseq_apps.settings.generate import Features, Machine, Reading
from probseq_apps.settings.models import (
    DiffusionEvaluation,
    DiffusionSampling,
    DiffusionSettings,
    DiffusionTraining,
)
from pseudovideo.corruptions import video_moments
from pseudovideo.evaluation import mean_bits_per_dim
from pseudovideo.spec import DiffusionSpec, UNetSpec

UNET = UNetSpec(
    base_channels=8,
    channel_multipliers=(1, 2),
    num_res_blocks=1,
    attention_sizes=(4,),
    num_heads=2,
    num_groups=4,
)
TINY = DiffusionSettings(
    arms=("1-frame", "4-frame-high-order"),
    reading=Reading(image_size=8),
    unet=UNET,
    process=DiffusionSpec(num_steps=40),
    training=DiffusionTraining(steps=6, batch_size=8, learning_rate=1e-3, importance=True),
    sampling=DiffusionSampling(sampling_steps=3),
    evaluation=DiffusionEvaluation(
        num_samples=20,
        likelihood_images=2,
        frame_error_images=4,
        frame_error_samples=2,
        features=Features(classifier_steps=4),
    ),
    machine=Machine(device="cpu"),
)
NAMES = ("1-frame-seed0", "4-frame-high-order-seed0")
TIMES = {"seconds", "training_seconds"}
CPU = torch.device("cpu")


class Silent:
    """Reports have tests of their own, and their pictures take longer than these models."""

    def __init__(self, **_):
        pass

    def write(self, folder):
        return "reported"


def open_diffusion(folder):
    return open_model(variant_of(folder), folder, device=CPU)


def one_model(settings=None, arm="1-frame", seed=0):
    return DiffusionVariant((settings or TINY).one_model(arm, seed))


def measure_frames(model, arm, digits):
    variant = one_model(arm=arm)
    variant.context = model.config.context
    return variant.measure(model, digits)["frame_errors"]


def generate_diffusion(settings, options):
    return run(image_models.Diffusion(settings), options, recipe="digits-diffusion")


@pytest.fixture(scope="module")
def digits():
    return load_generation_data("digits", image_size=8)


@pytest.fixture(scope="module", autouse=True)
def no_report():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_models, "diffusion_report", Silent)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return generate_diffusion(TINY, Options(run_dir=folder))


def results(folder):
    def timeless(values):
        return {
            key: timeless(value) if isinstance(value, dict) else value
            for key, value in values.items()
            if key not in TIMES
        }

    files = sorted((folder / "results").glob("*.json"))
    return {file.stem: timeless(read_json(file)) for file in files}


def assert_same(one, other):
    assert results(one) == results(other)
    for name in NAMES:
        first, second = (
            load_file(folder / "models" / name / "pretrained" / "model.safetensors")
            for folder in (one, other)
        )
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
        a, b = (Samples.load(folder / "samples" / f"{name}.npz") for folder in (one, other))
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.videos, b.videos)


def test_results_hold_all_that_reports_take(whole):
    found = results(whole)
    assert set(found) == {*NAMES, "reference"}
    image, video = (found[name] for name in NAMES)
    assert image["frames"] == 1
    assert image["corruption"] is image["context"] is image["frame_errors"] is None
    assert image["num_likelihood"] == 2
    # Two images tell little, but six steps leave a bound of some bits.
    assert 1 < image["bits_per_dim"] < 20
    assert (video["frames"], video["context"]) == (4, 2)
    assert video["corruption"] == "high-order-noise"
    assert (video["bits_per_dim"], video["num_likelihood"]) == (None, 0)
    assert video["frame_errors"]["frames"] == [3, 4]
    assert video["frame_errors"]["num_images"] == 4
    assert video["frame_errors"]["num_samples"] == 2
    for result in (image, video):
        assert (result["steps"], result["diffusion_steps"], result["seed"]) == (6, 40, 0)
        drawn = result["generation"]
        assert (drawn["sampler"], drawn["sampling_steps"]) == ("ancestral", 3)
        assert drawn["num_samples"] == 20
        assert drawn["fd_name"] == "FD(classifier)"
        assert drawn["is"] >= 1
    # Two frames at once, then twice one given two: 3·(2 + 3 + 3) frames.
    assert image["generation"]["evaluations"] == 3
    assert video["generation"]["evaluations"] == 24
    assert video["parameters"] > image["parameters"]


def test_samples_and_films_are_of_the_same_draws(whole):
    for name, frames, total in zip(NAMES, (1, 4), (3, 9), strict=True):
        samples = Samples.load(whole / "samples" / f"{name}.npz")
        assert samples.images.shape == (20, 1, 8, 8)
        assert samples.videos.shape == (20, frames, 1, 8, 8)
        assert torch.equal(samples.videos[:, -1], samples.images)
        film = Process.load(whole / "process" / f"{name}.npz")
        assert film.done.tolist() == list(range(total + 1))
        assert film.frames.shape == (16, total + 1, frames, 1, 8, 8)
        # Round-off of another batch size is at most one level.
        last = film.frames[:, -1].int() - samples.videos[:16].int()
        assert last.abs().max() <= 1


def test_a_films_frames_are_grey_until_their_stage_begins(whole):
    film = Process.load(whole / "process" / f"{NAMES[1]}.npz").frames
    grey = [(film[:, step] == 128).flatten(2).all(2).all(0).tolist() for step in range(10)]
    assert grey[0] == [True] * 4
    for step in range(1, 10):
        begun = 2 if step <= 3 else 3 if step <= 6 else 4
        assert grey[step] == [False] * begun + [True] * (4 - begun)
    # What is finished stays.
    assert torch.equal(film[:, 3, :2], film[:, 9, :2])


def test_an_image_models_film_shows_where_each_step_heads_for(whole, digits):
    model, _ = open_diffusion(whole / "models" / NAMES[0])
    states = {}
    model.sample(
        2,
        num_steps=3,
        generator=torch.Generator().manual_seed(5),
        watch=lambda left, state: states.setdefault(left, state.double()),
    )
    generator = torch.Generator().manual_seed(5)
    film = one_model().film(model, digits, 2, generator)
    process = model.diffusion.respaced(3)
    for number, left in enumerate((3, 2, 1)):
        state = states[left]
        times = torch.full((2,), process.timesteps[left - 1] * 1000 / 40)
        with torch.no_grad():
            noise = model.unet(state.float(), times).sample[:, :1].double()
        kept = process.alpha_bars[left - 1]
        image = ((state - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1, 1)
        shown = film.frames[:, number, 0].double() / 127.5 - 1
        assert (shown - image).abs().max() < 1.01 / 127.5


@pytest.mark.parametrize(("place", "other"), [(0, 1), (1, 0)])
def test_the_weights_of_another_model_are_refused(whole, tmp_path, place, other):
    folder = tmp_path / NAMES[place]
    shutil.copytree(whole / "models" / NAMES[place], folder)
    shutil.rmtree(folder / "pretrained")
    shutil.copytree(whole / "models" / NAMES[other] / "pretrained", folder / "pretrained")
    with pytest.raises(ValueError, match=r"pretrained must hold the model that .*config\.json"):
        open_diffusion(folder)


@pytest.mark.parametrize(
    ("group", "name", "value", "said"),
    [
        ("process", "schedule", "cosine", "schedule=cosine, and .* schedule=linear"),
        ("frames", "context", 1, "context=1, and .* context=2"),
        ("unet", "base_channels", 16, "base_channels=16, and .* base_channels=8"),
    ],
)
def test_a_model_of_other_settings_than_its_folders_is_refused(
    whole, tmp_path, group, name, value, said
):
    folder = tmp_path / "model"
    shutil.copytree(whole / "models" / NAMES[1], folder)
    config = read_json(folder / "config.json")
    config["settings"][group][name] = value
    write_json(folder / "config.json", config)
    with pytest.raises(ValueError, match=said):
        open_diffusion(folder)


def test_a_finished_run_is_only_reported_again(whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.glob("*/*/metrics.jsonl")}
    generate_diffusion(TINY, Options(run_dir=whole, resume=True))
    assert capsys.readouterr().out.count(": finished before") == len(NAMES)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_deleted_samples_are_drawn_anew_and_what_cannot_be_has_a_remedy(whole, tmp_path, capsys):
    folder = tmp_path / "lost"
    shutil.copytree(whole, folder)
    (folder / "samples" / f"{NAMES[1]}.npz").unlink()
    generate_diffusion(TINY, Options(run_dir=folder, resume=True))
    assert f"samples of {NAMES[1]} were not there" in capsys.readouterr().out
    assert_same(whole, folder)
    (folder / "process" / f"{NAMES[1]}.npz").unlink()
    shutil.rmtree(folder / "models" / NAMES[1])
    with pytest.raises(FileNotFoundError, match=rf"delete .*results/{NAMES[1]}\.json"):
        generate_diffusion(TINY, Options(run_dir=folder, resume=True))


@pytest.mark.parametrize("stopped_at", [2, 9])
def test_a_stopped_run_names_the_command_and_goes_on_to_the_same_bits(
    whole, tmp_path, monkeypatch, capsys, stopped_at
):
    """In the first arm's training, and in the second one's; epochs are longer than either."""
    inner, calls = DiffusionVariant.loss, []

    def loss(*arguments):
        calls.append(None)
        if len(calls) == stopped_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(*arguments)

    folder = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(DiffusionVariant, "loss", loss)
        with pytest.raises(SystemExit) as left:
            generate_diffusion(TINY, Options(run_dir=folder))
    assert left.value.code == 143
    said = capsys.readouterr().err
    assert f"go on with: probseq generate diffusion --run-dir {folder} --resume" in said
    generate_diffusion(TINY, Options(run_dir=folder, resume=True))
    assert_same(whole, folder)
    for name in NAMES:
        a, b = (
            load_latest_checkpoint(f / "models" / name / "checkpoints") for f in (whole, folder)
        )
        for part in ("weights", "ema"):
            x, y = getattr(a, part), getattr(b, part)
            assert all(torch.equal(x[key], y[key]) for key in x)
        # What importance sampling has seen is part of the state.
        assert a.weights["times.counts"].sum() == 6 * 8


def test_what_is_stored_is_the_moving_average(whole):
    for name in NAMES:
        folder = whole / "models" / name
        checkpoint = load_latest_checkpoint(folder / "checkpoints")
        stored = load_file(folder / "pretrained" / "model.safetensors")
        for key, tensor in stored.items():
            assert torch.equal(tensor, checkpoint.ema[f"model.{key}"])
        assert any(not torch.equal(stored[k], checkpoint.weights[f"model.{k}"]) for k in stored)


def test_other_settings_and_foreign_folders_are_refused(whole, tmp_path):
    with pytest.raises(RunExistsError, match="resume"):
        generate_diffusion(TINY, Options(run_dir=whole))
    other = replace(TINY, process=replace(TINY.process, schedule="cosine"))
    with pytest.raises(ConfigMismatchError, match="schedule"):
        generate_diffusion(other, Options(run_dir=whole, resume=True))
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RunExistsError, match="no experiment"):
        generate_diffusion(TINY, Options(run_dir=tmp_path, overwrite=True))


def test_an_overwritten_run_starts_anew(whole, tmp_path):
    folder = tmp_path / "again"
    generate_diffusion(replace(TINY, arms=("1-frame",), seeds=(1,)), Options(run_dir=folder))
    generate_diffusion(TINY, Options(run_dir=folder, overwrite=True))
    assert_same(whole, folder)
    assert not list(folder.glob("*/*seed1*"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"unet": replace(UNET, channel_multipliers=(1, 1, 1, 1, 1))},
            "image_size must be a multi",
        ),
        ({"unet": replace(UNET, channel_multipliers=None)}, "set channel_multipliers"),
        ({"unet": replace(UNET, num_heads=3)}, "num_heads must divide"),
        ({"unet": replace(UNET, num_groups=3)}, "multiple of num_groups=3"),
        ({"unet": replace(UNET, attention_sizes=(5,))}, "attention_sizes must be among"),
        (
            {
                "evaluation": replace(
                    TINY.evaluation, features=Features(inception_weights="inception.pth")
                )
            },
            "inception_weights must be a file",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changes, said, tmp_path):
    settings = replace(TINY, **changes, sampling=DiffusionSampling())
    with pytest.raises((ValueError, OSError), match=said):
        generate_diffusion(settings, Options(run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_weights_that_are_none_are_refused_by_the_settings_name(tmp_path, digits):
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    for name, error in (("other.pt", ValueError), ("missing.pt", FileNotFoundError)):
        settings = replace(TINY, arms=("1-frame",), init_weights=str(tmp_path / name))
        with pytest.raises(error, match=rf"^init_weights must .*{name}"):
            one_model(settings).check(digits)


def test_published_weights_are_stored_as_they_are_without_training(tmp_path, monkeypatch, digits):
    torch.manual_seed(0)
    published = one_model(seed=7).build(digits)[1]
    torch.nn.init.ones_(published.unet.conv_out.bias)
    monkeypatch.setattr(
        "probseq_apps.experiments.image_variants.load_improved_ddpm",
        lambda path, config: published if path == "w.pt" and config == published.config else None,
    )
    training = replace(TINY.training, steps=0)
    settings = replace(TINY, arms=("1-frame",), init_weights="w.pt", training=training)
    for _ in range(2):
        train_model(one_model(settings), digits, tmp_path / "m", recipe="r")
    model, trained = open_diffusion(tmp_path / "m")
    assert trained["steps"] == 0
    found, given = model.state_dict(), published.state_dict()
    assert all(torch.equal(found[name], given[name]) for name in given)


@pytest.mark.parametrize("arm", ["4-frame-first-order", "4-frame-high-order"])
def test_exact_errors_are_those_of_dense_gaussian_conditioning(whole, digits, arm):
    model, _ = open_diffusion(whole / "models" / NAMES[1])
    found, videos = measure_frames(model, arm, digits), one_model(arm=arm).videos
    rows = to_unit(digits.train).flatten(1).double()
    mean = rows.mean(0)
    covariance = (rows - mean).T @ (rows - mean) / (len(rows) - 1)
    joint = video_moments(mean.view(1, 8, 8), covariance, videos).covariance
    for place, frame in enumerate((2, 3)):
        given = joint[frame - 2 : frame, :, frame - 2 : frame].reshape(128, 128)
        across = joint[frame, :, frame - 2 : frame].reshape(64, 128)
        rest = joint[frame, :, frame] - across @ torch.linalg.pinv(given, hermitian=True) @ across.T
        assert found["exact"][place] == pytest.approx(float(rest.trace() / 64), rel=1e-6)


def test_a_model_that_knows_the_frames_has_no_error_and_a_blind_one_has_their_square(
    whole, digits, monkeypatch
):
    model, _ = open_diffusion(whole / "models" / NAMES[1])

    def errors(predict):
        monkeypatch.setattr(type(model), "predict_frames", predict)
        return measure_frames(model, "4-frame-blur", digits)

    seen = []

    def knows(self, truth, frame, *, num_samples, **_):
        seen.append(truth)
        return truth[:, frame, None].expand(-1, num_samples, -1, -1, -1)

    found = errors(knows)
    assert found["model"] == [0.0, 0.0]
    assert found["exact"] is None
    assert found["frames"] == [3, 4]
    blind = errors(lambda self, truth, frame, *, num_samples, **_: torch.zeros(4, 2, 1, 8, 8))
    squares = seen[0].double().square().mean((0, 2, 3, 4))
    assert blind["model"] == pytest.approx(squares[2:].tolist(), rel=1e-6)
    assert torch.equal(seen[0][:, -1], to_unit(digits.test[:4]))


def test_bits_per_dimension_are_a_mean_over_images_not_over_batches(whole, digits, monkeypatch):
    model, _ = open_diffusion(whole / "models" / NAMES[0])

    class Found:
        def __init__(self, images):
            self.total = images.flatten(1).mean(1)

    monkeypatch.setattr(
        type(model), "bits_per_dim", lambda self, images, *, generator, progress: Found(images)
    )
    images = digits.test[:251]
    found = mean_bits_per_dim(model, images)
    assert found == pytest.approx(float(to_unit(images).double().mean()), abs=1e-6)


def test_bf16_trains_with_channels_last_and_goes_on_to_the_same_bits(tmp_path, digits, monkeypatch):
    machine = Machine(device="cpu", precision="bf16")
    one = one_model(replace(TINY, machine=machine))
    inner, layouts = DiffusionVariant.loss, []

    def loss(variant, objective, *arguments):
        weight = objective.model.unet.down_blocks[0].resnets[0].conv1.weight
        layouts.append(weight.is_contiguous(memory_format=torch.channels_last))
        if len(layouts) == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(variant, objective, *arguments)

    monkeypatch.setattr(DiffusionVariant, "loss", loss)
    train_model(one, digits, tmp_path / "whole", recipe="r")
    with pytest.raises(SystemExit):
        train_model(one, digits, tmp_path / "cut", recipe="r")
    train_model(one, digits, tmp_path / "cut", recipe="r")
    assert layouts == [True] * 12
    a, b = (
        load_file(tmp_path / name / "pretrained" / "model.safetensors") for name in ("whole", "cut")
    )
    assert all(torch.equal(a[name], b[name]) for name in a)
