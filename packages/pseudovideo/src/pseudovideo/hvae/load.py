"""From a folder to the HVAE that it holds."""

from pathlib import Path

from pseudovideo.hvae.base import HVAE
from pseudovideo.hvae.heat_hvae import HeatHVAE
from pseudovideo.hvae.learned_hvae import LearnedEncoderHVAE
from pseudovideo.pretrained import saved_class


def load_hvae(folder: Path | str) -> HVAE:
    """The HVAE that a folder holds, of either class, in eval mode on the CPU.

    Args:
        folder: what `save_pretrained` wrote.

    Raises:
        FileNotFoundError: a file is missing; the message names it.
        ValueError: the folder holds something else, or is damaged.
    """
    classes: dict[str, type[HVAE]] = {
        kind.__name__: kind for kind in (HeatHVAE, LearnedEncoderHVAE)
    }
    name = saved_class(folder)
    if name not in classes:
        raise ValueError(f"{folder} must hold a {' or '.join(classes)}, got a {name}")
    return classes[name].from_pretrained(folder)
