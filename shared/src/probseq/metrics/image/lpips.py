"""Learned perceptual image patch similarity (Zhang et al. 2018); extra ``image``."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_choice, check_same_shape
from probseq.errors import require
from probseq.metrics.image._images import as_colour, check_images

Trunk = Literal["vgg", "alex", "squeeze"]

# The least side that leaves each layer of a trunk a pixel.
_LEAST_SIDE: dict[str, int] = {"vgg": 16, "alex": 31, "squeeze": 17}


class LPIPS(nn.Module):
    """LPIPS 0.1: weighted distances of a classifier's unit-normed features; lower is more alike.

    Trunk and linear heads are frozen and stay in eval mode after `train()` too (the heads have
    dropout); gradients reach the images. The heads come with the library, the weights of the trunk
    (`vgg` for losses, `alex` for scores, or `squeeze`) from a file of torchvision's.

    Raises:
        FileNotFoundError: the file is not there.
        MissingExtraError: lpips is not installed.
    """

    def __init__(self, net: Trunk = "vgg", *, weights: Path | str) -> None:
        super().__init__()
        check_choice("net", net, Trunk)
        state = _read(net, Path(weights))
        library = require("lpips", extra="image", distribution="probseq")
        self.network = _random_network(library, net)
        _load_trunk(self.network, state, weights)
        self.net = net
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "LPIPS":
        """Stay in eval mode."""
        return super().train(False)

    def forward(
        self, images: Float[Tensor, "n c h w"], references: Float[Tensor, "n c h w"]
    ) -> Float[Tensor, " n"]:
        """Return the distance of each image from its reference.

        Both are floats in −1..1 of one shape, grey or colour; clamp reconstructions.
        """
        check_same_shape(references=references, images=images)
        images, references = check_images("images", images), check_images("references", references)
        least = _LEAST_SIDE[self.net]
        if min(images.shape[-2:]) < least:
            raise ValueError(
                f"images must be at least {least} pixels high and wide for the trunk {self.net}, "
                f"got {tuple(images.shape[-2:])}: resize them"
            )
        dtype = next(self.parameters()).dtype
        first, second = (as_colour(each).to(dtype) for each in (images, references))
        return self.network(first, second).reshape(len(images))


def _random_network(library: ModuleType, net: str) -> nn.Module:
    """Return the library's module with its heads and a random trunk; other draws are untouched."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # The library calls torchvision by arguments that are out of date.
        warnings.filterwarnings("ignore", category=UserWarning, module="torchvision")
        torch.default_generator.manual_seed(0)
        return library.LPIPS(pretrained=True, net=net, pnet_rand=True, verbose=False)


def _read(net: str, file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(
            f"weights must be a file with weights of the trunk {net}, and {file} is not there"
        )
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"weights must hold tensors and nothing else, and {file} does not: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if not isinstance(state, Mapping):
        raise ValueError(
            f"weights must be a file of named tensors, and {file} holds {type(state).__name__}"
        )
    return state


def _load_trunk(network: Any, state: Mapping[str, Any], weights: Path | str) -> None:
    """Fill the trunk: its `slice2.5.weight` is torchvision's `features.5.weight`."""
    names = {name: f"features.{name.partition('.')[2]}" for name in network.net.state_dict()}
    missing = sorted(set(names.values()) - state.keys())
    if missing:
        raise ValueError(
            f"weights must hold torchvision's names of this trunk, and {weights} "
            f"lacks {missing[0]} and {len(missing) - 1} more"
        )
    try:
        network.net.load_state_dict({name: state[published] for name, published in names.items()})
    except RuntimeError as error:
        raise ValueError(
            f"weights must have this trunk's shapes, and {weights} has others: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error
