"""What pictures show: values where they were measured, every curve told apart, no text covered."""

import math

import numpy as np
import pytest
import torch

from probseq.figures import (
    Curve,
    TrainingCurves,
    curves_plot,
    line_legend,
    line_style,
    log_axis,
    panels,
    small_multiples,
    training_plot,
)


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_each_panel_shows_its_method_before_the_others():
    x = torch.linspace(0, 1, 5)
    curves = {f"method {i}": Curve(x, i * x, 0.1 * x, f"area {i / 2}") for i in range(9)}
    figure = small_multiples(curves, title="t", x_label="x", y_label="y", diagonal=True)
    assert len(figure.axes) == 9
    for i, panel in enumerate(figure.axes):
        assert panel.get_title() == f"method {i}\narea {i / 2}"
        (own,) = (line for container in panel.containers for line in container.lines[:1])
        assert list(own.get_ydata()) == pytest.approx((i * x).tolist())
        grey = [line for line in panel.lines if line.get_color() == "#CFCFCF"]
        assert len(grey) == 8
        assert max(line.get_zorder() for line in grey) < own.get_zorder()


def test_no_title_of_a_panel_covers_another():
    curve = Curve(np.arange(3.0), np.arange(3.0), caption="AUROC 97.6%")
    names = [f"kepsvgp-{place}+kflla+ts+ensemble" for place in range(16)]
    figure = small_multiples(dict.fromkeys(names, curve), title="t", x_label="x", y_label="y")
    figure.draw_without_rendering()
    boxes = [panel.title.get_window_extent() for panel in figure.axes]
    for first, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[first + 1 :])
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1


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


@pytest.mark.parametrize("top", [0.9, 3.0, 400.0])
def test_logarithmic_ticks_are_plain_numbers_that_do_not_meet(top):
    figure, (axes,) = panels(1, 1, (3.5, 2.7))
    axes.plot([0, 1], [0.2, top])
    log_axis(axes, 0.2, top)
    figure.canvas.draw()
    ticks = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True)]
    low, high = axes.get_ylim()
    shown = [t for t in ticks if t.get_text() and low <= t.get_position()[1] <= high]
    assert len(shown) >= 2
    assert all(math.isclose(float(t.get_text()), t.get_position()[1], rel_tol=1e-6) for t in shown)
    boxes = [t.get_window_extent() for t in shown]
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])


@pytest.mark.parametrize("count", [1, 4, 12])
def test_the_legend_of_lines_stays_in_the_figure(count):
    figure, found = panels(3, 3, (3.5, 2.7), shared=False)
    names = [f"18-frame-repeat, stem layernorm {i}" for i in range(count)]
    line_legend(figure, {name: line_style(i) for i, name in enumerate(names)})
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert legend_texts(figure) == names
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert not any(box.overlaps(axes.get_tightbbox()) for axes in found)
