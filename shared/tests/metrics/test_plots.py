import sys

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from probseq.errors import MissingExtraError
from probseq.metrics import aurc, calibration_bins, risk_coverage_curve
from probseq.metrics.plots import (
    interval_coverage_plot,
    predicted_plot,
    reliability_diagram,
    risk_coverage_plot,
    selective_error_plot,
)

LONG = "kernel-exponential+ensemble+ts"
NAMES = ["mle", "kernel+ts", "mcd", "sgpa", "sgpa+ensemble", LONG]


def make_curves(make_probs, kind, count):
    curves = {}
    for seed, name in enumerate(NAMES[:count]):
        probs, labels = make_probs(seed=seed)
        curves[name] = kind(probs.amax(1), probs.argmax(1) == labels)
    return curves


def bars(axes, colour):
    return [
        p
        for p in axes.patches
        if isinstance(p, Rectangle) and np.allclose(p.get_facecolor(), colour, atol=0.01)
    ]


def test_panels_show_the_accuracy_the_gap_and_the_error(make_probs):
    probs, labels = make_probs()
    bins = calibration_bins(probs, labels)
    upper, lower = reliability_diagram({"sgpa": bins}).axes
    filled = bins.count > 0
    shown = bars(upper, (0x56 / 255, 0xB4 / 255, 0xE9 / 255, 1))
    assert [b.get_height() for b in shown] == pytest.approx(bins.accuracy[filled].tolist())
    over = bars(upper, (0xF9 / 255, 0xDD / 255, 0xC8 / 255, 1))
    under = bars(upper, (0xCF / 255, 0xE8 / 255, 0xF8 / 255, 1))
    gaps = (bins.confidence - bins.accuracy)[filled]
    assert [b.get_height() for b in over] == pytest.approx(gaps[gaps > 0].tolist())
    assert [b.get_height() for b in under] == pytest.approx(gaps[gaps < 0].tolist())
    assert [p.get_height() for p in lower.patches] == bins.count.tolist()
    assert upper.get_title() == "sgpa"


def test_curves_carry_their_areas_in_the_legend(make_probs):
    probs, labels = make_probs()
    confidence, correct = probs.amax(1), probs.argmax(1) == labels
    figure = risk_coverage_plot({"sgpa": risk_coverage_curve(confidence, correct)})
    area = float(aurc(confidence, correct))
    assert figure.legends[0].get_texts()[0].get_text() == f"sgpa (AURC {area:.4f})"


def test_curves_are_drawn_as_they_are(make_probs):
    curves = make_curves(make_probs, risk_coverage_curve, 2)
    lines = risk_coverage_plot(curves).axes[0].lines
    for line, (coverage, risk) in zip(lines, curves.values(), strict=True):
        np.testing.assert_allclose(line.get_xdata(), coverage.numpy())
        np.testing.assert_allclose(line.get_ydata(), risk.numpy())


def test_a_wrong_first_sample_does_not_flatten_the_risk_curve():
    correct = torch.ones(1000, dtype=torch.bool)
    correct[0] = False
    curve = risk_coverage_curve(torch.linspace(1, 0, 1000, dtype=torch.float64), correct)
    assert float(curve[1][0]) == 1.0
    assert risk_coverage_plot({"mle": curve}).axes[0].get_ylim()[1] < 5


def test_more_methods_than_colours_have_a_panel_each():
    curve = (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert len(risk_coverage_plot({f"method {i}": curve for i in range(7)}).axes) == 1
    figure = risk_coverage_plot({f"method {i}": curve for i in range(9)})
    assert [axes.get_title() for axes in figure.axes] == [
        f"method {i}\nAURC 0.5000" for i in range(9)
    ]


def test_a_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'probseq\[plots\]'"):
        risk_coverage_plot({"a": (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))})


@pytest.mark.parametrize(
    "plot",
    [
        *(reliability_diagram, risk_coverage_plot, predicted_plot),
        *(interval_coverage_plot, selective_error_plot),
    ],
)
def test_nothing_to_plot_is_an_error(plot):
    with pytest.raises(ValueError, match="must hold at least one method, got an empty mapping"):
        plot({})


def test_numbers_have_a_panel_or_a_curve_for_each_method():
    values = torch.linspace(0.5, 1.5, 20, dtype=torch.float64)
    names = [f"method-{number}" for number in range(6)]
    figure = predicted_plot(dict.fromkeys(names, (values, values.flip(0), values)), target="logp")
    assert [axes.get_title() for axes in figure.axes] == names
    for axes in figure.axes:
        bars = axes.containers[0]
        assert (
            bars.lines[0].get_xydata().tolist() == torch.stack([values, values.flip(0)], 1).tolist()
        )
        (ends,) = bars.lines[2][0].get_segments()[:1]
        assert ends[:, 1].tolist() == pytest.approx([1.5 - 2 * 0.5**0.5, 1.5 + 2 * 0.5**0.5])
    curve = (torch.tensor([0.0, 0.5, 1.0]), torch.tensor([9.0, 0.25, 0.5]))
    for plot in (interval_coverage_plot, selective_error_plot):
        (axes,) = plot(dict.fromkeys(names, curve)).axes
        lines = axes.lines[: len(names)]
        assert [line.get_label() for line in lines] == names
        assert all(line.get_ydata().tolist() == curve[1].tolist() for line in lines)
    # The first few, by chance far off, don't flatten the rest.
    assert axes.get_ylim() == (0.0, pytest.approx(0.55))
