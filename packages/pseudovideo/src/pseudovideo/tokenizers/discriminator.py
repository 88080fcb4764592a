"""A small convolutional discriminator for images of 8 to 128 pixels.

NaN and infinity in a tensor reach the result.
"""

from math import sqrt

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from probseq.checks import check_counts, check_sizes
from probseq.transformers.protocol import check_dtype

_SMALLEST_MAP = 4
# Of rectified features below 0.
_SLOPE = 0.2


class Discriminator(nn.Module):
    """Tell real patches of an image from decoded ones: a residual network, as in StyleGAN2.

    Blocks halve the image, of `image_size` pixels, down to a map of 4×4 to 7×7, of which each place
    gives a logit; its field of view is most of a small image. The first layer has `width` channels,
    doubled by each block, up to four times as many. No statistics of the batch: the logits of an
    image don't depend on the others, and real and fake images can go through together.

    Example:
        >>> import torch
        >>> Discriminator(3, 32)(torch.randn(8, 3, 32, 32)).shape
        torch.Size([8, 4, 4])
    """

    def __init__(self, channels: int, image_size: int, width: int = 64) -> None:
        super().__init__()
        check_counts(channels=channels, image_size=image_size, width=width)
        if image_size < 2 * _SMALLEST_MAP:
            raise ValueError(f"image_size must be at least {2 * _SMALLEST_MAP}, got {image_size}")
        self.image_size = image_size
        blocks: list[nn.Module] = []
        current, size = width, image_size
        while size >= 2 * _SMALLEST_MAP:
            wider = min(2 * current, 4 * width)
            blocks.append(_Block(current, wider))
            current, size = wider, size // 2
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Conv2d(current, current, 3, padding=1)
        self.logits = nn.Conv2d(current, 1, 1)
        # Signals keep their size through the layers, as StyleGAN2's do; torch's own initial
        # weights halve them at each, and the image is lost among the biases.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=_SLOPE)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b h w"]:
        """Return logits of patches of images, above 0 for real ones."""
        weight = self.enter.weight
        check_sizes("images", images, "b", weight.shape[1], self.image_size, self.image_size)
        check_dtype("images", images, weight, half=True)
        features = self.blocks(_rectify(self.enter(images)))
        return self.logits(_rectify(self.head(features))).flatten(1, 2)


class _Block(nn.Module):
    """Two convolutions with an average over 2×2 in between, beside a shortcut."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, wider, 3, padding=1)
        self.shortcut = nn.Conv2d(width, wider, 1, bias=False)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d h w"]:
        """Halve height and width."""
        halved = F.avg_pool2d(_rectify(self.first(x)), 2)
        out = _rectify(self.second(halved)) + self.shortcut(F.avg_pool2d(x, 2))
        return out / sqrt(2)


def _rectify(x: Tensor) -> Tensor:
    return F.leaky_relu(x, _SLOPE)
