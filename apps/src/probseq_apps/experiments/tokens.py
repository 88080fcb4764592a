"""`probseq generate run`, `tokenizer` and `prior`: tokenizer, tokens, prior and samples as stages.

A tokenizer's folder and a prior's are runs of `fit` with the trained model in `pretrained/`; those
of `run` are in `tokenizers/` and `priors/`, beside `tokens/`, `samples/` and `classifier/`.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from probseq.metrics.image import LPIPS
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step
from probseq_apps.experiment import Job, Results, RunFolder
from probseq_apps.experiments import stages
from probseq_apps.options import Options
from probseq_apps.report.generate import generate_report
from probseq_apps.report.results import FLOOR
from probseq_apps.settings.common import config_values, saved_settings
from probseq_apps.settings.generate import (
    GENERATE,
    GENERATE_PRIOR,
    GENERATE_TOKENIZER,
    Arm,
    GenerateSettings,
    PriorName,
    PriorSettings,
    Sampling,
    TokenizerSettings,
    Videos,
)
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.evaluation import ImageCoder, encode_images, mean_nats, reconstruction
from pseudovideo.priors import AutoregressivePrior, MaskedPrior, build_token_prior
from pseudovideo.priors.base import TokenPrior
from pseudovideo.spec import PseudoVideoConfig, TokenGrid, TokenizerConfig
from pseudovideo.token_cache import TokenCache, cached_tokens
from pseudovideo.tokenizers import PatchKMeans, Tokenizer, build_tokenizer
from pseudovideo.tokenizers.objective import TokenizerObjective

TOKENIZERS, TOKENS, PRIORS = "tokenizers", "tokens", "priors"
# Images that k-means clusters: enough for its codebook, few enough for minutes.
_KMEANS_IMAGES = 4000
# Test images whose reconstructions are shown.
_SHOWN = 10
Prior = AutoregressivePrior | MaskedPrior


class TrainedTokenizer(NamedTuple):
    """A tokenizer in eval mode on the CPU, its settings, and how its training ended."""

    settings: TokenizerSettings
    tokenizer: Tokenizer
    steps: int
    seconds: float


# -- Tokenizers -----------------------------------------------------------------------------------


def video_config(videos: Videos, frames: int) -> PseudoVideoConfig:
    """Return which videos are made of images."""
    values = videos.to_dict()
    return PseudoVideoConfig(kind=values.pop("corruption"), num_frames=frames, **values)


def held_out_videos(settings: TokenizerSettings) -> dict[str, Any]:
    """Return which videos are made of test images, and the seed of their noise."""
    corruption = video_config(settings.videos, settings.frames)
    return {"corruption": corruption, "seed": derive_seed(settings.seed, "test videos")}


def tokenizer_config(settings: TokenizerSettings, data: GenerationData) -> TokenizerConfig:
    """Return the sizes of a tokenizer; raise if images cannot be cut into such patches."""
    size, given = data.image_size, {"num_frames": settings.frames, "stem": settings.stem}
    return settings.tokenizer.for_images(size, data.channels, **cast("Any", given))


def check_tokenizer(settings: TokenizerSettings, data: GenerationData) -> None:
    """Raise if sizes, device or files of weights are not as the settings want them."""
    stages.check_one_process(settings.machine.device)
    # Without memory for the weights, and without their initialisation, which takes seconds.
    with torch.device("meta"):
        tokenizer = build_tokenizer(tokenizer_config(settings, data))
        perceptual = nn.Identity() if settings.loss.perceptual_weight else None
        TokenizerObjective(tokenizer, settings.loss, perceptual)
    pseudo_videos(to_unit(data.train[:1]), video_config(settings.videos, settings.frames))
    make_perceptual(settings)


def make_perceptual(settings: TokenizerSettings) -> LPIPS | None:
    """Return LPIPS with the named weights, None where it has no weight; raise without the file."""
    weight, file = settings.loss.perceptual_weight, settings.lpips_weights
    if not weight:
        return None
    try:
        if file is None or not Path(file).is_file():
            raise ValueError("name it, or set perceptual_weight to 0")
        return LPIPS(weights=file)
    except ValueError as error:
        raise ValueError(
            f"perceptual_weight={weight} needs lpips_weights, a file of torchvision's VGG-16 "
            f"weights, got {file}: {error}"
        ) from error


def make_objective(settings: TokenizerSettings, data: GenerationData) -> TokenizerObjective:
    """Return a new tokenizer with all that trains it; its weights depend on the seed alone."""
    perceptual, config = make_perceptual(settings), tokenizer_config(settings, data)
    return stages.seeded(
        lambda: TokenizerObjective(build_tokenizer(config), settings.loss, perceptual),
        derive_seed(settings.seed, "weights"),
    )


def train_tokenizer(
    settings: TokenizerSettings, data: GenerationData, folder: Path, *, recipe: str, label: str = ""
) -> TrainedTokenizer:
    """Train a tokenizer, from where it stopped, and store it in `pretrained/`."""
    videos = video_config(settings.videos, settings.frames)

    def build() -> tuple[TokenizerObjective, Tokenizer]:
        objective = make_objective(settings, data)
        return objective, objective.tokenizer

    stages.train(
        folder,
        build,
        stages.numbered(data.train),
        settings.train_config(),
        loss=partial(tokenizer_loss, videos, derive_seed(settings.seed, "videos")),
        identity=config_values(GENERATE_TOKENIZER, recipe, settings.to_dict()),
        label=label or f"tokenizer {settings.frames}-frame-{settings.stem}",
    )
    return open_tokenizer(folder)


def tokenizer_loss(
    videos: PseudoVideoConfig, seed: int, objective: nn.Module, batch: Batch, step: Step
) -> LossParts:
    """Return the objective of images and their numbers, on the videos made of them here.

    The videos' noise depends on the seed, the epoch and the image alone.
    """
    images, index = batch
    frames = pseudo_videos(to_unit(images), videos, seed=seed, epoch=step.epoch, index=index)
    return LossParts.of(objective(frames, step=step.number, generator=step.generator))


def open_tokenizer(folder: Path) -> TrainedTokenizer:
    """Read a trained tokenizer; raise if the folder holds none, or is damaged."""
    saved = saved_settings(folder, GENERATE_TOKENIZER, TokenizerSettings)
    tokenizer, finished = stages.open_trained(folder, Tokenizer, "tokenizer", found=saved)
    settings = cast("tuple[str, TokenizerSettings]", saved)[1]
    return TrainedTokenizer(settings, tokenizer, finished["steps"], finished["seconds"])


# -- Priors ---------------------------------------------------------------------------------------


def check_prior(settings: PriorSettings, grid: TokenGrid) -> None:
    """Raise if sizes or device are not as the settings want them."""
    distributed.resolve_device(settings.machine.device)
    with torch.device("meta"):
        build_prior(settings, grid, None)


def build_prior(settings: PriorSettings, grid: TokenGrid, tokenizer: str | None) -> Prior:
    """Return a new prior over the tokens of the tokenizer with a fingerprint."""
    sizes: Any = settings.sizes(settings.prior)
    return build_token_prior(settings.prior, sizes, grid, tokenizer_fingerprint=tokenizer)


def make_tokens(folder: Path, trained: TrainedTokenizer, data: GenerationData) -> TokenCache:
    """Encode the training images once; tokens that are there and fit are taken."""
    one = trained.settings
    tokenizer = trained.tokenizer.to(distributed.resolve_device(one.machine.device))
    videos, seed = video_config(one.videos, one.frames), derive_seed(one.seed, "token videos")
    with log.bar(total=len(data.train), unit=" images") as bar:
        bar.set_description_str("tokens")
        given = (folder, tokenizer, data.train, videos)
        return cached_tokens(*given, seed=seed, progress=bar.update)


def train_prior(
    settings: PriorSettings, cache: TokenCache, folder: Path, *, recipe: str, label: str = ""
) -> tuple[Prior, float]:
    """Train a prior, from where it stopped, and store it in `pretrained/`."""

    def build() -> tuple[Prior, Prior]:
        made = partial(build_prior, settings, cache.grid, cache.tokenizer_fingerprint)
        prior = stages.seeded(made, derive_seed(settings.seed, f"{settings.prior} prior"))
        prior.check_cache(cache)
        return prior, prior

    stages.train(
        folder,
        build,
        (cache.tokens,),
        settings.train_config(),
        loss=prior_loss,
        identity=config_values(GENERATE_PRIOR, recipe, settings.to_dict()),
        label=label or f"{settings.prior} prior",
    )
    return open_prior(folder)


def prior_loss(prior: Prior, batch: Batch, step: Step) -> LossParts:
    """Return the nats per token: of all tokens, or of those that a masked prior's masks hide."""
    noise = {"generator": step.generator} if isinstance(prior, MaskedPrior) else {}
    return LossParts(prior.loss(batch[0], **noise), {})


def open_prior(folder: Path) -> tuple[Prior, float]:
    """Return a prior, in eval mode on the CPU, and the seconds of its training; raise if none."""
    saved = saved_settings(folder, GENERATE_PRIOR, PriorSettings)
    prior, finished = stages.open_trained(folder, TokenPrior, "prior", found=saved)
    return cast("Prior", prior), finished["seconds"]


def draw_tokens(
    prior: Prior, tokenizer: Tokenizer, num: int, settings: Sampling, *, seed: int
) -> stages.Samples:
    """Draw videos from a prior on the tokenizer's device."""
    own = ("num_steps", "choice_temperature")
    if isinstance(prior, AutoregressivePrior):
        own = ("top_k", "top_p")
    options: dict[str, Any] = {name: getattr(settings, name) for name in ("temperature", *own)}

    def draw(count: int, generator: torch.Generator) -> Float[Tensor, "n f c y x"]:
        return prior.sample(count, tokenizer, generator=generator, batch_size=count, **options)

    return stages.collect_samples(draw, num, next(tokenizer.parameters()).device, seed=seed)


# -- Commands -------------------------------------------------------------------------------------


class Tokens(stages.ImageExperiment):
    """Tokenizers of images and of pseudo videos, and priors over their tokens."""

    kind, command = GENERATE, "generate run"
    parts = (stages.SAMPLES, PRIORS, TOKENS, TOKENIZERS, stages.CLASSIFIER)

    def __init__(self, settings: GenerateSettings) -> None:
        super().__init__(settings)
        self._variants = {
            Job(f"{arm.name}-{stem}", seed): (arm, settings.one_tokenizer(arm, stem, seed))
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
        settings = self.settings
        for job, (_, one) in self._variants.items():
            if job.seed == settings.seeds[0]:
                check_tokenizer(one, data)
                for prior in self._priors(job):
                    grid = tokenizer_config(one, data).grid
                    check_prior(settings.one_prior("", prior, job.seed), grid)
        super().check(data)

    def describe(self, data: GenerationData) -> str:
        """Return a line about data and jobs, after one about images that are asked for in vain."""
        settings, asked, note = self.settings, self.settings.evaluation.num_images, ""
        arms = ", ".join(arm.name for arm in settings.arms)
        if asked is not None and asked > len(data.test):
            note = f"num_images={asked:,}: all {len(data.test):,} test images are reconstructed\n"
        return note + self.described(data, f"{arms}; stems {', '.join(settings.stem)}")

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train, draw and measure all that a variant has."""
        (arm, one), reference = self._variants[job], self.reference(data, at)
        folder, settings = at.path / TOKENIZERS / job.name, self.settings
        trained = train_tokenizer(one, data, folder, recipe=at.recipe, label=job.name)
        tokenizer = trained.tokenizer.to(self.device)
        codebook = tokenizer.config.codebook_size * tokenizer.config.code_dim
        found = _facts(arm, one.stem, job.seed, tokenizer.config) | {
            "parameters": sum(p.numel() for p in tokenizer.parameters()) + codebook,
            "steps": trained.steps,
            "tokenizer_seconds": trained.seconds,
            "reconstruction": self._reconstruct(one, tokenizer, data, at),
        }
        if priors := self._priors(job):
            cache = make_tokens(at.path / TOKENS / job.name, trained, data)
            images = data.test[: settings.evaluation.num_images]
            held_out = encode_images(tokenizer, images, **held_out_videos(one), device=self.device)
            found["generation"] = {}
            seed = derive_seed(job.seed, "test masks")
            for prior in priors:
                name = f"{prior}-{job.name}"
                own = settings.one_prior(f"{TOKENIZERS}/{job.name}", prior, job.seed)
                given: Any = {"recipe": at.recipe, "label": name}
                model, seconds = train_prior(own, cache, at.path / PRIORS / name, **given)
                samples = self._samples(prior, job, at)
                found["generation"][prior] = {
                    "nats_per_token": mean_nats(model.to(self.device), held_out, seed=seed),
                    "training_seconds": seconds,
                    **reference.measure(samples.images),
                    "seconds": float(samples.seconds),
                }
        return found

    def report(self, data: GenerationData, results: Results, at: RunFolder) -> str:
        """Measure patch k-means, write the report, and return it as text."""
        settings, seed = self.settings, self.settings.seeds[0]
        floors: list[dict[str, Any]] = []
        shown: dict[str, dict[str, Tensor]] = {}
        samples: dict[str, tuple[str, Tensor, Tensor]] = {}
        logs: dict[str, dict[str, list[Path]]] = {TOKENIZERS: {}, PRIORS: {}}
        for job, (arm, one) in self._variants.items():
            if one.stem == settings.stem[0]:  # patch k-means knows no stem
                name = f"{arm.name}-{FLOOR}-seed{job.seed}"
                floors.append(at.once(name, partial(self._patch_kmeans, job, data, at)))
            label, folder = f"{arm.name}, {one.stem}", at.path / TOKENIZERS / job.name
            logs[TOKENIZERS].setdefault(label, []).append(folder)
            if job.seed == seed:
                images = _reconstructed(folder, data.test[:_SHOWN])
                shown.setdefault(one.stem, {})[arm.name] = images
        for prior in settings.priors.prior:
            for job, (arm, one) in self._variants.items():
                if prior not in self._priors(job):
                    continue
                label, name = f"{arm.name}, {one.stem}, {prior}", f"{prior}-{job.name}"
                logs[PRIORS].setdefault(label, []).append(at.path / PRIORS / name)
                if job.seed == seed:
                    title = f"{prior.capitalize()} prior, {arm.name}, stem {one.stem}, seed {seed}"
                    samples[f"samples-{name}"] = (title, *self._samples(prior, job, at)[:2])
        return generate_report(
            self.kind,
            [*results.values(), *floors],
            self.real(data, at),
            settings=settings.to_dict(),
            data=data,
            recipe=at.recipe,
            videos=video_config(settings.videos, max(settings.frames)),
            reconstructed=shown,
            samples=samples,
            tokenizer_logs=logs[TOKENIZERS],
            prior_logs=logs[PRIORS],
        ).write(at.path)

    def _priors(self, job: Job) -> tuple[PriorName, ...]:
        arm, one = self._variants[job]
        return self.settings.priors.prior if self.settings.has_priors(arm, one.stem) else ()

    def _reconstruct(
        self, one: TokenizerSettings, coder: ImageCoder, data: GenerationData, at: RunFolder
    ) -> dict[str, Any]:
        images = data.test[: self.settings.evaluation.num_images]
        given: Any = {"extractor": self.reference(data, at).extractor, "device": self.device}
        return reconstruction(coder, images, **held_out_videos(one), **given)

    def _samples(self, prior: PriorName, job: Job, at: RunFolder) -> stages.Samples:
        """Return samples, drawn where they are not there, always with the same seed."""
        file = at.path / stages.SAMPLES / f"{prior}-{job.name}.npz"
        if not file.exists():
            if at.has(job.name):
                log.say(f"samples of {prior}-{job.name} are not there and are drawn anew")
            try:
                tokenizer = open_tokenizer(at.path / TOKENIZERS / job.name).tokenizer
                model, _ = open_prior(at.path / PRIORS / f"{prior}-{job.name}")
            except FileNotFoundError as error:
                raise stages.lost(error, job, at) from error
            given = (self.settings.evaluation.num_samples, self.settings.sampling)
            model, tokenizer = model.to(self.device), tokenizer.to(self.device)
            seed = derive_seed(job.seed, f"{prior} samples")
            stages.save_kept(file, draw_tokens(model, tokenizer, *given, seed=seed))
        return stages.load_kept(stages.Samples, file)

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
            "reconstruction": self._reconstruct(one, kmeans, data, at),
        }


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
    given = held_out_videos(one)
    with torch.inference_mode():
        videos = pseudo_videos(to_unit(images), given["corruption"], seed=given["seed"])
        return tokenizer.reconstruct(videos)[:, -1]
