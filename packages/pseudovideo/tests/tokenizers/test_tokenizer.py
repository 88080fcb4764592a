"""Tokenizers from end to end: tokens, frames, training, storage."""

from typing import Any

import pytest
import torch
from torch import Tensor

from probseq.pretrained import fingerprint
from pseudovideo.tokenizers import Tokenizer, TokenizerConfig, build_tokenizer


def small(num_frames: int, **settings: Any) -> TokenizerConfig:
    base: dict[str, Any] = {
        "num_frames": num_frames,
        "temporal_patch": 1 if num_frames == 1 else 2,
        "temporal_depth": 0 if num_frames == 1 else 1,
        "spatial_depth": 1,
        "image_size": 8,
        "channels": 1,
        "dim": 16,
        "num_heads": 2,
        "codebook_size": 16,
        "code_dim": 8,
    }
    return TokenizerConfig(**{**base, **settings})


def some_videos(n: int, config: TokenizerConfig) -> Tensor:
    size = config.image_size
    g = torch.Generator().manual_seed(1)
    return torch.rand(n, config.num_frames, config.channels, size, size, generator=g) * 2 - 1


def train(tokenizer: Tokenizer, videos: Tensor, steps: int) -> Tokenizer:
    optimizer = torch.optim.AdamW(tokenizer.parameters(), lr=3e-3)
    for _ in range(steps):
        out = tokenizer(videos)
        loss = (out.reconstruction - videos).square().mean() + out.commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return tokenizer.eval()


@pytest.fixture(params=[1, 4], ids=["image", "video"])
def trained(request: pytest.FixtureRequest) -> tuple[Tokenizer, Tensor]:
    torch.manual_seed(0)
    config = small(request.param)
    videos = some_videos(6, config)
    return train(build_tokenizer(config), videos, 3), videos


def test_every_parameter_gets_a_gradient() -> None:
    """A parameter without one would stop training on several devices."""
    for config in (small(1), small(4), small(4, stem="layernorm", causal=False)):
        torch.manual_seed(0)
        tokenizer = build_tokenizer(config)
        videos = some_videos(8, config)
        out = tokenizer(videos)
        ((out.reconstruction - videos).square().mean() + out.commitment).backward()
        for name, parameter in tokenizer.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_reconstruct_is_encode_then_decode_and_what_forward_shows_clamped(
    trained: tuple[Tokenizer, Tensor],
) -> None:
    tokenizer, videos = trained
    with torch.no_grad():
        out = tokenizer(videos)
    assert torch.equal(tokenizer.encode(videos), out.indices)
    assert torch.equal(tokenizer.decode(out.indices), tokenizer.reconstruct(videos))
    torch.testing.assert_close(
        tokenizer.reconstruct(videos), out.reconstruction.clamp(-1, 1), rtol=0, atol=1e-6
    )


def test_encoding_and_decoding_learn_nothing(trained: tuple[Tokenizer, Tensor]) -> None:
    tokenizer, videos = trained
    before = fingerprint(tokenizer.train())
    assert not tokenizer.reconstruct(videos).requires_grad
    assert fingerprint(tokenizer) == before
    tokenizer(videos)
    assert fingerprint(tokenizer) != before, "a training step moves the codebook"


@pytest.mark.slow
def test_a_training_step_is_one_graph_for_the_compiler(plain_calls: None) -> None:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(small(4))
    videos = some_videos(4, tokenizer.config)
    tokenizer(videos)
    assert torch._dynamo.explain(tokenizer)(videos).graph_break_count == 0


def shades(config: TokenizerConfig) -> Tensor:
    """Black, white, and two greys."""
    levels = torch.tensor([-1.0, 1.0, -0.25, 0.5])[:, None, None, None, None]
    return levels.expand(4, config.num_frames, 1, 8, 8).contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("num_frames", [1, 4])
def test_black_and_white_get_different_tokens_and_come_back(num_frames: int) -> None:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(small(num_frames))
    videos = shades(tokenizer.config)
    tokenizer(videos)
    # From the first batch on: the codebook starts from its inputs.
    tokens = tokenizer.eval().encode(videos)
    assert (tokens[0] != tokens[1]).all()
    train(tokenizer.train(), videos, 200)
    torch.testing.assert_close(tokenizer.reconstruct(videos), videos, rtol=0, atol=0.1)
