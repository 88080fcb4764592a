"""Settings of `probseq online vae`; importable without torch."""

from probseq_apps.experiments.online_vae_settings import (
    ChannelSettings,
    OnlineVaeSettings,
    VaeSettings,
    VaeTrainingSettings,
)
from probseq_apps.settings.common import Recipes


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


ONLINE_VAE_RECIPES = Recipes(
    {
        "moving-digits-small": moving_digits_small,
        "ohsvgp-era5-50": lambda: era5(50),
        "ohsvgp-era5-100": lambda: era5(100),
    },
    "moving-digits-small",
    suits=lambda data: "moving-digits-small",
)
