"""The UNet of improved DDPM (Nichol & Dhariwal 2021), set up from diffusers' `UNet2DModel`.

With these settings diffusers' network computes what the authors' does, weight for weight: residual
blocks that the time scales and shifts, multi-head attention within the image at chosen sizes,
strided convolutions on the way down and nearest neighbours with a convolution on the way up. What
ends each residual block, each attention and the network is initialised with zeros as theirs.
"""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.errors import require
from pseudovideo.spec import UNetConfig


def build_unet(config: UNetConfig, *, in_channels: int, out_channels: int) -> nn.Module:
    """Return improved DDPM's UNet with fresh weights; its output is exactly 0, see `apply_unet`.

    Where the config has classes, each has a learned vector that is added to the embedding of the
    time, as improved DDPM and diffusers (`num_class_embeds`) do; also the token of none.
    `in_channels` are more than `config.channels` where something is told beside the image.

    Raises:
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
        num_class_embeds=config.num_tokens,
    )
    for module in unet.modules():
        if isinstance(module, diffusers.models.attention_processor.Attention):
            _set_heads(module, config.num_heads)
            zeroed(module.to_out[0])
            module.register_forward_hook(_lay_out)
        elif isinstance(module, diffusers.models.resnet.ResnetBlock2D):
            zeroed(module.conv2)
    zeroed(unet.conv_out)
    return unet


def apply_unet(
    unet: nn.Module,
    x: Float[Tensor, "b c h w"],
    times: Float[Tensor, " b"],
    labels: Int64[Tensor, " b"] | None = None,
) -> Float[Tensor, "b o h w"]:
    """Return the output of a UNet.

    Times are on the scale of 1,000; fractions are allowed. What is around the network, its input
    too, may need more digits than its weights have.
    """
    weight = next(unet.parameters())
    return unet(x.to(weight.dtype), times, class_labels=labels, return_dict=False)[0]


def attentions(unet: nn.Module) -> list[Any]:
    """Return attentions within images, diffusers' `Attention`, in the order of their use."""
    net: Any = unet
    blocks = (*net.down_blocks, net.mid_block, *net.up_blocks)
    return [attention for block in blocks for attention in getattr(block, "attentions", ())]


def _set_heads(attention: Any, num_heads: int) -> None:
    """Divide an attention's width anew; diffusers fixes the width of a head for all levels."""
    attention.heads = attention.sliceable_head_dim = num_heads
    # Only the processors that don't read the head's width off the tensors look at it.
    attention.scale = (attention.inner_dim // num_heads) ** -0.5


def _lay_out(attention: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    """Lay out an attention's output as its input, channels first or last, where gradients follow.

    Diffusers leaves the channels last, whatever the input has. Convolutions of channels-first
    weights would copy them, and then their gradients, in each step of a training. Without gradients
    outputs stay those of diffusers to the last bit.
    """
    if not output.requires_grad:
        return output
    hidden: Tensor = args[0]
    last = hidden.is_contiguous(memory_format=torch.channels_last) and not hidden.is_contiguous()
    form = torch.channels_last if last else torch.contiguous_format
    return output.contiguous(memory_format=form)


def zeroed(layer: Any) -> Any:
    """Return a layer whose weights and biases are set to 0."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
