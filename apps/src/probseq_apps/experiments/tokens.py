"""`probseq generate run`: tokenizer, tokens, prior and samples as stages.

Folders in `tokenizers/` and `priors/` are runs of `fit` with the trained model in `pretrained/`;
beside them are `tokens/`, `samples/` and `classifier/`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from probseq.metrics.image import LPIPS
from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, TrainStep
from probseq_apps.experiment import RESULTS, Job, Results, RunFolder, Workflow
from probseq_apps.experiments import generate_common as common
from probseq_apps.report.generate import generate_report
from probseq_apps.report.results import words
from probseq_apps.settings.generate import GENERATE, PRIOR, TOKENIZER, GenerateSettings
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.evaluation import encode_images, mean_nats, reconstruction
from pseudovideo.pixels import to_unit
from pseudovideo.priors import AutoregressivePrior, MaskedPrior, build_token_prior
from pseudovideo.priors.base import TokenPrior
from pseudovideo.spec import PriorName, Stem, TokenGrid, TokenizerConfig, TokenSampling
from pseudovideo.token_cache import TokenCache, cached_tokens
from pseudovideo.tokenizers import Tokenizer, build_tokenizer
from pseudovideo.tokenizers.objective import TokenizerObjective
from pseudovideo.variants import TokenVariant

TOKENIZERS, TOKENS, PRIORS = "tokenizers", "tokens", "priors"
# Test images whose reconstructions are drawn.
_RECONSTRUCTED = 10
Prior = AutoregressivePrior | MaskedPrior


class TokenizerMaker:
    """A tokenizer of a variant's videos, or of images where they have one frame, with one seed."""

    def __init__(
        self, settings: GenerateSettings, variant: TokenVariant, stem: Stem, seed: int
    ) -> None:
        self.settings, self.variant, self.seed = settings, variant, seed
        self.stem: Stem = stem
        self.videos = settings.videos.for_frames(variant.frames, variant.corruption)
        # Kinds of priors that are trained on its tokens.
        self.priors = settings.priors.prior if settings.has_priors(variant, stem) else ()
        # Which videos are made of test images, and the seed of their noise.
        noise_seed = derive_seed(seed, "test videos")
        self.held_out: dict[str, Any] = {"corruption": self.videos, "seed": noise_seed}

    def config(self, data: GenerationData) -> TokenizerConfig:
        """Return the sizes; raise if images cannot be cut into such patches."""
        spec = replace(self.settings.tokenizer, patch_size=self.variant.patch_size)
        sizes = (data.image_size, data.channels)
        return spec.for_images(*sizes, num_frames=self.variant.frames, stem=self.stem)

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
        config, perceptual, settings = self.config(data), self._perceptual(), self.settings
        objective = common.seeded(
            lambda: TokenizerObjective(build_tokenizer(config), settings.loss, perceptual),
            derive_seed(self.seed, "weights"),
        )
        options = settings.training.train_config(settings.machine, seed=self.seed)
        batch = (data.train, torch.arange(len(data.train)))
        return common.TrainingJob(objective, objective.tokenizer, batch, self.loss, options)

    def loss(self, model: Any, batch: Batch, step: TrainStep) -> LossParts:
        """Return the objective of images and their numbers, on the videos made of them here.

        The videos' noise depends on the seed, the epoch and the image alone.
        """
        frames = common.videos_of(batch, self.videos, step, seed=self.seed)
        return LossParts.of(model(frames, step=step.number, generator=step.generator))

    def tokens(
        self,
        tokenizer: Tokenizer,
        data: GenerationData,
        folder: Path,
        labels: Int64[Tensor, " n"] | None = None,
    ) -> TokenCache:
        """Encode the training images once; tokens that are there and fit are taken."""
        seed = derive_seed(self.seed, "token videos")
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


class PriorMaker:
    """A prior of a kind over the tokens of a tokenizer, with one seed."""

    def __init__(
        self, settings: GenerateSettings, kind: PriorName, seed: int, counts: Mapping[str, int]
    ) -> None:
        self.settings, self.seed = settings, seed
        self.kind: PriorName = kind
        self._counts = counts  # training images of each class that it learns

    def check(self, grid: TokenGrid) -> None:
        """Raise if sizes or device are not as the settings want them."""
        distributed.resolve_device(self.settings.machine.device)
        with torch.device("meta"):
            self._prior(grid, None)

    def training(self, data: TokenCache) -> common.TrainingJob:
        """Return a new prior, and the tokens, with labels of classes."""
        make = partial(self._prior, data.grid, data.tokenizer_fingerprint)
        prior = common.seeded(make, derive_seed(self.seed, f"{self.kind} prior"))
        prior.check_cache(data)
        batch = (data.tokens,) if data.labels is None else (data.tokens, data.labels)
        objective = common.LossModule(prior, "loss")
        training = self.settings.prior_training(self.kind)
        options = training.train_config(self.settings.machine, seed=self.seed)
        return common.TrainingJob(objective, prior, batch, prior_loss, options)

    def _prior(self, grid: TokenGrid, tokenizer: str | None) -> Prior:
        kind, sizes = self.kind, self.settings.prior_training(self.kind)
        classes = self.settings.classes.spec(self._counts)
        return build_token_prior(
            kind, sizes, grid, tokenizer_fingerprint=tokenizer, classes=classes
        )


def prior_loss(model: nn.Module, batch: Batch, step: TrainStep) -> LossParts:
    """Return the nats per token: of all, or of those that a masked prior's masks hide."""
    return LossParts(model(*batch, generator=step.generator), {})


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a folder; raise if it is not trained, or damaged."""
    return common.read_model(folder, Tokenizer, "tokenizer")


def read_prior(folder: Path) -> tuple[PriorName, TokenPrior, Tokenizer]:
    """Read the prior of a folder in `priors/`, and its tokenizer; return its kind, too."""
    kind, _, job = folder.resolve().name.partition("-")
    prior = common.read_model(folder, TokenPrior, "prior")
    tokenizer = read_tokenizer(folder.resolve().parent.parent / TOKENIZERS / job)
    prior.check_tokenizer(tokenizer)
    return cast("PriorName", kind), prior, tokenizer


def draw_videos(
    kind: PriorName,
    prior: TokenPrior,
    tokenizer: Tokenizer,
    num: int,
    sampling: TokenSampling,
    *,
    seed: int,
    **options: Any,
) -> common.Samples:
    """Draw videos from a prior on the tokenizer's device; the seed is that of a run."""
    options |= {"tokenizer": tokenizer, **sampling.options(kind)}
    return common.draw_timed(prior, num, seed=derive_seed(seed, f"{kind} samples"), **options)


# -- From load to report --------------------------------------------------------------------------


def makers_of(settings: GenerateSettings) -> dict[Job, TokenizerMaker]:
    """Return the tokenizers to train, by job."""
    return {
        Job(f"{variant.name}-{stem}", seed): TokenizerMaker(settings, variant, stem, seed)
        for seed in settings.seeds
        for stem in settings.stem
        for variant in settings.variants
    }


def check(settings: GenerateSettings, run: common.ImageRun) -> None:
    """Raise if the settings don't fit the images, or a file of weights is not there."""
    counts = common.conditioning_classes(settings.classes, run.data)
    for job, maker in makers_of(settings).items():
        if job.seed == settings.seeds[0]:
            maker.check(run.data)
            for kind in maker.priors:
                PriorMaker(settings, kind, job.seed, counts).check(maker.config(run.data).grid)
    common.check_run(settings, run.data)


def describe(settings: GenerateSettings, run: common.ImageRun) -> str:
    """Return a line about data and jobs."""
    variants = ", ".join(variant.name for variant in settings.variants)
    return common.describe_run(settings, run.data, f"{variants}; stems {', '.join(settings.stem)}")


def seconds(settings: GenerateSettings, run: common.ImageRun) -> dict[Job, float]:
    """Return about how long each tokenizer and its priors train."""
    makers, device = makers_of(settings), common.device_of(settings)
    counts = common.conditioning_classes(settings.classes, run.data)
    labels, of_row = common.labels_of(settings.classes, run.data, "train"), dict[str, float]()
    for job, maker in makers.items():
        if job.seed != settings.seeds[0]:
            continue
        grid = maker.config(run.data).grid
        cache = TokenCache(
            tokens=torch.zeros(len(run.data.train), *grid.shape, dtype=torch.int16),
            codebook_size=grid.codebook_size,
            tokenizer_fingerprint="",
            corruption={},
            seed=0,
            images_hash="",
            labels=labels,
        )
        priors = [PriorMaker(settings, kind, job.seed, counts) for kind in maker.priors]
        trainings = [each.training(cache) for each in priors] + [maker.training(run.data)]
        of_row[job.row] = sum(each.seconds(device) for each in trainings)
    return {job: of_row[job.row] for job in makers}


def train_tokenizer_and_priors(
    settings: GenerateSettings, run: common.ImageRun, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Train, draw and measure all that a maker has."""
    maker, data, device = makers_of(settings)[job], run.data, common.device_of(settings)
    folder = at.path / TOKENIZERS / job.name
    distributed.main_alone(partial(run.reference, at))
    make = partial(maker.training, data)
    ended = common.train_model(make, folder, TOKENIZER, at.recipe, settings, data)
    tokenizer = read_tokenizer(folder).to(device)
    config, images = tokenizer.config, data.test[: settings.evaluation.num_images]

    def measure() -> dict[str, Any]:
        extractor = run.reference(at).extractor
        return reconstruction(
            *(tokenizer, images), **maker.held_out, extractor=extractor, device=device
        )

    result: dict[str, Any] = {
        "variant": maker.variant.name,
        "stem": maker.stem,
        "seed": job.seed,
        "frames": maker.variant.frames,
        "patch": config.patch_size,
        "tokens": config.grid.num_tokens,
        "bits": config.grid.bits,
        "parameters": sum(p.numel() for p in tokenizer.parameters())
        + config.codebook_size * config.code_dim,
        "steps": ended["steps"],
        "tokenizer_seconds": ended["seconds"],
        "reconstruction": distributed.main_alone(measure),
    }
    if not maker.priors:
        return result
    labels = common.labels_of(settings.classes, data, "train")
    tokens = at.path / TOKENS / job.name
    cache = distributed.main_first(partial(maker.tokens, tokenizer, data, tokens, labels))
    encode = partial(encode_images, tokenizer, images, **maker.held_out, device=device)
    # Other ranks have no tokens, and measure nothing.
    held_out = cast("Tensor", distributed.main_alone(encode))
    test = common.labels_of(settings.classes, data, "test", len(images))
    result["generation"] = {}
    seed = derive_seed(job.seed, "test masks")
    counts = common.conditioning_classes(settings.classes, data)
    for kind in maker.priors:
        folder = at.path / PRIORS / f"{kind}-{job.name}"
        make = partial(PriorMaker(settings, kind, job.seed, counts).training, cache)
        ended = common.train_model(make, folder, PRIOR, at.recipe, settings, data)
        network = cast("Prior", common.read_model(folder, TokenPrior, "prior").to(device))
        nats = distributed.main_alone(partial(mean_nats, network, held_out, test, seed=seed))
        draw_from_prior(settings, kind, job, at)
        measured = distributed.main_alone(partial(_measured, settings, run, kind, job, at))
        result["generation"][kind] = {
            "nats_per_token": nats,
            "training_seconds": ended["seconds"],
            **(measured or {}),
        }
    return result


def _measured(
    settings: GenerateSettings, run: common.ImageRun, kind: PriorName, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Return what is measured of the samples of a prior."""
    samples = draw_from_prior(settings, kind, job, at)
    return {**run.reference(at).measure(samples.images), "seconds": float(samples.seconds)}


def draw_from_prior(
    settings: GenerateSettings, kind: PriorName, job: Job, at: RunFolder
) -> common.Samples:
    """Return the samples of a prior, drawn where their file is missing."""
    name, device = f"{kind}-{job.name}", common.device_of(settings)
    file = at.path / common.SAMPLES / f"{name}.npz"

    def draw() -> common.Samples:
        _, prior, tokenizer = read_prior(at.path / PRIORS / name)
        return draw_videos(
            *(kind, prior.to(device), tokenizer.to(device)),
            settings.evaluation.num_samples,
            settings.sampling,
            seed=job.seed,
            guidance=settings.classes.guidance,
        )

    common.store_samples(file, draw)
    return common.load_samples(at.made_by(job, file))


def report(
    settings: GenerateSettings, run: common.ImageRun, results: Results, at: RunFolder
) -> str:
    """Write the report, and return it as text."""
    seed, makers = settings.seeds[0], makers_of(settings)
    reconstructions: dict[str, dict[str, Tensor]] = {}
    samples: dict[str, tuple[str, common.Samples]] = {}
    logs: dict[str, dict[str, list[Path]]] = {TOKENIZERS: {}, PRIORS: {}}
    for job, maker in makers.items():
        stem, variant, folder = maker.stem, maker.variant.name, at.path / TOKENIZERS / job.name
        logs[TOKENIZERS].setdefault(f"{variant}, {stem}", []).append(folder)
        if job.seed == seed:
            images = _reconstructed(maker, folder, run.data.test[:_RECONSTRUCTED])
            reconstructions.setdefault(stem, {})[variant] = images
    for kind in settings.priors.prior:
        for job, maker in makers.items():
            if kind not in maker.priors:
                continue
            stem, variant, name = maker.stem, maker.variant.name, f"{kind}-{job.name}"
            folders = logs[PRIORS].setdefault(f"{variant}, {stem}, {kind}", [])
            folders.append(at.path / PRIORS / name)
            if job.seed == seed:
                of_stem = "" if stem == "plain" else f", {stem}"
                title = f"{kind.capitalize()} prior, {words(variant)}{of_stem}, seed {seed}"
                samples[name] = (title, draw_from_prior(settings, kind, job, at))
    return generate_report(
        GENERATE,
        [*results.values()],
        run.real(at),
        settings=settings.to_dict(),
        data=run.data,
        recipe=at.recipe,
        folder=at.path,
        videos=settings.videos.for_frames(max(settings.frames), settings.videos.corruption),
        reconstructed=reconstructions,
        samples=samples,
        tokenizer_logs=logs[TOKENIZERS],
        prior_logs=logs[PRIORS],
    ).write(at.path)


def _reconstructed(
    maker: TokenizerMaker, folder: Path, images: UInt8[Tensor, "n c h w"]
) -> Float[Tensor, "n c h w"]:
    model = read_tokenizer(folder)
    with torch.inference_mode():
        return model.decode(encode_images(model, images, **maker.held_out))[:, -1]


WORKFLOW = Workflow(
    kind=GENERATE,
    command="generate run",
    folders=(common.SAMPLES, PRIORS, TOKENS, TOKENIZERS, common.CLASSIFIER),
    jobs=makers_of,
    load=common.load,
    config=common.run_config,
    check=check,
    describe=describe,
    seconds=seconds,
    longer={
        # Priors know the tokens of their tokenizer alone.
        "settings.training.steps": (RESULTS, common.SAMPLES, TOKENS, PRIORS),
        **{f"settings.{kind}.steps": (RESULTS, common.SAMPLES) for kind in get_args(PriorName)},
    },
    prepare=common.make_features,
    run=train_tokenizer_and_priors,
    report=report,
)
