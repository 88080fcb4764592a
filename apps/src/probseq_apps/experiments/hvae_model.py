"""HVAEs of `probseq generate hvae`: their images, their training, their draws and their bound."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probseq_apps.data.images import GenerationData, load_generation_data, to_unit
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.engine.trainer import Batch, LossParts, Step, fork_random
from probseq_apps.experiments.diffusion_arms import model_name
from probseq_apps.experiments.generate_models import (
    Sized,
    Trained,
    fit_model,
    open_model,
    unet_config,
)
from probseq_apps.experiments.generate_sample import Samples, collect_samples
from probseq_apps.experiments.hvae_settings import (
    GENERATE_HVAE_MODEL,
    OneHvaeSettings,
    saved_hvae_model,
)
from probseq_apps.experiments.process import Process
from probseq_apps.experiments.saved import config_values
from probseq_apps.options import Options
from pseudovideo.hvae import HVAE, HeatHVAE, HVAEConfig, LearnedEncoderHVAE, load_hvae

# Of which all levels are kept.
_FILMED = 16
_BATCH = 250
# Pixels above are white.
_THRESHOLD = 127
_CLASSES: dict[str, type[HVAE]] = {"heat": HeatHVAE, "learned": LearnedEncoderHVAE}


def load_hvae_images(settings: OneHvaeSettings, options: Options) -> GenerationData:
    """The images that an HVAE learns from.

    Raises:
        DataError: they are missing, damaged, or of mixed sizes.
        ValueError: colour is to be binarised.
    """
    data = load_generation_data(
        settings.data,
        image_size=settings.reading.image_size,
        data_dir=options.data_dir,
        download=options.download,
    )
    return binarized(data) if settings.binarize else data


def binarized(data: GenerationData) -> GenerationData:
    """Images whose pixels above 127 are white and all others black.

    Raises:
        ValueError: they have colour.
    """
    if data.channels != 1:
        raise ValueError(
            f"binarize is for grey images, and {data.name} has {data.channels} channels: "
            "turn it off"
        )

    def black_and_white(images: Tensor) -> Tensor:
        return (images > _THRESHOLD).to(torch.uint8) * 255

    return replace(
        data,
        train=black_and_white(data.train),
        validation=black_and_white(data.validation),
        test=black_and_white(data.test),
        notes=(*data.notes, f"{data.name}: pixels above {_THRESHOLD} white, all others black"),
    )


def build_hvae(settings: OneHvaeSettings, data: GenerationData) -> HVAE:
    """A new HVAE; its weights depend on the seed alone.

    Raises:
        ValueError: the settings don't fit the images.
    """
    config = hvae_sizes(settings, data)
    with fork_random(torch.device("cpu")):
        torch.manual_seed(derive_seed(settings.seed, "weights"))
        return _CLASSES[settings.arm](config)


def hvae_sizes(settings: OneHvaeSettings, images: Sized) -> HVAEConfig:
    """Sizes and noise of an HVAE for images.

    Args:
        settings: of the HVAE.
        images: a data set, or the sizes of an HVAE of such images.

    Raises:
        ValueError: the settings don't fit the images.
    """
    sizes = asdict(settings.sizes)
    learned_noise_std = sizes.pop("learned_noise_std")
    if settings.arm == "learned":
        sizes["noise_std"] = learned_noise_std
    return HVAEConfig(**asdict(unet_config(settings.unet, images)), **sizes)


def train_hvae(
    settings: OneHvaeSettings, data: GenerationData, folder: Path, *, recipe: str
) -> None:
    """Train an HVAE, from where it stopped, and store it.

    Args:
        settings: sizes and training.
        data: the images.
        folder: of its run.
        recipe: name of the recipe that the settings came from.

    Raises:
        NonFiniteLossError: the loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """

    def make() -> tuple[HVAE, HVAE]:
        hvae = build_hvae(settings, data)
        return hvae, hvae

    fit_model(
        folder,
        make,
        (data.train,),
        settings.training.train_config(settings.machine, seed=settings.seed),
        loss=hvae_loss,
        identity=config_values(GENERATE_HVAE_MODEL, recipe, settings.to_dict()),
        label=model_name(settings.arm, settings.seed),
    )


def hvae_loss(hvae: HVAE, batch: Batch, step: Step) -> LossParts:
    """Return the bound of a batch of images, estimated at a random level of each."""
    (images,) = batch
    return LossParts.of(hvae.training_losses(to_unit(images), generator=step.generator))


def open_hvae(folder: Path, *, device: torch.device) -> tuple[HVAE, Trained]:
    """Read a trained HVAE.

    Args:
        folder: in `models/` of `generate hvae`.
        device: where it is wanted.

    Raises:
        FileNotFoundError: there is none, or its training isn't finished.
        ValueError: its files are damaged, or it is not the HVAE that the folder's settings make.
    """
    saved = saved_hvae_model(folder)
    if saved is None:
        raise FileNotFoundError(
            f"model must be a folder in models/ of `generate hvae`, and {folder} is none"
        )
    settings = saved[1]

    def described(sizes: Sized) -> tuple[type[HVAE], HVAEConfig]:
        return _CLASSES[settings.arm], hvae_sizes(settings, sizes)

    size = settings.reading.image_size
    return open_model(folder, load_hvae, described, image_size=size, device=device)


def draw_hvae(
    hvae: HVAE, data: GenerationData, num: int, *, seed: int, device: torch.device
) -> Samples:
    """Draw images.

    Args:
        hvae: on the device.
        data: its training images are the prior of the heat encoder.
        num: how many.
        seed: of the draws.
        device: where.
    """
    images = to_unit(data.train).to(device)

    def draw(count: int, generator: torch.Generator) -> Tensor:
        drawn = hvae.sample(count, images=images, generator=generator, batch_size=count)
        return drawn[:, None]

    return collect_samples(draw, num, device, seed=seed)


def film_hvae(
    hvae: HVAE, data: GenerationData, num: int, *, seed: int, device: torch.device
) -> Process:
    """The levels of the first samples that `draw_hvae` draws with the same seed.

    Args:
        hvae: on the device.
        data: as for `draw_hvae`.
        num: samples that are drawn; of many the first few are shown.
        seed: of the draws.
        device: where.
    """
    count = min(num, _FILMED)
    frames: list[Tensor] = []
    hvae.sample(
        count,
        images=to_unit(data.train).to(device),
        generator=torch.Generator(device).manual_seed(seed),
        batch_size=count,
        watch=lambda level, z: frames.append(z),
    )
    return Process.of(torch.stack(frames, 1)[:, :, None], torch.arange(len(frames)))


def measure_hvae(
    hvae: HVAE, data: GenerationData, num_images: int, *, seed: int, device: torch.device
) -> dict[str, Any]:
    """The bound on test images.

    Args:
        hvae: on the device.
        data: the images.
        num_images: how many of them, fewer where there are fewer.
        seed: of the latent frames' noise.
        device: where.

    Returns:
        bound: negative evidence lower bound in nats per dimension, mean over the images; that of
            the heat encoder without its prior's constant, see `HeatHVAE`.
        num_bound: how many images.
    """
    generator = torch.Generator(device).manual_seed(seed)
    parts = data.test[:num_images].split(_BATCH)
    totals = [hvae.bound(to_unit(part.to(device)), generator).total for part in parts]
    found = torch.cat(totals).double()
    return {"bound": float(found.mean()), "num_bound": len(found)}
