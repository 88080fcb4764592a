"""Who sees whom in encoder and decoder; the causal leak is 0, not small."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pseudovideo.tokenizers import CViViT, TokenizerConfig, TokenizerOutput
from pseudovideo.tokenizers.transformer import (
    PatchDecoder,
    PatchEncoder,
    SpatialTransformer,
    TemporalTransformer,
)

SLOTS = 4


def small(**settings: Any) -> TokenizerConfig:
    base: dict[str, Any] = {
        "num_frames": 2 * SLOTS,
        "image_size": 8,
        "channels": 1,
        "dim": 16,
        "num_heads": 2,
        "spatial_depth": 2,
        "temporal_depth": 2,
        "codebook_size": 8,
        "code_dim": 4,
    }
    return TokenizerConfig(**{**base, **settings})


def reach(module: torch.nn.Module, x: Tensor, out: tuple[Any, ...]) -> Tensor:
    """Where a random projection of part of the output has a gradient: true or false per input.

    A norm instead of the projection could hide a leak behind gradients that cancel.
    """
    x = x.clone().requires_grad_()
    y = module(x)
    if isinstance(y, TokenizerOutput):
        y = y.reconstruction
    part = y[out]
    (part * torch.randn(part.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert x.grad is not None
    return x.grad != 0


def by_slot(frames: Tensor) -> Tensor:
    """(b, T, ...) to whether any value of each slot is true."""
    return frames.flatten(2).any(-1).view(len(frames), SLOTS, -1).any(-1)


def test_spatial_attention_mixes_places_and_no_slots_or_videos() -> None:
    torch.manual_seed(0)
    spatial = SpatialTransformer(small())
    seen = reach(spatial, torch.randn(2, SLOTS, 2, 2, 16), (0, 1, 0, 0)).all(-1)
    expected = torch.zeros(2, SLOTS, 2, 2, dtype=torch.bool)
    expected[0, 1] = True
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("causal", [True, False])
def test_temporal_attention_mixes_slots_and_no_places_or_videos(causal: bool) -> None:
    torch.manual_seed(0)
    temporal = TemporalTransformer(small(causal=causal))
    seen = reach(temporal, torch.randn(2, SLOTS, 2, 2, 16), (1, 1, 0, 1)).any(-1)
    expected = torch.zeros(2, SLOTS, 2, 2, dtype=torch.bool)
    expected[1, : 2 if causal else SLOTS, 0, 1] = True
    assert torch.equal(seen, expected)


def test_positions_tell_rows_columns_and_slots_apart() -> None:
    torch.manual_seed(0)
    same = torch.ones(1, SLOTS, 2, 2, 16)
    spatial = SpatialTransformer(small())(same)
    assert torch.unique(spatial[0, 0].flatten(0, 1), dim=0).shape[0] == 4
    torch.testing.assert_close(spatial[:, 0], spatial[:, 1])
    temporal = TemporalTransformer(small(causal=False))(same)
    assert torch.unique(temporal[0, :, 0, 0], dim=0).shape[0] == SLOTS
    torch.testing.assert_close(temporal[:, :, 0, 0], temporal[:, :, 1, 1])


@pytest.mark.parametrize("training", [True, False])
def test_the_whole_tokenizer_leaks_nothing_from_later_frames(training: bool) -> None:
    torch.manual_seed(0)
    tokenizer = CViViT(small())
    videos = torch.rand(4, 2 * SLOTS, 1, 8, 8) * 2 - 1
    tokenizer(videos)
    tokenizer.train(training)
    for slot in range(SLOTS):
        seen = by_slot(reach(tokenizer, videos, (slice(None), slice(2 * slot + 2))))
        assert seen.tolist() == 4 * [[i <= slot for i in range(SLOTS)]]


def test_full_attention_lets_the_first_slot_see_the_last_frame() -> None:
    torch.manual_seed(0)
    config = small(causal=False)
    videos = torch.rand(1, 2 * SLOTS, 1, 8, 8) * 2 - 1
    assert by_slot(reach(PatchEncoder(config), videos, (slice(None), slice(1)))).all()
    codes = torch.randn(1, SLOTS, 2, 2, 16)
    assert by_slot(reach(PatchDecoder(config), codes, (slice(None), slice(1)))).all()
