"""Tokenizers and priors: what they are built of, their training, and their folders."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.metrics.image import LPIPS
from probseq_apps.data.images import GenerationData, to_unit
from probseq_apps.engine import distributed, log
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import check_manifest
from probseq_apps.engine.trainer import Batch, LossParts, Step, fork_random
from probseq_apps.experiments.reference import (
    PRETRAINED,
    Samples,
    check_one_process,
    collect_samples,
    finished_run,
    numbered,
    train,
)
from probseq_apps.settings.common import config_values, saved_settings
from probseq_apps.settings.generate import (
    GENERATE_PRIOR,
    GENERATE_TOKENIZER,
    PriorSettings,
    Sampling,
    TokenizerSettings,
    Videos,
)
from pseudovideo.corruptions import pseudo_videos
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
from pseudovideo.tokenizers import Tokenizer, build_tokenizer
from pseudovideo.tokenizers.objective import TokenizerObjective

Prior = AutoregressivePrior | MaskedPrior


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


def video_config(videos: Videos, frames: int) -> PseudoVideoConfig:
    """Return which videos are made of images."""
    values = videos.to_dict()
    return PseudoVideoConfig(kind=values.pop("corruption"), num_frames=frames, **values)


def tokenizer_config(settings: TokenizerSettings, data: GenerationData) -> TokenizerConfig:
    """Return the sizes of a tokenizer; raise if images cannot be cut into such patches."""
    return settings.tokenizer.for_images(
        data.image_size, data.channels, num_frames=settings.frames, stem=settings.stem
    )


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

    def build() -> tuple[TokenizerObjective, Tokenizer]:
        objective = make_objective(settings, data)
        return objective, objective.tokenizer

    videos = video_config(settings.videos, settings.frames)
    train(
        folder,
        build,
        numbered(data.train),
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
    finished = finished_run(folder, "tokenizer", "`generate tokenizer`", found=saved is not None)
    settings = cast("tuple[str, TokenizerSettings]", saved)[1]
    check_manifest(folder / PRETRAINED)
    tokenizer = load_pretrained(folder / PRETRAINED, Tokenizer)
    return TrainedTokenizer(settings, tokenizer, finished["steps"], finished["seconds"])


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
    with log.bar(total=len(data.train), unit=" images") as bar:
        bar.set_description_str("tokens")
        return write_token_cache(
            folder, tokenizer, data.train, videos, seed=seed, progress=bar.update
        )


def train_prior(
    settings: PriorSettings, cache: TokenCache, folder: Path, *, recipe: str, label: str = ""
) -> TrainedPrior:
    """Train a prior, from where it stopped, and store it in `pretrained/`."""

    def build() -> tuple[Prior, Prior]:
        with fork_random(torch.device("cpu")):
            torch.manual_seed(derive_seed(settings.seed, f"{settings.prior} prior"))
            prior = build_prior(settings, cache.grid, cache.tokenizer_fingerprint)
        prior.check_cache(cache)
        return prior, prior

    train(
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
    (tokens,) = batch
    if isinstance(prior, MaskedPrior):
        return LossParts(prior.loss(tokens, generator=step.generator), {})
    return LossParts(prior.loss(tokens), {})


def open_prior(folder: Path) -> TrainedPrior:
    """Read a trained prior of either kind; raise if the folder holds none, or is damaged."""
    found = saved_settings(folder, GENERATE_PRIOR, PriorSettings) is not None
    finished = finished_run(folder, "prior", "`generate prior`", found=found)
    check_manifest(folder / PRETRAINED)
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
