"""`probseq generate run` and its stages: what they compute, keep, and go on with."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from probseq.pretrained import fingerprint
from probseq_apps.data.images import load_generation_data
from probseq_apps.engine.config import Machine, derive_seed
from probseq_apps.engine.files import ConfigMismatchError, write_json
from probseq_apps.engine.log import read_metrics
from probseq_apps.engine.trainer import TrainStep
from probseq_apps.experiment import Job
from probseq_apps.experiments import tokens
from probseq_apps.experiments.features import make_extractor, make_reference
from probseq_apps.experiments.generate_common import LossModule, load_samples
from probseq_apps.experiments.single import SAMPLE_WORKFLOW
from probseq_apps.experiments.tokens import (
    PriorMaker,
    TokenizerMaker,
    makers_of,
    prior_loss,
    read_prior,
    read_tokenizer,
)
from probseq_apps.options import Options
from probseq_apps.report.results import groups_of, unranked
from probseq_apps.run import run
from probseq_apps.settings.generate import (
    GENERATE,
    Features,
    GenerateSettings,
    PriorChoice,
    PriorTraining,
    StepTraining,
    TokensEvaluation,
    Videos,
)
from probseq_apps.settings.models import DiffusionSampling, SampleSettings
from pseudovideo.beyond.sample_evaluator import SampleEvaluator
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.evaluation import mean_nats
from pseudovideo.pixels import to_unit
from pseudovideo.spec import ObjectiveConfig, TokenizerSpec

pytestmark = pytest.mark.slow

SIZES = PriorTraining(
    dim=16, depth=1, num_heads=2, steps=4, warmup=0.25, batch_size=16, ema_decay=0.9
)
# A game with a discriminator, codes that are revived, averaged priors: all that could be lost.
TINY = GenerateSettings(
    frames=(1, 2),
    stem=("plain",),
    videos=Videos(corruption="high-order-noise", beta_min=0.1, beta_max=0.3),
    tokenizer=TokenizerSpec(dim=16, num_heads=2, depth=1, codebook_size=8, code_dim=4),
    loss=ObjectiveConfig(perceptual_weight=0.0, adversarial_start=2, discriminator_width=4),
    training=StepTraining(steps=4, batch_size=16, warmup=0.25, learning_rate=1e-3),
    priors=PriorChoice(prior_variants=("frames",)),
    autoregressive=SIZES,
    masked=SIZES,
    evaluation=TokensEvaluation(
        num_samples=20, num_images=30, features=Features(classifier_steps=4)
    ),
    machine=Machine(device="cpu"),
)
VARIANTS = ("1-frame", "2-frame", "2-frame-repeat", "1-frame-patch2")
JOB = Job("2-frame-plain", 0)
VIDEOS = PseudoVideoConfig(num_frames=2, kind="high-order-noise", beta_min=0.1, beta_max=0.3)


def generate(settings, **options):
    return run(tokens.WORKFLOW, settings, Options(**options), recipe="digits-small")


@pytest.fixture(scope="module")
def digits():
    return load_generation_data("digits")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never interrupted."""
    return generate(TINY, run_dir=tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture(scope="module")
def tokenizer(whole):
    return read_tokenizer(whole / "tokenizers" / JOB.name)


def weights(folder):
    files = sorted(folder.glob("*/*/pretrained/model.safetensors"))
    return {str(file.relative_to(folder)): load_file(file) for file in files}


def assert_same(report_of, one, other):
    assert report_of(one)["results"] == report_of(other)["results"]
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, own in first.items():
        assert all(torch.equal(tensor, second[name][key]) for key, tensor in own.items()), name
    for file in (one / "samples").glob("*.npz"):
        a, b = load_samples(file), load_samples(other / "samples" / file.name)
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.videos, b.videos)


def test_a_run_leaves_results_models_samples_pictures_and_a_report(whole, report_of):
    report = report_of(whole)
    assert [found["variant"] for found in report["results"]] == list(VARIANTS)
    bits = {found["variant"]: found["bits"] for found in report["results"]}
    # One slot of 4x4 tokens from 8 codes; half patches have four times as many.
    assert bits == dict(zip(VARIANTS, (48, 48, 48, 192), strict=True))
    generated = {found["variant"] for found in report["results"] if found.get("generation")}
    assert generated == {"1-frame", "2-frame"}
    pictures = {path.name for path in (whole / "plots").iterdir()}
    assert {"samples.png", "pseudo-videos.png", "reconstructions-plain.png"} <= pictures
    assert "samples-masked-2-frame-plain-seed0.gif" in pictures
    assert len(weights(whole)) == len(VARIANTS) + 4
    rows = read_metrics(whole / "tokenizers" / JOB.name)
    assert rows[-1]["parts"]["discriminator"] > 0


@pytest.mark.parametrize(
    "until", ["tokenizers/2-frame-plain-seed0/config.json", "priors/masked-1-frame-plain-seed0"]
)
def test_a_killed_run_goes_on_to_the_same_bits(whole, tmp_path, until, killed, report_of):
    folder = tmp_path / "killed"
    folder.mkdir()
    values = {"experiment": GENERATE, "recipe": "digits-small", "settings": TINY.to_dict()}
    write_json(folder / "config.json", values)
    killed(["generate", "run", "--resume"], folder, until)
    assert_same(report_of, whole, folder)


def test_a_run_stopped_within_an_epoch_of_a_tokenizer_goes_on_to_the_same_bits(
    whole, tmp_path, monkeypatch, capsys, report_of
):
    inner, calls = TokenizerMaker.loss, []

    def loss(*arguments):
        calls.append(None)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(*arguments)

    folder = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(tokens.common, "training_seconds", lambda *_: 0.0)
        patch.setattr(TokenizerMaker, "loss", loss)
        with pytest.raises(SystemExit):
            generate(TINY, run_dir=folder, workers=1)
    said = capsys.readouterr().err
    assert f"go on with: probseq generate run --run-dir {folder} --resume" in said
    generate(TINY, run_dir=folder, resume=True)
    assert_same(report_of, whole, folder)
    with pytest.raises(ConfigMismatchError, match=r"settings\.seeds"):
        generate(replace(TINY, seeds=(1,)), run_dir=folder, resume=True)


# -- What is computed -----------------------------------------------------------------------------


def videos_of(images, name):
    return pseudo_videos(to_unit(images), VIDEOS, seed=derive_seed(0, name))


def mean_decibels(frames, images):
    """Of each image's own error in float64."""
    errors = (frames.double() - (images.double() / 127.5 - 1)).square().flatten(1).mean(1)
    return float((10 * torch.log10(4 / errors)).mean())


def test_held_out_images_and_tokens_measure_tokenizer_and_priors(
    whole, tokenizer, digits, report_of
):
    (found,) = (one for one in report_of(whole)["results"] if one["variant"] == "2-frame")
    images, model = digits.test[:30], tokenizer
    frames = model.reconstruct(videos_of(images, "test videos"))[:, -1]
    assert found["reconstruction"]["psnr"] == pytest.approx(mean_decibels(frames, images), abs=1e-4)
    learned = sum(p.numel() for p in model.parameters()) + model.quantizer.codebook.numel()
    assert found["parameters"] == learned
    held_out = model.encode(videos_of(images, "test videos"))
    _, prior, _ = read_prior(whole / "priors" / f"autoregressive-{JOB.name}")
    with torch.no_grad():
        log_probs = prior(held_out).double().log_softmax(-1)
    expected = -log_probs.gather(-1, held_out.flatten(1)[..., None]).mean()
    measured = found["generation"]
    assert measured["autoregressive"]["nats_per_token"] == pytest.approx(float(expected))
    _, masked, _ = read_prior(whole / "priors" / f"masked-{JOB.name}")
    before = torch.get_rng_state()
    nats = mean_nats(masked, held_out, seed=derive_seed(0, "test masks"))
    assert torch.equal(torch.get_rng_state(), before)
    assert nats == measured["masked"]["nats_per_token"] > 0
    assert mean_nats(masked, held_out, seed=0) != nats


def test_weights_and_tokens_depend_on_the_seed_alone_and_a_prior_knows_its_tokenizer(
    whole, tokenizer, digits
):
    where = whole / "tokens" / JOB.name
    before = (where / "tokens.safetensors").stat().st_mtime_ns
    cache = makers_of(TINY)[JOB].tokens(tokenizer, digits, where)
    assert (where / "tokens.safetensors").stat().st_mtime_ns == before
    expected = tokenizer.encode(videos_of(digits.train, "token videos"))
    assert torch.equal(cache.tokens.long(), expected)
    layers, heads = [], []
    for seed, number in ((0, 1), (0, 2), (1, 2)):
        torch.manual_seed(number)
        state = torch.get_rng_state()
        prior = PriorMaker(TINY, "masked", seed, {}).training(cache).model
        one = TokenizerMaker(TINY, TINY.variants[1], "plain", seed)
        heads.append(prior.head.weight)
        layers.append(one.training(digits).model.last_layer)
        assert torch.equal(torch.get_rng_state(), state)
    for first, same, other in (layers, heads):
        assert torch.equal(first, same)
        assert not torch.equal(first, other)
    assert prior.tokenizer_fingerprint == fingerprint(tokenizer)


def test_videos_end_with_the_image_and_their_noise_is_that_of_run_epoch_and_image(digits):
    order, seen = torch.tensor([5, 2, 9]), []

    def objective(videos, *, step, generator):
        seen.append((step, videos))
        return {"loss": videos.mean(), "reconstruction": videos.mean()}

    def videos(chosen, *, epoch=0, seed=0):
        part = TokenizerMaker(TINY, TINY.variants[1], "plain", seed)
        step = TrainStep(7, epoch, 0.0, torch.Generator())
        part.loss(objective, (digits.train[chosen], chosen), step)
        return seen[-1][1]

    found = videos(order)
    assert seen[0][0] == 7
    assert torch.equal(found[:, -1], digits.train[order].float() / 127.5 - 1)
    assert torch.equal(found, videos(order.flip(0)).flip(0))
    assert not torch.equal(found, videos(order, epoch=1))
    assert not torch.equal(found, videos(order, seed=1))


def test_a_masked_prior_draws_its_masks_from_the_runs_generator(whole, tokenizer, digits):
    _, prior, _ = read_prior(whole / "priors" / f"masked-{JOB.name}")
    batch, losses = (tokenizer.encode(videos_of(digits.train[:8], "x")),), []
    objective = LossModule(prior, "loss")
    for seed in (0, 0, 1):
        step = TrainStep(0, 0, 0.0, torch.Generator().manual_seed(seed))
        losses.append(prior_loss(objective, batch, step).loss.item())
    assert losses[0] == losses[1] != losses[2]


# -- Samples of a trained prior -------------------------------------------------------------------


def test_the_seed_and_the_number_of_a_run_draw_its_own_samples(whole, tmp_path):
    prior = str(whole / "priors" / f"masked-{JOB.name}")
    where = {"model": prior, "png": str(tmp_path / "png")}
    settings = SampleSettings(**where, num=20, device="cpu", sampling=TINY.sampling)
    run(SAMPLE_WORKFLOW, settings, Options(run_dir=tmp_path / "s"), recipe="")
    found = load_samples(tmp_path / "s" / "samples.npz")
    expected = load_samples(whole / "samples" / f"masked-{JOB.name}.npz")
    assert torch.equal(found.images, expected.images)
    plots = {path.name for path in (tmp_path / "s" / "plots").iterdir()}
    assert plots == {"samples.png", "samples.gif"}
    with Image.open(tmp_path / "png" / "00019.png") as last:
        assert np.array_equal(np.asarray(last), found.images[19, 0].numpy())


def test_a_folder_of_something_else_and_settings_of_another_model_are_refused(whole, tmp_path):
    tokenizer, options = str(whole / "tokenizers" / JOB.name), Options(run_dir=tmp_path / "s")
    prior = str(whole / "priors" / f"masked-{JOB.name}")
    ddim = DiffusionSampling(sampler="ddim")
    for settings, error, said in (
        (SampleSettings(model=tokenizer), FileNotFoundError, "model must be a folder in models/"),
        (SampleSettings(model=prior, diffusion=ddim), ValueError, "sampler is for diffusion model"),
    ):
        with pytest.raises(error, match=said):
            run(SAMPLE_WORKFLOW, settings, options, recipe="")
    assert not (tmp_path / "s").exists()


# -- Features and files ---------------------------------------------------------------------------


def test_without_labels_features_are_random_and_missing_weights_are_named(tmp_path, digits):
    data, given = replace(digits, labels=None), {"seed": 0, "device": "cpu"}
    assert make_extractor(data, Features(), tmp_path, **given).name == "random convolution"
    settings = Features(inception_weights=str(tmp_path / "none.pth"))
    with pytest.raises(FileNotFoundError, match=r"none\.pth"):
        make_extractor(data, settings, tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_noise_with_the_images_covariance_is_not_ranked_where_there_are_no_labels(tmp_path):
    data = replace(load_generation_data("digits", image_size=8), labels=None)
    reference = make_reference(data, Features(classifier_steps=80), tmp_path, seed=0, device="cpu")
    rows = data.test.flatten(1).double()
    spread = rows.T.cov() + 1e-6 * torch.eye(64, dtype=torch.float64)
    drawn = torch.distributions.MultivariateNormal(rows.mean(0), spread).sample((300,))
    noise = drawn.round().clamp(0, 255).to(torch.uint8).view(-1, 1, 8, 8)
    white = torch.randint(256, noise.shape, dtype=torch.uint8)
    score = {
        name: reference.measure(images)["realism"]
        for name, images in {"real": data.test, "noise": noise, "white": white}.items()
    }
    assert score["real"] > 0.8
    results = [
        {"variant": name, "seed": 0, "generation": {"realism": value}}
        for name, value in score.items()
    ]
    assert unranked(groups_of(results), {"realism": score["real"]}) == {"noise", "white"}


def test_a_classifier_of_the_digits_knows_them_and_has_never_seen_the_test_images(tmp_path, digits):
    noise = torch.randint(0, 256, digits.test.shape, generator=torch.Generator().manual_seed(0))
    other = replace(digits, test=noise.to(torch.uint8))
    extractor, again, blind = (
        make_extractor(data, Features(classifier_steps=120), tmp_path / at, seed=1, device="cpu")
        for data, at in ((digits, "a"), (digits, "a"), (other, "b"))
    )
    found = extractor(to_unit(digits.test))
    for same in (again, blind):
        assert torch.equal(same(to_unit(digits.test)).features, found.features)
    right = (found.probabilities.argmax(dim=1) == digits.labels.test).float().mean()
    assert float(right) > 0.9
    reference = SampleEvaluator(extractor, digits.train, digits.test)
    real, wrong = (reference.measure(part.test) for part in (digits, other))
    assert wrong["fd"] > 10 * real["fd"]
    assert wrong["is"] < 0.7 * real["is"]
