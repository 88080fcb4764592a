"""Patches: every pixel at its place; stems: what they keep and what they erase."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudovideo.tokenizers.patches import PatchStem, patchify, unpatchify


def test_a_patch_holds_its_pixels_in_the_order_frame_row_column_channel() -> None:
    videos = torch.arange(2 * 4 * 3 * 6 * 4).view(2, 4, 3, 6, 4).float()
    patches = patchify(videos, 2, 2)
    assert patches.shape == (2, 2, 3, 2, 24)
    for b, t, h, w in torch.cartesian_prod(*map(torch.arange, patches.shape[:4])).tolist():
        expected = [
            videos[b, 2 * t + f, c, 2 * h + y, 2 * w + x].item()
            for f in range(2)
            for y in range(2)
            for x in range(2)
            for c in range(3)
        ]
        assert patches[b, t, h, w].tolist() == expected


@settings(max_examples=25, deadline=None)
@given(st.tuples(*(st.integers(1, 3) for _ in range(7))))
def test_unpatchify_is_the_inverse_of_patchify(sizes: tuple[int, ...]) -> None:
    b, t, h, w, c, f, p = sizes
    videos = torch.randn(b, t * f, c, h * p, w * p)
    patches = patchify(videos, f, p)
    assert patches.shape == (b, t, h, w, f * p * p * c)
    assert torch.equal(unpatchify(patches, f, p), videos)


def test_the_plain_stem_is_a_linear_map_of_the_raw_values() -> None:
    torch.manual_seed(0)
    stem = PatchStem(32, 8, "plain").double()
    patches = torch.randn(5, 32, dtype=torch.float64)
    expected = patches @ stem.linear.weight.T + stem.linear.bias
    torch.testing.assert_close(stem(patches), expected, rtol=0, atol=1e-14)
    # What it returns for brighter, stronger patches is brighter and stronger.
    zero = stem(torch.zeros(1, 32, dtype=torch.float64))
    torch.testing.assert_close(stem(3 * patches) - zero, 3 * (stem(patches) - zero))


def test_the_layernorm_stem_is_norm_linear_norm() -> None:
    torch.manual_seed(0)
    stem = PatchStem(32, 8, "layernorm").double()
    patches = torch.randn(5, 32, dtype=torch.float64)

    def norm(x: torch.Tensor) -> torch.Tensor:
        spread = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return (x - x.mean(-1, keepdim=True)) / (spread + 1e-5).sqrt()

    expected = norm(norm(patches) @ stem.linear.weight.T + stem.linear.bias)
    torch.testing.assert_close(stem(patches), expected, rtol=0, atol=1e-12)
