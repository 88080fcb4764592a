"""`probseq generate run`, `tokenizer` and `prior`: tokenizer, tokens, prior and samples as stages.

A tokenizer's folder and a prior's are runs of `fit` with the trained model in `pretrained/`; those
of `run` are in `tokenizers/` and `priors/`, beside `tokens/`, `samples/` and `classifier/`.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn
from tqdm import tqdm

from probseq.metrics.image import LPIPS
from probseq_apps.data.images import GenerationData, load_generation_data, to_unit
from probseq_apps.engine import distributed
from probseq_apps.engine.files import read_finished
from probseq_apps.engine.fit import fit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step, fork_random
from probseq_apps.experiment import Experiment, Job, Results
from probseq_apps.experiments.reference import (
    CLASSIFIER,
    SAMPLES,
    Reference,
    Samples,
    check_features,
    collect_samples,
)
from probseq_apps.experiments.saved import config_values
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.generate import tokens_report
from probseq_apps.report.results import FLOOR
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
    saved_prior,
    saved_tokenizer,
)
from pseudovideo.corruptions import pseudo_videos
from pseudovideo.evaluation import ImageCoder, reconstruction
from pseudovideo.pretrained import load_pretrained
from pseudovideo.priors import AutoregressivePrior, MaskedPrior
from pseudovideo.priors.base import TokenPrior
from pseudovideo.spec import (
    AutoregressiveConfig,
    MaskedConfig,
    PseudoVideoConfig,
    TokenGrid,
    TokenizerConfig,
)
from pseudovideo.token_cache import TokenCache, write_token_cache
from pseudovideo.tokenizers import PatchKMeans, Tokenizer, build_tokenizer
from pseudovideo.tokenizers.objective import TokenizerObjective

PRETRAINED, TOKENIZERS, TOKENS, PRIORS = "pretrained", "tokenizers", "tokens", "priors"
Prior = AutoregressivePrior | MaskedPrior
# Images that k-means clusters: enough for its codebook, few enough for minutes.
_KMEANS_IMAGES = 4000
# Test images whose reconstructions are shown.
_SHOWN = 10
_BATCH = 250


class TrainedTokenizer(NamedTuple):
    """A tokenizer in eval mode on the CPU, its settings, and how its training ended."""

    settings: TokenizerSettings
    tokenizer: Tokenizer
    steps: int
    seconds: float


class TrainedPrior(NamedTuple):
    """A prior in eval mode on the CPU, and the seconds of its training."""

    prior: Prior
    seconds: float


class Tokens(Experiment[GenerationData]):
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
        self._reference: Reference | None = None

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
        device = distributed.resolve_device(settings.machine.device)
        asked = settings.evaluation.num_images
        note = ""
        if asked is not None and asked > len(data.test):
            note = f"num_images={asked:,}: all {len(data.test):,} test images are reconstructed\n"
        return (
            f"{note}{describe_images(data)}; {', '.join(arm.name for arm in settings.arms)}; stems "
            f"{', '.join(settings.stem)}; {count_steps(settings.training.steps)} each, on {device}"
        )

    def run(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Train, draw and measure all that a variant has."""
        (arm, one), settings, reference = (
            self._variants[job],
            self.settings,
            self._measure(data, at),
        )
        trained = train_tokenizer(
            one, data, at.path / TOKENIZERS / job.name, recipe=at.recipe, label=job.name
        )
        tokenizer = trained.tokenizer.to(distributed.resolve_device(settings.machine.device))
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
        real = at.once("reference", lambda: self._measure(data, at).real)
        # Patch k-means knows no stem: a baseline for each arm and seed.
        floors = [
            at.once(
                f"{arm.name}-{FLOOR}-seed{job.seed}", partial(self._patch_kmeans, job, data, at)
            )
            for job, (arm, one) in self._variants.items()
            if one.stem == settings.stem[0]
        ]
        return tokens_report(
            list(results.values()),
            floors,
            real,
            settings=settings.to_dict(),
            data=data,
            recipe=at.recipe,
            seed=seed,
            videos=video_config(settings.videos, max(settings.frames)),
            reconstructed={
                stem: {
                    arm.name: _reconstructed(at.path / TOKENIZERS / job.name, data.test[:_SHOWN])
                    for job, (arm, one) in self._variants.items()
                    if job.seed == seed and one.stem == stem
                }
                for stem in settings.stem
            },
            samples={
                f"samples-{prior}-{job.name}": (
                    f"{prior.capitalize()} prior, {self._variants[job][0].name}, stem "
                    f"{self._variants[job][1].stem}, seed {seed}",
                    *self._restored(prior, job, at)[:2],
                )
                for prior, job in self._prior_jobs()
            },
            tokenizer_logs=self._logs(
                {job: at.path / TOKENIZERS / job.name for job in self.jobs}, ""
            ),
            prior_logs={
                label: folders
                for prior in settings.priors.prior
                for label, folders in self._logs(
                    {
                        job: at.path / PRIORS / f"{prior}-{job.name}"
                        for job, (arm, one) in self._variants.items()
                        if settings.has_priors(arm, one.stem)
                    },
                    f", {prior}",
                ).items()
            },
        ).write(at.path)

    def _measure(self, data: GenerationData, at: RunFolder) -> Reference:
        if self._reference is None:
            features, machine = self.settings.evaluation.features, self.settings.machine
            self._reference = Reference.of(data, features, at, device=machine.device)
        return self._reference

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
            device=distributed.resolve_device(self.settings.machine.device),
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

    def _prior_jobs(self) -> Iterator[tuple[PriorName, Job]]:
        """Yield the priors that were trained with the first seed."""
        for prior in self.settings.priors.prior:
            for job, (arm, one) in self._variants.items():
                if job.seed == self.settings.seeds[0] and self.settings.has_priors(arm, one.stem):
                    yield prior, job

    def _restored(self, prior: PriorName, job: Job, at: RunFolder) -> Samples:
        """Return samples; those that were deleted are drawn anew with the same seed."""
        file = at.path / SAMPLES / f"{prior}-{job.name}.npz"
        if not file.exists():
            device = distributed.resolve_device(self.settings.machine.device)
            print(f"samples of {prior}-{job.name} are not there and are drawn anew", flush=True)
            try:
                tokenizer = open_tokenizer(at.path / TOKENIZERS / job.name).tokenizer
                model = open_prior(at.path / PRIORS / f"{prior}-{job.name}").prior
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"{error}; delete {at.results_file(job.name)} and resume, so that all of this "
                    "arm is made anew"
                ) from error
            self._draw(prior, job, model.to(device), tokenizer.to(device)).save(file)
        return Samples.load(file)

    def _logs(self, folders: dict[Job, Path], behind: str) -> dict[str, list[Path]]:
        """Return the folders of all seeds by arm and stem."""
        found: dict[str, list[Path]] = {}
        for job, folder in folders.items():
            arm, one = self._variants[job]
            found.setdefault(f"{arm.name}, {one.stem}{behind}", []).append(folder)
        return found

    def _patch_kmeans(self, job: Job, data: GenerationData, at: RunFolder) -> dict[str, Any]:
        """Measure what k-means on raw patches makes of a variant's tokens."""
        arm, one = self._variants[job]
        config, videos = tokenizer_config(one, data), video_config(one.videos, one.frames)
        device = distributed.resolve_device(self.settings.machine.device)
        kmeans = PatchKMeans(config).to(device)
        generator = torch.Generator().manual_seed(derive_seed(job.seed, "k-means"))
        chosen = torch.randperm(len(data.train), generator=generator)[:_KMEANS_IMAGES]
        images = to_unit(data.train[chosen].to(device))
        kmeans.fit(pseudo_videos(images, videos, seed=job.seed), generator=generator)
        return _facts(arm, FLOOR, job.seed, config) | {
            "parameters": kmeans.codebook.numel(),
            "steps": None,
            "tokenizer_seconds": None,
            "reconstruction": self._reconstruct(one, kmeans, data, self._measure(data, at)),
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


def describe_images(data: GenerationData) -> str:
    """Return name, numbers and sizes."""
    return (
        f"{data.name}: {len(data.train):,} training and {len(data.test):,} test images of "
        f"{data.channels}x{data.image_size}x{data.image_size}"
    )


def count_steps(steps: int) -> str:
    """Return a number of steps in words."""
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def load_images(settings: TokenizerSettings, options: Options) -> GenerationData:
    """Return the images that a tokenizer learns from."""
    return load_generation_data(
        settings.data,
        image_size=settings.reading.image_size,
        data_dir=options.data_dir,
        download=options.download,
    )


def video_config(videos: Videos, frames: int) -> PseudoVideoConfig:
    """Return which videos are made of images."""
    values = videos.to_dict()
    return PseudoVideoConfig(kind=values.pop("corruption"), num_frames=frames, **values)


def tokenizer_config(settings: TokenizerSettings, data: GenerationData) -> TokenizerConfig:
    """Return the sizes of a tokenizer; raise if images cannot be cut into such patches."""
    return settings.tokenizer.for_images(
        data.image_size, data.channels, num_frames=settings.frames, stem=settings.stem
    )


def check_one_process(device: str) -> None:
    """Raise if there is no such device, or torchrun has started several processes."""
    distributed.resolve_device(device)
    if distributed.world_size() > 1:
        raise ValueError("generate runs in one process, and torchrun started several")


def check_tokenizer(settings: TokenizerSettings, data: GenerationData) -> None:
    """Raise if sizes, device or files of weights are not as the settings want them."""
    check_one_process(settings.machine.device)
    # Without memory for the weights, and without their initialisation, which takes seconds.
    with torch.device("meta"):
        tokenizer = build_tokenizer(tokenizer_config(settings, data))
        perceptual = torch.nn.Identity() if settings.loss.perceptual_weight else None
        TokenizerObjective(tokenizer, settings.loss, perceptual)
    pseudo_videos(to_unit(data.train[:1]), video_config(settings.videos, settings.frames))
    make_perceptual(settings)


def make_perceptual(settings: TokenizerSettings) -> LPIPS | None:
    """Return LPIPS with the named weights, None where it has no weight; raise without the file."""
    weight, file = settings.loss.perceptual_weight, settings.lpips_weights
    if not weight:
        return None
    if file is None:
        raise ValueError(
            f"perceptual_weight={weight} needs lpips_weights, got none: name "
            "the file of torchvision's VGG-16 weights, or set perceptual_weight to 0"
        )
    what = f"lpips_weights must be a file of torchvision's VGG-16 weights, got {file}"
    if not Path(file).is_file():
        raise FileNotFoundError(f"{what}, which is not there")
    try:
        return LPIPS(weights=file)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def make_objective(settings: TokenizerSettings, data: GenerationData) -> TokenizerObjective:
    """Return a new tokenizer with all that trains it; its weights depend on the seed alone."""
    perceptual = make_perceptual(settings)
    with fork_random(torch.device("cpu")):
        torch.manual_seed(derive_seed(settings.seed, "weights"))
        tokenizer = build_tokenizer(tokenizer_config(settings, data))
        return TokenizerObjective(tokenizer, settings.loss, perceptual)


def train_tokenizer(
    settings: TokenizerSettings,
    data: GenerationData,
    folder: Path,
    *,
    recipe: str,
    label: str = "",
) -> TrainedTokenizer:
    """Train a tokenizer, from where it stopped, and store it in `pretrained/`."""
    if not is_trained(folder):
        objective = make_objective(settings, data)
        videos = video_config(settings.videos, settings.frames)
        fit(
            objective,
            numbered(data.train),
            settings.train_config(),
            folder,
            loss=partial(tokenizer_loss, videos, derive_seed(settings.seed, "videos")),
            label=label or f"tokenizer {settings.frames}-frame-{settings.stem}",
            metadata=config_values(GENERATE_TOKENIZER, recipe, settings.to_dict()),
        )
        objective.tokenizer.save_pretrained(folder / PRETRAINED)
    return open_tokenizer(folder)


def is_trained(folder: Path) -> bool:
    """Return whether a folder holds a finished run and its model."""
    return read_finished(folder) is not None and (folder / PRETRAINED / "config.json").is_file()


def numbered(
    images: UInt8[Tensor, "n c h w"],
) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]:
    """Return images with their numbers, of which the noise of their videos is drawn."""
    return images, torch.arange(len(images))


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
    saved, finished = saved_tokenizer(folder), read_finished(folder)
    if saved is None:
        raise FileNotFoundError(
            f"tokenizer must be a folder of `generate tokenizer`, and {folder} holds none"
        )
    if finished is None:
        raise FileNotFoundError(
            f"tokenizer must be a trained one, and the training in {folder} is not finished: "
            "resume it"
        )
    tokenizer = load_pretrained(folder / PRETRAINED, Tokenizer)
    return TrainedTokenizer(saved[1], tokenizer, finished["steps"], finished["seconds"])


def check_prior(settings: PriorSettings, grid: TokenGrid) -> None:
    """Raise if sizes or device are not as the settings want them."""
    distributed.resolve_device(settings.machine.device)
    with torch.device("meta"):
        build_prior(settings, grid, None)


def build_prior(settings: PriorSettings, grid: TokenGrid, tokenizer: str | None) -> Prior:
    """Return a new prior over the tokens of the tokenizer with a fingerprint."""
    sizes = settings.sizes(settings.prior)
    values: dict[str, Any] = {"dim": sizes.dim, "depth": sizes.depth, "num_heads": sizes.num_heads}
    values |= {"codebook_size": grid.codebook_size, "grid": grid.shape}
    values |= {"tokenizer_fingerprint": tokenizer}
    if settings.prior == "autoregressive":
        return AutoregressivePrior(AutoregressiveConfig(**values))
    return MaskedPrior(MaskedConfig(**values))


def make_tokens(folder: Path, trained: TrainedTokenizer, data: GenerationData) -> TokenCache:
    """Encode the training images once; tokens that are there and fit are taken."""
    settings = trained.settings
    videos = video_config(settings.videos, settings.frames)
    seed = derive_seed(settings.seed, "token videos")
    with suppress(FileNotFoundError, ValueError):
        return TokenCache.open(
            folder, tokenizer=trained.tokenizer, config=videos, images=data.train, seed=seed
        )
    tokenizer = trained.tokenizer.to(distributed.resolve_device(settings.machine.device))
    with tqdm(total=len(data.train), unit=" images", leave=False, disable=None) as bar:
        bar.set_description_str("tokens")
        return write_token_cache(
            folder, tokenizer, data.train, videos, seed=seed, progress=bar.update
        )


def train_prior(
    settings: PriorSettings, cache: TokenCache, folder: Path, *, recipe: str, label: str = ""
) -> TrainedPrior:
    """Train a prior, from where it stopped, and store it in `pretrained/`."""
    if not is_trained(folder):
        with fork_random(torch.device("cpu")):
            torch.manual_seed(derive_seed(settings.seed, f"{settings.prior} prior"))
            prior = build_prior(settings, cache.grid, cache.tokenizer_fingerprint)
        prior.check_cache(cache)
        fit(
            prior,
            (cache.tokens,),
            settings.train_config(),
            folder,
            loss=prior_loss,
            label=label or f"{settings.prior} prior",
            metadata=config_values(GENERATE_PRIOR, recipe, settings.to_dict()),
        )
        prior.save_pretrained(folder / PRETRAINED)
    return open_prior(folder)


def prior_loss(prior: Prior, batch: Batch, step: Step) -> LossParts:
    """Return the nats per token: of all tokens, or of those that a masked prior's masks hide."""
    (tokens,) = batch
    if isinstance(prior, MaskedPrior):
        return LossParts(prior.loss(tokens, generator=step.generator), {})
    return LossParts(prior.loss(tokens), {})


def open_prior(folder: Path) -> TrainedPrior:
    """Read a trained prior of either kind; raise if the folder holds none, or is damaged."""
    finished = read_finished(folder)
    if saved_prior(folder) is None:
        raise FileNotFoundError(
            f"prior must be a folder of `generate prior`, and {folder} holds none"
        )
    if finished is None:
        raise FileNotFoundError(
            f"prior must be a trained one, and the training in {folder} is not finished: resume it"
        )
    prior = load_pretrained(folder / PRETRAINED, TokenPrior)
    return TrainedPrior(cast("Prior", prior), finished["seconds"])


def draw_tokens(
    prior: Prior, tokenizer: Tokenizer, num: int, settings: Sampling, *, seed: int
) -> Samples:
    """Draw videos from a prior on the tokenizer's device."""
    sample: Callable[..., Float[Tensor, "n f c y x"]] = prior.sample
    own: dict[str, Any] = {"num_steps": settings.num_steps} | {
        "choice_temperature": settings.choice_temperature
    }
    if isinstance(prior, AutoregressivePrior):
        own = {"top_k": settings.top_k, "top_p": settings.top_p}

    def draw(count: int, generator: torch.Generator) -> Tensor:
        return sample(
            count,
            tokenizer,
            temperature=settings.temperature,
            generator=generator,
            batch_size=count,
            **own,
        )

    return collect_samples(draw, num, next(tokenizer.parameters()).device, seed=seed)


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
