"""The UNet of improved DDPM (Nichol & Dhariwal 2021), set up from diffusers' `UNet2DModel`.

With these settings diffusers' network computes what the authors' does, weight for weight: residual
blocks that the time scales and shifts, multi-head attention within the image at chosen sizes,
strided convolutions on the way down and nearest neighbours with a convolution on the way up. What
ends each residual block, each attention and the network is initialised with zeros as theirs.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.errors import require

# Those of 32, 64 and 256 pixels are the authors'; the others halve the image as far as it goes.
_MULTIPLIERS: dict[int, tuple[int, ...]] = {
    16: (1, 2, 2),
    28: (1, 2, 2),
    32: (1, 2, 2, 2),
    64: (1, 2, 3, 4),
    256: (1, 1, 2, 2, 4, 4),
}


@dataclass(frozen=True, kw_only=True)
class UNetConfig:
    """Sizes of a UNet; the defaults are improved DDPM's for 32 by 32 colour images.

    Attributes:
        image_size: height and width in pixels.
        channels: 1 for grey images, 3 for colour.
        base_channels: width of the first level; even.
        channel_multipliers: width of each level in units of `base_channels`; each level but the
            last halves the image. See `channel_multipliers_for`.
        num_res_blocks: residual blocks of a level on the way down; one more on the way up.
        attention_sizes: heights of the feature maps that have attention, besides the middle.
        num_heads: heads of every attention, whatever its width.
        num_groups: groups of every group normalisation.
        dropout: before the last convolution of each residual block.
    """

    image_size: int = 32
    channels: int = 3
    base_channels: int = 128
    channel_multipliers: tuple[int, ...] = (1, 2, 2, 2)
    num_res_blocks: int = 2
    attention_sizes: tuple[int, ...] = (16, 8)
    num_heads: int = 4
    num_groups: int = 32
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what makes no UNet.

        Raises:
            ValueError: names the setting.
        """
        counts = "image_size channels base_channels num_res_blocks num_heads num_groups"
        for name in counts.split():
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        multipliers = self.channel_multipliers
        # Lists would come back from storage as tuples; floats would equal sizes and pass for them.
        if not (multipliers and _whole_numbers(multipliers)):
            raise ValueError(
                "channel_multipliers must be a tuple of one or more integers of at least 1, got "
                f"{multipliers}"
            )
        if not _whole_numbers(self.attention_sizes):
            raise ValueError(
                f"attention_sizes must be a tuple of integers, () for none, got "
                f"{self.attention_sizes}"
            )
        halvings = len(multipliers) - 1
        if self.image_size % 2**halvings:
            raise ValueError(
                f"image_size must be a multiple of {2**halvings}, since a UNet of "
                f"{len(multipliers)} levels halves it {halvings} times, got {self.image_size}"
            )
        unknown = set(self.attention_sizes) - set(self.sizes)
        if unknown:
            raise ValueError(
                f"attention_sizes must be among the sizes of the feature maps {self.sizes}, "
                f"got {self.attention_sizes}"
            )
        if self.base_channels % 2 or self.base_channels % self.num_groups:
            raise ValueError(
                f"base_channels must be even and a multiple of num_groups={self.num_groups}, "
                f"got {self.base_channels}"
            )
        if self.sizes[-1] == 1 and self.widths[-1] == self.num_groups:
            raise ValueError(
                f"num_groups must be below the {self.widths[-1]} channels of the last level, whose "
                f"maps are single pixels: groups of one number are 0 once normalised, got "
                f"{self.num_groups}"
            )
        with_attention = {
            width
            for width, size in zip(self.widths, self.sizes, strict=True)
            if size in self.attention_sizes
        }
        for width in sorted(with_attention | {self.widths[-1]}):
            if width % self.num_heads:
                raise ValueError(
                    "num_heads must divide the width of every level with attention and of the "
                    f"last, of which one is {width}, got {self.num_heads}"
                )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(self.base_channels * m for m in self.channel_multipliers)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Height of the feature maps of each level."""
        return tuple(self.image_size >> level for level in range(len(self.channel_multipliers)))

    @property
    def time_width(self) -> int:
        """Width e of the time's embedding."""
        return 4 * self.base_channels


def channel_multipliers_for(image_size: int) -> tuple[int, ...]:
    """Widths of the levels for images of this size.

    Args:
        image_size: height and width in pixels.

    Returns:
        Improved DDPM's at 32, 64 and 256 pixels; our own choice at 16 and 28.

    Raises:
        ValueError: there is no usual choice; pass `channel_multipliers` yourself.
    """
    if image_size not in _MULTIPLIERS:
        raise ValueError(
            f"image_size must be one of {', '.join(map(str, _MULTIPLIERS))} to have usual "
            f"channel multipliers, got {image_size}: set channel_multipliers"
        )
    return _MULTIPLIERS[image_size]


def build_unet(config: UNetConfig, *, in_channels: int, out_channels: int) -> nn.Module:
    """Improved DDPM's UNet with fresh weights; its output is exactly 0.

    Args:
        config: sizes.
        in_channels: of the input; more than `config.channels` where something is told beside it.
        out_channels: of the output, 2c for noise and variance.

    Returns:
        diffusers' `UNet2DModel`, see `apply_unet`.

    Raises:
        ValueError: `in_channels` or `out_channels` is below 1.
        MissingExtraError: diffusers is not installed.
    """
    check_counts(in_channels=in_channels, out_channels=out_channels)
    diffusers = require("diffusers", extra="diffusion", distribution="pseudovideo")
    attends = [size in config.attention_sizes for size in config.sizes]
    unet: Any = diffusers.UNet2DModel(
        sample_size=config.image_size,
        in_channels=in_channels,
        out_channels=out_channels,
        block_out_channels=config.widths,
        layers_per_block=config.num_res_blocks,
        down_block_types=tuple("AttnDownBlock2D" if a else "DownBlock2D" for a in attends),
        up_block_types=tuple("AttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attends)),
        # Divides every width; how many heads there are is settled below.
        attention_head_dim=config.base_channels,
        resnet_time_scale_shift="scale_shift",
        norm_num_groups=config.num_groups,
        attn_norm_num_groups=config.num_groups,
        norm_eps=1e-5,
        flip_sin_to_cos=True,
        freq_shift=0,
        downsample_padding=1,
        dropout=config.dropout,
    )
    for module in unet.modules():
        if isinstance(module, diffusers.models.attention_processor.Attention):
            _set_heads(module, config.num_heads)
            _zero(module.to_out[0])
        elif isinstance(module, diffusers.models.resnet.ResnetBlock2D):
            _zero(module.conv2)
    _zero(unet.conv_out)
    return unet


def apply_unet(
    unet: nn.Module, x: Float[Tensor, "b c h w"], times: Float[Tensor, " b"]
) -> Float[Tensor, "b o h w"]:
    """Return the output of a UNet.

    Args:
        unet: of `build_unet`.
        x: input, in any precision: what is around the network may need more digits than its
            weights have.
        times: steps on the scale of 1,000; fractions are allowed.
    """
    return unet(x.to(next(unet.parameters()).dtype), times, return_dict=False)[0]


def attentions(unet: nn.Module) -> list[Any]:
    """Attentions within images, diffusers' `Attention`, in the order of their use.

    Args:
        unet: of `build_unet`.
    """
    net: Any = unet
    blocks = (*net.down_blocks, net.mid_block, *net.up_blocks)
    return [attention for block in blocks for attention in getattr(block, "attentions", ())]


def _whole_numbers(values: Any) -> bool:
    """Whether a setting is a tuple of integers of at least 1."""
    return type(values) is tuple and all(type(v) is int and v >= 1 for v in values)


def _set_heads(attention: Any, num_heads: int) -> None:
    """Divide an attention's width anew; diffusers fixes the width of a head for all levels."""
    attention.heads = attention.sliceable_head_dim = num_heads
    # Only the processors that don't read the head's width off the tensors look at it.
    attention.scale = (attention.inner_dim // num_heads) ** -0.5


def _zero(layer: Any) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
