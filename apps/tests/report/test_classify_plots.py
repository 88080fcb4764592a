import pytest
import torch
from PIL import Image

from probseq_apps.experiments.classify import evaluate_sets
from probseq_apps.methods.post_hoc import Predictions
from probseq_apps.report.classify import write_plots
from probseq_apps.report.figures import Curve, small_multiples
from probseq_apps.report.summary import summarise


def predictions(seed, sharpness):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(60, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return Predictions(logits.log_softmax(-1), -logits.logsumexp(-1), labels)


def rows_and_summaries(count):
    rows, summaries = {}, {}
    for place in range(count):
        names = ("test", "shift/fog/1", "shift/fog/5", "ood/rotations")
        entries = [
            {name: predictions(10 * seed + i, 1 + 0.2 * place) for i, name in enumerate(names)}
            for seed in range(2)
        ]
        rows[f"method-{place}"] = entries
        values = [evaluate_sets(sets) for sets in entries]
        summaries[f"method-{place}"] = {k: summarise([v[k] for v in values]) for k in values[0]}
    return rows, summaries


@pytest.mark.parametrize(
    ("count", "shift"), [(7, ["shift"]), (9, ["shift-accuracy", "shift-ece", "shift-nll"])]
)
def test_more_methods_than_colours_get_a_figure_for_each_metric_under_shift(count, shift, tmp_path):
    paths = write_plots(tmp_path, *rows_and_summaries(count))
    assert sorted(path.stem for path in paths) == [
        *("ood-rotations", "reliability", "risk-coverage"),
        *shift,
    ]
    for path in paths:
        with Image.open(path) as image:
            assert min(image.size) > 300


def test_each_panel_shows_its_method_before_the_others():
    x = torch.linspace(0, 1, 5)
    curves = {
        f"method {place}": Curve(x, place * x, f"area {place / 2}", errors=0.1 * x)
        for place in range(9)
    }
    figure = small_multiples(curves, title="t", x_label="x", y_label="y")
    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title() for panel in shown] == [
        f"method {place}\narea {place / 2}" for place in range(9)
    ]
    for place, panel in enumerate(shown):
        coloured = [line for line in panel.lines if line.get_color() == "#0072B2"]
        assert coloured[0].get_ydata() == pytest.approx((place * x).numpy())
        grey = [line for line in panel.lines if line.get_color() == "#CFCFCF"]
        assert len(grey) == 8
        assert max(line.get_zorder() for line in grey) < coloured[0].get_zorder()


def test_no_title_of_a_panel_covers_another():
    curve = Curve(torch.arange(3.0), torch.arange(3.0), "AUROC 97.6%")
    names = [f"kepsvgp-{place}+kflla+ts+ensemble" for place in range(16)]
    figure = small_multiples(dict.fromkeys(names, curve), title="t", x_label="x", y_label="y")
    figure.draw_without_rendering()
    boxes = [panel.title.get_window_extent() for panel in figure.axes]
    for first, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[first + 1 :])
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
