"""The stages of `probseq generate run`: which images, seeds and files each of them takes."""

import json
import math
from dataclasses import replace

import pytest
import torch

from probseq.metrics.image import RandomConvolution, frechet_distance
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine.config import derive_seed
from probseq_apps.experiment import Job
from probseq_apps.experiments import draws, reference
from probseq_apps.experiments import tokens as stages
from probseq_apps.experiments.draws import Evaluate, Sample
from probseq_apps.experiments.reference import Samples
from probseq_apps.experiments.token_models import (
    draw_tokens,
    make_objective,
    make_tokens,
    open_prior,
    open_tokenizer,
    train_prior,
)
from probseq_apps.experiments.tokens import Tokens
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.results import FLOOR
from probseq_apps.run import run as run_experiment
from probseq_apps.settings.generate import (
    GenerateSettings,
    Machine,
    PriorSizes,
    PriorTraining,
    Sampling,
    TokensEvaluation,
    Training,
    Videos,
)
from probseq_apps.settings.models import EvaluateSettings, SampleSettings
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.pretrained import fingerprint
from pseudovideo.priors import (
    AutoregressiveConfig,
    AutoregressivePrior,
    MaskedConfig,
    MaskedPrior,
)
from pseudovideo.spec import TokenizerSpec
from pseudovideo.tokenizers import PatchKMeans

SEED = 3
SETTINGS = GenerateSettings(
    data="mnist",
    frames=(2,),
    controls=False,
    stem=("plain",),
    seeds=(SEED,),
    videos=Videos(corruption="high-order-noise", beta_min=0.1, beta_max=0.3),
    tokenizer=TokenizerSpec(dim=16, num_heads=2, depth=1, codebook_size=8, code_dim=4),
    training=Training(steps=2, batch_size=16, warmup=0.5, learning_rate=1e-3),
    autoregressive=PriorSizes(dim=12, depth=3, num_heads=4, steps=2, warmup=0.5),
    masked=PriorSizes(dim=16, depth=1, num_heads=2, steps=2, warmup=0.5),
    prior_training=PriorTraining(batch_size=16),
    evaluation=TokensEvaluation(num_samples=12, num_images=20),
    machine=Machine(device="cpu"),
)
(ARM,) = SETTINGS.arms
JOB = Job("2-frame-plain", SEED)


def pictures(count, seed):
    generator = torch.Generator().manual_seed(seed)
    bright = torch.randint(30, 220, (count, 1, 2, 2), generator=generator).float()
    grain = torch.randint(-20, 20, (count, 1, 8, 8), generator=generator)
    return (torch.nn.functional.interpolate(bright, 8) + grain).to(torch.uint8)


DATA = GenerationData("mnist", pictures(60, 0), pictures(9, 1), pictures(25, 2))


def tokenizer_in(folder):
    return open_tokenizer(folder / "tokenizers" / JOB.name)


def prior_in(folder, kind):
    return open_prior(folder / "priors" / f"{kind}-{JOB.name}").prior


def samples_in(folder, kind):
    return folder / "samples" / f"{kind}-{JOB.name}.npz"


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """One arm from tokenizer to metrics: its folder and what was found."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(5)
    return folder, run(folder)


def run(folder):
    return Tokens(SETTINGS).run(JOB, DATA, RunFolder(folder, "r"))


def videos_of(images, name):
    config = PseudoVideoConfig(num_frames=2, kind="high-order-noise", beta_min=0.1, beta_max=0.3)
    return pseudo_videos(to_unit(images), config, seed=derive_seed(SEED, name))


def mean_decibels(frames, images):
    """Of each image's own error in float64."""
    squares = (frames.double() - (images.double() / 127.5 - 1)).square().flatten(1).mean(1)
    return sum(10 * math.log10(4 / float(error)) for error in squares) / len(images)


def distance(first, second):
    extractor = RandomConvolution(1)
    return float(frechet_distance(*(extractor(to_unit(part)).features for part in (first, second))))


def test_test_images_and_their_own_noise_measure_a_reconstruction(arm):
    folder, found = arm
    tokenizer = tokenizer_in(folder).tokenizer
    frames = tokenizer.reconstruct(videos_of(DATA.test[:20], "test videos"))[:, -1]
    expected = mean_decibels(frames, DATA.test[:20])
    assert found["reconstruction"]["psnr"] == pytest.approx(expected, abs=1e-4)
    assert found["reconstruction"]["num_images"] == 20


def test_parameters_are_counted_with_the_codebook(arm):
    folder, found = arm
    tokenizer = tokenizer_in(folder).tokenizer
    learned = sum(p.numel() for p in tokenizer.parameters())
    assert found["parameters"] == learned + tokenizer.quantizer.codebook.numel()


def test_tokens_are_those_of_the_training_images_and_made_anew_for_others(arm, tmp_path):
    folder, _ = arm
    trained = tokenizer_in(folder)
    expected = trained.tokenizer.encode(videos_of(DATA.train, "token videos"))
    where = folder / "tokens" / JOB.name
    before = (where / "tokens.npy").stat().st_mtime_ns
    assert torch.equal(make_tokens(where, trained, DATA).tokens.long(), expected)
    assert (where / "tokens.npy").stat().st_mtime_ns == before
    other = replace(DATA, train=DATA.train.flip(0))
    make_tokens(tmp_path, trained, DATA)
    expected = trained.tokenizer.encode(videos_of(other.train, "token videos"))
    assert torch.equal(make_tokens(tmp_path, trained, other).tokens.long(), expected)


def test_held_out_tokens_measure_how_well_a_prior_predicts(arm):
    folder, found = arm
    tokenizer = tokenizer_in(folder).tokenizer
    tokens = tokenizer.encode(videos_of(DATA.test[:20], "test videos"))
    prior = prior_in(folder, "autoregressive")
    with torch.no_grad():
        log_probs = prior(tokens).double().log_softmax(-1)
    flat = tokens.flatten(1)
    nats = [-float(log_probs[i, j, flat[i, j]]) for i in range(20) for j in range(flat.shape[1])]
    expected = sum(nats) / len(nats)
    assert found["generation"]["autoregressive"]["nats_per_token"] == pytest.approx(expected)


def test_masks_of_held_out_tokens_are_those_of_the_seed_alone(arm):
    folder, found = arm
    tokenizer = tokenizer_in(folder).tokenizer
    tokens = tokenizer.encode(videos_of(DATA.test[:20], "test videos"))
    prior = prior_in(folder, "masked")
    torch.manual_seed(17)
    before = torch.get_rng_state()
    nats = stages._nats(prior, tokens, seed=derive_seed(SEED, "test masks"))
    assert torch.equal(torch.get_rng_state(), before)
    assert nats == found["generation"]["masked"]["nats_per_token"] > 0
    assert stages._nats(prior, tokens, seed=0) != nats


@pytest.mark.parametrize("kind", ["autoregressive", "masked"])
def test_samples_are_those_of_their_own_seed_and_compared_with_training_images(arm, kind):
    folder, found = arm
    stored = Samples.load(samples_in(folder, kind))
    prior = prior_in(folder, kind)
    tokenizer = tokenizer_in(folder).tokenizer
    seed = derive_seed(SEED, f"{kind} samples")
    again = draw_tokens(prior, tokenizer, 12, SETTINGS.sampling, seed=seed)
    assert torch.equal(stored.images, again.images)
    measured = found["generation"][kind]
    assert measured["fd"] == pytest.approx(distance(DATA.train, stored.images), rel=1e-5)
    assert measured["seconds"] == stored.seconds


def test_an_arm_that_goes_on_draws_and_trains_nothing_anew(arm):
    folder, found = arm
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    # Times included: those of the first run.
    assert run(folder) == found
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before


def test_the_floor_clusters_training_images_and_is_measured_on_test_images(tmp_path, monkeypatch):
    models, seen = [], []

    class Noted(PatchKMeans):
        def fit(self, videos, *, iterations=25, generator=None):
            models.append(self)
            seen.append(videos)
            return super().fit(videos, iterations=iterations, generator=generator)

    monkeypatch.setattr(stages, "PatchKMeans", Noted)
    monkeypatch.setattr(stages, "_KMEANS_IMAGES", 50)
    found = []
    for number in (1, 2):
        torch.manual_seed(number)
        found.append(Tokens(SETTINGS)._patch_kmeans(JOB, DATA, RunFolder(tmp_path, "r")))
    assert found[0] == found[1]
    rows = {tuple(image.tolist()) for image in to_unit(DATA.train).flatten(1)}
    chosen = [tuple(image.tolist()) for image in seen[0][:, -1].flatten(1)]
    assert len(chosen) == len(set(chosen)) == 50
    assert set(chosen) < rows
    frames = models[0].reconstruct(videos_of(DATA.test[:20], "test videos"))[:, -1]
    expected = mean_decibels(frames, DATA.test[:20])
    assert found[0]["reconstruction"]["psnr"] == pytest.approx(expected, abs=1e-4)
    assert found[0]["parameters"] == 8 * 32
    assert found[0]["stem"] == FLOOR


def test_a_prior_begins_with_the_weights_of_its_seed_and_knows_its_tokenizer(
    arm, tmp_path, monkeypatch
):
    folder, _ = arm
    trained = tokenizer_in(folder)
    cache = make_tokens(folder / "tokens" / JOB.name, trained, DATA)
    begun = []

    def stop(prior, *_, **__):
        begun.append(prior)
        raise KeyboardInterrupt

    monkeypatch.setattr(reference, "fit", stop)
    for seed, number in ((0, 1), (0, 2), (1, 2)):
        torch.manual_seed(number)
        before = torch.get_rng_state()
        with pytest.raises(KeyboardInterrupt):
            train_prior(SETTINGS.one_prior("", "masked", seed), cache, tmp_path, recipe="r")
        assert torch.equal(torch.get_rng_state(), before)
    one, same, other = (prior.head.weight for prior in begun)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert begun[0].tokenizer_fingerprint == fingerprint(trained.tokenizer)
    config = begun[0].config
    assert (config.dim, config.depth, config.num_heads) == (16, 1, 2)
    with pytest.raises(KeyboardInterrupt):
        train_prior(SETTINGS.one_prior("", "autoregressive", 0), cache, tmp_path, recipe="r")
    config = begun[-1].config
    assert isinstance(begun[-1], AutoregressivePrior)
    assert (config.dim, config.depth, config.num_heads) == (12, 3, 4)


class Counting(MaskedPrior):
    """Draws frames whose values tell their place; notes how it was called."""

    def __init__(self):
        super().__init__(MaskedConfig(codebook_size=2, grid=(1, 1, 1), dim=2, depth=1, num_heads=1))
        self.calls = []

    def sample(self, n, tokenizer, **options):
        first = sum(count for count, _ in self.calls)
        self.calls.append((n, options))
        numbers = torch.arange(first, first + n).view(n, 1, 1, 1, 1)
        # 2.6 levels above the number in the first frame, 0.6 in the last.
        levels = numbers + torch.tensor([2.6, 0.6]).view(1, 2, 1, 1, 1)
        return (levels / 127.5 - 1).expand(n, 2, 1, 4, 4)


def test_images_of_all_batches_and_the_first_videos_are_kept(arm, monkeypatch):
    tokenizer = tokenizer_in(arm[0]).tokenizer
    monkeypatch.setattr(reference, "_BATCH", 7)
    monkeypatch.setattr(reference, "_KEPT_VIDEOS", 10)
    prior = Counting()
    options = Sampling(temperature=0.7, num_steps=3, choice_temperature=0.2)
    samples = draw_tokens(prior, tokenizer, 17, options, seed=4)
    assert [count for count, _ in prior.calls] == [7, 7, 3]
    # Rounded to the nearest level.
    assert samples.images[:, 0, 0, 0].tolist() == [number + 1 for number in range(17)]
    assert samples.videos[:, 0, 0, 0, 0].tolist() == [number + 3 for number in range(10)]
    for count, given in prior.calls:
        assert given.pop("generator").initial_seed() == 4
        assert given.pop("batch_size") == count
        assert given == {"temperature": 0.7, "num_steps": 3, "choice_temperature": 0.2}


def test_autoregressive_options_reach_the_draw(arm, monkeypatch):
    sizes = {"codebook_size": 2, "grid": (1, 1, 1), "dim": 2, "depth": 1, "num_heads": 1}
    prior, given = AutoregressivePrior(AutoregressiveConfig(**sizes)), []

    def sample(count, tokenizer, **options):
        given.append({name: options[name] for name in ("temperature", "top_k", "top_p")})
        return torch.zeros(count, 1, 1, 2, 2)

    monkeypatch.setattr(prior, "sample", sample)
    options = Sampling(temperature=0.7, top_k=3, top_p=0.9)
    draw_tokens(prior, tokenizer_in(arm[0]).tokenizer, 2, options, seed=0)
    assert given == [{"temperature": 0.7, "top_k": 3, "top_p": 0.9}]


def test_evaluation_takes_the_same_images_and_noise_as_the_run(arm, tmp_path, monkeypatch):
    folder, _ = arm
    asked = []

    def load(name, *, image_size, **_):
        asked.append((name, image_size))
        return DATA

    monkeypatch.setattr(draws, "load_generation_data", load)
    monkeypatch.setattr(draws, "make_extractor", lambda *_, **__: RandomConvolution(1))
    where = folder / "tokenizers" / JOB.name
    file = samples_in(folder, "masked")
    settings = EvaluateSettings(samples=str(file), tokenizer=str(where), device="cpu")
    run_experiment(Evaluate(settings), Options(run_dir=tmp_path / "e"), recipe="")
    found = json.loads((tmp_path / "e" / "metrics.json").read_text("utf-8"))
    assert asked == [("mnist", 8)]
    frames = open_tokenizer(where).tokenizer.reconstruct(videos_of(DATA.test, "test videos"))
    expected = mean_decibels(frames[:, -1], DATA.test)
    assert found["reconstruction"]["psnr"] == pytest.approx(expected, abs=1e-4)
    images = Samples.load(file).images
    assert found["generation"]["fd"] == pytest.approx(distance(DATA.train, images), rel=1e-5)
    expected = distance(DATA.train, DATA.test)
    assert found["real images"]["fd"] == pytest.approx(expected, rel=1e-5)


def test_the_seed_and_the_number_of_a_run_draw_its_own_samples(arm, tmp_path):
    folder, _ = arm
    where = (
        folder / "tokenizers" / JOB.name,
        folder / "priors" / f"masked-{JOB.name}",
    )
    settings = SampleSettings(
        tokenizer=str(where[0]),
        prior=str(where[1]),
        num=SETTINGS.evaluation.num_samples,
        seed=SEED,
        device="cpu",
        sampling=SETTINGS.sampling,
    )
    run_experiment(Sample(settings), Options(run_dir=tmp_path / "s"), recipe="")
    expected = Samples.load(samples_in(folder, "masked"))
    found = Samples.load(tmp_path / "s" / "samples.npz")
    assert torch.equal(found.images, expected.images)


def test_the_weights_of_a_tokenizer_depend_on_the_seed_alone():
    heads = []
    for seed, number in ((0, 1), (0, 2), (1, 2)):
        torch.manual_seed(number)
        before = torch.get_rng_state()
        objective = make_objective(SETTINGS.one_tokenizer(ARM, "plain", seed), DATA)
        assert torch.equal(torch.get_rng_state(), before)
        heads.append(objective.tokenizer.last_layer)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
