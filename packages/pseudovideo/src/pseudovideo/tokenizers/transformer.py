"""The encoder and the decoder: attention within slots of time, and across them."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from pseudovideo.layers import Block
from pseudovideo.spec import TokenizerConfig
from pseudovideo.tokenizers.patches import PatchStem, patchify, unpatchify

_POSITION_STD = 0.02


def _blocks(config: TokenizerConfig, depth: int) -> nn.ModuleList:
    """Return pre-norm blocks; what each adds starts smaller the more of them there are.

    Each of the 2·depth branches of an encoder or decoder starts with 1/√(2·depth) of its usual
    size, so that their sum starts about as large as one.
    """
    scale = (2 * (config.spatial_depth + config.temporal_depth)) ** -0.5
    blocks = nn.ModuleList()
    for _ in range(depth):
        block = Block(config.dim, config.num_heads, normalize=True)
        with torch.no_grad():
            for last in (block.attention.to_out, block.feedforward.outer):
                last.weight.mul_(scale)
                nn.init.zeros_(last.bias)
        blocks.append(block)
    return blocks


class SpatialTransformer(nn.Module):
    """Attention within each slot of time, with learned positions of rows and columns."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        _, height, width = config.grid.shape
        self.rows = nn.Parameter(torch.randn(height, 1, config.dim) * _POSITION_STD)
        self.columns = nn.Parameter(torch.randn(width, config.dim) * _POSITION_STD)
        self.blocks = _blocks(config, config.spatial_depth)

    def forward(self, x: Float[Tensor, "b t h w d"]) -> Float[Tensor, "b t h w d"]:
        """Attend over (h, w)."""
        b, _, h, _, _ = x.shape
        x = rearrange(x + self.rows + self.columns, "b t h w d -> (b t) (h w) d")
        for block in self.blocks:
            x = block(x)
        return rearrange(x, "(b t) (h w) d -> b t h w d", b=b, h=h)


class TemporalTransformer(nn.Module):
    """Attention across the slots of each place, with learned positions of the slots.

    If the settings are causal, a slot sees itself and the ones before only.
    """

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.causal = config.causal
        self.times = nn.Parameter(
            torch.randn(config.grid.shape[0], 1, 1, config.dim) * _POSITION_STD
        )
        self.blocks = _blocks(config, config.temporal_depth)

    def forward(self, x: Float[Tensor, "b t h w d"]) -> Float[Tensor, "b t h w d"]:
        """Attend over t."""
        b, _, h, _, _ = x.shape
        x = rearrange(x + self.times, "b t h w d -> (b h w) t d")
        for block in self.blocks:
            x = block(x, causal=self.causal)
        return rearrange(x, "(b h w) t d -> b t h w d", b=b, h=h)


class PatchEncoder(nn.Module):
    """Patches, spatial blocks, temporal blocks, a norm."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.patch = (config.temporal_patch, config.patch_size)
        patch_dim = config.temporal_patch * config.patch_size**2 * config.channels
        self.stem = PatchStem(patch_dim, config.dim, config.stem)
        self.spatial = SpatialTransformer(config)
        self.temporal = TemporalTransformer(config) if config.temporal_depth else nn.Identity()
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, videos: Float[Tensor, "b f c y x"]) -> Float[Tensor, "b t h w d"]:
        """Return f(x) of eq. 5.5, one vector a token."""
        x = self.stem(patchify(videos, *self.patch))
        return self.norm(self.temporal(self.spatial(x)))


class PatchDecoder(nn.Module):
    """The encoder mirrored: temporal blocks, spatial blocks, a norm, a linear map to pixels."""

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.patch = (config.temporal_patch, config.patch_size)
        patch_dim = config.temporal_patch * config.patch_size**2 * config.channels
        self.temporal = TemporalTransformer(config) if config.temporal_depth else nn.Identity()
        self.spatial = SpatialTransformer(config)
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, patch_dim)
        nn.init.zeros_(self.head.bias)

    def forward(self, codes: Float[Tensor, "b t h w d"]) -> Float[Tensor, "b f c y x"]:
        """Return pixels; nothing bounds them to −1..1."""
        x = self.spatial(self.temporal(codes))
        return unpatchify(self.head(self.norm(x)), *self.patch)
