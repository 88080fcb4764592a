"""Films of videos: their pixels, their times and what stands above them."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from probseq.errors import MissingExtraError
from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.plots import frame_captions, frame_heads, images, save_gif, tiles
from pseudovideo.plots.images import BETWEEN, GAP


def random_images(n, c=1, size=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, c, size, size, generator=generator) * 2 - 1


def as_bytes(image):
    return ((image.clamp(-1, 1) + 1) * 127.5).round().numpy().transpose(1, 2, 0)


def pictures(file):
    with Image.open(file) as film:
        return [np.asarray(f.convert("RGB")).astype(int) for f in ImageSequence.Iterator(film)]


def test_tiles_stand_in_rows_with_grey_between_and_small_ones_are_enlarged():
    images = torch.stack([torch.full((1, 2, 3), shade) for shade in (-1.0, 0.0, 7.0)])
    found = tiles(images, 2, least=6)
    assert found.shape == (2 * 4 + GAP, 2 * 6 + GAP, 3)
    assert (found[:4, :6] == 0).all()
    assert (found[:4, 6 + GAP :] == 128).all()
    assert (found[4 + GAP :, :6] == 255).all()
    assert (found[:, 6 : 6 + GAP] == BETWEEN).all()
    assert (found[4 : 4 + GAP] == BETWEEN).all()


@pytest.mark.parametrize("c", [1, 3])
def test_a_gif_has_the_frames_in_order_and_stays_at_the_image(tmp_path, c):
    config = PseudoVideoConfig(num_frames=6)
    smooth = torch.nn.functional.interpolate(random_images(3, c), 64, mode="bilinear")
    videos = pseudo_videos(smooth, config)
    file = save_gif(videos, tmp_path / "videos.gif", seconds_per_frame=0.1)
    with Image.open(file) as animation:
        assert animation.info["loop"] == 0
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(animation)]
        times = [f.info["duration"] for f in ImageSequence.Iterator(animation)]
    assert times == [100] * 5 + [400]
    for frame, shown in enumerate(frames):
        error = np.abs(shown[:64, 64 + GAP : 128 + GAP].astype(int) - as_bytes(videos[1, frame]))
        # Grey is exact; colours are the nearest of 256.
        assert error.max() == 0 if c == 1 else error.mean() < 12


def test_frames_too_short_for_a_gif_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"at least 0\.01, got 0.001"):
        save_gif(torch.zeros(1, 2, 1, 8, 8), tmp_path / "v.gif", seconds_per_frame=0.001)


def test_frames_are_numbered_and_the_last_is_the_image():
    assert frame_heads(4) == ["1", "2", "3", "image"]
    assert frame_captions("digits", 3) == ["digits\nframe 1", "digits\nframe 2", "digits\nimage"]


def test_a_caption_of_its_own_stands_above_each_frame_of_a_film(tmp_path):
    videos = torch.full((4, 3, 1, 16, 16), -1.0)
    captions = frame_captions("samples", 3)
    found = pictures(save_gif(videos, tmp_path / "v.gif", captions=captions))
    texts = [picture[:-130] for picture in found]
    for picture, text in zip(found, texts, strict=True):
        assert (picture[-130:-66, :64] == 0).all()
        assert text.shape[0] > 2 * 19 - 1
        assert text.min() < 100
        assert (text[:, :2] == 255).all()
    assert all((a != b).any() for a, b in itertools.combinations(texts, 2))


@pytest.mark.parametrize(
    ("texts", "reason"),
    [({"captions": ["a"]}, "captions must be 3, got 1"), ({"heads": "abc"}, "heads must be 2")],
)
def test_texts_of_another_number_are_refused(tmp_path, texts, reason):
    with pytest.raises(ValueError, match=reason):
        save_gif(torch.zeros(4, 3, 1, 8, 8), tmp_path / "v.gif", **texts)


def test_long_captions_are_wrapped_so_that_none_is_cut(tmp_path):
    caption = "a caption that is far too long for a picture of two small images"
    (found,) = pictures(
        save_gif(torch.zeros(1, 1, 1, 8, 8) + 1, tmp_path / "v.gif", captions=[caption])
    )
    text = found[:-64]
    assert text.shape[0] > 5 * 19
    # Nothing touches the left and the right edge.
    assert text[:, [0, -1]].min() > 200


def test_without_pillow_its_extra_is_named(tmp_path, monkeypatch):
    def missing(module, **names):
        raise MissingExtraError(f"{module} {names['distribution']}[{names['extra']}]")

    monkeypatch.setattr(images, "require", missing)
    with pytest.raises(MissingExtraError, match=r"PIL\.Image pseudovideo\[plots\]"):
        save_gif(torch.zeros(1, 2, 1, 8, 8), tmp_path / "v.gif")
