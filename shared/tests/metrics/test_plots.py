import sys

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle

from probseq.errors import MissingExtraError
from probseq.metrics import (
    CalibrationBins,
    aurc,
    auroc,
    calibration_bins,
    expected_calibration_error,
    risk_coverage_curve,
    roc_curve,
)
from probseq.metrics.plots import (
    interval_coverage_plot,
    predicted_plot,
    reliability_diagram,
    risk_coverage_plot,
    roc_plot,
    selective_error_plot,
    spread_plot,
)

LONG = "kernel-exponential+ensemble+ts"
NAMES = ["mle", "kernel+ts", "mcd", "sgpa", "sgpa+ensemble", LONG]


def make_bins(make_probs, count):
    return {
        name: calibration_bins(*make_probs(seed=seed)) for seed, name in enumerate(NAMES[:count])
    }


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


def visible_texts(figure):
    """Bounding boxes of all texts, in pixels, by the text."""
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    texts = [*figure.legends[0].get_texts()]
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            texts += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    return {
        f"{i} {t.get_text()}": t.get_window_extent(renderer)
        for i, t in enumerate(texts)
        if t.get_text() and t.get_visible()
    }


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (3, 1, 3), (6, 2, 4)])
def test_each_method_has_a_panel_and_a_strip_in_rows_of_four(make_probs, count, rows, columns):
    figure = reliability_diagram(make_bins(make_probs, count))
    assert len(figure.axes) == 2 * count
    spec = figure.axes[0].get_subplotspec().get_gridspec()
    assert (spec.nrows, spec.ncols) == (2 * rows, columns)


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
    ece = float(expected_calibration_error(probs, labels))
    assert upper.get_title() == f"sgpa\nECE {ece:.4f}"


def test_curves_carry_their_areas_in_the_legend(make_probs):
    probs, labels = make_probs()
    confidence, correct = probs.amax(1), probs.argmax(1) == labels
    figure = roc_plot({"sgpa": roc_curve(confidence, correct)})
    area = float(auroc(confidence, correct))
    assert figure.legends[0].get_texts()[0].get_text() == f"sgpa (AUROC {area:.4f})"
    figure = risk_coverage_plot({"sgpa": risk_coverage_curve(confidence, correct)})
    area = float(aurc(confidence, correct))
    assert figure.legends[0].get_texts()[0].get_text() == f"sgpa (AURC {area:.4f})"


def test_curves_are_drawn_as_they_are(make_probs):
    curves = make_curves(make_probs, roc_curve, 2)
    lines = [line for line in roc_plot(curves).axes[0].lines if line.get_linestyle() != ":"]
    for line, (fpr, tpr) in zip(lines, curves.values(), strict=True):
        np.testing.assert_allclose(line.get_xdata(), fpr.numpy())
        np.testing.assert_allclose(line.get_ydata(), tpr.numpy())
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


def test_a_risk_of_zero_still_has_an_axis():
    curve = risk_coverage_curve(torch.tensor([0.9, 0.8]), torch.tensor([True, True]))
    low, high = risk_coverage_plot({"mle": curve}).axes[0].get_ylim()
    assert low == 0.0
    assert high > 0.0


@pytest.mark.parametrize("count", [1, 6])
def test_no_text_leaves_the_figure_or_covers_another(make_probs, count):
    figures = [
        reliability_diagram(make_bins(make_probs, count)),
        risk_coverage_plot(make_curves(make_probs, risk_coverage_curve, count)),
        roc_plot(make_curves(make_probs, roc_curve, count)),
    ]
    for figure in figures:
        boxes = visible_texts(figure)
        for name, box in boxes.items():
            # One pixel of slack for the anti-aliased edge.
            assert box.x0 >= -1, name
            assert box.y0 >= -1, name
            assert box.x1 <= figure.bbox.x1 + 1, name
            assert box.y1 <= figure.bbox.y1 + 1, name
            overlaps = [other for other, b in boxes.items() if other != name and box.overlaps(b)]
            assert not overlaps, (name, overlaps)


@pytest.mark.parametrize(("plot", "area"), [(roc_plot, "AUROC"), (risk_coverage_plot, "AURC")])
def test_more_methods_than_colours_have_a_panel_each(plot, area):
    curve = (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert len(plot({f"method {i}": curve for i in range(7)}).axes) == 1
    figure = plot({f"method {i}": curve for i in range(9)})
    assert [axes.get_title() for axes in figure.axes] == [
        f"method {i}\n{area} 0.5000" for i in range(9)
    ]


def test_figures_are_written_as_png_without_pyplot(make_probs, tmp_path):
    figure = reliability_diagram(make_bins(make_probs, 2))
    assert isinstance(figure.canvas, FigureCanvasAgg)
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'probseq\[plots\]'"):
        roc_plot({"a": (torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))})


@pytest.mark.parametrize(
    "plot",
    [
        *(reliability_diagram, risk_coverage_plot, roc_plot, predicted_plot),
        *(interval_coverage_plot, selective_error_plot, spread_plot),
    ],
)
def test_nothing_to_plot_is_an_error(plot):
    with pytest.raises(ValueError, match="must hold at least one method, got an empty mapping"):
        plot({})


def test_one_filled_bin_is_enough_for_a_diagram():
    bins = calibration_bins(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert isinstance(bins, CalibrationBins)
    upper, _ = reliability_diagram({"sure": bins}).axes
    assert upper.get_title() == "sure\nECE 0.0000"


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


def test_spreads_of_each_set_are_counted_in_the_same_bins():
    near, far = torch.full((50,), 1.0), torch.cat([torch.full((49,), 2.0), torch.tensor([99.0])])
    (axes,) = spread_plot({"sgpa": {"Test set": near, "Other": far}}).axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert [sum(counts) for counts in heights] == [50, 50]  # what is far off is in the last bin
    assert heights[0][0] == 50


def test_more_sets_than_colours_are_all_drawn():
    sets = {f"set {number}": torch.linspace(0.5, 1.5, 10) + number for number in range(9)}
    (axes,) = spread_plot({"sgpa": sets}).axes
    assert axes.get_legend_handles_labels()[1] == list(sets)
