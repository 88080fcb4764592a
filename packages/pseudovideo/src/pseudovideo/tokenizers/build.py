"""From settings or a folder to the class that they are of."""

from pathlib import Path

from pseudovideo.pretrained import saved_class
from pseudovideo.tokenizers.config import TokenizerConfig
from pseudovideo.tokenizers.cvivit import CViViT
from pseudovideo.tokenizers.tokenizer import Tokenizer
from pseudovideo.tokenizers.vqvae import VQVAE


def build_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """A new tokenizer: `VQVAE` for one frame, `CViViT` for several.

    Args:
        config: sizes and settings.

    Raises:
        ValueError: the settings fit neither.
    """
    return VQVAE(config) if config.num_frames == 1 else CViViT(config)


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """The tokenizer that a folder holds, of either class, in eval mode on the CPU.

    Args:
        folder: what `save_pretrained` wrote.

    Raises:
        FileNotFoundError: a file is missing; the message names it.
        ValueError: the folder holds something else, or is damaged.
    """
    classes = {kind.__name__: kind for kind in (VQVAE, CViViT)}
    name = saved_class(folder)
    if name not in classes:
        raise ValueError(f"{folder} must hold a {' or '.join(classes)}, got a {name}")
    return classes[name].from_pretrained(folder)
