"""Pictures of regressors, over the seeds."""

import pytest
import torch

from probseq_apps.experiments.regress import NumberPredictions, predicted
from probseq_apps.report.regress import regress_figures

NAME = "ood/swapped-edges"


def predictions(seed, samples):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(20, generator=generator, dtype=torch.float64)
    values = targets + torch.randn(samples, 20, generator=generator, dtype=torch.float64)
    scale = torch.tensor(0.5, dtype=torch.float64)
    return predicted([NumberPredictions(values, scale, targets)])


def entries(samples):
    return [
        {"test": predictions(seed, samples), NAME: predictions(seed + 9, samples)}
        for seed in range(2)
    ]


def test_a_method_that_ranks_nothing_is_a_flat_line_and_in_no_figure_of_unknown_data():
    rows = {"mle": entries(1), "sgpa": entries(4)}
    figures = regress_figures(rows, "logp")
    alone = ["predicted", "coverage", "error-by-variance"]
    assert list(regress_figures({"mle": rows["mle"]}, "logp")) == alone
    assert list(figures) == [*alone, "ood-swapped-edges", "ood-swapped-edges-roc"]
    flat, falling = figures["error-by-variance"].axes[0].lines
    assert (flat.get_label(), falling.get_label()) == ("mle (no order)", "sgpa")
    each = [entry["test"] for entry in rows["mle"]]
    expected = torch.stack([(p.mean - p.targets).abs().mean() for p in each]).mean()
    assert list(flat.get_ydata()) == pytest.approx([float(expected)] * 2)
    assert [axes.get_title() for axes in figures["ood-swapped-edges"].axes] == ["sgpa"]


def test_the_curve_of_coverage_is_the_mean_over_the_seeds():
    def curve(found):
        return regress_figures({"sgpa": found}, "x")["coverage"].axes[0].lines[0].get_ydata()

    both = entries(4)
    assert list(curve(both)) == pytest.approx(list((curve(both[:1]) + curve(both[1:])) / 2))
