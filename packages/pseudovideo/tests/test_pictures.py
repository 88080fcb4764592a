"""Pictures of generated images: what lies where in the files."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.plots import (
    FrameErrors,
    frame_errors_plot,
    save_gif,
    save_grid,
    save_pngs,
    save_rows,
    tiles,
)
from pseudovideo.plots.images import BETWEEN, GAP


def random_images(n, c=1, size=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, c, size, size, generator=generator) * 2 - 1


def pixels(file):
    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGB"))


def as_bytes(image):
    levels = ((image.clamp(-1, 1) + 1) * 127.5).round().byte()
    return levels.expand(3, -1, -1).movedim(0, -1).numpy()


def test_tiles_stand_in_rows_with_grey_between_and_small_ones_are_enlarged():
    shades = torch.stack([torch.full((1, 2, 3), shade) for shade in (-1.0, 0.0, 7.0)])
    found = tiles(shades, 2, least=6)
    assert found.shape == (2 * 4 + GAP, 2 * 6 + GAP, 3)
    assert (found[:4, :6] == 0).all()
    assert (found[:4, 6 + GAP :] == 128).all()
    assert (found[4 + GAP :, :6] == 255).all()
    assert (found[:, 6 : 6 + GAP] == BETWEEN).all()
    assert (found[4 : 4 + GAP] == BETWEEN).all()


@pytest.mark.parametrize("c", [1, 3])
def test_each_image_is_a_png_of_its_own_at_its_own_size(tmp_path, c):
    levels = torch.arange(2 * c * 20, dtype=torch.uint8).view(2, c, 5, 4)
    files = save_pngs(levels, tmp_path / "a" / "b")
    assert [file.name for file in files] == ["00000.png", "00001.png"]
    for file, image in zip(files, levels, strict=True):
        with Image.open(file) as picture:
            assert picture.mode == ("L" if c == 1 else "RGB")
        assert np.array_equal(pixels(file), image.expand(3, -1, -1).movedim(0, -1).numpy())


@pytest.mark.parametrize("c", [1, 3])
def test_a_grid_holds_each_image_in_reading_order(tmp_path, c):
    drawn = random_images(5, c, size=64)
    found = pixels(save_grid(drawn, tmp_path / "new" / "grid.png"))
    # Two grey pixels stand between.
    assert found.shape == (64 * 2 + 2, 64 * 3 + 4, 3)
    for number, image in enumerate(drawn):
        top, left = number // 3 * 66, number % 3 * 66
        np.testing.assert_array_equal(found[top : top + 64, left : left + 64], as_bytes(image))
    assert (found[66:, 132:] == BETWEEN).all()
    titled = pixels(save_grid(drawn, tmp_path / "titled.png", title="masked prior, 8-frame"))
    assert titled.shape[0] > found.shape[0] + 20


def test_letters_stand_on_no_ground_in_a_grey_for_white_and_black_pages(tmp_path):
    file = save_rows(["first of all"], [random_images(6)], tmp_path / "rows.png", title="two words")
    with Image.open(file) as picture:
        found = np.asarray(picture)
    assert found.shape[-1] == 4
    assert (found[[0, -1]][:, [0, -1], 3] == 0).all()
    letters = found[:, : found.shape[1] // 8]
    assert {*letters[letters[..., 3] == 255][:, :3].ravel().tolist()} == {0x7C}


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (2, 2, 8, 8)])
def test_no_images_and_odd_channels_are_refused(tmp_path, shape):
    with pytest.raises(ValueError, match="none empty, and 1 or 3 channels, got shape"):
        save_grid(torch.zeros(shape), tmp_path / "grid.png")


@pytest.mark.parametrize("c", [1, 3])
def test_a_gif_has_the_frames_in_order_and_stays_at_the_image(tmp_path, c):
    smooth = torch.nn.functional.interpolate(random_images(3, c), 64, mode="bilinear")
    videos = pseudo_videos(smooth, PseudoVideoConfig(num_frames=6))
    with Image.open(save_gif(videos, tmp_path / "videos.gif")) as animation:
        assert animation.info["loop"] == 0
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(animation)]
        times = [f.info["duration"] for f in ImageSequence.Iterator(animation)]
    assert times == [250] * 5 + [1000]
    for frame, shown in enumerate(frames):
        second = shown[:64, 64 + GAP : 128 + GAP].astype(int)
        error = np.abs(second - as_bytes(videos[1, frame]))
        # Grey is exact; colours are the nearest of 256.
        assert error.max() == 0 if c == 1 else error.mean() < 12


def test_errors_of_frames_are_shown_beside_the_exact_ones_and_as_their_multiples():
    short = FrameErrors(4, [3, 4], np.array([[22.0, 0.1], [24.0, 0.1]]), np.array([20.0, 0.1]))
    unknown = FrameErrors(8, [7, 8], np.array([[4.0, -0.1]]), np.full(2, np.nan))
    figure = frame_errors_plot({"4-frame": short, "8-frame": unknown})
    left, right, later, ratios = figure.axes
    model, exact = (bars.lines[0].get_ydata().tolist() for bars in left.containers)
    assert (model, exact) == ([23.0, 0.1], [20.0, 0.1])
    spread = left.containers[0].lines[2][0].get_segments()[0]
    assert spread[:, 1].tolist() == pytest.approx([22.0, 24.0])  # standard error 1
    assert right.containers[0].lines[0].get_ydata().tolist() == pytest.approx([1.15, 1.0])
    assert (len(later.containers), len(ratios.containers)) == (1, 0)
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "log", "linear"]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["3", "image"]
