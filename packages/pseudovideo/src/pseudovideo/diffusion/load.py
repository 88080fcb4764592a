"""From a folder to the diffusion model that it holds."""

from pathlib import Path

from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.pretrained import saved_class


def load_diffusion(folder: Path | str) -> ImageDiffusion | VideoDiffusion:
    """The diffusion model of a folder, of images or of videos, in eval mode on the CPU.

    Args:
        folder: what `save_pretrained` wrote.

    Raises:
        FileNotFoundError: a file is missing; the message names it.
        ValueError: the folder holds something else, or is damaged.
        MissingExtraError: diffusers is not installed.
    """
    classes = {kind.__name__: kind for kind in (ImageDiffusion, VideoDiffusion)}
    name = saved_class(folder)
    if name not in classes:
        raise ValueError(f"{folder} must hold a {' or '.join(classes)}, got a {name}")
    return classes[name].from_pretrained(folder)
