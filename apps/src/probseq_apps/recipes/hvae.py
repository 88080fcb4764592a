"""Settings of `probseq generate hvae`; importable without torch.

The small recipes are for two CPU cores; `hvae-mnist-fast` is for minutes on a GPU. `table-5.1` is
the thesis' comparison on binarised MNIST (section 5.2), of whose training it tells nothing: the
numbers are those of Rissanen et al. (2023) for MNIST where they have any. The learned encoder has
more noise than the heat equation's: with as little of it, the model draws noise.
"""

from collections.abc import Callable
from dataclasses import replace

from probseq_apps.data.names import check_generation_name
from probseq_apps.experiments.diffusion_groups import ModelTraining, UNetSettings
from probseq_apps.experiments.generate_groups import (
    FeatureSettings,
    MachineSettings,
    ReadingSettings,
)
from probseq_apps.experiments.hvae_settings import (
    HvaeEvaluationSettings,
    HvaeSettings,
    HvaeSizes,
)
from probseq_apps.recipes.diffusion import shorter
from probseq_apps.settings.common import Recipes

DIGITS_HVAE = "digits-hvae"


def digits_hvae() -> HvaeSettings:
    """The default: 8x8 digits enlarged to 16x16 and binarised.

    The largest blur damps digits of 16 pixels as the thesis' 20 damps those of 28 or 32.
    """
    return HvaeSettings(
        unet=UNetSettings(
            base_channels=16,
            channel_multipliers=(1, 2, 2),
            num_res_blocks=1,
            attention_sizes=(4,),
            num_groups=8,
        ),
        sizes=HvaeSizes(sigma_max=10.0),
        training=ModelTraining(
            steps=500,
            batch_size=32,
            learning_rate=2e-3,
            decay="cosine",
            warmup_steps=25,
            grad_clip=1.0,
            ema_decay=0.98,
        ),
        evaluation=HvaeEvaluationSettings(
            num_samples=1000, features=FeatureSettings(classifier_steps=150)
        ),
    )


def mnist_hvae() -> HvaeSettings:
    """Binarised MNIST padded to 32x32, in larger models than the default's."""
    small = digits_hvae()
    return replace(
        small,
        data="mnist",
        unet=replace(
            small.unet,
            base_channels=32,
            channel_multipliers=(1, 2, 2, 2),
            attention_sizes=(8,),
        ),
        sizes=HvaeSizes(),
        training=replace(small.training, steps=3000, learning_rate=1e-3, ema_decay=0.99),
    )


def table_5_1() -> HvaeSettings:
    """Binarised MNIST at its own 28x28 pixels, full size."""
    return HvaeSettings(
        data="mnist",
        reading=ReadingSettings(image_size=28),
        unet=UNetSettings(channel_multipliers=(1, 2, 2), attention_sizes=(14, 7)),
        training=ModelTraining(steps=100_000, batch_size=128, learning_rate=2e-4, grad_clip=1.0),
        machine=MachineSettings(precision="bf16"),
    )


def hvae_mnist_fast() -> HvaeSettings:
    """Binarised MNIST with 48 channels and 10,000 steps an arm."""
    full = table_5_1()
    return replace(
        full,
        unet=replace(full.unet, base_channels=48, num_groups=16),
        training=replace(full.training, steps=10_000, ema_decay=0.999, warmup_steps=500),
    )


_KNOWN: dict[str, Callable[[], HvaeSettings]] = {
    DIGITS_HVAE: digits_hvae,
    "mnist-hvae": mnist_hvae,
    "table-5.1": table_5_1,
    "hvae-mnist-fast": hvae_mnist_fast,
}


def _suiting(data: str) -> str:
    """Return the name of the recipe that suits a data set."""
    check_generation_name(data)
    return DIGITS_HVAE if data == "digits" else "mnist-hvae"


HVAE_RECIPES = Recipes(_KNOWN, DIGITS_HVAE, suits=_suiting, adapt=shorter)
