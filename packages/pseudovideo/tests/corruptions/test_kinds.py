"""The kinds beyond the thesis against other ways to make their frames, and what they refuse."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.fft import dctn, idctn

from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos


def images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1


def config(kind, num_frames=4, **changes):
    return PseudoVideoConfig(kind=kind, num_frames=num_frames, **changes)


def test_pyramids_are_means_of_blocks():
    x = images(3, 2, 16, 8)
    videos = pseudo_videos(x, config("pyramid"))
    for frame, block in enumerate((8, 4, 2)):
        small = F.avg_pool2d(x, block)
        expected = F.interpolate(small, scale_factor=block, mode="nearest")
        torch.testing.assert_close(videos[:, frame], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("num_frames", "kept"), [(4, (2, 3, 5)), (3, (2, 4))])
def test_low_pass_frames_are_scipys_transform_cut(num_frames, kept):
    x = images(2, 1, 6, 6)
    videos = pseudo_videos(x, config("low-pass", num_frames))
    for frame, count in enumerate(kept):
        spectrum = dctn(x.numpy(), axes=(2, 3))
        spectrum[:, :, count:] = spectrum[:, :, :, count:] = 0
        expected = torch.from_numpy(idctn(spectrum, axes=(2, 3)))
        torch.testing.assert_close(videos[:, frame], expected, rtol=0, atol=1e-14)


def test_colours_fade_to_their_mean():
    x = images(2, 3, 4, 5)
    videos = pseudo_videos(x, config("colour"))
    grey = x.mean(1, keepdim=True)
    torch.testing.assert_close(videos[:, 0], grey.expand_as(x))
    for frame in range(4):
        torch.testing.assert_close(videos[:, frame], grey + frame / 3 * (x - grey))


def test_masks_are_nested_and_show_their_share_of_whole_patches():
    x = images(400, 2, 8, 12).abs() + 0.1
    videos = pseudo_videos(x.clamp(max=1), config("patch-mask", 4, mask_patch=2), seed=3)
    shown = videos != 0
    # ⌊24·t/4⌋ of 24 patches of four pixels in two channels.
    assert (shown.flatten(2).sum(-1) == torch.tensor([48, 96, 144, 192])).all()
    for frame in range(3):
        assert torch.equal(shown[:, frame] & shown[:, frame + 1], shown[:, frame])
        assert torch.equal(videos[:, frame][shown[:, frame]], videos[:, -1][shown[:, frame]])
    patches = shown.unflatten(-1, (6, 2)).unflatten(-3, (4, 2))
    assert torch.equal(patches, patches[..., :1, :, :1].expand_as(patches))
    # All patches are as likely: 100 of 400 videos show each first, give or take 5 deviations.
    counts = patches[:, 0, 0, :, 0, :, 0].sum(0)
    assert (counts - 100).abs().max() < 5 * math.sqrt(400 * 0.25 * 0.75)


@pytest.mark.parametrize("kind", ["pyramid", "low-pass"])
def test_projections_are_nested(kind):
    """A frame's own corruption changes nothing, and an earlier one gives the earlier frame."""
    x = 0.3 * images(2, 1, 8, 8)  # frames stay within -1..1
    videos = pseudo_videos(x, config(kind))
    for frame in range(3):
        again = pseudo_videos(videos[:, frame], config(kind))[:, : frame + 1]
        torch.testing.assert_close(again, videos[:, : frame + 1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["pyramid", "low-pass", "colour", "patch-mask", "blur-noise"])
def test_frames_with_noise_of_their_own_differ_by_that_noise_only(kind):
    """The mean over seeds is the signal: A_t x, of masks the share t/T of it."""
    x = images(1, 3, 8, 8)
    index = torch.arange(4000)
    videos = pseudo_videos(x.expand(4000, -1, -1, -1), config(kind, beta_max=0.1), index=index)
    spread = videos.std(0) / math.sqrt(4000)
    if kind == "patch-mask":
        expected = x[0] * torch.tensor([1, 2, 3, 4]).view(4, 1, 1, 1) / 4
    elif kind == "blur-noise":
        betas = torch.linspace(1e-4, 0.1, 3, dtype=torch.float64)
        kept = torch.cat([(1 - betas).cumprod(0).sqrt().flip(0), torch.ones(1).double()])
        expected = kept.view(4, 1, 1, 1) * pseudo_videos(x, config("blur"))[0]
    else:
        expected = videos[0]
    assert ((videos.mean(0) - expected).abs() <= 5.5 * spread + 1e-12).all()


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        (
            (1, 28, 28),
            config("pyramid"),
            "must halve 3 times .*num_frames=4, got 28 pixels, which allow at most num_frames=3",
        ),
        ((1, 8, 5), config("pyramid", 2), "got 5 pixels, which allow at most num_frames=1"),
        ((1, 8, 3), config("low-pass"), "at least num_frames=4 pixels on each side .*, got 3"),
        ((1, 8, 8), config("colour"), "must have colours for config.kind=colour, got 1 channel"),
        ((1, 8, 10), config("patch-mask"), "of mask_patch=4 .* config.kind=patch-mask, got 8x10"),
        ((1, 4, 8), config("patch-mask"), "at least num_frames=4 patches .*, got 2 in 4x8"),
        ((1, 8, 5), config("blur-noise"), "at least 6 pixels on each side"),
    ],
)
def test_sizes_without_such_videos_are_refused(shape, settings, message):
    with pytest.raises(ValueError, match=message):
        pseudo_videos(torch.zeros(2, *shape), settings)


@pytest.mark.usefixtures("plain_calls")
def test_patches_of_no_pixels_are_refused():
    with pytest.raises(ValueError, match="mask_patch must be a whole number of at least 1, got 0"):
        config("patch-mask", mask_patch=0)
