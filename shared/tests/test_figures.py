"""What pictures show: values where they were measured, every curve told apart, no text covered."""

import numpy as np
import pytest
import torch

from probseq.figures import (
    Curve,
    TrainingCurves,
    curves_plot,
    line_style,
    small_multiples,
    training_plot,
)


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_each_panel_shows_its_method_before_the_others():
    x = torch.linspace(0, 1, 5)
    curves = {f"method {i}": Curve(x, i * x, 0.1 * x, f"area {i / 2}") for i in range(9)}
    figure = small_multiples(curves, title="t", x_label="x", y_label="y")
    assert len(figure.axes) == 9
    for i, panel in enumerate(figure.axes):
        assert panel.get_title() == f"method {i}\narea {i / 2}"
        (own,) = (line for container in panel.containers for line in container.lines[:1])
        assert list(own.get_ydata()) == pytest.approx((i * x).tolist())
        grey = [line for line in panel.lines if line.get_color() == "#CFCFCF"]
        assert len(grey) == 8
        assert max(line.get_zorder() for line in grey) < own.get_zorder()


def test_a_number_has_a_panel_with_all_methods_and_their_errors():
    numbers = {
        label: {
            "mle": Curve([0, 1, 5], [1.0, 2.0, scale]),
            "sgpa": Curve([0, 1, 5], [scale] * 3, [0.5] * 3),
        }
        for label, scale in (("NLL", 3.0), ("ECE", 4.0))
    }
    figure = curves_plot(numbers, title="t", x_label="Severity")
    assert [axes.get_ylabel() for axes in figure.axes] == ["NLL", "ECE"]
    assert legend_texts(figure) == ["mle", "sgpa"]
    for axes, scale in zip(figure.axes, (3.0, 4.0), strict=True):
        mle, sgpa = axes.containers
        assert list(mle.lines[0].get_ydata()) == [1.0, 2.0, scale]
        assert sgpa.lines[2][0].get_segments()[0][:, 1].tolist() == [scale - 0.5, scale + 0.5]
        assert list(axes.get_xticks()) == [0, 1, 5]


def test_what_spans_powers_of_ten_has_a_logarithmic_axis_and_few_points_have_markers():
    steps = np.arange(1.0, 41.0)
    styles = {"1-frame": line_style(0), "8-frame": line_style(1)}
    few, many = (steps[:3], 1 / steps[:3] ** 4), (steps, 1 / steps)
    curves = [(*few, styles["1-frame"]), (*many, styles["8-frame"])]
    below = [(steps, 1.5 - steps, styles["1-frame"])]
    numbers = [
        TrainingCurves("loss", "Nats", curves, wide=True),
        TrainingCurves("score", "dB", curves),
    ]
    figure = training_plot([*numbers, TrainingCurves("bound", "Nats", below, wide=True)], styles)
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear", "linear"]
    first, second = figure.axes[0].lines
    assert list(first.get_ydata()) == list(few[1])
    assert (first.get_marker(), second.get_marker()) == ("o", "")
    assert legend_texts(figure) == ["1-frame", "8-frame"]
