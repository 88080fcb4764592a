"""A perceptual distance between small or grey images as a loss."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

# Smallest height and width that the distance is given.
_MIN_SIZE = 32


class PerceptualLoss(nn.Module):
    """Mean of a distance that knows colour images of a certain size only.

    Grey images get three equal channels; images of fewer than 32 pixels are enlarged bilinearly:
    a network that halves its input five times (AlexNet at 16 pixels) has nothing left of them.
    Values are clamped to −1..1, as decoded images are, so that pixels outside have no gradient
    here; the squared error brings them back.

    The network of the distance is frozen and no part of this module's state: it moves along to
    devices and types, but it is in no checkpoint, no average and no optimizer, and stays in eval
    mode.

    Args:
        distance: takes images and references (b, 3, y, x) in −1..1 to a distance per image.
    """

    def __init__(self, distance: nn.Module) -> None:
        super().__init__()
        # A tuple hides it from `nn.Module`'s registration.
        self._distance = (distance.requires_grad_(False).eval(),)

    def forward(
        self, images: Float[Tensor, "b c y x"], references: Float[Tensor, "b c y x"]
    ) -> Float[Tensor, ""]:
        """Return the mean distance of a batch of images from their references."""
        (distance,) = self._distance
        return distance(self._fitted(images), self._fitted(references)).mean()

    def _fitted(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 3 v u"]:
        channels, *size = images.shape[1:]
        if channels not in (1, 3):
            raise ValueError(
                f"images must have 1 or 3 channels for a perceptual distance, got {channels}"
            )
        # Before they are enlarged, which mixes pixels.
        images = images.clamp(-1, 1)
        if min(size) < _MIN_SIZE:
            factor = _MIN_SIZE / min(size)
            wanted = [round(length * factor) for length in size]
            images = F.interpolate(images, wanted, mode="bilinear")
        return images.expand(-1, 3, -1, -1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PerceptualLoss":
        # What `.to`, `.cuda` and `.double` call.
        self._distance[0]._apply(fn, recurse)  # pyright: ignore[reportPrivateUsage]
        return super()._apply(fn, recurse)
