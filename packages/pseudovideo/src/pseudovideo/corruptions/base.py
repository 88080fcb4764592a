"""What a corruption is: frames that are linear in the image, plus Gaussian noise."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pseudovideo.spec import PseudoVideoConfig

Images = Float[Tensor, "b c h w"]
Frames = Float[Tensor, "b steps c h w"]
"""The frames before the image, the most corrupted first."""
Operators = tuple[Float[Tensor, "..."], ...]
"""What A_t is made of, float64 where it is made; of each kind other tensors."""
Hidden = Float[Tensor, "b draws"] | None
"""Standard normal numbers of each image that A_t depends on; None where A_t is fixed."""


class ImageShape(NamedTuple):
    """Sizes of an image (c, h, w)."""

    channels: int
    height: int
    width: int


class Corruption:
    """A kind of pseudo video: z_t = A_t x + Σ_k L_tk ε_k, for the frames before the image x.

    A_t is linear and known, given a hidden draw where there is one (which patches are shown); ε_k
    is white noise of the image's shape. A kind is a subclass, entered in `kinds.KINDS` and in
    `spec.CorruptionKind`; methods have T−1 frames, the most corrupted first.
    """

    def operators(self, config: PseudoVideoConfig, shape: ImageShape) -> Operators:
        """Return what `signal` is made of; it is kept for images of one shape.

        Raises:
            ValueError: there are no such videos of such images.
        """
        raise NotImplementedError

    def signal(self, images: Images, operators: Operators, hidden: Hidden) -> Frames:
        """Return A_t x.

        Args:
            images: any values.
            operators: of this kind, on the images' device and in their precision.
            hidden: `num_hidden` numbers of each image.
        """
        raise NotImplementedError

    def num_hidden(self, config: PseudoVideoConfig, shape: ImageShape) -> int:
        """Return how many numbers are drawn for the A_t of an image; 0 where they are fixed."""
        return 0

    def mixing(self, config: PseudoVideoConfig) -> Float64[Tensor, "steps steps"] | None:
        """Return L; None without noise."""
        return None


class Repeat(Corruption):
    """The image again: A_t = I."""

    def operators(self, config: PseudoVideoConfig, shape: ImageShape) -> Operators:
        """Return a number for each frame."""
        return (torch.ones(config.num_frames - 1, dtype=torch.float64),)

    def signal(self, images: Images, operators: Operators, hidden: Hidden) -> Frames:
        """Return the images, without a copy."""
        return images[:, None].expand(-1, len(operators[0]), -1, -1, -1)
