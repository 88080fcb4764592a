"""Bad input from outside: every refusal names what was expected and what came."""

import pytest
import torch
from torch import Tensor

from pseudovideo.tokenizers import CViViT, Tokenizer, TokenizerConfig

CONFIG = TokenizerConfig(
    num_frames=4,
    image_size=8,
    dim=16,
    num_heads=2,
    spatial_depth=1,
    temporal_depth=1,
    codebook_size=8,
    code_dim=4,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    torch.manual_seed(0)
    model = CViViT(CONFIG)
    model(torch.rand(2, 4, 3, 8, 8) * 2 - 1)
    return model.eval()


SHAPES = [
    (torch.zeros(2, 3, 8, 8), r"shape \(2, 3, 8, 8\): images are videos of one frame"),
    (torch.zeros(2, 3, 3, 8, 8), r"=\(b, 4, 3, 8, 8\), got torch.float32 of shape \(2, 3, 3,"),
    (torch.zeros(2, 4, 3, 8, 12), r"=\(b, 4, 3, 8, 8\), got .* shape \(2, 4, 3, 8, 12\)"),
    (torch.zeros(2, 4, 3, 16, 16), r"=\(b, 4, 3, 8, 8\), got .* shape \(2, 4, 3, 16, 16\)"),
    (torch.zeros(2, 4, 1, 8, 8), r"=\(b, 4, 3, 8, 8\), got .* shape \(2, 4, 1, 8, 8\)"),
    (torch.zeros(2, 4, 3, 8, 8, dtype=torch.uint8), r"must be floats.*uint8.*/ 127\.5 - 1"),
]


@pytest.mark.parametrize(("videos", "message"), SHAPES)
@pytest.mark.parametrize("call", ["encode", "reconstruct", "forward"])
def test_videos_of_another_shape_or_type_are_refused(
    call: str, videos: Tensor, message: str, tokenizer: Tokenizer, plain_calls: None
) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(tokenizer, call)(videos)


def video(frame: int, value: float) -> Tensor:
    videos = torch.zeros(1, 4, 3, 8, 8)
    videos[0, frame, 2, 7, 7] = value
    return videos


@pytest.mark.parametrize(
    ("videos", "message"),
    [
        (video(-1, 1.01), r"the image, must be finite, .* in -1\.\.1, got 0 to 1\.01"),
        (video(-1, -1.01), r"the image, must be finite, .* in -1\.\.1, got -1\.01 to 0"),
        (video(-1, 255.0), "the image, must be finite, .* got 0 to 255"),
        (video(-1, float("nan")), "the image, must be finite, .* got nan"),
        (video(0, 255.0), r"videos must .* values in -1\.\.1 but for noise, got 0 to 255"),
        (video(0, -11.0), "videos must .* but for noise, got -11 to 0"),
        (video(1, float("nan")), "videos must .* but for noise, got nan"),
        (video(1, float("inf")), "videos must .* but for noise, .*inf"),
        (torch.zeros(0, 4, 3, 8, 8), r"videos must be floats .* shape \(0, 4, 3, 8, 8\)"),
    ],
)
@pytest.mark.parametrize("call", ["encode", "reconstruct"])
def test_values_that_are_no_pixels_are_refused(
    call: str, videos: Tensor, message: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(tokenizer, call)(videos)


def test_rounding_and_noise_beyond_the_range_are_taken(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(video(-1, 1.0005)).shape == (1, 2, 2, 2)
    assert tokenizer.encode(video(0, 2.5)).shape == (1, 2, 2, 2)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.zeros(1, 2, 2, dtype=torch.int64), r"\(b, 2, 2, 2\), got \(1, 2, 2\)"),
        (torch.zeros(1, 3, 2, 2, dtype=torch.int64), r"\(b, 2, 2, 2\), got \(1, 3, 2, 2\)"),
        (torch.full((1, 2, 2, 2), 8), "indices must be from 0 to 7, got 8 to 8"),
        (torch.full((1, 2, 2, 2), -1), "indices must be from 0 to 7, got -1 to -1"),
        (torch.zeros(1, 2, 2, 2, dtype=torch.int16), "indices must be int64, got torch.int16"),
        (torch.zeros(1, 2, 2, 2), "indices must be int64, got torch.float32"),
        (torch.zeros(0, 2, 2, 2, dtype=torch.int64), "indices must not be empty"),
    ],
)
def test_tokens_of_another_grid_or_codebook_are_refused(
    indices: Tensor, message: str, tokenizer: Tokenizer, plain_calls: None
) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer.decode(indices)
