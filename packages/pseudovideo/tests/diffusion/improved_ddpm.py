"""Improved DDPM's UNet written anew, for the tests: every line from its description.

Nichol & Dhariwal (2021), appendix A, and the names and layout of the weights that they published.
Attention is a loop over heads, group normalisation and the time's embedding are written out.
"""

import math

import torch
from torch import nn


class WrittenNorm(nn.Module):
    """Each group of channels of an image has mean 0 and variance 1 before weight and bias."""

    def __init__(self, groups, channels):
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        grouped = x.flatten(2).unflatten(1, (self.groups, -1)).flatten(2)
        centred = grouped - grouped.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        normed = scaled.reshape(x.shape)
        shape = (-1, *[1] * (x.ndim - 2))
        return normed * self.weight.view(shape) + self.bias.view(shape)


class Residual(nn.Module):
    """Two convolutions; the time scales and shifts what the second norm gives."""

    def __init__(self, before, after, time, groups, dropout):
        super().__init__()
        self.in_layers = nn.Sequential(
            WrittenNorm(groups, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(time, 2 * after))
        self.out_layers = nn.Sequential(
            WrittenNorm(groups, after),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Conv2d(after, after, 3, padding=1),
        )
        if before != after:
            self.skip_connection = nn.Conv2d(before, after, 1)

    def forward(self, x, time):
        kept = self.skip_connection(x) if hasattr(self, "skip_connection") else x
        norm, *rest = self.out_layers
        middle = norm(self.in_layers(x))
        moved = self.emb_layers(time)[:, :, None, None]
        half = middle.shape[1]
        middle = middle + middle * moved[:, :half] + moved[:, half:]
        for layer in rest:
            middle = layer(middle)
        return kept + middle


class SelfAttention(nn.Module):
    """A head has its own three blocks of the map's rows: query, key, value, then the next head."""

    def __init__(self, channels, heads, groups):
        super().__init__()
        self.heads = heads
        self.norm = WrittenNorm(groups, channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = nn.Conv1d(channels, channels, 1)

    def forward(self, x, time):
        places = self.norm(x).flatten(2)
        width = x.shape[1] // self.heads
        found = []
        for rows in self.qkv(places).split(3 * width, dim=1):
            query, key, value = rows.split(width, dim=1)
            scores = query.transpose(1, 2) @ key / math.sqrt(width)
            found.append(value @ scores.exp().div(scores.exp().sum(-1, True)).transpose(1, 2))
        return x + self.proj_out(torch.cat(found, dim=1)).reshape(x.shape)


class Down(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x, time):
        return self.op(x)


class Up(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x, time):
        return self.conv(x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3))


class First(nn.Conv2d):
    def forward(self, x, time):
        return super().forward(x)


class ImprovedDDPM(nn.Module):
    """The network of a `UNetConfig`, with the names of the published weights."""

    def __init__(self, config, in_channels, out_channels):
        super().__init__()
        base, groups = config.base_channels, config.num_groups
        time = 4 * base

        def residual(before, after):
            return Residual(before, after, time, groups, config.dropout)

        def attention(channels, size):
            if size not in config.attention_sizes:
                return []
            return [SelfAttention(channels, config.num_heads, groups)]

        self.base = base
        self.time_embed = nn.Sequential(nn.Linear(base, time), nn.SiLU(), nn.Linear(time, time))
        widths = [base * multiplier for multiplier in config.channel_multipliers]
        downs, kept, channels = [[First(in_channels, base, 3, padding=1)]], [base], base
        size = config.image_size
        for level, width in enumerate(widths):
            for _ in range(config.num_res_blocks):
                downs.append([residual(channels, width), *attention(width, size)])
                channels = width
                kept.append(channels)
            if level + 1 < len(widths):
                downs.append([Down(channels)])
                kept.append(channels)
                size //= 2
        middle = [
            residual(channels, channels),
            SelfAttention(channels, config.num_heads, groups),
            residual(channels, channels),
        ]
        ups = []
        for level in reversed(range(len(widths))):
            for place in range(config.num_res_blocks + 1):
                width = widths[level]
                layers = [residual(channels + kept.pop(), width), *attention(width, size)]
                channels = width
                if place == config.num_res_blocks and level > 0:
                    layers.append(Up(channels))
                    size *= 2
                ups.append(layers)
        self.input_blocks = nn.ModuleList(map(nn.ModuleList, downs))
        self.middle_block = nn.ModuleList(middle)
        self.output_blocks = nn.ModuleList(map(nn.ModuleList, ups))
        self.out = nn.Sequential(
            WrittenNorm(groups, base), nn.SiLU(), nn.Conv2d(base, out_channels, 3, padding=1)
        )

    def forward(self, x, times):
        half = self.base // 2
        # In float32 as everywhere: times are angles there, whatever the weights' precision.
        rates = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        angles = times.float()[:, None] * rates
        time = self.time_embed(torch.cat([angles.cos(), angles.sin()], dim=1).to(x.dtype))
        kept = []
        for block in self.input_blocks:
            for layer in block:
                x = layer(x, time)
            kept.append(x)
        for layer in self.middle_block:
            x = layer(x, time)
        for block in self.output_blocks:
            x = torch.cat([x, kept.pop()], dim=1)
            for layer in block:
                x = layer(x, time)
        return self.out(x)


def randomised(model, seed):
    """Weights of which none is 0, large enough for attention that is far from even."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.ndim > 1:
                parameter.copy_(noise * (2.0 / parameter[0].numel()) ** 0.5)
            else:
                parameter.copy_(0.3 * noise + (not name.endswith("bias")))
    return model


def published_weights(unet, heads):
    """The weights of a UNet of diffusers under the published names, for two-way comparison."""
    state = {name: value.detach().clone() for name, value in unet.state_dict().items()}
    found = {}

    def take(target, source):
        for part in ("weight", "bias"):
            if f"{source}.{part}" in state:
                found[f"{target}.{part}"] = state.pop(f"{source}.{part}")

    def residual(target, source):
        for new, old in (
            ("in_layers.0", "norm1"),
            ("in_layers.2", "conv1"),
            ("emb_layers.1", "time_emb_proj"),
            ("out_layers.0", "norm2"),
            ("out_layers.3", "conv2"),
            ("skip_connection", "conv_shortcut"),
        ):
            take(f"{target}.{new}", f"{source}.{old}")

    def attention(target, source):
        take(f"{target}.norm", f"{source}.group_norm")
        for part in ("weight", "bias"):
            rows = []
            parts = [state.pop(f"{source}.to_{letter}.{part}") for letter in "qkv"]
            width = len(parts[0]) // heads
            for head in range(heads):
                rows += [mapped[head * width : (head + 1) * width] for mapped in parts]
            stacked = torch.cat(rows)
            found[f"{target}.qkv.{part}"] = stacked[..., None] if part == "weight" else stacked
        weight = state.pop(f"{source}.to_out.0.weight")
        found[f"{target}.proj_out.weight"] = weight[..., None]
        found[f"{target}.proj_out.bias"] = state.pop(f"{source}.to_out.0.bias")

    def layers(blocks, block, source, places):
        for place in range(len(block.resnets)):
            target = f"{blocks}.{next(places)}"
            residual(f"{target}.0", f"{source}.resnets.{place}")
            if f"{source}.attentions.{place}.to_q.weight" in state:
                attention(f"{target}.1", f"{source}.attentions.{place}")
        return target

    take("time_embed.0", "time_embedding.linear_1")
    take("time_embed.2", "time_embedding.linear_2")
    take("input_blocks.0.0", "conv_in")
    places = iter(range(1, 10**3))
    for level, block in enumerate(unet.down_blocks):
        layers("input_blocks", block, f"down_blocks.{level}", places)
        if block.downsamplers:
            take(f"input_blocks.{next(places)}.0.op", f"down_blocks.{level}.downsamplers.0.conv")
    residual("middle_block.0", "mid_block.resnets.0")
    attention("middle_block.1", "mid_block.attentions.0")
    residual("middle_block.2", "mid_block.resnets.1")
    places = iter(range(10**3))
    for level, block in enumerate(unet.up_blocks):
        last = layers("output_blocks", block, f"up_blocks.{level}", places)
        if block.upsamplers:
            slot = 2 if f"{last}.1.qkv.weight" in found else 1
            take(f"{last}.{slot}.conv", f"up_blocks.{level}.upsamplers.0.conv")
    take("out.0", "conv_norm_out")
    take("out.2", "conv_out")
    assert not state, sorted(state)
    return found
