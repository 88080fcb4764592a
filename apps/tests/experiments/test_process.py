"""Files of snapshots, and the films that are made of them."""

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from probseq_apps.experiments.process import Process
from probseq_apps.report.images import save_process, save_sample_grids


@pytest.fixture
def plain_calls():
    """Calls as users make them: the suite's shape checks don't get in before our messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def pictures(file):
    with Image.open(file) as film:
        return [np.asarray(f.convert("RGB")).astype(int) for f in ImageSequence.Iterator(film)]


def test_snapshots_are_bytes_and_come_back_as_they_were(tmp_path):
    frames = torch.linspace(-1.5, 1.5, 2 * 3 * 4 * 8 * 8).reshape(2, 3, 4, 1, 8, 8)
    process = Process.of(frames, torch.tensor([10, 20, 30]))
    assert (int(process.frames.min()), int(process.frames.max())) == (0, 255)
    inside = frames.abs() < 1
    assert torch.allclose(
        process.frames.float()[inside] / 127.5 - 1, frames[inside], atol=0.5 / 127.5 + 1e-6
    )
    process.save(tmp_path / "p.npz")
    found = Process.load(tmp_path / "p.npz")
    assert torch.equal(found.frames, process.frames)
    assert found.done.tolist() == [10, 20, 30]


@pytest.mark.usefixtures("plain_calls")
def test_what_holds_no_snapshots_is_refused_with_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.npz is not there"):
        Process.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(ValueError, match=r"text\.npz is damaged"):
        Process.load(tmp_path / "text.npz")
    np.savez(tmp_path / "flat.npz", frames=np.zeros((2, 3), np.uint8), done=np.arange(3))
    with pytest.raises(ValueError, match=r"flat\.npz has \(2, 3\) and \(3,\)"):
        Process.load(tmp_path / "flat.npz")


def test_a_film_of_images_has_a_caption_above_a_grid_that_follows_the_snapshots(tmp_path):
    shades = torch.tensor([0, 120, 250], dtype=torch.uint8)
    frames = shades[None, :, None, None, None, None].expand(4, 3, 1, 1, 16, 16).contiguous()
    process = Process(frames, torch.tensor([1, 2, 3]))
    found = pictures(save_process(*process, tmp_path / "p.gif", name="1-frame", unit="step"))
    assert len(found) == 3
    for picture, shade in zip(found, shades.tolist(), strict=True):
        # Two rows of 64 pixels with white between, below the caption.
        grid = picture[-130:]
        assert (grid[:64, :64] == shade).all()
        assert (grid[64:66] == 255).all()
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
    process = Process(frames, torch.tensor([7]))
    (found,) = pictures(save_process(*process, tmp_path / "p.gif", name="video", unit="step"))
    grid = found[-130:]
    middles = [grid[row, 32::66].mean(1).tolist() for row in (32, 98)]
    assert middles[0] == pytest.approx(shades.tolist(), abs=2)
    assert middles[1] == pytest.approx((255 - shades.int()).tolist(), abs=2)


def test_grids_of_arms_stand_side_by_side_with_at_most_36_images(tmp_path):
    images = {"real": torch.full((50, 1, 8, 8), 1.0), "arm": torch.full((9, 1, 8, 8), -1.0)}
    file = save_sample_grids(images, tmp_path / "grids.png", title="samples")
    with Image.open(file) as image:
        found = np.asarray(image.convert("L"))
    left, right = np.array_split(found[found.shape[0] // 3 :], 2, axis=1)
    assert left.mean() > 240
    assert right.mean() < 100


@pytest.mark.usefixtures("plain_calls")
def test_an_arm_without_images_is_named(tmp_path):
    images = {"real": torch.zeros(4, 1, 8, 8), "arm": torch.zeros(0, 1, 8, 8)}
    with pytest.raises(ValueError, match=r"images\['arm'\] must have 4 dimensions, none empty"):
        save_sample_grids(images, tmp_path / "grids.png", title="samples")
