"""`probseq generate run`, `tokenizer` and `prior`: tokenizer, tokens, prior and samples as stages.

A tokenizer's folder and a prior's are runs of `fit` with the trained model in `pretrained/`; those
of `run` are in `tokenizers/` and `priors/`, beside `tokens/`, `samples/` and `classifier/`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from probseq.metrics.image import LPIPS
from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiment import Job, Results, RunFolder
from probseq_apps.experiments import stages
from probseq_apps.options import Options
from probseq_apps.report.results import FLOOR
from probseq_apps.settings.generate import (
    GENERATE,
    GENERATE_PRIOR,
    GENERATE_TOKENIZER,
    GenerateSettings,
    PriorSettings,
    TokenizerSettings,
)
from pseudovideo.arms import TokenArm
from pseudovideo.beyond.reference import Copies
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.evaluation import ImageCoder, encode_images, mean_nats, reconstruction
from pseudovideo.pixels import to_unit
from pseudovideo.priors import AutoregressivePrior, MaskedPrior, build_token_prior
from pseudovideo.priors.base import TokenPrior
from pseudovideo.spec import PriorName, TokenGrid, TokenizerConfig, TokenSampling
from pseudovideo.token_cache import TokenCache, cached_tokens
from pseudovideo.tokenizers import PatchKMeans, Tokenizer, build_tokenizer
from pseudovideo.tokenizers.objective import TokenizerObjective

TOKENIZERS, TOKENS, PRIORS = "tokenizers", "tokens", "priors"
# Images that k-means clusters: enough for its codebook, few enough for minutes.
_KMEANS_IMAGES = 4000
# Test images whose reconstructions are shown; samples beside training images.
_SHOWN, _COPIES = 10, 8
Prior = AutoregressivePrior | MaskedPrior


class TokenizerPart(stages.Part[GenerationData]):
    """A tokenizer of pseudo videos, or of images where they have one frame."""

    kind, name = GENERATE_TOKENIZER, "tokenizer"
    settings_class, model_class = TokenizerSettings, Tokenizer

    def __init__(self, settings: TokenizerSettings) -> None:
        super().__init__(settings)
        self.videos = settings.videos.for_frames(settings.frames, settings.videos.corruption)
        # Which videos are made of test images, and the seed of their noise.
        seed = derive_seed(settings.seed, "test videos")
        self.held_out: dict[str, Any] = {"corruption": self.videos, "seed": seed}

    def config(self, data: GenerationData) -> TokenizerConfig:
        """Return the sizes; raise if images cannot be cut into such patches."""
        size, given = data.image_size, self.settings
        frames: Any = {"num_frames": given.frames, "stem": given.stem}
        return given.tokenizer.for_images(size, data.channels, **frames)

    def check(self, data: GenerationData) -> None:
        """Raise if sizes, device or files of weights are not as the settings want them."""
        stages.check_one_process(self.settings.machine.device)
        # Without memory for the weights, and without their initialisation, which takes seconds.
        with torch.device("meta"):
            perceptual = nn.Identity() if self.settings.loss.perceptual_weight else None
            tokenizer = build_tokenizer(self.config(data))
            TokenizerObjective(tokenizer, self.settings.loss, perceptual)
        pseudo_videos(to_unit(data.train[:1]), self.videos)
        self._perceptual()

    def build(self, data: GenerationData) -> tuple[TokenizerObjective, Tokenizer]:
        """Return an objective, and the new tokenizer in it."""
        config, perceptual = self.config(data), self._perceptual()
        objective = stages.seeded(
            lambda: TokenizerObjective(build_tokenizer(config), self.settings.loss, perceptual),
            derive_seed(self.settings.seed, "weights"),
        )
        return objective, objective.tokenizer

    def loss(self, model: Any, batch: Batch, step: Step) -> LossParts:
        """Return the objective of images and their numbers, on the videos made of them here.

        The videos' noise depends on the seed, the epoch and the image alone.
        """
        frames = stages.videos_of(batch, self.videos, step, seed=self.settings.seed)
        return LossParts.of(model(frames, step=step.number, generator=step.generator))

    def tokens(
        self,
        tokenizer: Tokenizer,
        data: GenerationData,
        folder: Path,
        labels: Int64[Tensor, " n"] | None = None,
    ) -> TokenCache:
        """Encode the training images once; tokens that are there and fit are taken."""
        tokenizer = tokenizer.to(distributed.resolve_device(self.settings.machine.device))
        seed = derive_seed(self.settings.seed, "token videos")
        with log.bar(total=len(data.train), unit=" images", desc="tokens") as bar:
            given = (folder, tokenizer, data.train, self.videos)
            return cached_tokens(*given, labels=labels, seed=seed, progress=bar.update)

    def _perceptual(self) -> LPIPS | None:
        """Return LPIPS with the named weights, None where it has no weight; raise without them."""
        weight, file = self.settings.loss.perceptual_weight, self.settings.lpips_weights
        if not weight:
            return None
        if file is None or not Path(file).is_file():
            raise ValueError(
                f"perceptual_weight={weight} needs lpips_weights, a file of torchvision's VGG-16 "
                f"weights, got {file}: name it, or set perceptual_weight to 0"
            )
        try:
            return LPIPS(weights=file)
        except ValueError as error:
            raise ValueError(f"lpips_weights must be of torchvision's VGG-16: {error}") from error


class PriorPart(stages.Part[TokenCache]):
    """A prior over the tokens of a tokenizer."""

    kind, name = GENERATE_PRIOR, "prior"
    settings_class, model_class = PriorSettings, TokenPrior

    def __init__(self, settings: PriorSettings, counts: Mapping[str, int] | None = None) -> None:
        super().__init__(settings)
        self._counts = dict(counts or {})

    def classes(self, data: TokenCache) -> dict[str, int]:
        """Return the training images of each class that the prior is told of, if of any."""
        return self._counts

    def check(self, grid: TokenGrid) -> None:
        """Raise if sizes or device are not as the settings want them."""
        distributed.resolve_device(self.settings.machine.device)
        with torch.device("meta"):
            self._prior(grid, None)

    def build(self, data: TokenCache) -> tuple[Prior, Prior]:
        """Return a new prior, twice."""
        make = partial(self._prior, data.grid, data.tokenizer_fingerprint)
        name, seed = self.settings.prior, self.settings.seed
        prior = stages.seeded(make, derive_seed(seed, f"{name} prior"))
        prior.check_cache(data)
        return prior, prior

    def trial(self, data: TokenGrid) -> tuple[Prior, Batch]:
        """Return a prior over a grid, and a few grids of any tokens."""
        shape = (self.settings.prior_training.batch_size, *data.shape)
        batch = (torch.randint(data.codebook_size, shape, dtype=torch.int16),)
        if self._counts:
            batch += (torch.zeros(len(batch[0]), dtype=torch.int64),)
        return self._prior(data, None), batch

    def batch(self, data: TokenCache) -> Batch:
        """Return the tokens, and of classes the labels."""
        return (data.tokens,) if data.labels is None else (data.tokens, data.labels)

    def loss(self, model: Prior, batch: Batch, step: Step) -> LossParts:
        """Return the nats per token: of all, or of those that a masked prior's masks hide."""
        return LossParts(model.loss(*batch, generator=step.generator), {})

    def draw(
        self,
        prior: Prior,
        tokenizer: Tokenizer,
        num: int,
        sampling: TokenSampling,
        *,
        seed: int,
        **options: Any,
    ) -> stages.Samples:
        """Draw videos on the tokenizer's device; the seed is that of a run."""
        kind = self.settings.prior
        options |= {"tokenizer": tokenizer, **sampling.options(kind)}
        return stages.draw_timed(prior, num, seed=derive_seed(seed, f"{kind} samples"), **options)

    def _prior(self, grid: TokenGrid, tokenizer: str | None) -> Prior:
        name, sizes = self.settings.prior, self.settings.sizes(self.settings.prior)
        own: Any = {"classes": self.settings.classes.spec(self._counts)}
        return build_token_prior(name, sizes, grid, tokenizer_fingerprint=tokenizer, **own)


class Tokens(stages.ImageExperiment):
    """Tokenizers of images and of pseudo videos, and priors over their tokens."""

    kind, command = GENERATE, "generate run"
    parts = (stages.SAMPLES, PRIORS, TOKENS, TOKENIZERS, stages.CLASSIFIER)

    def __init__(self, settings: GenerateSettings) -> None:
        super().__init__(settings)
        self._variants = {
            Job(f"{arm.name}-{stem}", seed): (
                arm,
                TokenizerPart(settings.one_tokenizer(arm, stem, seed)),
            )
            for seed in settings.seeds
            for stem in settings.stem
            for arm in settings.arms
        }
        self.jobs = list(self._variants)

    def load(self, options: Options) -> GenerationData:
        """Read the images."""
        return stages.load_images(self.settings, options)

    def check(self, data: GenerationData) -> None:
        """Raise if the settings don't fit the images, or a file of weights is not there."""
        for job, (_, part) in self._variants.items():
            if job.seed == self.settings.seeds[0]:
                part.check(data)
                for prior in self._priors(job, data).values():
                    prior.check(part.config(data).grid)
        super().check(data)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs."""
        arms, stems = (arm.name for arm in self.settings.arms), self.settings.stem
        return self.described(data, f"{', '.join(arms)}; stems {', '.join(stems)}")

    def seconds(self, jobs: Sequence[Job], data: GenerationData) -> float:
        """Return about how long the trainings of jobs take, by one seed of each variant."""
        rows = Counter(job.row for job in jobs)
        total = 0.0
        for job in {job.row: job for job in jobs}.values():
            part = self._variants[job][1]
            own = [part.training_seconds(data)]
            for prior in self._priors(job, data).values():
                own.append(prior.training_seconds(part.config(data).grid))
            total += rows[job.row] * sum(own)
        return total

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train, draw and measure all that a variant has."""
        (arm, part), reference = self._variants[job], self.reference(data, at)
        folder = at.path / TOKENIZERS / job.name
        trained = part.train(data, folder, recipe=at.recipe, label=job.name)
        tokenizer = trained.model.to(self.device)
        codebook = tokenizer.config.codebook_size * tokenizer.config.code_dim
        found = _facts(arm, part.settings.stem, job.seed, tokenizer.config) | {
            "parameters": sum(p.numel() for p in tokenizer.parameters()) + codebook,
            "steps": trained.steps,
            "tokenizer_seconds": trained.seconds,
            "reconstruction": self._reconstruct(part, tokenizer, data, at),
        }
        if priors := self._priors(job, data):
            labels = stages.labels_of(self.settings.classes, data, "train")
            cache = part.tokens(tokenizer, data, at.path / TOKENS / job.name, labels)
            images = data.test[: self.settings.evaluation.num_images]
            held_out = encode_images(tokenizer, images, **part.held_out, device=self.device)
            test = stages.labels_of(self.settings.classes, data, "test", len(images))
            found["generation"] = {}
            seed = derive_seed(job.seed, "test masks")
            for name, prior in priors.items():
                folder = at.path / PRIORS / f"{name}-{job.name}"
                learned = prior.train(cache, folder, recipe=at.recipe, label=folder.name)
                samples = self._samples(name, job, at)
                found["generation"][name] = {
                    "nats_per_token": mean_nats(
                        learned.model.to(self.device), held_out, test, seed=seed
                    ),
                    "training_seconds": learned.seconds,
                    **reference.measure(samples.images),
                    "seconds": float(samples.seconds),
                }
                if part.videos.num_frames > 1:
                    frames = reference.measure_videos(samples.videos, part.videos)
                    found["generation"][name]["frames"] = frames
        return found

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Measure patch k-means, write the report, and return it as text."""
        settings, seed = self.settings, self.settings.seeds[0]
        floors: list[dict[str, Any]] = []
        shown: dict[str, dict[str, Tensor]] = {}
        samples: dict[str, tuple[str, stages.Samples, Copies]] = {}
        reference = self.reference(data, at)
        logs: dict[str, dict[str, list[Path]]] = {TOKENIZERS: {}, PRIORS: {}}
        for job, (arm, part) in self._variants.items():
            stem, folder = part.settings.stem, at.path / TOKENIZERS / job.name
            if stem == settings.stem[0]:  # patch k-means knows no stem
                name = f"{arm.name}-{FLOOR}-seed{job.seed}"
                floors.append(at.once(name, partial(self._patch_kmeans, job, data, at)))
            logs[TOKENIZERS].setdefault(f"{arm.name}, {stem}", []).append(folder)
            if job.seed == seed:
                images = _reconstructed(folder, data.test[:_SHOWN])
                shown.setdefault(stem, {})[arm.name] = images
        for prior in settings.priors.prior:
            for job, (arm, part) in self._variants.items():
                if prior not in self._priors(job, data):
                    continue
                stem, name = part.settings.stem, f"{prior}-{job.name}"
                label = f"{arm.name}, {stem}, {prior}"
                logs[PRIORS].setdefault(label, []).append(at.path / PRIORS / name)
                if job.seed == seed:
                    title = f"{prior.capitalize()} prior, {arm.name}, stem {stem}, seed {seed}"
                    drawn = self._samples(prior, job, at)
                    samples[name] = (title, drawn, reference.copies(drawn.images, _COPIES))
        return self.write_report(
            data,
            [*results.values(), *floors],
            at,
            videos=settings.videos.for_frames(max(settings.frames), settings.videos.corruption),
            reconstructed=shown,
            samples=samples,
            features=reference.extractor.name,
            tokenizer_logs=logs[TOKENIZERS],
            prior_logs=logs[PRIORS],
        )

    def _priors(self, job: Job, data: GenerationData) -> dict[PriorName, PriorPart]:
        settings, (arm, part) = self.settings, self._variants[job]
        names = settings.priors.prior if settings.has_priors(arm, part.settings.stem) else ()
        folder, counts = f"{TOKENIZERS}/{job.name}", stages.told_classes(settings.classes, data)
        return {
            name: PriorPart(settings.one_prior(folder, name, job.seed), counts) for name in names
        }

    def _reconstruct(
        self, part: TokenizerPart, coder: ImageCoder, data: GenerationData, at: RunFolder
    ) -> dict[str, Any]:
        images = data.test[: self.settings.evaluation.num_images]
        given: Any = {"extractor": self.reference(data, at).extractor, "device": self.device}
        return reconstruction(coder, images, **part.held_out, **given)

    def _samples(self, prior: PriorName, job: Job, at: RunFolder) -> stages.Samples:
        name, settings = f"{prior}-{job.name}", self.settings

        def make() -> list[stages.Samples]:
            tokenizer = TokenizerPart.open(at.path / TOKENIZERS / job.name).model.to(self.device)
            trained = PriorPart.open(at.path / PRIORS / name)
            given = (trained.model.to(self.device), tokenizer, settings.evaluation.num_samples)
            own: Any = {"seed": job.seed, "guidance": settings.classes.guidance}
            return [trained.part.draw(*given, settings.sampling, **own)]

        (file,) = self.draw(name, job, at, make)
        return stages.load_kept(stages.Samples, file)

    def _patch_kmeans(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Measure what k-means on raw patches makes of a variant's tokens."""
        arm, part = self._variants[job]
        config = part.config(data)
        kmeans = PatchKMeans(config).to(self.device)
        generator = torch.Generator().manual_seed(derive_seed(job.seed, "k-means"))
        chosen = torch.randperm(len(data.train), generator=generator)[:_KMEANS_IMAGES]
        images = to_unit(data.train[chosen].to(self.device))
        kmeans.fit(pseudo_videos(images, part.videos, seed=job.seed), generator=generator)
        return _facts(arm, FLOOR, job.seed, config) | {
            "parameters": kmeans.codebook.numel(),
            "steps": None,
            "tokenizer_seconds": None,
            "reconstruction": self._reconstruct(part, kmeans, data, at),
        }


def _facts(arm: TokenArm, stem: str, seed: int, config: TokenizerConfig) -> dict[str, Any]:
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
    trained = TokenizerPart.open(folder)
    with torch.inference_mode():
        tokens = encode_images(trained.model, images, **trained.part.held_out)
        return trained.model.decode(tokens)[:, -1]
