"""`probseq generate run`: tokenizer, tokens, prior and samples as stages.

Folders in `tokenizers/` and `priors/` are runs of `fit` with the trained model in `pretrained/`;
beside them are `tokens/`, `samples/` and `classifier/`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from probseq.metrics.image import LPIPS
from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, TrainStep
from probseq_apps.experiment import Job, Results, RunFolder, Workflow
from probseq_apps.experiments import generate_common as common
from probseq_apps.report.generate import generate_report
from probseq_apps.report.results import words
from probseq_apps.settings.common import config_values, saved_settings
from probseq_apps.settings.generate import (
    GENERATE,
    GENERATE_PRIOR,
    GENERATE_TOKENIZER,
    GenerateSettings,
    PriorSettings,
    TokenizerSettings,
)
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.evaluation import encode_images, mean_nats, reconstruction
from pseudovideo.pixels import to_unit
from pseudovideo.priors import AutoregressivePrior, MaskedPrior, build_token_prior
from pseudovideo.priors.base import TokenPrior
from pseudovideo.spec import PriorName, TokenGrid, TokenizerConfig, TokenSampling
from pseudovideo.token_cache import TokenCache, cached_tokens
from pseudovideo.tokenizers import Tokenizer, build_tokenizer
from pseudovideo.tokenizers.objective import TokenizerObjective
from pseudovideo.variants import TokenVariant

TOKENIZERS, TOKENS, PRIORS = "tokenizers", "tokens", "priors"
# Test images whose reconstructions are drawn.
_RECONSTRUCTED = 10
Prior = AutoregressivePrior | MaskedPrior


class TokenizerPart:
    """A tokenizer of pseudo videos, or of images where they have one frame."""

    def __init__(self, settings: TokenizerSettings) -> None:
        self.settings = settings
        self.videos = settings.videos.for_frames(settings.frames, settings.videos.corruption)
        # Which videos are made of test images, and the seed of their noise.
        seed = derive_seed(settings.seed, "test videos")
        self.held_out: dict[str, Any] = {"corruption": self.videos, "seed": seed}

    def config(self, data: GenerationData) -> TokenizerConfig:
        """Return the sizes; raise if images cannot be cut into such patches."""
        settings = self.settings
        return settings.tokenizer.for_images(
            data.image_size, data.channels, num_frames=settings.frames, stem=settings.stem
        )

    def check(self, data: GenerationData) -> None:
        """Raise if sizes, device or files of weights are not as the settings want them."""
        distributed.resolve_device(self.settings.machine.device)
        # Without memory for the weights, and without their initialisation, which takes seconds.
        with torch.device("meta"):
            perceptual = nn.Identity() if self.settings.loss.perceptual_weight else None
            tokenizer = build_tokenizer(self.config(data))
            TokenizerObjective(tokenizer, self.settings.loss, perceptual)
        pseudo_videos(to_unit(data.train[:1]), self.videos)
        self._perceptual()

    def training(self, data: GenerationData) -> common.TrainingJob:
        """Return a new tokenizer in its objective, and the images with their numbers."""
        config, perceptual = self.config(data), self._perceptual()
        objective = common.seeded(
            lambda: TokenizerObjective(build_tokenizer(config), self.settings.loss, perceptual),
            derive_seed(self.settings.seed, "weights"),
        )
        batch, options = (data.train, torch.arange(len(data.train))), self.settings.train_config()
        return common.TrainingJob(objective, objective.tokenizer, batch, self.loss, options)

    def train(
        self, data: GenerationData, folder: Path, *, recipe: str, label: str
    ) -> "TrainedTokenizer":
        """Train the tokenizer, from where it stopped, and store it in `pretrained/`."""
        identity = config_values(GENERATE_TOKENIZER, recipe, self.settings.to_dict())
        common.train_model(partial(self.training, data), folder, identity, label=label)
        return common.read_model(folder, self, Tokenizer, "tokenizer")

    def loss(self, model: Any, batch: Batch, step: TrainStep) -> LossParts:
        """Return the objective of images and their numbers, on the videos made of them here.

        The videos' noise depends on the seed, the epoch and the image alone.
        """
        frames = common.videos_of(batch, self.videos, step, seed=self.settings.seed)
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
            source = (folder, tokenizer, data.train, self.videos)
            return cached_tokens(*source, labels=labels, seed=seed, progress=bar.update)

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


TrainedTokenizer = common.Trained[TokenizerPart, Tokenizer]


def open_tokenizer(folder: Path) -> TrainedTokenizer:
    """Read the tokenizer of a folder; raise if it holds none, or is damaged."""
    run = common.run_folder(folder)
    if (saved := saved_settings(run, GENERATE_TOKENIZER, TokenizerSettings)) is None:
        raise FileNotFoundError(
            f"tokenizer must be a folder in {TOKENIZERS}/ of `generate run`, and {folder} is none"
        )
    return common.read_model(folder, TokenizerPart(saved[1]), Tokenizer, "tokenizer")


class PriorPart:
    """A prior over the tokens of a tokenizer."""

    def __init__(self, settings: PriorSettings, counts: Mapping[str, int] | None = None) -> None:
        self.settings = settings
        self._counts = dict(counts or {})

    def check(self, grid: TokenGrid) -> None:
        """Raise if sizes or device are not as the settings want them."""
        distributed.resolve_device(self.settings.machine.device)
        with torch.device("meta"):
            self._prior(grid, None)

    def training(self, data: TokenCache) -> common.TrainingJob:
        """Return a new prior, and the tokens, with labels of classes."""
        make = partial(self._prior, data.grid, data.tokenizer_fingerprint)
        name, settings = self.settings.prior, self.settings
        prior = common.seeded(make, derive_seed(settings.seed, f"{name} prior"))
        prior.check_cache(data)
        batch = (data.tokens,) if data.labels is None else (data.tokens, data.labels)
        objective = common.LossModule(prior, "loss")
        return common.TrainingJob(objective, prior, batch, self.loss, settings.train_config())

    def train(self, data: TokenCache, folder: Path, *, recipe: str, label: str) -> "TrainedPrior":
        """Train the prior, from where it stopped, and store it in `pretrained/`."""
        identity = config_values(GENERATE_PRIOR, recipe, self.settings.to_dict())
        if self._counts:
            identity["classes"] = self._counts
        common.train_model(partial(self.training, data), folder, identity, label=label)
        return common.read_model(folder, self, TokenPrior, "prior")

    def loss(self, model: nn.Module, batch: Batch, step: TrainStep) -> LossParts:
        """Return the nats per token: of all, or of those that a masked prior's masks hide."""
        return LossParts(model(*batch, generator=step.generator), {})

    def draw(
        self,
        prior: TokenPrior,
        tokenizer: Tokenizer,
        num: int,
        sampling: TokenSampling,
        *,
        seed: int,
        **options: Any,
    ) -> common.Samples:
        """Draw videos on the tokenizer's device; the seed is that of a run."""
        kind = self.settings.prior
        options |= {"tokenizer": tokenizer, **sampling.options(kind)}
        return common.draw_timed(prior, num, seed=derive_seed(seed, f"{kind} samples"), **options)

    def _prior(self, grid: TokenGrid, tokenizer: str | None) -> Prior:
        name, sizes = self.settings.prior, self.settings.sizes(self.settings.prior)
        classes = self.settings.classes.spec(self._counts)
        return build_token_prior(
            name, sizes, grid, tokenizer_fingerprint=tokenizer, classes=classes
        )


TrainedPrior = common.Trained[PriorPart, TokenPrior]


def open_prior(folder: Path) -> TrainedPrior:
    """Read the prior of a folder; raise if it holds none, or is damaged."""
    run = common.run_folder(folder)
    if (saved := saved_settings(run, GENERATE_PRIOR, PriorSettings)) is None:
        raise FileNotFoundError(
            f"prior must be a folder in {PRIORS}/ of `generate run`, and {folder} is none"
        )
    return common.read_model(folder, PriorPart(saved[1]), TokenPrior, "prior")


# -- generate run ---------------------------------------------------------------------------------


class Maker(NamedTuple):
    """A tokenizer of a variant, and the kinds of priors that are trained on its tokens."""

    variant: TokenVariant
    maker: TokenizerPart
    priors: tuple[PriorName, ...]


def makers_of(settings: GenerateSettings) -> dict[Job, Maker]:
    """Return the tokenizers to train, by job."""
    return {
        Job(f"{variant.name}-{stem}", seed): Maker(
            variant,
            TokenizerPart(settings.tokenizer_settings(variant, stem, seed)),
            settings.priors.prior if settings.has_priors(variant, stem) else (),
        )
        for seed in settings.seeds
        for stem in settings.stem
        for variant in settings.variants
    }


def check(settings: GenerateSettings, run: common.ImageRun) -> None:
    """Raise if the settings don't fit the images, or a file of weights is not there."""
    for job, maker in makers_of(settings).items():
        if job.seed == settings.seeds[0]:
            maker.maker.check(run.data)
            for kind in maker.priors:
                prior_maker(settings, kind, job, run).check(maker.maker.config(run.data).grid)
    common.check_run(settings, run.data)


def describe(settings: GenerateSettings, run: common.ImageRun) -> str:
    """Return a line about data and jobs."""
    variants = ", ".join(variant.name for variant in settings.variants)
    return common.describe_run(settings, run.data, f"{variants}; stems {', '.join(settings.stem)}")


def train_tokenizer_and_priors(
    settings: GenerateSettings, run: common.ImageRun, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Train, draw and measure all that a maker has."""
    variant, maker, kinds = makers_of(settings)[job]
    data, device = run.data, common.device_of(settings)
    folder = at.path / TOKENIZERS / job.name
    distributed.main_alone(partial(run.reference, at))
    trained = maker.train(data, folder, recipe=at.recipe, label=job.name)
    tokenizer = trained.model.to(device)
    codebook = tokenizer.config.codebook_size * tokenizer.config.code_dim
    measure = partial(measure_reconstruction, settings, maker, tokenizer, run, at)
    result = _facts(variant, maker.settings.stem, job.seed, tokenizer.config) | {
        "parameters": sum(p.numel() for p in tokenizer.parameters()) + codebook,
        "steps": trained.steps,
        "tokenizer_seconds": trained.seconds,
        "reconstruction": distributed.main_alone(measure),
    }
    if not kinds:
        return result
    labels = common.labels_of(settings.classes, data, "train")
    tokens = at.path / TOKENS / job.name
    cache = distributed.main_first(partial(maker.tokens, tokenizer, data, tokens, labels))
    images = data.test[: settings.evaluation.num_images]
    encode = partial(encode_images, tokenizer, images, **maker.held_out, device=device)
    # Other ranks have no tokens, and measure nothing.
    held_out = cast("Tensor", distributed.main_alone(encode))
    test = common.labels_of(settings.classes, data, "test", len(images))
    result["generation"] = {}
    seed = derive_seed(job.seed, "test masks")
    for kind in kinds:
        folder = at.path / PRIORS / f"{kind}-{job.name}"
        prior = prior_maker(settings, kind, job, run)
        learned = prior.train(cache, folder, recipe=at.recipe, label=folder.name)
        network = cast("Prior", learned.model.to(device))
        nats = distributed.main_alone(partial(mean_nats, network, held_out, test, seed=seed))
        draw_from_prior(settings, kind, job, at)
        measure = partial(_measured_samples, settings, run, kind, job, at)
        result["generation"][kind] = {
            "nats_per_token": nats,
            "training_seconds": learned.seconds,
            **(distributed.main_alone(measure) or {}),
        }
    return result


def _measured_samples(
    settings: GenerateSettings,
    run: common.ImageRun,
    kind: PriorName,
    job: Job,
    at: RunFolder,
) -> dict[str, Any]:
    """Return what is measured of the samples of a prior."""
    samples = draw_from_prior(settings, kind, job, at)
    return {**run.reference(at).measure(samples.images), "seconds": float(samples.seconds)}


def report(
    settings: GenerateSettings, run: common.ImageRun, results: Results, at: RunFolder
) -> str:
    """Write the report, and return it as text."""
    seed, makers = settings.seeds[0], makers_of(settings)
    reconstructions: dict[str, dict[str, Tensor]] = {}
    samples: dict[str, tuple[str, common.Samples]] = {}
    logs: dict[str, dict[str, list[Path]]] = {TOKENIZERS: {}, PRIORS: {}}
    for job, (variant, maker, _) in makers.items():
        stem, folder = maker.settings.stem, at.path / TOKENIZERS / job.name
        logs[TOKENIZERS].setdefault(f"{variant.name}, {stem}", []).append(folder)
        if job.seed == seed:
            images = _reconstructed(folder, run.data.test[:_RECONSTRUCTED])
            reconstructions.setdefault(stem, {})[variant.name] = images
    for kind in settings.priors.prior:
        for job, (variant, maker, kinds) in makers.items():
            if kind not in kinds:
                continue
            stem, name = maker.settings.stem, f"{kind}-{job.name}"
            logs[PRIORS].setdefault(f"{variant.name}, {stem}, {kind}", []).append(
                at.path / PRIORS / name
            )
            if job.seed == seed:
                of_stem = "" if stem == "plain" else f", {stem}"
                title = f"{kind.capitalize()} prior, {words(variant.name)}{of_stem}, seed {seed}"
                samples[name] = (title, draw_from_prior(settings, kind, job, at))
    return generate_report(
        GENERATE,
        [*results.values()],
        run.real(at),
        settings=settings.to_dict(),
        data=run.data,
        recipe=at.recipe,
        videos=settings.videos.for_frames(max(settings.frames), settings.videos.corruption),
        reconstructed=reconstructions,
        samples=samples,
        tokenizer_logs=logs[TOKENIZERS],
        prior_logs=logs[PRIORS],
    ).write(at.path)


WORKFLOW = Workflow(
    kind=GENERATE,
    command="generate run",
    folders=(common.SAMPLES, PRIORS, TOKENS, TOKENIZERS, common.CLASSIFIER),
    jobs=makers_of,
    load=common.load,
    config=common.run_config,
    check=check,
    describe=describe,
    prepare=common.make_features,
    run=train_tokenizer_and_priors,
    report=report,
)


def prior_maker(
    settings: GenerateSettings, kind: PriorName, job: Job, run: common.ImageRun
) -> PriorPart:
    """Return a prior over the tokens of a job's tokenizer."""
    counts = common.conditioning_classes(settings.classes, run.data)
    return PriorPart(settings.prior_settings(f"{TOKENIZERS}/{job.name}", kind, job.seed), counts)


def measure_reconstruction(
    settings: GenerateSettings,
    maker: TokenizerPart,
    coder: Tokenizer,
    run: common.ImageRun,
    at: RunFolder,
) -> dict[str, Any]:
    """Measure what a tokenizer makes of test images."""
    images = run.data.test[: settings.evaluation.num_images]
    extractor, device = run.reference(at).extractor, common.device_of(settings)
    return reconstruction(coder, images, **maker.held_out, extractor=extractor, device=device)


def draw_from_prior(
    settings: GenerateSettings, kind: PriorName, job: Job, at: RunFolder
) -> common.Samples:
    """Return the samples of a prior, drawn where their file is missing."""
    name, device = f"{kind}-{job.name}", common.device_of(settings)
    file = at.path / common.SAMPLES / f"{name}.npz"

    def draw() -> common.Samples:
        tokenizer = open_tokenizer(at.path / TOKENIZERS / job.name).model.to(device)
        trained = open_prior(at.path / PRIORS / name)
        return trained.maker.draw(
            trained.model.to(device),
            tokenizer,
            settings.evaluation.num_samples,
            settings.sampling,
            seed=job.seed,
            guidance=settings.classes.guidance,
        )

    common.store_samples(file, draw)
    return common.load_samples(at.made_by(job, file))


def _facts(variant: TokenVariant, stem: str, seed: int, config: TokenizerConfig) -> dict[str, Any]:
    return {
        "variant": variant.name,
        "stem": stem,
        "seed": seed,
        "frames": variant.frames,
        "patch": config.patch_size,
        "tokens": config.grid.num_tokens,
        "bits": config.grid.bits,
    }


def _reconstructed(folder: Path, images: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    trained = open_tokenizer(folder)
    with torch.inference_mode():
        tokens = encode_images(trained.model, images, **trained.maker.held_out)
        return trained.model.decode(tokens)[:, -1]
