"""Settings of `probseq online vae`; importable without torch."""

from collections.abc import Callable
from dataclasses import replace

from probseq_apps.data.names import unknown_name_message
from probseq_apps.experiments.online_vae_settings import (
    ChannelSettings,
    OnlineVaeSettings,
    VaeSettings,
    VaeTrainingSettings,
)


def moving_digits_small() -> OnlineVaeSettings:
    """The default: a digit on a canvas, five tasks of 40 frames, all methods in about a minute."""
    return OnlineVaeSettings()


def era5(num_inducing: int) -> OnlineVaeSettings:
    """Figures 4.12 and 4.13: 17 variables of ERA5 by the hour, 10 tasks of 186 hours.

    The data as a CSV file with a column `time` and the variables in the others. The thesis says
    nothing of the width of the networks, of the batch, of the kernels, and of the weight of
    consolidation: these are ours.
    """
    return OnlineVaeSettings(
        data="csv:era5.csv",
        stream=ChannelSettings(num_tasks=10, task_length=186),
        model=VaeSettings(num_inducing=num_inducing, num_latents=20, lengthscale=0.1, noise=0.1),
        training=VaeTrainingSettings(
            epochs=20, batch_size=16, learning_rate=5e-3, prediction_samples=100
        ),
    )


ONLINE_VAE_RECIPES: dict[str, Callable[[], OnlineVaeSettings]] = {
    "moving-digits-small": moving_digits_small,
    "ohsvgp-era5-50": lambda: era5(50),
    "ohsvgp-era5-100": lambda: era5(100),
}


def load_online_vae_recipe(name: str) -> OnlineVaeSettings:
    """Settings of a recipe.

    Raises:
        ValueError: the name is unknown; the message names the nearest known one.
    """
    if name not in ONLINE_VAE_RECIPES:
        raise ValueError(unknown_name_message("recipe", name, ONLINE_VAE_RECIPES))
    return ONLINE_VAE_RECIPES[name]()


def for_channels(recipe: OnlineVaeSettings, data: str) -> OnlineVaeSettings:
    """A recipe's settings with another data set."""
    return recipe if data == recipe.data else replace(recipe, data=data)
