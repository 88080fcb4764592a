"""Figures of several sets: which there are, what is pooled over the seeds, and what is a mean."""

import pytest
import torch

from probseq.metrics import LaplaceMixture, Predictions, risk_coverage_curve
from probseq.summary import summarise
from probseq_apps.report.set_plots import class_figures, number_figures, shift_figures

NAME = "ood/swapped-edges"


def classes(seed, count=60):
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(count, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((0.5 * logits).softmax(dim=1), 1, generator=generator)[:, 0]
    return Predictions(
        logits.log_softmax(dim=1), torch.zeros(count, 5, dtype=torch.float64), labels
    )


def numbers(seed, samples):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(20, generator=generator, dtype=torch.float64)
    values = targets + torch.randn(samples, 20, generator=generator, dtype=torch.float64)
    return LaplaceMixture([values], [torch.tensor(0.5, dtype=torch.float64)]), targets


def entries(samples):
    return [{"test": numbers(seed, samples), NAME: numbers(seed + 9, samples)} for seed in (0, 1)]


def drawn(figure, place=0):
    return figure.axes[0].lines[place].get_ydata().tolist()


def test_curves_of_classes_pool_the_seeds_and_risks_are_their_means():
    outside = "ood/folder:/a b"
    seeds = [{"test": classes(k), outside: classes(9 + k)} for k in range(2)]
    figures = class_figures({"mle": seeds})
    assert list(figures) == ["trusted", "reliability"]
    count = figures["reliability"].axes[1].patches
    assert sum(bar.get_height() for bar in count) == 120
    risks, accepted = [], []
    for sets in seeds:
        confidence, predicted = sets["test"].log_probs.exp().max(-1)
        risk = risk_coverage_curve(confidence, predicted == sets["test"].labels)[1]
        risks.append(risk[len(risk) * 3 // 5 - 1])
        least = confidence.sort().values[-len(confidence) * 3 // 5]
        accepted.append((sets[outside].log_probs.exp().amax(-1) >= least).double().mean())
    for axes, expected in zip(figures["trusted"].axes, (risks, accepted), strict=False):
        curve = axes.containers[0].lines[0]
        assert curve.get_ydata()[1] == pytest.approx(float(sum(expected) / 2))


@pytest.mark.parametrize(
    ("count", "names"), [(7, ["shift"]), (8, ["shift-accuracy", "shift-nll", "shift-ece"])]
)
def test_more_methods_than_colours_get_a_figure_for_each_metric_under_shift(count, names):
    values = {"test": [0.9, 0.8], "shift/severity-5": [0.5, 0.3], "shift/severity-1": [0.7, None]}
    metrics = {
        f"{place}/{metric}": summarise(found)
        for place, found in values.items()
        for metric in ("accuracy", "nll", "ece")
    }
    figures = shift_figures({f"method-{place}": metrics for place in range(count)})
    assert list(figures) == names
    curve = figures[names[0]].axes[0].containers[0].lines[0]
    assert curve.get_xdata().tolist() == [0, 1, 5]
    assert curve.get_ydata().tolist() == pytest.approx([0.85, float("nan"), 0.4], nan_ok=True)
    assert shift_figures({"mle": {"test/nll": summarise([0.5])}}) == {}


def test_a_method_that_ranks_nothing_is_a_flat_line():
    methods = {"mle": entries(1), "sgpa": entries(4)}
    figures = number_figures(methods, "logp")
    assert list(figures) == ["predicted", "coverage", "error-by-variance"]
    flat, falling = figures["error-by-variance"].axes[0].lines
    assert (flat.get_label(), falling.get_label()) == ("mle (no order)", "sgpa")
    each = [(found.mean - y).abs().mean() for found, y in (sets["test"] for sets in methods["mle"])]
    assert list(flat.get_ydata()) == pytest.approx([float(sum(each) / 2)] * 2)


def test_the_curve_of_coverage_is_the_mean_over_the_seeds():
    def curve(found):
        return torch.tensor(drawn(number_figures({"sgpa": found}, "x")["coverage"]))

    both = entries(4)
    assert torch.allclose(curve(both), (curve(both[:1]) + curve(both[1:])) / 2)
