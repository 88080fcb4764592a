"""Settings of tokenizers: what is refused when they are made, and the paper's columns."""

from typing import Any

import pytest
import torch

from pseudovideo.layers import Block
from pseudovideo.spec import TokenizerSpec
from pseudovideo.tokenizers import VQVAE, CViViT, TokenizerConfig, build_tokenizer

SMALL = {"image_size": 8, "dim": 16, "num_heads": 2, "spatial_depth": 1, "temporal_depth": 1}
IMAGE = {"num_frames": 1, "temporal_patch": 1, "temporal_depth": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_frames": 7}, "num_frames must be a multiple of temporal_patch=2, got 7"),
        ({"num_frames": 1}, "got 1: an image takes temporal_patch=1"),
        ({"image_size": 30}, "image_size must be a multiple of patch_size=4, got 30"),
        ({"patch_size": 5}, "image_size must be a multiple of patch_size=5, got 32"),
        ({"dim": 100}, "num_heads must divide dim=100, got 8"),
    ],
)
def test_a_setting_that_makes_no_tokenizer_is_refused_by_name(
    settings: dict[str, Any], message: str, plain_calls: None
) -> None:
    with pytest.raises(ValueError, match=message):
        TokenizerConfig(**settings)


@pytest.mark.parametrize("frames", [3, 5])
def test_a_cvivit_of_an_odd_number_of_frames_is_refused_for_any_patch(frames: int) -> None:
    config = TokenizerConfig(num_frames=frames, temporal_patch=1, **SMALL)
    with pytest.raises(ValueError, match=f"num_frames must be even.*got {frames}"):
        CViViT(config)


def test_settings_of_images_and_of_videos_are_not_mixed_up() -> None:
    image = TokenizerConfig(**{**SMALL, **IMAGE})
    video = TokenizerConfig(num_frames=4, **SMALL)
    with pytest.raises(ValueError, match=r"num_frames must be even.*images need a VQVAE"):
        CViViT(image)
    with pytest.raises(ValueError, match=r"num_frames must be 1 in a VQVAE.*need a CViViT"):
        VQVAE(video)
    with pytest.raises(ValueError, match="temporal_depth must be 0 in a VQVAE, got 1"):
        VQVAE(TokenizerConfig(**{**SMALL, **IMAGE, "temporal_depth": 1}))
    with pytest.raises(ValueError, match="temporal_depth must be at least 1 in a CViViT, got 0"):
        CViViT(TokenizerConfig(num_frames=4, **{**SMALL, "temporal_depth": 0}))
    assert type(build_tokenizer(image)) is VQVAE
    assert type(build_tokenizer(video)) is CViViT


@pytest.mark.parametrize(
    ("size", "frames", "grid", "bits"),
    [
        (32, 1, (1, 8, 8), 640),
        (32, 8, (4, 8, 8), 2560),
        (32, 18, (9, 8, 8), 5760),
        (64, 1, (1, 16, 16), 2560),
        (64, 8, (4, 16, 16), 10240),
        (64, 18, (9, 16, 16), 23040),
    ],
)
def test_the_papers_tokenizers_have_its_grids_and_sizes(
    size: int, frames: int, grid: tuple[int, int, int], bits: int
) -> None:
    config = TokenizerSpec().for_images(size, 3, num_frames=frames)
    assert config.grid.shape == grid
    assert config.grid.bits == bits
    with torch.device("meta"):
        tokenizer = build_tokenizer(config)
        block = sum(p.numel() for p in Block(512, 8, normalize=True).parameters())
    patch = 3 * 16 * (1 if frames == 1 else 2)
    positions = 2 * grid[1] * 512 + (0 if frames == 1 else grid[0] * 512)
    expected = (
        16 * block  # 8 layers in the encoder and 8 in the decoder
        + 2 * positions
        + 2 * 2 * 512  # the last norm of each
        + (patch * 512 + 512)  # stem
        + (512 * patch + patch)  # pixels
        + (512 * 32 + 32)  # to the codes
        + (32 * 512 + 512)  # and back
    )
    assert sum(p.numel() for p in tokenizer.parameters()) == expected
    # About 8·512² for the GEGLU and 4·512² for the attention of each layer.
    assert abs(expected / (16 * 12 * 512**2) - 1) < 0.01
