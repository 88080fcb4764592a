"""`probseq generate sample --model`: draws from a diffusion model or an HVAE."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiments.checks import unlike_defaults
from probseq_apps.experiments.diffusion_draw import draw_model
from probseq_apps.experiments.diffusion_model import open_diffusion
from probseq_apps.experiments.diffusion_settings import saved_diffusion_model
from probseq_apps.experiments.generate_sample import Samples
from probseq_apps.experiments.generate_settings import SampleSettings
from probseq_apps.experiments.hvae_model import draw_hvae, load_hvae_images, open_hvae
from probseq_apps.experiments.hvae_settings import saved_hvae_model
from probseq_apps.options import Options


def model_sampler(
    settings: SampleSettings, options: Options, device: torch.device
) -> tuple[str, Callable[[], Samples]]:
    """Read a trained model.

    Args:
        settings: the model and how to draw.
        options: tell where the images are, which the prior of an HVAE with heat consists of.
        device: where to draw.

    Returns:
        Name of the data that the model has learned, and what draws from it.

    Raises:
        ValueError: more steps are asked for than the model has, or the model has no such sampler.
        OSError: there is no model, its training isn't finished, or its images are missing.
    """
    folder = Path(settings.model)
    # As the run draws that the model lies in.
    seed = derive_seed(settings.seed, "samples")
    diffusion = saved_diffusion_model(folder)
    if diffusion is not None:
        settings.diffusion.check_steps(diffusion[1].diffusion_steps)
        model, _ = open_diffusion(folder, device=device)
        return diffusion[1].data, partial(
            draw_model, model, settings.num, settings.diffusion, seed=seed, device=device
        )
    hvae = saved_hvae_model(folder)
    if hvae is None:
        raise FileNotFoundError(
            "model must be a folder in models/ of `generate diffusion` or `generate hvae`, and "
            f"{folder} is none"
        )
    given = unlike_defaults(settings.diffusion)
    if given:
        raise ValueError(
            f"{given[0]} is for diffusion models, and {folder} holds an HVAE, whose levels are all "
            "taken: leave it out"
        )
    model, _ = open_hvae(folder, device=device)
    data = load_hvae_images(hvae[1], options)
    return hvae[1].data, partial(draw_hvae, model, data, settings.num, seed=seed, device=device)
