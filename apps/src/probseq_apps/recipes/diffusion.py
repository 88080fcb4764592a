"""Settings of `probseq generate diffusion`; importable without torch.

The small recipes are for two CPU cores; `ddpm-fast` is for minutes on a GPU. Those named for Tables
5.3-5.5 have the thesis' numbers (section 5.4.2, table D.4), and `matched-noise-cifar10` adds an
ablation to them. What the thesis leaves open is as in improved DDPM: Adam without warm-up, decay or
clipping, a moving average of .9999, no dropout.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probseq_apps.data.names import FOLDER_PREFIX, check_generation_name
from probseq_apps.experiments.diffusion_groups import (
    DiffusionEvaluationSettings,
    DiffusionSampling,
    DiffusionTraining,
    ProcessSettings,
    UNetSettings,
)
from probseq_apps.experiments.diffusion_settings import DiffusionSettings
from probseq_apps.experiments.generate_groups import FeatureSettings, MachineSettings
from probseq_apps.settings.common import Pick, Recipes, share_left, with_data

DIGITS_DIFFUSION = "digits-diffusion"
_FOUR_FRAMES = ("4-frame-first-order", "4-frame-high-order")


def digits_diffusion() -> DiffusionSettings:
    """The default: 8x8 digits enlarged to 16x16.

    Noise grows by the cosine schedule: so small images are nothing but noise for long stretches of
    the linear one.
    """
    return DiffusionSettings(
        unet=UNetSettings(
            base_channels=16,
            channel_multipliers=(1, 2, 4),
            num_res_blocks=1,
            attention_sizes=(4,),
            num_groups=8,
        ),
        process=ProcessSettings(schedule="cosine"),
        training=DiffusionTraining(
            steps=500,
            batch_size=12,
            learning_rate=2e-3,
            decay="cosine",
            warmup_steps=50,
            grad_clip=1.0,
            ema_decay=0.99,
        ),
        sampling=DiffusionSampling(sampling_steps=20),
        evaluation=DiffusionEvaluationSettings(
            num_samples=150,
            frame_error_images=50,
            frame_error_samples=2,
            features=FeatureSettings(classifier_steps=150),
        ),
    )


def mnist_diffusion() -> DiffusionSettings:
    """MNIST padded to 32x32, the arms of the default, in larger models."""
    small = digits_diffusion()
    return replace(
        small,
        data="mnist",
        unet=replace(
            small.unet, base_channels=32, channel_multipliers=(1, 2, 2, 2), attention_sizes=(8,)
        ),
        training=replace(small.training, steps=3000, batch_size=32, learning_rate=1e-3),
        sampling=replace(small.sampling, sampling_steps=50),
    )


def folder_diffusion() -> DiffusionSettings:
    """Images of one's own at their own size, which must be one: the arms of the default."""
    return replace(
        mnist_diffusion(),
        data=f"{FOLDER_PREFIX}images",
        unet=replace(mnist_diffusion().unet, channel_multipliers=None),
    )


def ddpm_fast() -> DiffusionSettings:
    """CIFAR-10 with half the channels and 20,000 steps an arm."""
    return DiffusionSettings(
        data="cifar10",
        unet=UNetSettings(base_channels=64),
        training=DiffusionTraining(
            steps=20_000, batch_size=64, learning_rate=3e-4, warmup_steps=500, ema_decay=0.999
        ),
        sampling=DiffusionSampling(sampling_steps=50, sampler="ddim"),
        evaluation=DiffusionEvaluationSettings(num_samples=5000),
        machine=MachineSettings(precision="bf16"),
    )


def paper(data: str, arms: tuple[str, ...]) -> DiffusionSettings:
    """The thesis' numbers; Inception's weights are named by a flag."""
    return DiffusionSettings(data=data, arms=arms)


def table_5_3(data: str) -> DiffusionSettings:
    """Images, and videos of 4 and 8 frames with either noise."""
    lengths = (arm.replace("4", frames) for frames in ("4", "8") for arm in _FOUR_FRAMES)
    return paper(data, ("1-frame", *lengths))


def table_5_4(data: str) -> DiffusionSettings:
    """Images with 1,000 and with 4,000 steps, beside videos with 3,000 in all."""
    return paper(data, ("1-frame", "1-frame-4000", "4-frame-high-order"))


def table_5_5() -> DiffusionSettings:
    """Videos of noise and of blur."""
    return paper(
        "cifar10", ("4-frame-high-order", "4-frame-blur", "8-frame-high-order", "8-frame-blur")
    )


def matched_noise() -> DiffusionSettings:
    """First-order noise at the levels of high-order noise, beside both."""
    return paper("cifar10", ("4-frame-first-order", "4-frame-matched", "4-frame-high-order"))


_KNOWN: dict[str, Callable[[], DiffusionSettings]] = {
    DIGITS_DIFFUSION: digits_diffusion,
    "mnist-diffusion": mnist_diffusion,
    "folder-diffusion": folder_diffusion,
    "ddpm-fast": ddpm_fast,
    "table-5.3-cifar10": lambda: table_5_3("cifar10"),
    "table-5.3-celeba": lambda: table_5_3("celeba"),
    "table-5.4-cifar10": lambda: table_5_4("cifar10"),
    "table-5.4-celeba": lambda: table_5_4("celeba"),
    "table-5.5-cifar10": table_5_5,
    "matched-noise-cifar10": matched_noise,
}

_RECIPE_OF = {
    "digits": DIGITS_DIFFUSION,
    "mnist": "mnist-diffusion",
    "cifar10": "ddpm-fast",
    "celeba": "table-5.3-celeba",
}


def _suiting(data: str) -> str:
    """Return the name of the recipe that suits a data set."""
    check_generation_name(data)
    own = "folder-diffusion" if data.startswith(FOLDER_PREFIX) else DIGITS_DIFFUSION
    return _RECIPE_OF.get(data, own)


def shorter(settings: Any, pick: Pick) -> Any:
    """Return settings for other data, with a warm-up as short as the training."""
    training = settings.training
    warmup = int(training.warmup_steps * share_left(pick.steps, training.steps))
    return replace(with_data(settings, pick), training=replace(training, warmup_steps=warmup))


DIFFUSION_RECIPES = Recipes(_KNOWN, DIGITS_DIFFUSION, suits=_suiting, adapt=shorter)
