"""The figure of theorem 5.4.1: what is drawn, and that labels have room."""

import pytest
import torch

from pseudovideo.corruptions import PseudoVideoConfig, prediction_errors
from pseudovideo.plots import theorem_plot


def errors(kind, num_frames=6):
    config = PseudoVideoConfig(kind=kind, num_frames=num_frames)
    return prediction_errors(torch.tensor([0.0, 0.2, 5.0]), config, context=3)


def test_lines_are_the_errors():
    found = {kind: errors(kind) for kind in ("first-order-noise", "high-order-noise")}
    left, middle, right = theorem_plot(found).axes
    first, high = found.values()
    for line, expected in zip(right.get_lines(), (first, high), strict=True):
        assert line.get_xdata().tolist() == [1, 2, 3, 4, 5]
        assert line.get_ydata() == pytest.approx(expected.from_first.numpy())
    assert left.get_lines()[0].get_ydata() == pytest.approx([0] * 5, abs=1e-9)
    gains = 100 * (1 - high.from_nearest / high.from_nearest[0])
    assert left.get_lines()[1].get_ydata() == pytest.approx(gains.numpy())
    gains = 100 * (1 - high.next_frame / high.next_from_previous)
    assert middle.get_lines()[1].get_xdata().tolist() == [2, 3, 4, 5, 6]
    assert middle.get_lines()[1].get_ydata() == pytest.approx(gains.numpy())
    assert gains.max() > 1


@pytest.mark.parametrize(
    ("num_frames", "ticks"),
    [
        (2, ["image"]),
        (6, ["2", "3", "4", "5", "image"]),
        (18, ["2", "5", "8", "11", "14", "image"]),
    ],
)
def test_the_last_frame_is_called_the_image(num_frames, ticks):
    middle = theorem_plot({"a": errors("high-order-noise", num_frames)}).axes[1]
    assert [label.get_text() for label in middle.get_xticklabels()] == ticks
    assert middle.get_xticks()[-1] == num_frames


def test_no_video_and_videos_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="1 to 4 videos of equal length, got 0"):
        theorem_plot({})
    mixed = {"a": errors("high-order-noise"), "b": errors("high-order-noise", 4)}
    with pytest.raises(ValueError, match=r"got 2 of \[4, 6\] frames"):
        theorem_plot(mixed)
