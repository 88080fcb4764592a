import pytest
import torch

from probseq_apps.experiments.regress import NumberPredictions, predicted
from probseq_apps.report.regress import (
    coverage_figure,
    predicted_figure,
    selective_figure,
    variance_figure,
    write_regress_plots,
)

NAME = "ood/swapped-edges"


def predictions(seed, samples):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(20, generator=generator, dtype=torch.float64)
    values = targets + torch.randn(samples, 20, generator=generator, dtype=torch.float64)
    scale = torch.tensor(0.5, dtype=torch.float64)
    return predicted([NumberPredictions(values, scale, targets)])


def entries(samples, seeds=2):
    return [
        {"test": predictions(seed, samples), NAME: predictions(seed + 9, samples)}
        for seed in range(seeds)
    ]


def texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_every_method_has_a_panel_and_a_curve():
    rows = {f"method-{number}": entries(1 + number) for number in range(6)}
    figure = predicted_figure(rows, "logp")
    assert [axes.get_title() for axes in figure.axes] == list(rows)
    assert [axes.get_ylabel() for axes in figure.axes].count("Predicted logp ± 2 std") == 2
    assert texts(coverage_figure(rows)) == list(rows)


def test_a_method_that_ranks_nothing_is_a_flat_line_and_in_no_figure_of_unknown_data(tmp_path):
    rows = {"mle": entries(1), "sgpa": entries(4)}
    figure = selective_figure(rows, "logp")
    assert texts(figure) == ["mle (no order)", "sgpa"]
    flat = figure.axes[0].lines[0].get_ydata()
    each = [entry["test"] for entry in rows["mle"]]
    expected = torch.stack([(p.mean - p.targets).abs().mean() for p in each]).mean()
    assert list(flat) == pytest.approx([float(expected)] * 2)
    shown = variance_figure({"sgpa": rows["sgpa"]}, NAME, "logp")
    assert [axes.get_title() for axes in shown.axes] == ["sgpa"]
    assert texts(shown) == ["Test set", "Swapped edges"]
    names = [path.name for path in write_regress_plots(tmp_path, {"mle": entries(1)}, target="x")]
    assert names == ["predicted.png", "coverage.png", "error-by-variance.png"]
    names = [path.name for path in write_regress_plots(tmp_path, rows, target="x")]
    assert names[3:] == ["ood-swapped-edges.png", "ood-swapped-edges-roc.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_the_curve_of_coverage_is_the_mean_over_the_seeds():
    rows = {"sgpa": entries(4)}
    single = [
        coverage_figure({"sgpa": [entry]}).axes[0].lines[1].get_ydata() for entry in rows["sgpa"]
    ]
    found = coverage_figure(rows).axes[0].lines[1].get_ydata()
    assert list(found) == pytest.approx(list((single[0] + single[1]) / 2))
