"""The picture of a ranking: bars and points are the designs' numbers."""

import pytest
import torch

from pseudovideo import PseudoVideoConfig
from pseudovideo.beyond.design import Design
from pseudovideo.plots import design_plot


def design(bits, error, distance):
    bits = torch.tensor(bits, dtype=torch.float64)
    errors = torch.full_like(bits, error)
    videos = PseudoVideoConfig(num_frames=len(bits), kind="blur")
    return Design(videos, len(bits) // 2, errors, errors, bits, 0.5, 1.0, distance)


DESIGNS = {
    "short": design([1.0, 3.0], 0.01, 0.2),
    "image": design([4.0], 0.5, 0.3),
    "long": design([1.0, 1.0, 2.0], 0.001, 0.7),
}


def test_bars_are_shares_and_distances_and_points_are_errors():
    left, middle, right = design_plot(DESIGNS).axes
    assert [bar.get_width() for bar in left.patches] == pytest.approx([25, 75, 100, 25, 25, 50])
    assert [bar.get_x() for bar in left.patches] == pytest.approx([0, 25, 0, 0, 25, 50])
    assert [text.get_text() for text in left.get_yticklabels()] == list(DESIGNS)
    assert middle.collections[0].get_offsets()[:, 0].tolist() == pytest.approx([0.01, 0.5, 0.001])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([0.2, 0.3, 0.7])
    assert right.get_lines()[0].get_xdata() == pytest.approx([0.3, 0.3])
    # The first design is the uppermost.
    assert left.get_ylim()[0] > left.get_ylim()[1]


def test_frames_as_far_from_the_image_have_one_colour_and_one_entry():
    figure = design_plot(DESIGNS)
    colours = [bar.get_facecolor() for bar in figure.axes[0].patches]
    assert colours[1] == colours[2] == colours[5]
    assert colours[0] == colours[4]
    assert len(set(colours)) == 3
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["2 frames before", "1 frame before", "the image itself", "image alone"]


def test_without_the_image_alone_nothing_is_drawn_for_it():
    figure = design_plot({"long": DESIGNS["long"]})
    assert not figure.axes[2].get_lines()
    assert len(figure.legends[0].get_texts()) == 3


def test_an_empty_ranking_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        design_plot({})


@pytest.mark.parametrize("frames", [4, 8, 18])
def test_the_legend_of_long_videos_lies_within_the_picture(frames):
    figure = design_plot({"image": DESIGNS["image"], "long": design([1.0] * frames, 0.1, 0.2)})
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert len(figure.legends[0].get_texts()) == frames + 1
