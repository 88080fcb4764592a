"""Models that a folder or a repository of the hub holds, and what must be so before they sample."""

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from probseq.pretrained import Model, Pretrained, read_head

# Classes that a folder may hold; imported when one does.
_MODELS = (
    "VQVAE",
    "CViViT",
    "AutoregressivePrior",
    "MaskedPrior",
    "ImageDiffusion",
    "VideoDiffusion",
    "HeatHVAE",
    "LearnedEncoderHVAE",
)


def check_weights(model: nn.Module) -> None:
    """Refuse a model whose weights are NaN or infinite; waits for the device once."""
    weights = {name: value for name, value in model.named_parameters() if not value.is_meta}
    if not weights or torch.stack([value.isfinite().all() for value in weights.values()]).all():
        return
    name = next(name for name, value in weights.items() if not value.isfinite().all())
    raise ValueError(f"model must have finite weights, got NaN or infinity in {name}")


@contextmanager
def eval_mode(model: nn.Module) -> Generator[None]:
    """Set eval mode for a while; weights must be finite, else nothing could be drawn of them."""
    check_weights(model)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def load_pretrained(folder: Path | str, kind: type[Model] = Pretrained) -> Model:
    """Return the model of a folder, or of a repository of the hub, which must be of a kind.

    It is in eval mode on the CPU.

    Raises:
        FileNotFoundError: a file is missing.
        DamagedFileError: a file was altered.
        MissingExtraError: diffusers is not installed, and the model has a UNet.
    """
    folder, head = read_head(folder)
    name = head["class"]
    model_class = getattr(import_module("pseudovideo"), name) if name in _MODELS else None
    if model_class is None or not issubclass(model_class, kind):
        wanted = f"one of {', '.join(_MODELS)}" if kind is Pretrained else f"a {kind.__name__}"
        raise ValueError(f"{folder} must hold {wanted}, got a {name}")
    return model_class.from_pretrained(folder)
