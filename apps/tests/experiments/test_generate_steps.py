"""The steps of `probseq generate` one by one: which images, seeds and files each of them takes."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from probseq.metrics.image import RandomConvolution, frechet_distance
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiments import (
    generate as generate_module,
)
from probseq_apps.experiments import (
    generate_measure,
    generate_prior,
    generate_ruler,
    generate_sample,
    generate_steps,
)
from probseq_apps.experiments.generate_evaluation import reference_moments
from probseq_apps.experiments.generate_files import (
    prior_folder,
    read_result,
    result_file,
    samples_file,
    tokenizer_folder,
    tokens_folder,
)
from probseq_apps.experiments.generate_groups import (
    CorruptionSettings,
    LossSettings,
    MachineSettings,
    TokenizerSettings,
    TokenizerTraining,
)
from probseq_apps.experiments.generate_prior import make_tokens, open_prior, train_prior
from probseq_apps.experiments.generate_prior_groups import (
    AutoregressiveSettings,
    GenerateEvaluationSettings,
    MaskedSettings,
    PriorTraining,
    SamplingSettings,
)
from probseq_apps.experiments.generate_sample import Samples, draw_samples
from probseq_apps.experiments.generate_settings import (
    EvaluateSettings,
    GenerateSettings,
    SampleSettings,
)
from probseq_apps.experiments.generate_steps import floor_result, run_arm
from probseq_apps.experiments.generate_tokenizer import (
    make_objective,
    objective_config,
    open_tokenizer,
    tokenizer_config,
    video_config,
)
from probseq_apps.options import Options
from probseq_apps.report.results import FLOOR
from probseq_apps.run import run as run_experiment
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.pretrained import fingerprint
from pseudovideo.priors import (
    AutoregressiveConfig,
    AutoregressivePrior,
    MaskedConfig,
    MaskedPrior,
)
from pseudovideo.tokenizers import PatchKMeans

SEED = 3
SETTINGS = GenerateSettings(
    data="mnist",
    frames=(2,),
    controls=False,
    stem=("plain",),
    seeds=(SEED,),
    videos=CorruptionSettings(corruption="high-order-noise", beta_min=0.1, beta_max=0.3),
    tokenizer=TokenizerSettings(dim=16, num_heads=2, depth=1, codebook_size=8, code_dim=4),
    training=TokenizerTraining(steps=2, batch_size=16, warmup_steps=1, learning_rate=1e-3),
    autoregressive=AutoregressiveSettings(ar_dim=12, ar_depth=3, ar_num_heads=4, ar_steps=2),
    masked=MaskedSettings(masked_dim=16, masked_depth=1, masked_num_heads=2, masked_steps=2),
    prior_training=PriorTraining(prior_warmup_steps=1, prior_batch_size=16),
    evaluation=GenerateEvaluationSettings(num_samples=12, num_images=20),
    machine=MachineSettings(device="cpu"),
)
(ARM,) = SETTINGS.arms
NAME = (ARM.name, "plain", SEED)


def pictures(count, seed):
    generator = torch.Generator().manual_seed(seed)
    bright = torch.randint(30, 220, (count, 1, 2, 2), generator=generator).float()
    grain = torch.randint(-20, 20, (count, 1, 8, 8), generator=generator)
    return (torch.nn.functional.interpolate(bright, 8) + grain).to(torch.uint8)


DATA = GenerationData("mnist", pictures(60, 0), pictures(9, 1), pictures(25, 2))


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """One arm from tokenizer to metrics: its folder and what was found."""
    folder, extractor = tmp_path_factory.mktemp("run"), RandomConvolution(1)
    (folder / "samples").mkdir()
    torch.manual_seed(5)
    return folder, run(folder, extractor)


def run(folder, extractor):
    reference = reference_moments(extractor, DATA.train)
    return run_arm(SETTINGS, DATA, folder, *(ARM, "plain", SEED), extractor, reference, recipe="r")


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
    tokenizer = open_tokenizer(tokenizer_folder(folder, *NAME)).tokenizer
    frames = tokenizer.reconstruct(videos_of(DATA.test[:20], "test videos"))[:, -1]
    expected = mean_decibels(frames, DATA.test[:20])
    assert found["reconstruction"]["psnr"] == pytest.approx(expected, abs=1e-4)
    assert found["reconstruction"]["num_images"] == 20


def test_parameters_are_counted_with_the_codebook(arm):
    folder, found = arm
    tokenizer = open_tokenizer(tokenizer_folder(folder, *NAME)).tokenizer
    learned = sum(p.numel() for p in tokenizer.parameters())
    assert found["parameters"] == learned + tokenizer.quantizer.codebook.numel()


def test_tokens_are_those_of_the_training_images_and_made_anew_for_others(arm, tmp_path):
    folder, _ = arm
    trained = open_tokenizer(tokenizer_folder(folder, *NAME))
    expected = trained.tokenizer.encode(videos_of(DATA.train, "token videos"))
    where = tokens_folder(folder, *NAME)
    before = (where / "tokens.npy").stat().st_mtime_ns
    assert torch.equal(make_tokens(where, trained, DATA).tokens.long(), expected)
    assert (where / "tokens.npy").stat().st_mtime_ns == before
    other = replace(DATA, train=DATA.train.flip(0))
    make_tokens(tmp_path, trained, DATA)
    expected = trained.tokenizer.encode(videos_of(other.train, "token videos"))
    assert torch.equal(make_tokens(tmp_path, trained, other).tokens.long(), expected)


def test_held_out_tokens_measure_how_well_a_prior_predicts(arm):
    folder, found = arm
    tokenizer = open_tokenizer(tokenizer_folder(folder, *NAME)).tokenizer
    tokens = tokenizer.encode(videos_of(DATA.test[:20], "test videos"))
    prior = open_prior(prior_folder(folder, "autoregressive", *NAME)).prior
    with torch.no_grad():
        log_probs = prior(tokens).double().log_softmax(-1)
    flat = tokens.flatten(1)
    nats = [-float(log_probs[i, j, flat[i, j]]) for i in range(20) for j in range(flat.shape[1])]
    expected = sum(nats) / len(nats)
    assert found["generation"]["autoregressive"]["nats_per_token"] == pytest.approx(expected)


def test_masks_of_held_out_tokens_are_those_of_the_seed_alone(arm):
    folder, found = arm
    tokenizer = open_tokenizer(tokenizer_folder(folder, *NAME)).tokenizer
    tokens = tokenizer.encode(videos_of(DATA.test[:20], "test videos"))
    prior = open_prior(prior_folder(folder, "masked", *NAME)).prior
    torch.manual_seed(17)
    before = torch.get_rng_state()
    nats = generate_steps._nats(prior, tokens, seed=derive_seed(SEED, "test masks"))
    assert torch.equal(torch.get_rng_state(), before)
    assert nats == found["generation"]["masked"]["nats_per_token"] > 0
    assert generate_steps._nats(prior, tokens, seed=0) != nats


@pytest.mark.parametrize("kind", ["autoregressive", "masked"])
def test_samples_are_those_of_their_own_seed_and_compared_with_training_images(arm, kind):
    folder, found = arm
    stored = Samples.load(samples_file(folder, kind, *NAME))
    prior = open_prior(prior_folder(folder, kind, *NAME)).prior
    tokenizer = open_tokenizer(tokenizer_folder(folder, *NAME)).tokenizer
    seed = derive_seed(SEED, f"{kind} samples")
    again = draw_samples(prior, tokenizer, 12, SETTINGS.sampling, seed=seed)
    assert torch.equal(stored.images, again.images)
    measured = found["generation"][kind]
    assert measured["fd"] == pytest.approx(distance(DATA.train, stored.images), rel=1e-5)
    assert measured["seconds"] == stored.seconds


def test_an_arm_that_goes_on_draws_and_trains_nothing_anew(arm):
    folder, found = arm
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    # Times included: those of the first run.
    assert run(folder, RandomConvolution(1)) == found
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before


def test_the_floor_clusters_training_images_and_is_measured_on_test_images(monkeypatch):
    models, seen = [], []

    class Noted(PatchKMeans):
        def fit(self, videos, *, iterations=25, generator=None):
            models.append(self)
            seen.append(videos)
            return super().fit(videos, iterations=iterations, generator=generator)

    monkeypatch.setattr(generate_steps, "PatchKMeans", Noted)
    monkeypatch.setattr(generate_steps, "_KMEANS_IMAGES", 50)
    found = []
    for number in (1, 2):
        torch.manual_seed(number)
        found.append(floor_result(SETTINGS, DATA, ARM, "plain", SEED, RandomConvolution(1)))
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
    trained = open_tokenizer(tokenizer_folder(folder, *NAME))
    cache = make_tokens(tokens_folder(folder, *NAME), trained, DATA)
    begun = []

    def stop(prior, *_, **__):
        begun.append(prior)
        raise KeyboardInterrupt

    monkeypatch.setattr(generate_prior, "fit", stop)
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
    tokenizer = open_tokenizer(tokenizer_folder(arm[0], *NAME)).tokenizer
    monkeypatch.setattr(generate_sample, "_BATCH", 7)
    monkeypatch.setattr(generate_sample, "_KEPT_VIDEOS", 10)
    prior = Counting()
    options = SamplingSettings(temperature=0.7, num_steps=3, choice_temperature=0.2)
    samples = draw_samples(prior, tokenizer, 17, options, seed=4)
    assert [count for count, _ in prior.calls] == [7, 7, 3]
    # Rounded to the nearest level.
    assert samples.images[:, 0, 0, 0].tolist() == [number + 1 for number in range(17)]
    assert samples.videos[:, 0, 0, 0, 0].tolist() == [number + 3 for number in range(10)]
    for count, given in prior.calls:
        assert given.pop("generator").initial_seed() == 4
        assert given.pop("batch_size") == count
        assert given == {"temperature": 0.7, "num_steps": 3, "choice_temperature": 0.2}


def test_autoregressive_options_reach_the_draw():
    sizes = {"codebook_size": 2, "grid": (1, 1, 1), "dim": 2, "depth": 1, "num_heads": 1}
    prior = AutoregressivePrior(AutoregressiveConfig(**sizes))
    options = SamplingSettings(temperature=0.7, top_k=3, top_p=0.9)
    drawer = generate_sample._drawer(prior, options)
    assert drawer.keywords == {"temperature": 0.7, "top_k": 3, "top_p": 0.9}


def test_samples_are_compared_with_training_images_and_test_images_as_if_they_were_samples(
    tmp_path, monkeypatch
):
    references = []

    def arm_of(settings, data, folder, arm, stem, seed, extractor, reference, *, recipe):
        references.append(reference)
        return {"arm": arm.name}

    replaced = {
        "load_images": lambda *_: DATA,
        "run_arm": arm_of,
        "floor_result": lambda *_: {"arm": FLOOR},
        "restore_samples": lambda *_: None,
        "tokens_report": lambda *_, **__: SimpleNamespace(write=lambda folder: "told"),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(generate_module, name, value)
    monkeypatch.setattr(generate_ruler, "make_extractor", lambda *_, **__: RandomConvolution(1))
    options = Options(run_dir=tmp_path / "run")
    folder = run_experiment(generate_module.Generate(SETTINGS), options, recipe="own")
    (reference,) = references
    features = RandomConvolution(1)(to_unit(DATA.train)).features.double()
    assert reference.count == 60
    torch.testing.assert_close(reference.mean, features.mean(dim=0))
    (file,) = (folder / "results").glob("reference*.json")
    found = read_result(file)
    assert found["fd"] == pytest.approx(distance(DATA.train, DATA.test), rel=1e-5)
    assert found["num_samples"] == 25
    assert read_result(result_file(folder, *NAME)) == {"arm": ARM.name}
    assert read_result(result_file(folder, ARM.name, FLOOR, SEED)) == {"arm": FLOOR}


def test_evaluation_takes_the_same_images_and_noise_as_the_run(arm, tmp_path, monkeypatch):
    folder, _ = arm
    asked = []

    def load(name, *, image_size, **_):
        asked.append((name, image_size))
        return DATA

    monkeypatch.setattr(generate_measure, "load_generation_data", load)
    monkeypatch.setattr(generate_measure, "make_extractor", lambda *_, **__: RandomConvolution(1))
    where = tokenizer_folder(folder, *NAME)
    file = samples_file(folder, "masked", *NAME)
    settings = EvaluateSettings(samples=str(file), tokenizer=str(where), device="cpu")
    found = generate_measure.evaluate_command(settings, Options(run_dir=tmp_path / "e"))
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
    where = tokenizer_folder(folder, *NAME), prior_folder(folder, "masked", *NAME)
    settings = SampleSettings(
        tokenizer=str(where[0]),
        prior=str(where[1]),
        num=SETTINGS.evaluation.num_samples,
        seed=SEED,
        device="cpu",
        sampling=SETTINGS.sampling,
    )
    generate_measure.sample_command(settings, Options(run_dir=tmp_path / "s"))
    expected = Samples.load(samples_file(folder, "masked", *NAME))
    found = Samples.load(tmp_path / "s" / "samples.npz")
    assert torch.equal(found.images, expected.images)


def test_settings_of_a_tokenizer_reach_its_videos_network_and_loss():
    settings = replace(
        SETTINGS.one_tokenizer(ARM, "layernorm", 0),
        videos=CorruptionSettings(blur_rate=0.2, beta_min=0.03, beta_max=0.04),
        tokenizer=replace(
            SETTINGS.tokenizer, causal=False, commitment=0.5, codebook_decay=0.7, depth=3
        ),
        loss=LossSettings(loss_frame="last", adversarial_weight=0.3, adversarial_start=7),
    )
    videos = video_config(settings.videos, 18)
    assert (videos.blur_rate, videos.beta_min, videos.beta_max) == (0.2, 0.03, 0.04)
    config = tokenizer_config(settings, DATA)
    assert (config.causal, config.commitment, config.decay, config.stem) == (
        False,
        0.5,
        0.7,
        "layernorm",
    )
    assert (config.spatial_depth, config.temporal_depth) == (3, 3)
    image = tokenizer_config(replace(settings, frames=1), DATA)
    assert (image.spatial_depth, image.temporal_depth, image.temporal_patch) == (6, 0, 1)
    loss = objective_config(settings.loss)
    assert (loss.frame, loss.adversarial_weight, loss.adversarial_start) == ("last", 0.3, 7)


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
