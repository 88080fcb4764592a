"""Features of whole videos from I3D, the network behind the Fréchet video distance."""

import hashlib
import io
import math
import pickle
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.metrics.image._images import as_colour, check_images
from probseq.metrics.image.extractors import FrozenExtractor, levels_to_unit

_SIDE = 224
# Three halvings of time, rounded up, must leave the two frames that the last layer averages.
_FEWEST_FRAMES = 9
# By the names of the authors' code: channels in, of the 1×1×1 branch, of the two branches of 3×3×3
# (before and after), of the pooled branch.
_MIXED = {
    "Mixed_3b": (192, 64, (96, 128), (16, 32), 32),
    "Mixed_3c": (256, 128, (128, 192), (32, 96), 64),
    "Mixed_4b": (480, 192, (96, 208), (16, 48), 64),
    "Mixed_4c": (512, 160, (112, 224), (24, 64), 64),
    "Mixed_4d": (512, 128, (128, 256), (24, 64), 64),
    "Mixed_4e": (512, 112, (144, 288), (32, 64), 64),
    "Mixed_4f": (528, 256, (160, 320), (32, 128), 128),
    "Mixed_5b": (832, 256, (160, 320), (32, 128), 128),
    "Mixed_5c": (832, 384, (192, 384), (48, 128), 128),
}
_WIDTH, _HEAD = 1024, "logits.conv3d.weight"
# What torch raises of files that hold something else, are cut off, or empty.
_FOREIGN = (
    pickle.UnpicklingError,
    RuntimeError,
    TypeError,
    ValueError,
    EOFError,
    LookupError,
    AttributeError,
)


class I3DFeatures(FrozenExtractor):
    """The inflated Inception network for videos (Carreira & Zisserman 2017) of the FVD.

    A Fréchet distance of its logits is the Fréchet video distance (Unterthiner et al. 2018). Frames
    are resized bilinearly to 224 × 224; grey ones become colour. The network needs nine frames:
    each frame of a shorter video is shown equally often, until there are so many.

    Batch norms add 1e-3 to the variance, as those do that the published weights were trained with;
    conversions of this network with 1e-5 return slightly other logits.

    Args:
        weights: file with a state dict by the names of pytorch-i3d, such as
            i3d_pretrained_400.pt (VideoGPT's conversion of the weights of FVD) or rgb_imagenet.pt.

    Attributes:
        sha256: hash of the file. The name has its first digits: distances with other weights are
            other distances.
        dimension: number of classes of the file, the width of the logits.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file does not hold weights of this network, or more than weights.
    """

    def __init__(self, weights: Path | str) -> None:
        weights = Path(weights)
        if not weights.is_file():
            raise FileNotFoundError(
                f"weights must be the file of I3D's weights, and {weights} is not there: "
                "i3d_pretrained_400.pt, for one"
            )
        content = weights.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        try:
            tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            network = _I3D(len(tensors[_HEAD]))
            network.load_state_dict(tensors)
        except _FOREIGN as error:
            raise ValueError(
                "weights must hold the tensors of I3D by the names of pytorch-i3d and nothing "
                f"else, and {weights} does not: {' '.join(str(error).split())[:200]}"
            ) from error
        super().__init__(f"i3d-{sha256[:8]}", len(tensors[_HEAD]))
        self.sha256, self.network = sha256, network
        self.freeze()

    @torch.no_grad()
    def forward(self, videos: Float[Tensor, "n t c h w"]) -> Float[Tensor, "n k"]:
        """Return the logits of a batch, averaged over time.

        Args:
            videos: floats in −1..1, grey or colour, of at least one frame.

        Raises:
            ValueError: bad videos.
        """
        if videos.ndim != 5 or not videos.numel():
            raise ValueError(
                f"videos must have shape (n, t, c, h, w), none of them 0, got {tuple(videos.shape)}"
            )
        frames = as_colour(check_images("videos", videos.flatten(0, 1)))
        frames = frames.to(next(self.parameters()).dtype)
        frames = F.interpolate(frames, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
        frames = frames.unflatten(0, videos.shape[:2])
        repeats = math.ceil(_FEWEST_FRAMES / videos.shape[1])
        return self.network(frames.repeat_interleave(repeats, dim=1).transpose(1, 2))

    def of(
        self,
        videos: Float[Tensor, "n t c h w"] | UInt8[Tensor, "n t c h w"],
        *,
        batch_size: int = 8,
    ) -> Float[Tensor, "n k"]:
        """Return the features of many videos, in batches, on the CPU.

        Args:
            videos: floats in −1..1, or levels of 0..255 as uint8.
            batch_size: videos at a time.

        Raises:
            ValueError: no video, a batch size below 1, or bad videos.
        """
        check_counts(batch_size=batch_size)
        device = next(self.parameters()).device
        # No video is a batch, which is refused.
        batches = videos.split(batch_size) if len(videos) else (videos,)
        return torch.cat([self(levels_to_unit(batch.to(device))).cpu() for batch in batches])


class _I3D(nn.Module):
    """The network, its parts by the names of the authors' code (Carreira & Zisserman, figure 3)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.Conv3d_1a_7x7 = _Unit(3, 64, 7, stride=2)
        self.Conv3d_2b_1x1 = _Unit(64, 64, 1)
        self.Conv3d_2c_3x3 = _Unit(64, 192, 3)
        for name, sizes in _MIXED.items():
            self.add_module(name, _Mixed(*sizes))
        self.logits = nn.ModuleDict({"conv3d": nn.Conv3d(_WIDTH, classes, 1)})

    def forward(self, videos: Float[Tensor, "n 3 t 224 224"]) -> Float[Tensor, "n k"]:
        x = _pool(self.Conv3d_1a_7x7(videos), (1, 3, 3), (1, 2, 2))
        x = _pool(self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x)), (1, 3, 3), (1, 2, 2))
        for name in _MIXED:
            if name == "Mixed_4b":
                x = _pool(x, (3, 3, 3), (2, 2, 2))
            elif name == "Mixed_5b":
                x = _pool(x, (2, 2, 2), (2, 2, 2))
            x = self.get_submodule(name)(x)
        # Two frames at a time, all pixels; then the mean over time.
        x = F.avg_pool3d(x, (2, 7, 7), stride=1)
        return self.logits["conv3d"](x).mean(dim=(2, 3, 4))


class _Mixed(nn.Module):
    def __init__(
        self,
        inputs: int,
        single: int,
        first: tuple[int, int],
        second: tuple[int, int],
        pooled: int,
    ) -> None:
        super().__init__()
        self.b0 = _Unit(inputs, single, 1)
        self.b1a, self.b1b = _Unit(inputs, first[0], 1), _Unit(*first, 3)
        self.b2a, self.b2b = _Unit(inputs, second[0], 1), _Unit(*second, 3)
        self.b3b = _Unit(inputs, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.b3b(_pool(x, (3, 3, 3), (1, 1, 1)))
        return torch.cat([self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), pooled], dim=1)


class _Unit(nn.Module):
    """Convolution, batch norm, rectifier."""

    def __init__(self, inputs: int, outputs: int, side: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(inputs, outputs, side, stride=stride, bias=False)
        self.bn = nn.BatchNorm3d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv3d(_pad(x, self.conv3d.kernel_size, self.conv3d.stride))).relu()


def _pool(x: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Return the largest entries; zeros around them win nowhere, since none is negative."""
    return F.max_pool3d(_pad(x, size, stride), size, stride)


def _pad(x: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Pad time, height and width with zeros, so that ⌈length / stride⌉ remain; odd ones behind."""
    pads: list[int] = []
    for length, window, step in zip(x.shape[:1:-1], size[::-1], stride[::-1], strict=True):
        missing = max((math.ceil(length / step) - 1) * step + window - length, 0)
        pads += [missing // 2, missing - missing // 2]
    return F.pad(x, pads)
