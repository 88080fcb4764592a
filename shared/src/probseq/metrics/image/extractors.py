"""Features of images for Fréchet distances and inception scores."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from probseq.checks import check_counts, check_sizes, check_whole
from probseq.metrics.image._images import check_images

_RANDOM_WIDTH, _RANDOM_CELLS = 16, 2
_WIDTH, _FEATURES = 32, 64


class ImageFeatures(NamedTuple):
    """Features of images, and class probabilities where the extractor has classes."""

    features: Float[Tensor, "n d"]  # one row for each image
    # Of K classes, rows that sum to 1; None from an extractor without classes
    probabilities: Float[Tensor, "n k"] | None


@runtime_checkable
class FeatureExtractor(Protocol):
    """A fixed function from images to features; a number means little without its name."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    @property
    def dimension(self) -> int:
        """Width d of the features."""
        ...

    def __call__(self, images: Float[Tensor, "n c h w"]) -> ImageFeatures:
        """Return features of images in −1..1."""
        ...


class FrozenExtractor(nn.Module):
    """A network whose weights take no gradient and which always stays in eval mode."""

    def __init__(self, name: str, dimension: int) -> None:
        super().__init__()
        check_counts(dimension=dimension)
        self.name, self.dimension = name, dimension

    def freeze(self) -> None:
        """Freeze the weights, once all layers are in place."""
        self.requires_grad_(False)
        self.eval()

    def checked(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Return images in the precision of the weights."""
        images = check_images("images", images)
        return images.to(next(self.parameters(), images).dtype)

    def train(self, mode: bool = True) -> "FrozenExtractor":
        """Stay in eval mode: batch norms and dropout would make features depend on the batch."""
        return super().train(False)


class ModuleFeatures(FrozenExtractor):
    """Any network that turns images (n, c, h, w) in −1..1 into features (n, dimension); frozen."""

    def __init__(self, module: nn.Module, *, name: str, dimension: int) -> None:
        super().__init__(name, dimension)
        self.module = module
        self.freeze()

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "n c h w"]) -> ImageFeatures:
        """Return features of a batch."""
        features = self.module(self.checked(images))
        if features.shape != (len(images), self.dimension):
            raise ValueError(
                f"module {self.name!r} must return shape (n, dimension)="
                f"({len(images)}, {self.dimension}), got {tuple(features.shape)}"
            )
        return ImageFeatures(features, None)


class ClassifierFeatures(ModuleFeatures):
    """A classifier of a trunk, whose outputs are the features, and a head, which gives logits."""

    def __init__(self, trunk: nn.Module, head: nn.Linear, *, name: str) -> None:
        super().__init__(trunk, name=name, dimension=head.in_features)
        self.head = head
        self.freeze()

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "n c h w"]) -> ImageFeatures:
        """Return features and class probabilities of a batch."""
        features = super().forward(images).features
        return ImageFeatures(features, self.head(features).softmax(dim=1))


class RandomConvolution(FrozenExtractor):
    """Two random convolutions, rectified and averaged over four quarters: features without data.

    Distances under it see brightness, contrast and local texture, and no meaning. The weights
    depend on the number of channels and the seed alone.
    """

    def __init__(self, channels: int, *, seed: int = 0) -> None:
        check_counts(channels=channels)
        check_whole(seed=seed)
        super().__init__("random convolution", _RANDOM_WIDTH * _RANDOM_CELLS**2)
        self.channels = channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, _RANDOM_WIDTH, 3, stride=2, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(_RANDOM_WIDTH, _RANDOM_WIDTH, 3, stride=2, padding=1, bias=False),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(_RANDOM_CELLS),
            nn.Flatten(),
        )
        generator = torch.Generator().manual_seed(seed)
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        self.freeze()

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "n c h w"]) -> ImageFeatures:
        """Return features of a batch."""
        images = self.checked(images)
        check_sizes("images", images, "n", self.channels, "h", "w")
        return ImageFeatures(self.layers(images), None)


def extract_features(
    extractor: FeatureExtractor,
    images: Float[Tensor, "n c h w"] | UInt8[Tensor, "n c h w"],
    *,
    batch_size: int = 256,
) -> ImageFeatures:
    """Return features, and probabilities if there are any, of many images, in batches; on the CPU.

    Images are floats in −1..1, or levels of 0..255 as uint8, and moved to the extractor's device.
    """
    check_counts(batch_size=batch_size)
    if len(images) == 0:
        raise ValueError("images must hold at least one image, got none")
    device = _device(extractor)
    batches = [extractor(levels_to_unit(batch.to(device))) for batch in images.split(batch_size)]
    probabilities = [b.probabilities.cpu() for b in batches if b.probabilities is not None]
    features = torch.cat([batch.features.cpu() for batch in batches])
    return ImageFeatures(features, torch.cat(probabilities) if probabilities else None)


def levels_to_unit(images: Tensor) -> Tensor:
    """Return levels of 0..255 as floats in −1..1; floats stay."""
    return images.float() / 127.5 - 1.0 if images.dtype == torch.uint8 else images


def _device(extractor: FeatureExtractor) -> torch.device | None:
    if not isinstance(extractor, nn.Module):
        return None
    tensors: Iterator[Tensor] = chain(extractor.parameters(), extractor.buffers())
    first = next(tensors, None)
    return None if first is None else first.device


class SmallClassifier(nn.Module):
    """Three strided convolutions, a layer of 64 features, and one of logits; for any size.

    Once it is trained, ``ClassifierFeatures(model.trunk, model.head)`` gives features. The weights
    are those of a seed; the global random generator is left as it was.
    """

    def __init__(self, channels: int, num_classes: int, *, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.trunk = nn.Sequential(
                *_convolution(channels, _WIDTH, stride=1),
                *_convolution(_WIDTH, 2 * _WIDTH, stride=2),
                *_convolution(2 * _WIDTH, 2 * _WIDTH, stride=2),
                nn.AdaptiveAvgPool2d(4),
                nn.Flatten(),
                nn.Linear(32 * _WIDTH, _FEATURES),
                nn.GELU(),
            )
            self.head = nn.Linear(_FEATURES, num_classes)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k"]:
        """Return the logits of images in −1..1."""
        return self.head(self.trunk(images))


def _convolution(inputs: int, outputs: int, *, stride: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.GELU(),
    )
