"""The kinds of pseudo videos: a new one is a class, an entry here, and its name in `spec`."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float64
from torch import Tensor

from pseudovideo.corruptions.base import (
    Corruption,
    Frames,
    Hidden,
    Images,
    ImageShape,
    Operators,
    Repeat,
)
from pseudovideo.corruptions.noise import NOISES, Noise
from pseudovideo.corruptions.pointwise import Colour, PatchMask
from pseudovideo.corruptions.separable import Blur, HighOrderBlur, LowPass, Pyramid
from pseudovideo.spec import CorruptionKind, PseudoVideoConfig


@dataclass(frozen=True)
class Mixture(Corruption):
    """Noise around the frames of another corruption: z_t = a_t·A_t x + (L ε)_t.

    Args:
        frames: has A.
        noise: has a and L.
    """

    frames: Corruption
    noise: Noise

    def operators(self, config: PseudoVideoConfig, shape: ImageShape) -> Operators:
        """Return a, then the operators of A."""
        return (*self.noise.operators(config, shape), *self.frames.operators(config, shape))

    def signal(self, images: Images, operators: Operators, hidden: Hidden) -> Frames:
        """Return a_t·A_t x."""
        factors, *others = operators
        return factors[:, None, None, None] * self.frames.signal(images, tuple(others), hidden)

    def num_hidden(self, config: PseudoVideoConfig, shape: ImageShape) -> int:
        """Return those of A."""
        return self.frames.num_hidden(config, shape)

    def mixing(self, config: PseudoVideoConfig) -> Float64[Tensor, "steps steps"]:
        """Return L."""
        return self.noise.mixing(config)


KINDS: dict[CorruptionKind, Corruption] = {
    "blur": Blur(),
    "high-order-blur": HighOrderBlur(),
    **NOISES,
    "repeat": Repeat(),
    "pyramid": Pyramid(),
    "low-pass": LowPass(),
    "colour": Colour(),
    "patch-mask": PatchMask(),
    "blur-noise": Mixture(Blur(), Noise()),
}
"""The corruption that each kind of a configuration names."""


@lru_cache(maxsize=32)
def cached_operators(
    config: PseudoVideoConfig, shape: ImageShape, device: torch.device, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Return operators and L of a config's kind, cached on the device.

    Raises:
        ValueError: there are no such videos of images of this shape.
    """
    kind = KINDS[config.kind]
    # What is made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        operators = tuple(operator.to(device, dtype) for operator in kind.operators(config, shape))
        mixing = kind.mixing(config)
        return operators, None if mixing is None else mixing.to(device, dtype)
