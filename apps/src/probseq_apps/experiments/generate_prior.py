"""Priors of `probseq generate`: tokens on disk, training, and folders.

A prior's folder is a run of `fit`, with the trained prior in `pretrained/`.
"""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from probseq_apps.data.images import GenerationData
from probseq_apps.engine import distributed
from probseq_apps.engine.files import prepare_run_dir, read_finished, sole_use
from probseq_apps.engine.fit import fit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step, fork_random
from probseq_apps.experiments.generate_settings import (
    GENERATE_PRIOR,
    OnePriorSettings,
    saved_prior,
)
from probseq_apps.experiments.generate_tokenizer import (
    PRETRAINED,
    TrainedTokenizer,
    load_images,
    open_tokenizer,
    video_config,
)
from probseq_apps.experiments.saved import config_values
from probseq_apps.folder import check_folder, default_folder, tell_how_to_resume
from probseq_apps.options import Options
from pseudovideo.grid import TokenGrid
from pseudovideo.pretrained import saved_class
from pseudovideo.priors import (
    AutoregressiveConfig,
    AutoregressivePrior,
    MaskedConfig,
    MaskedPrior,
)
from pseudovideo.token_cache import TokenCache, write_token_cache

TOKENS = "tokens"
Prior = AutoregressivePrior | MaskedPrior


class TrainedPrior(NamedTuple):
    """A prior and what its training took.

    Attributes:
        prior: in eval mode, on the CPU.
        seconds: of its training.
    """

    prior: Prior
    seconds: float


def prior_command(
    settings: OnePriorSettings, options: Options, *, recipe: str = "digits-small"
) -> Path:
    """Train one prior in a folder of its own.

    Args:
        settings: tokenizer, sizes and training.
        options: files and running.
        recipe: name of the recipe that the settings came from.

    Returns:
        The folder.

    Raises:
        ValueError: tokenizer, settings and folder don't go together.
        OSError: a file cannot be read or written.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    torch.set_num_threads(options.threads)
    if options.run_dir is not None:
        check_folder(options.run_dir, options, experiment=GENERATE_PRIOR)
    # The folder may be resumed from another working directory.
    settings = replace(settings, tokenizer=str(Path(settings.tokenizer).resolve()))
    trained = open_tokenizer(Path(settings.tokenizer))
    check_prior(settings, trained.tokenizer.grid)
    data = load_images(trained.settings, options)
    folder = options.run_dir or default_folder(GENERATE_PRIOR, trained.settings.data)
    config = _identity(settings, recipe) | {"train": _training(settings)}
    prepare_run_dir(folder, config, resume=options.resume, overwrite=options.overwrite)
    with sole_use(folder), tell_how_to_resume("generate prior", folder, options):
        if options.overwrite:
            for name in (PRETRAINED, TOKENS):
                shutil.rmtree(folder / name, ignore_errors=True)
        cache = make_tokens(folder / TOKENS, trained, data)
        prior = train_prior(settings, cache, folder, recipe=recipe)
    print(
        f"{settings.prior} prior after {settings.steps:,} steps in {prior.seconds:.0f} s: {folder}"
    )
    return folder


def check_prior(settings: OnePriorSettings, grid: TokenGrid) -> None:
    """Refuse what would fail later.

    Raises:
        ValueError: names the setting.
    """
    distributed.resolve_device(settings.machine.device)
    with torch.device("meta"):
        build_prior(settings, grid, None)


def build_prior(settings: OnePriorSettings, grid: TokenGrid, tokenizer: str | None) -> Prior:
    """A new prior.

    Args:
        settings: its sizes.
        grid: of the tokens.
        tokenizer: fingerprint of the tokenizer whose tokens it will learn.
    """
    if settings.prior == "autoregressive":
        sizes = settings.autoregressive
        return AutoregressivePrior(
            AutoregressiveConfig(
                codebook_size=grid.codebook_size,
                grid=grid.shape,
                tokenizer_fingerprint=tokenizer,
                dim=sizes.ar_dim,
                depth=sizes.ar_depth,
                num_heads=sizes.ar_num_heads,
            )
        )
    sizes = settings.masked
    return MaskedPrior(
        MaskedConfig(
            codebook_size=grid.codebook_size,
            grid=grid.shape,
            tokenizer_fingerprint=tokenizer,
            dim=sizes.masked_dim,
            depth=sizes.masked_depth,
            num_heads=sizes.masked_num_heads,
        )
    )


def make_tokens(folder: Path, trained: TrainedTokenizer, data: GenerationData) -> TokenCache:
    """Encode the training images once; tokens that are there and fit are taken.

    Args:
        folder: of the tokens.
        trained: the tokenizer.
        data: the images.
    """
    settings = trained.settings
    videos = video_config(settings.videos, settings.frames)
    seed = derive_seed(settings.seed, "token videos")
    with suppress(FileNotFoundError, ValueError):
        return TokenCache.open(
            folder, tokenizer=trained.tokenizer, config=videos, images=data.train, seed=seed
        )
    device = distributed.resolve_device(settings.machine.device)
    tokenizer = trained.tokenizer.to(device)
    with tqdm(total=len(data.train), unit=" images", leave=False, disable=None) as bar:
        bar.set_description_str("tokens")
        return write_token_cache(
            folder, tokenizer, data.train, videos, seed=seed, progress=bar.update
        )


def train_prior(
    settings: OnePriorSettings, cache: TokenCache, folder: Path, *, recipe: str, label: str = ""
) -> TrainedPrior:
    """Train a prior, from where it stopped, and store it.

    Args:
        settings: sizes and training.
        cache: tokens of the training images.
        folder: of its run.
        recipe: name of the recipe that the settings came from.
        label: what the progress bar calls the run.

    Raises:
        NonFiniteLossError: the loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    if read_finished(folder) is None or not (folder / PRETRAINED / "config.json").is_file():
        with fork_random(torch.device("cpu")):
            torch.manual_seed(derive_seed(settings.seed, f"{settings.prior} prior"))
            prior = build_prior(settings, cache.grid, cache.tokenizer_fingerprint)
        prior.check_cache(cache)
        fit(
            prior,
            (cache.tokens,),
            settings.training.train_config(settings.machine, settings.steps, seed=settings.seed),
            folder,
            loss=prior_loss,
            label=label or f"{settings.prior} prior",
            metadata=_identity(settings, recipe),
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
    """Read a trained prior of either kind.

    Args:
        folder: of `generate prior`, or in `priors/` of `generate run`.

    Raises:
        FileNotFoundError: there is none, or its training isn't finished.
        ValueError: its files are damaged.
    """
    finished = read_finished(folder)
    if saved_prior(folder) is None:
        raise FileNotFoundError(
            f"prior must be a folder of `generate prior`, and {folder} holds none"
        )
    if finished is None:
        raise FileNotFoundError(
            f"prior must be a trained one, and the training in {folder} is not finished: resume it"
        )
    kinds = {kind.__name__: kind for kind in (AutoregressivePrior, MaskedPrior)}
    name = saved_class(folder / PRETRAINED)
    if name not in kinds:
        raise ValueError(f"{folder} must hold a prior ({' or '.join(kinds)}), got a {name}")
    return TrainedPrior(kinds[name].from_pretrained(folder / PRETRAINED), finished["seconds"])


def _identity(settings: OnePriorSettings, recipe: str) -> dict[str, object]:
    """What defines the run beside the settings of the training loop."""
    return config_values(GENERATE_PRIOR, recipe, settings.to_dict())


def _training(settings: OnePriorSettings) -> dict[str, object]:
    config = settings.training.train_config(settings.machine, settings.steps, seed=settings.seed)
    return config.to_dict()
