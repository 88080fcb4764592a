"""Whole videos: what they are made of, what they depend on, and what is refused."""

import math
from dataclasses import asdict

import pytest
import torch
import torch.nn.functional as F

from pseudovideo.corruptions import CORRUPTIONS, PseudoVideoConfig, pseudo_videos

RANDOM = [kind for kind in CORRUPTIONS if kind.endswith("noise")]
FIXED = [kind for kind in CORRUPTIONS if kind not in RANDOM]


def images(b=5, c=2, height=16, width=32, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(b, c, height, width, generator=generator, dtype=dtype) * 2 - 1


def config(kind, num_frames=5):
    return PseudoVideoConfig(kind=kind, num_frames=num_frames)


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_last_frame_is_the_image_bit_for_bit(kind, dtype):
    x = images(dtype=torch.float64).to(dtype)
    videos = pseudo_videos(x, config(kind))
    assert videos.shape == (5, 5, 2, 16, 32)
    assert videos.dtype == dtype
    assert torch.equal(videos[:, -1], x)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_one_frame_is_the_image_alone(kind):
    x = images()
    assert torch.equal(pseudo_videos(x, config(kind, num_frames=1)), x[:, None])


@pytest.mark.parametrize("kind", [k for k in CORRUPTIONS if k != "repeat"])
def test_frames_are_further_from_the_image_the_earlier_they_are(kind, digits):
    x = digits[:200].expand(-1, 2, -1, -1) * torch.tensor([1.0, 0.5])[:, None, None]
    videos = pseudo_videos(x, config(kind, num_frames=8))
    distances = (videos - x[:, None]).square().mean((0, 2, 3, 4))
    assert (distances[:-1] > distances[1:]).all()


def test_repeat_has_identical_frames():
    x = images()
    assert torch.equal(pseudo_videos(x, config("repeat", 3)), torch.stack([x, x, x], dim=1))


@pytest.mark.parametrize("high_order", [False, True])
def test_blur_videos_are_convolutions_of_colour_images(high_order):
    """The slow way in torch's own operations: padding, a two-dimensional kernel, step by step."""
    x, frames = images(b=2, c=3, height=9, width=12), []
    frames.append(x)
    shifts = torch.arange(-5, 6, dtype=torch.float64)
    for i in range(4):
        taps = (-(shifts**2) / (2 * torch.tensor(0.05 * i, dtype=torch.float64).exp() ** 2)).exp()
        kernel = torch.outer(taps, taps) / taps.sum() ** 2
        source = torch.stack(frames).mean(0) if high_order else frames[-1]
        padded = F.pad(source, (5, 5, 5, 5), mode="reflect")
        frames.append(F.conv2d(padded, kernel.expand(3, 1, 11, 11), groups=3))
    videos = pseudo_videos(x, config("high-order-blur" if high_order else "blur"))
    torch.testing.assert_close(videos, torch.stack(frames[::-1], dim=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", RANDOM)
def test_noise_depends_on_seed_epoch_and_index_only(kind):
    x, index = images(b=6), torch.tensor([4, 9, 2, 100, 7, 0])
    whole = pseudo_videos(x, config(kind), seed=1, epoch=2, index=index)
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    permuted = pseudo_videos(x[order], config(kind), seed=1, epoch=2, index=index[order])
    torch.testing.assert_close(permuted, whole[order], rtol=0, atol=1e-14)
    parts = [
        pseudo_videos(a, config(kind), seed=1, epoch=2, index=i)
        for a, i in zip(x.split(4), index.split(4), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-14)
    for changed in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 3}):
        other = pseudo_videos(x, config(kind), **changed, index=index)
        assert (other - whole)[:, :-1].abs().amax((1, 2, 3, 4)).median() > 1e-3


@pytest.mark.parametrize("kind", FIXED)
def test_other_kinds_depend_on_nothing_but_the_image(kind):
    x = images()
    one = pseudo_videos(x, config(kind), seed=1, epoch=2, index=torch.arange(5) + 3)
    assert torch.equal(one, pseudo_videos(x, config(kind)))


@pytest.mark.parametrize("kind", RANDOM)
def test_the_noise_is_the_same_in_every_precision(kind):
    x = images(dtype=torch.float32)
    single = pseudo_videos(x, config(kind))
    double = pseudo_videos(x.double(), config(kind))
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_autocast_does_not_coarsen_the_frames(kind):
    x = images(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = pseudo_videos(x, config(kind))
    torch.testing.assert_close(inside, pseudo_videos(x, config(kind)), rtol=0, atol=0)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_inference_first_and_gradients_later(kind):
    x = images(height=32, width=48).requires_grad_()
    with torch.inference_mode():
        pseudo_videos(x, config(kind))
    pseudo_videos(x, config(kind)).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "floats in -1..1, got torch.uint8"),
        (torch.zeros(1, 8, 8), r"shape \(b, c, h, w\), got \(1, 8, 8\)"),
        (torch.full((2, 1, 8, 8), 255.0), "values in -1..1, got 255 to 255"),
        (torch.full((2, 1, 8, 8), -1.01), "values in -1..1, got -1.01 to -1.01"),
        (torch.full((2, 1, 8, 8), torch.nan), "values in -1..1, got nan"),
        (torch.zeros(2, 1, 8, 5), "at least 6 pixels on each side.*, got 5"),
    ],
)
def test_wrong_images_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        pseudo_videos(wrong, config("blur"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_frames": 8, "blur_rate": -800.0}, "blur_rate must be at most 100 .*, got -800"),
        ({"kind": "fog"}, "kind must be one of .*got 'fog'"),
        ({"beta_min": 0.1}, "beta_min must be at most beta_max=0.05, got 0.1"),
    ],
)
@pytest.mark.usefixtures("plain_calls")
def test_settings_that_make_no_video_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PseudoVideoConfig(**changes)


@pytest.mark.parametrize(
    ("num_frames", "sigma"),
    [(8, math.exp(0.3)), (18, math.exp(0.16)), (4, math.exp(0.1)), (9, math.exp(0.07))],
)
def test_the_last_blur_is_the_thesis_one_for_its_number_of_frames(num_frames, sigma):
    settings = PseudoVideoConfig(num_frames=num_frames)
    assert math.exp(settings.blur_rate * (num_frames - 2)) == pytest.approx(sigma, rel=1e-12)
    assert PseudoVideoConfig(**asdict(settings)) == settings
    assert PseudoVideoConfig(num_frames=num_frames, blur_rate=0.02).blur_rate == 0.02
    # The first frame is a blur of that width of the second.
    taps = torch.exp(-0.5 * (torch.arange(-5.0, 6.0, dtype=torch.float64) / sigma) ** 2)
    x = torch.rand(1, 1, 24, 24, dtype=torch.float64) * 2 - 1
    video = pseudo_videos(x, settings)
    padded = F.pad(video[:, 1], (5, 5, 5, 5), mode="reflect")
    kernel = torch.outer(taps, taps)[None, None] / taps.sum() ** 2
    torch.testing.assert_close(F.conv2d(padded, kernel), video[:, 0], rtol=0.0, atol=1e-12)


@pytest.mark.usefixtures("plain_calls")
def test_narrow_integers_index_the_same_noise_and_floats_none():
    images = torch.zeros(3, 1, 8, 8)
    config = PseudoVideoConfig(num_frames=3, kind="first-order-noise")
    index = torch.tensor([200, 7, 90])
    expected = pseudo_videos(images, config, index=index)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert torch.equal(pseudo_videos(images, config, index=index.to(dtype)), expected)
    for dtype in (torch.float32, torch.bool):
        with pytest.raises(ValueError, match="index must hold integers, got torch"):
            pseudo_videos(images, config, index=index.to(dtype))
