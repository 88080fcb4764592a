"""Pictures of generated images: what lies where in the files."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from pseudovideo.corruptions import PseudoVideoConfig
from pseudovideo.plots import (
    FrameErrors,
    frame_errors_plot,
    save_classes,
    save_grid,
    save_grids,
    save_pngs,
    save_process,
    save_rows,
    save_samples,
    save_strips,
    save_theorem,
)
from pseudovideo.plots import images as plotted
from pseudovideo.plots.images import BETWEEN


def random_images(n, c=1, size=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, c, size, size, generator=generator) * 2 - 1


def pixels(file):
    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGB"))


def as_bytes(image):
    levels = ((image.clamp(-1, 1) + 1) * 127.5).round().byte()
    return levels.expand(3, -1, -1).movedim(0, -1).numpy()


def test_samples_stand_in_the_row_of_their_class_below_each_other(tmp_path, monkeypatch):
    images, labels = torch.arange(5, dtype=torch.uint8), torch.tensor([3, 0, 3, 3, 0])
    images = images[:, None, None, None].expand(-1, 1, 4, 4)
    seen = []

    def save_rows(names, rows, file, *, title):
        seen.append((names, rows, file))
        return file

    monkeypatch.setattr(plotted, "save_rows", save_rows)
    save_classes(images, labels, "abcd", tmp_path / "classes.png")
    (names, rows, file) = seen[0]
    assert (names, file) == (["a", "d"], tmp_path / "classes.png")
    shown = [((row + 1) * 127.5).round().int()[:, 0, 0, 0].tolist() for row in rows]
    assert shown == [[1, 4, 255], [0, 2, 3]]  # white where a class has fewer
    save_classes(images, labels * 0, "abcd", tmp_path / "classes.png")
    assert len(seen[1][1]) == 1


@pytest.mark.parametrize("c", [1, 3])
def test_each_image_is_a_png_of_its_own_at_its_own_size(tmp_path, c):
    images = torch.arange(2 * c * 20, dtype=torch.uint8).view(2, c, 5, 4)
    files = save_pngs(images, tmp_path / "a" / "b")
    assert [file.name for file in files] == ["00000.png", "00001.png"]
    for file, image in zip(files, images, strict=True):
        with Image.open(file) as picture:
            assert picture.mode == ("L" if c == 1 else "RGB")
        assert np.array_equal(pixels(file), image.expand(3, -1, -1).movedim(0, -1).numpy())
    with pytest.raises(ValueError, match=r"images must have .* 1 or 3 channels"):
        save_pngs(images[:, :1].expand(-1, 2, -1, -1), tmp_path)


@pytest.mark.parametrize("c", [1, 3])
def test_a_grid_holds_each_image_in_reading_order(tmp_path, c):
    images = random_images(5, c, size=64)
    found = pixels(save_grid(images, tmp_path / "new" / "grid.png", columns=3))
    # Two grey pixels stand between.
    assert found.shape == (64 * 2 + 2, 64 * 3 + 4, 3)
    for place, image in enumerate(images):
        top, left = place // 3 * 66, place % 3 * 66
        np.testing.assert_array_equal(found[top : top + 64, left : left + 64], as_bytes(image))
    assert (found[66:, 132:] == BETWEEN).all()
    assert (found[64:66] == BETWEEN).all()


def test_a_title_stands_above_a_grid_and_changes_no_image(tmp_path):
    images = random_images(4, size=64)
    title = "masked prior, 8-frame, stem plain, seed 0"
    found = pixels(save_grid(images, tmp_path / "titled.png", title=title))
    plain = pixels(save_grid(images, tmp_path / "plain.png"))
    # The title is wider than so small a grid, whose place is the one with its pixels.
    height = found.shape[0] - 9 - 130
    assert height > 30
    inner = plain[8:-8, 8:-8]
    rows, columns, _ = inner.shape
    places = [
        found[top : top + rows, left : left + columns]
        for top in range(height + 4, height + 13)
        for left in range((found.shape[1] - columns) // 2 - 4, (found.shape[1] - columns) // 2 + 5)
    ]
    assert any(np.array_equal(place, inner) for place in places)
    assert (found[:height] < 128).any()


def test_a_grid_is_square_by_default_and_clamps(tmp_path):
    found = pixels(save_grid(torch.full((9, 1, 64, 64), 1.7), tmp_path / "grid.png"))
    assert found.shape == (64 * 3 + 4, 64 * 3 + 4, 3)
    assert set(found.flatten()) == {255, BETWEEN}


def test_reconstructions_stand_below_the_truth_in_the_order_of_the_arms(tmp_path):
    black, grey, white = (torch.full((4, 1, 16, 16), v) for v in (-1.0, 0.0, 1.0))
    file = tmp_path / "reconstructions.png"
    save_rows(["truth", "8-frame, layernorm", "1-frame"], [black, grey, white * 0.5], file)
    found = pixels(file)[..., 0]
    # A column through the last image.
    column = found[:, int(found.shape[1] * 0.95)]
    levels = [int(column[int(len(column) * share)]) for share in (0.2, 0.5, 0.8)]
    assert levels == [0, 128, 191]
    # Labels stand on the left, on white, and none is cut off.
    assert (found[:, :2] == 255).all()
    assert (found[:, : int(found.shape[1] * 0.2)] < 128).any()


def test_an_arm_with_other_images_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"row 'a' must have the first row's shape \(4, 1, 16, 16\)"
    ):
        save_rows(
            ["truth", "a"], [random_images(4), random_images(3)], tmp_path / "reconstructions.png"
        )


def test_videos_are_strips_with_the_image_on_the_right(tmp_path):
    shades = torch.linspace(-1, 1, 5)
    videos = shades[None, :, None, None, None].expand(3, 5, 3, 16, 16)
    found = pixels(save_strips(torch.cat([videos, -videos[:1]]), tmp_path / "videos.png"))[..., 0]
    width = found.shape[1]
    for height, expected in ((0.24, shades), (0.92, -shades)):
        row = found[int(found.shape[0] * height)]
        levels = [int(row[int(width * (place + 0.5) / 5)]) for place in range(5)]
        assert levels == pytest.approx(((expected + 1) * 127.5).tolist(), abs=1)


@pytest.mark.parametrize(
    ("frames", "names"), [(1, ["x.png"]), (3, ["x.png", "x-videos.png", "x.gif"])]
)
def test_samples_are_a_grid_and_videos_also_strips_and_a_film(tmp_path, frames, names):
    samples = (random_images(70 * frames).add(1) * 127.5).byte().unflatten(0, (70, frames))
    files = save_samples(samples[:, -1], samples, tmp_path, "x")
    assert [file.name for file in files] == names
    grid = pixels(files[0])[:64, :64]
    # Enlarged by bicubic interpolation, whose means over what a pixel became are near it.
    means = grid[..., 0].reshape(16, 4, 16, 4).mean((1, 3))
    assert np.corrcoef(means.flat, samples[0, -1, 0].numpy().flat)[0, 1] > 0.95
    if frames > 1:
        with Image.open(files[2]) as film:
            assert film.n_frames == frames
    # Of classes the grid has a row each, ten samples wide, behind the name.
    labels = torch.arange(70) % 2
    names = {"labels": labels, "class_names": ("cat", "dog")}
    files = save_samples(samples[:, -1], samples, tmp_path, "x", **names)
    row = pixels(files[0])[20, :, 0]
    assert len(row) > 10 * plotted.LEAST_LABELLED > len(grid)


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (2, 2, 8, 8)])
def test_no_images_and_odd_channels_are_refused(tmp_path, shape):
    with pytest.raises(ValueError, match="none empty, and 1 or 3 channels, got shape"):
        save_grid(torch.zeros(shape), tmp_path / "grid.png")


def test_the_theorem_is_drawn_for_a_data_set(tmp_path):
    config = PseudoVideoConfig(num_frames=4, kind="blur")
    place = str(tmp_path / "plots" / "theorem.png")  # a text will do
    file = save_theorem(random_images(50), place, config, context=2)
    assert (pixels(file) < 128).any()


def film_pictures(file):
    with Image.open(file) as film:
        return [np.asarray(f.convert("RGB")).astype(int) for f in ImageSequence.Iterator(film)]


def test_a_film_of_images_has_a_caption_above_a_grid_that_follows_the_snapshots(tmp_path):
    shades = torch.tensor([0, 120, 250], dtype=torch.uint8)
    frames = shades[None, :, None, None, None, None].expand(4, 3, 1, 1, 16, 16).contiguous()
    process = (frames, torch.tensor([1, 2, 3]))
    found = film_pictures(save_process(*process, tmp_path / "p.gif", name="1-frame", unit="step"))
    assert len(found) == 3
    for picture, shade in zip(found, shades.tolist(), strict=True):
        # Two rows of 64 pixels with grey between, below the caption.
        grid = picture[-130:]
        assert (grid[:64, :64] == shade).all()
        assert (grid[64:66] == BETWEEN).all()
        caption = picture[:-130]
        assert caption.shape[0] > 30
        assert caption.min() < 100
        assert (caption[:, :2] == 255).all()
    # Captions tell the steps, so that they differ.
    assert (found[0][:-130] != found[2][:-130]).any()


def test_a_film_of_videos_has_a_row_a_sample_and_a_column_a_frame(tmp_path):
    shades = torch.tensor([10, 80, 160, 240], dtype=torch.uint8)
    frames = shades[None, None, :, None, None, None].expand(2, 1, 4, 1, 16, 16).clone()
    frames[1] = 255 - frames[1]
    process = (frames, torch.tensor([7]))
    (found,) = film_pictures(save_process(*process, tmp_path / "p.gif", name="video", unit="step"))
    grid = found[-130:]
    own = {"name": "video", "unit": "step", "stages": 7}  # the caption tells of the last stage
    (staged,) = film_pictures(save_process(*process, tmp_path / "p.gif", **own))
    assert (staged[-130:] == grid).all()
    assert (staged != found).any()
    middles = [grid[row, 32::66].mean(1).tolist() for row in (32, 98)]
    assert middles[0] == pytest.approx(shades.tolist(), abs=2)
    assert middles[1] == pytest.approx((255 - shades.int()).tolist(), abs=2)


def test_samples_of_several_models_stand_side_by_side(tmp_path):
    grey, black = torch.zeros(4, 1, 16, 16), torch.full((1, 1, 16, 16), -1.0)
    found = pixels(save_grids({"a": grey, "b": black}, tmp_path / "samples.png", title="samples"))
    middle = found[int(0.6 * found.shape[0]), :, 0]
    left, right = (middle[int(share * len(middle))] for share in (0.2, 0.75))
    assert (left, right) == (128, 0)
    with pytest.raises(ValueError, match="none empty"):
        save_grids({"a": grey, "b": black[:0]}, tmp_path / "samples.png", title="samples")


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
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[:2] == ["4-frame", "8-frame"]
    far = short._replace(model=np.array([[2000.0, 0.1]]))
    assert frame_errors_plot({"4-frame": far}).axes[1].get_yscale() == "log"
