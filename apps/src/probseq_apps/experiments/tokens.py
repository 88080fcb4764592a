"""`probseq generate run`, `tokenizer` and `prior`: tokenizer, tokens, prior and samples as stages.

A tokenizer's folder and a prior's are runs of `fit` with the trained model in `pretrained/`; those
of `run` are in `tokenizers/` and `priors/`, beside `tokens/`, `samples/` and `classifier/`.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine import log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.trainer import fork_random
from probseq_apps.experiment import Experiment, Job, Results
from probseq_apps.experiments.reference import (
    CLASSIFIER,
    PRETRAINED,
    SAMPLES,
    ImageExperiment,
    Reference,
    Samples,
    check_features,
    count_steps,
    describe_images,
    load_images,
    lost,
)
from probseq_apps.experiments.token_models import (
    Prior,
    TrainedTokenizer,
    check_prior,
    check_tokenizer,
    draw_tokens,
    make_tokens,
    open_prior,
    open_tokenizer,
    tokenizer_config,
    train_prior,
    train_tokenizer,
    video_config,
)
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.generate import Generated, tokens_report
from probseq_apps.report.results import FLOOR
from probseq_apps.settings.generate import (
    GENERATE,
    GENERATE_PRIOR,
    GENERATE_TOKENIZER,
    Arm,
    GenerateSettings,
    PriorName,
    PriorSettings,
    TokenizerSettings,
)
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.evaluation import ImageCoder, reconstruction
from pseudovideo.spec import (
    TokenizerConfig,
)
from pseudovideo.token_cache import TokenCache
from pseudovideo.tokenizers import PatchKMeans, Tokenizer

TOKENIZERS, TOKENS, PRIORS = "tokenizers", "tokens", "priors"
# Images that k-means clusters: enough for its codebook, few enough for minutes.
_KMEANS_IMAGES = 4000
# Test images whose reconstructions are shown.
_SHOWN = 10
_BATCH = 250


class Tokens(ImageExperiment):
    """Tokenizers of images and of pseudo videos, and priors over their tokens."""

    kind, command = GENERATE, "generate run"
    parts = (SAMPLES, PRIORS, TOKENS, TOKENIZERS, CLASSIFIER)

    def __init__(self, settings: GenerateSettings) -> None:
        self.settings = settings
        self._variants = {
            Job(f"{arm.name}-{stem}", seed): (arm, settings.one_tokenizer(arm, stem, seed))
            for seed in settings.seeds
            for stem in settings.stem
            for arm in settings.arms
        }
        self.jobs = list(self._variants)

    def load(self, options: Options) -> GenerationData:
        """Read the images."""
        return load_images(self._variants[self.jobs[0]][1], options)

    def check(self, data: GenerationData) -> None:
        """Raise if the settings don't fit the images, or a file of weights is not there."""
        settings = self.settings
        for job, (arm, one) in self._variants.items():
            if job.seed == settings.seeds[0]:
                check_tokenizer(one, data)
                if settings.has_priors(arm, one.stem):
                    for prior in settings.priors.prior:
                        grid = tokenizer_config(one, data).grid
                        check_prior(settings.one_prior("", prior, job.seed), grid)
        check_features(settings.evaluation.features)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs, after one about images that are asked for in vain."""
        settings = self.settings
        asked = settings.evaluation.num_images
        note = ""
        if asked is not None and asked > len(data.test):
            note = f"num_images={asked:,}: all {len(data.test):,} test images are reconstructed\n"
        return (
            f"{note}{describe_images(data)}; {', '.join(arm.name for arm in settings.arms)}; stems "
            f"{', '.join(settings.stem)}; {count_steps(settings.training.steps)} each, on "
            f"{self.device}"
        )

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train, draw and measure all that a variant has."""
        (arm, one), settings, reference = (
            self._variants[job],
            self.settings,
            self.reference(data, at),
        )
        trained = train_tokenizer(
            one, data, at.path / TOKENIZERS / job.name, recipe=at.recipe, label=job.name
        )
        tokenizer = trained.tokenizer.to(self.device)
        codebook = tokenizer.config.codebook_size * tokenizer.config.code_dim
        found = _facts(arm, one.stem, job.seed, tokenizer.config) | {
            "parameters": sum(p.numel() for p in tokenizer.parameters()) + codebook,
            "steps": trained.steps,
            "tokenizer_seconds": trained.seconds,
            "reconstruction": self._reconstruct(one, tokenizer, data, reference),
        }
        if settings.priors.prior and settings.has_priors(arm, one.stem):
            cache = make_tokens(at.path / TOKENS / job.name, trained, data)
            held_out = _test_tokens(trained, data.test[: settings.evaluation.num_images])
            found["generation"] = {
                prior: self._run_prior(prior, job, trained, cache, held_out, reference, at)
                for prior in settings.priors.prior
            }
        return found

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Measure patch k-means, write the report, and return it as text."""
        settings, seed = self.settings, self.settings.seeds[0]
        # Patch k-means knows no stem: a baseline for each arm and seed.
        floors = [
            at.once(
                f"{arm.name}-{FLOOR}-seed{job.seed}", partial(self._patch_kmeans, job, data, at)
            )
            for job, (arm, one) in self._variants.items()
            if one.stem == settings.stem[0]
        ]
        shown: dict[str, dict[str, Tensor]] = {}
        samples: dict[str, tuple[str, Tensor, Tensor]] = {}
        logs: dict[str, dict[str, list[Path]]] = {TOKENIZERS: {}, PRIORS: {}}
        for job, (arm, one) in self._variants.items():
            label, folder = f"{arm.name}, {one.stem}", at.path / TOKENIZERS / job.name
            logs[TOKENIZERS].setdefault(label, []).append(folder)
            if job.seed == seed:
                images = _reconstructed(folder, data.test[:_SHOWN])
                shown.setdefault(one.stem, {})[arm.name] = images
        for prior in settings.priors.prior:
            for job, (arm, one) in self._variants.items():
                if not settings.has_priors(arm, one.stem):
                    continue
                label, name = f"{arm.name}, {one.stem}, {prior}", f"{prior}-{job.name}"
                logs[PRIORS].setdefault(label, []).append(at.path / PRIORS / name)
                if job.seed == seed:
                    title = f"{prior.capitalize()} prior, {arm.name}, stem {one.stem}, seed {seed}"
                    samples[f"samples-{name}"] = (title, *self._restored(prior, job, at)[:2])
        real = self.real(data, at)
        return tokens_report(
            Generated(list(results.values()), real, settings.to_dict(), data, at.recipe),
            floors,
            seed=seed,
            videos=video_config(settings.videos, max(settings.frames)),
            reconstructed=shown,
            samples=samples,
            tokenizer_logs=logs[TOKENIZERS],
            prior_logs=logs[PRIORS],
        ).write(at.path)

    def _reconstruct(
        self,
        one: TokenizerSettings,
        tokenizer: ImageCoder,
        data: GenerationData,
        reference: Reference,
    ) -> dict[str, Any]:
        return reconstruction(
            tokenizer,
            data.test[: self.settings.evaluation.num_images],
            video_config(one.videos, one.frames),
            reference.extractor,
            seed=derive_seed(one.seed, "test videos"),
            device=self.device,
        )

    def _run_prior(
        self,
        prior: PriorName,
        job: Job,
        trained: TrainedTokenizer,
        cache: TokenCache,
        held_out: Tensor,
        reference: Reference,
        at: RunFolder,
    ) -> dict[str, Any]:
        """Train a prior, draw from it, and measure both."""
        name = f"{prior}-{job.name}"
        learned = train_prior(
            self.settings.one_prior(f"{TOKENIZERS}/{job.name}", prior, job.seed),
            cache,
            at.path / PRIORS / name,
            recipe=at.recipe,
            label=name,
        )
        model = learned.prior.to(held_out.device)
        file = at.path / SAMPLES / f"{name}.npz"
        if not file.exists():
            self._draw(prior, job, model, trained.tokenizer).save(file)
        samples = Samples.load(file)
        return {
            "nats_per_token": _nats(model, held_out, seed=derive_seed(job.seed, "test masks")),
            "training_seconds": learned.seconds,
            **reference.measure(samples.images),
            "seconds": samples.seconds,
        }

    def _draw(self, prior: PriorName, job: Job, model: Prior, tokenizer: Tokenizer) -> Samples:
        num, seed = self.settings.evaluation.num_samples, derive_seed(job.seed, f"{prior} samples")
        return draw_tokens(model, tokenizer, num, self.settings.sampling, seed=seed)

    def _restored(self, prior: PriorName, job: Job, at: RunFolder) -> Samples:
        """Return samples; those that were deleted are drawn anew with the same seed."""
        file = at.path / SAMPLES / f"{prior}-{job.name}.npz"
        if not file.exists():
            log.say(f"samples of {prior}-{job.name} are not there and are drawn anew")
            try:
                tokenizer = open_tokenizer(at.path / TOKENIZERS / job.name).tokenizer
                model = open_prior(at.path / PRIORS / f"{prior}-{job.name}").prior
            except FileNotFoundError as error:
                raise lost(error, job, at) from error
            self._draw(prior, job, model.to(self.device), tokenizer.to(self.device)).save(file)
        return Samples.load(file)

    def _patch_kmeans(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Measure what k-means on raw patches makes of a variant's tokens."""
        arm, one = self._variants[job]
        config, videos = tokenizer_config(one, data), video_config(one.videos, one.frames)
        kmeans = PatchKMeans(config).to(self.device)
        generator = torch.Generator().manual_seed(derive_seed(job.seed, "k-means"))
        chosen = torch.randperm(len(data.train), generator=generator)[:_KMEANS_IMAGES]
        images = to_unit(data.train[chosen].to(self.device))
        kmeans.fit(pseudo_videos(images, videos, seed=job.seed), generator=generator)
        return _facts(arm, FLOOR, job.seed, config) | {
            "parameters": kmeans.codebook.numel(),
            "steps": None,
            "tokenizer_seconds": None,
            "reconstruction": self._reconstruct(one, kmeans, data, self.reference(data, at)),
        }


class TokenizerStage(Experiment[GenerationData]):
    """Train one tokenizer in a folder of its own."""

    kind, command, parts = GENERATE_TOKENIZER, "generate tokenizer", (PRETRAINED,)

    def __init__(self, settings: TokenizerSettings) -> None:
        self.settings = settings
        self.train_config = settings.train_config()

    @property
    def config(self) -> dict[str, Any]:
        """Settings, and those of the training loop, whose folder this is."""
        return {"settings": self.settings.to_dict(), "train": self.train_config.to_dict()}

    def load(self, options: Options) -> GenerationData:
        """Read the images."""
        return load_images(self.settings, options)

    def check(self, data: GenerationData) -> None:
        """Raise if sizes, device or files of weights are not as the settings want them."""
        check_tokenizer(self.settings, data)

    def describe(self, data: GenerationData) -> str:
        """Return a line about the images."""
        return describe_images(data)

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Train the tokenizer, from where it stopped, and return what came out."""
        trained = train_tokenizer(self.settings, data, at.path, recipe=at.recipe)
        grid = trained.tokenizer.grid
        return (
            f"{self.settings.data}, {self.settings.frames} frames: {grid.num_tokens} tokens of "
            f"{grid.bits:g} bits after {trained.steps:,} steps in {trained.seconds:.0f} s\n"
            f"tokenizer: {at.path}"
        )


class PriorStage(Experiment[tuple[TrainedTokenizer, GenerationData]]):
    """Train one prior over the tokens of a tokenizer, in a folder of its own."""

    kind, command, parts = GENERATE_PRIOR, "generate prior", (PRETRAINED, TOKENS)

    def __init__(self, settings: PriorSettings) -> None:
        # The folder may be resumed from another working directory.
        self.settings = replace(settings, tokenizer=str(Path(settings.tokenizer).resolve()))
        self._data = ""
        self.train_config = settings.train_config()

    @property
    def config(self) -> dict[str, Any]:
        """Settings, and those of the training loop, whose folder this is."""
        return {"settings": self.settings.to_dict(), "train": self.train_config.to_dict()}

    @property
    def data_name(self) -> str:
        """Of the data that the tokenizer has learned."""
        return self._data

    def load(self, options: Options) -> tuple[TrainedTokenizer, GenerationData]:
        """Read the tokenizer and its images."""
        trained = open_tokenizer(Path(self.settings.tokenizer))
        check_prior(self.settings, trained.tokenizer.grid)
        self._data = trained.settings.data
        return trained, load_images(trained.settings, options)

    def check(self, data: tuple[TrainedTokenizer, GenerationData]) -> None:
        """Raise if the sizes don't go together."""
        check_prior(self.settings, data[0].tokenizer.grid)

    def describe(self, data: tuple[TrainedTokenizer, GenerationData]) -> str:
        """Return a line about the images."""
        return describe_images(data[1])

    def report(
        self, data: tuple[TrainedTokenizer, GenerationData], results: Results, at: RunFolder
    ) -> str:
        """Train the prior, from where it stopped, and return what came out."""
        cache = make_tokens(at.path / TOKENS, *data)
        prior = train_prior(self.settings, cache, at.path, recipe=at.recipe)
        steps = f"{self.train_config.steps:,} steps in {prior.seconds:.0f} s"
        return f"{self.settings.prior} prior after {steps}: {at.path}"


def _facts(arm: Arm, stem: str, seed: int, config: TokenizerConfig) -> dict[str, Any]:
    return {
        "arm": arm.name,
        "stem": stem,
        "seed": seed,
        "frames": arm.frames,
        "patch": config.patch_size,
        "tokens": config.grid.num_tokens,
        "bits": config.grid.bits,
    }


def _reconstructed(folder: Path, images: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    one, tokenizer, *_ = open_tokenizer(folder)
    videos, seed = video_config(one.videos, one.frames), derive_seed(one.seed, "test videos")
    with torch.inference_mode():
        return tokenizer.reconstruct(pseudo_videos(to_unit(images), videos, seed=seed))[:, -1]


def _test_tokens(trained: TrainedTokenizer, images: UInt8[Tensor, "n c h w"]) -> Tensor:
    """Return the tokens of test images, on the tokenizer's device."""
    one, tokenizer = trained.settings, trained.tokenizer
    device = next(tokenizer.parameters()).device
    videos, seed = video_config(one.videos, one.frames), derive_seed(one.seed, "test videos")
    found: list[Tensor] = []
    for index in torch.arange(len(images)).split(_BATCH):
        part = to_unit(images[index].to(device))
        found.append(
            tokenizer.encode(pseudo_videos(part, videos, seed=seed, index=index.to(device)))
        )
    return torch.cat(found)


def _nats(prior: Prior, tokens: Tensor, *, seed: int) -> float:
    """Return the mean of −log p on held-out tokens: of all, or of those that masks hide."""
    total = 0.0
    with fork_random(tokens.device), torch.no_grad():
        torch.manual_seed(seed)
        for part in tokens.split(_BATCH):
            total += len(part) * float(prior.loss(part))
    return total / len(tokens)
