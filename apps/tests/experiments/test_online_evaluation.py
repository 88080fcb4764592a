import math

import numpy as np
import pytest
import torch
from scipy import stats

from ohsvgp import ExactGP, Gaussian, OnlineGP, PivotedCholesky, UniformGrid
from ohsvgp.likelihoods.bernoulli import Bernoulli
from ohsvgp.likelihoods.poisson import Poisson
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import RBF
from probseq_apps.experiment import Job
from probseq_apps.experiments.online import Curves, Online, estimate, evaluate, scores
from probseq_apps.experiments.streams import Stream, Task, load_stream
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.online import metric_figures, task_tables
from probseq_apps.run import run
from probseq_apps.settings.online import (
    METHODS,
    GPSettings,
    Method,
    OnlineSettings,
    StreamSettings,
)


class Constant(ExactGP):
    """Predicts the same everywhere."""

    def __init__(self, mean, variance, likelihood):
        self.mean, self.variance, self.likelihood = mean, variance, likelihood.double()

    def predict(self, x):
        shape = x.shape[:1]
        return DiagonalGaussian(
            torch.full(shape, self.mean, dtype=torch.float64),
            torch.full(shape, self.variance, dtype=torch.float64),
        )


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def task(*test_y):
    y = numbers(*test_y)
    return Task(
        torch.arange(3.0).double(), torch.zeros(3).double(), torch.zeros(len(y)).double(), y
    )


def generator():
    return torch.Generator().manual_seed(0)


def test_metrics_of_each_task_and_of_all_points_at_once():
    learner = Constant(1.0, 0.5, Gaussian(0.25))
    each, over = evaluate(learner, [task(1.0), task(3.0, 0.0)], generator())
    density = stats.norm(1.0, math.sqrt(0.75)).logpdf
    assert [found["rmse"] for found in each] == pytest.approx([0.0, math.sqrt(2.5)])
    assert each[0]["nlpd"] == pytest.approx(-density(1.0))
    assert over["nlpd"] == pytest.approx(-(density(1.0) + density(3.0) + density(0.0)) / 3)
    assert over["rmse"] == pytest.approx(math.sqrt(5 / 3))


def test_classes_have_accuracy_in_place_of_errors():
    learner = Constant(0.7, 0.2, Bernoulli())
    each, over = evaluate(learner, [task(1.0, 1.0), task(0.0)], generator())
    assert [found["accuracy"] for found in each] == [1.0, 0.0]
    assert over["accuracy"] == pytest.approx(2 / 3)
    assert list(over) == ["nlpd", "accuracy"]


def test_counts_have_a_coverage_that_is_small_for_exact_predictions_only():
    rate = 20.0
    counts = torch.poisson(torch.full((600,), rate).double(), generator=generator())
    errors = {}
    for factor in (1.0, 1.5):
        learner = Constant(math.log(factor * rate), 1e-12, Poisson())
        _, over = evaluate(learner, [task(*counts.tolist())], generator())
        errors[factor] = over["ece"]
    assert errors[1.0] < 0.07 < 0.3 < errors[1.5]


def test_predictions_that_are_not_finite_are_an_error():
    learner = Constant(math.nan, 1.0, Gaussian(0.1))
    with pytest.raises(ArithmeticError, match="nlpd"):
        evaluate(learner, [task(1.0)], generator())


def test_the_matrix_has_a_row_for_each_task_learned_and_nothing_for_the_future():
    first = {"each": [{"rmse": 1.0}], "over": {"rmse": 1.5}, "seconds": 0.1, "lost": 0.0}
    both = [{"rmse": 3.0}, {"rmse": 2.0}]
    second = {"each": both, "over": {"rmse": 2.5}, "seconds": 0.2, "lost": 4.0}
    assert scores([first, second], 2) == {
        "tasks": 2,
        "matrix": {"rmse": [[1.0, None], [3.0, 2.0]]},
        "over_tasks": {"rmse": [1.5, 2.5]},
        "seconds": [0.1, 0.2],
        "lost_information": [0.0, 4.0],
    }


def test_the_table_has_final_values_forgetting_and_total_seconds():
    run = {
        "tasks": 2,
        "matrix": {"nlpd": [[1.0, None], [2.0, 2.0]], "rmse": [[1.0, None], [3.0, 2.0]]},
        "over_tasks": {"nlpd": [1.0, 2.25], "rmse": [1.5, 2.5]},
        "seconds": [0.1, 0.2],
        "lost_information": [0.0, 4.0],
    }
    (heads, rows, _), *over_tasks = task_tables({"ovc": {"0": run}})
    assert heads[3:5] == ["forgetting (RMSE) ↓", "lost ↓"]
    assert rows == [["ovc", "2.250", "2.500", "2.000", "4.00", "0.300"]]
    assert [table.heads for table in over_tasks] == [
        [f"{name} ↓ after task", "1", "2"] for name in ("NLPD", "RMSE")
    ]
    assert over_tasks[1].rows == [["ovc", "1.50", "2.50"]]


@pytest.mark.parametrize(("seeds", "bands"), [((0.0, 1.0), 0), ((0.0, 1.0, 5.0), 1)])
def test_figures_have_student_bands_of_three_seeds_and_more(seeds, bands):
    def found(offset):
        return {
            "over_tasks": {"nlpd": [offset, offset + 1.0]},
            "matrix": {"nlpd": [[offset, None], [offset, offset]]},
            "seconds": [0.1, 0.2],
        }

    runs = {"ovc": {str(seed): found(seed) for seed in seeds}}
    figures = metric_figures(runs, standardised=False)
    assert list(figures) == ["over-tasks", "per-task-nlpd", "matrix-nlpd", "runtime"]
    (axes,) = figures["over-tasks"].axes
    mean = sum(seeds) / len(seeds)
    assert list(axes.lines[0].get_ydata()) == pytest.approx([mean, mean + 1.0])
    assert len(axes.collections) == bands
    if bands:
        half = stats.t.ppf(0.975, 2) * math.sqrt(7.0 / 3.0)
        edges = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert edges.max() == pytest.approx(mean + 1.0 + half)
    (axes,) = figures["runtime"].axes
    assert axes.lines[0].get_xdata() == pytest.approx([0.3])


def test_early_inducing_points_are_filled_up_with_nan():
    grid = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
    stream = Stream("own", (task(1.0), task(2.0)), grid, "t", "y", ())
    curves = Curves(stream)
    model = OnlineGP(RBF(1), Gaussian(0.5), PivotedCholesky(3), t0=2.0)
    model.update(numbers(3.0, 4.0), numbers(1.0, -1.0))
    curves.add(model)
    model.update(numbers(5.0), numbers(0.0))
    curves.add(model)
    noisy = model.predict(grid, include_noise=True).variance.sqrt()
    arrays = curves.arrays()
    assert arrays["inducing"].isnan().tolist() == [[False, False, True], [False, False, False]]
    assert arrays["mean"].shape == (2, 5)
    assert arrays["sd"][1].tolist() == pytest.approx(noisy.tolist())  # of a new y
    assert sorted(arrays["inducing"][1].tolist()) == pytest.approx([3.0, 4.0, 5.0])
    assert arrays["train_task"].tolist() == [0, 0, 0, 1, 1, 1]
    assert arrays["test_y"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("data", "likelihood", "methods"),
    [
        ("toy", "gaussian", ("ohsvgp", "ohsvgp-rff", "ohsvgp-legt", "ohsvgp-lagt", "ohsvgp-fout")),
        (
            "toy",
            "gaussian",
            ("cosine", "grid", "ovc", "ovc-optz", "osgpr", "ovff", "exact"),
        ),
        (
            "two-moons",
            "bernoulli",
            ("ohsvgp-o", "ohsvgp-k", "ohsvgp-k-min", "ohsvgp-rand", "osvgp"),
        ),
    ],
)
def test_every_method_learns_a_first_task_far_better_than_its_prior(
    data, likelihood, methods, tmp_path
):
    settings = OnlineSettings(
        data=data,
        method=methods,
        stream=StreamSettings(num_tasks=6),
        model=GPSettings(
            num_inducing=11,
            likelihood=likelihood,
            hyperparameters="fixed",
            lengthscale=0.3,
            ovff_lengthscale=0.5,
            noise=0.02,
            learn_steps=2,
            num_features=200,
        ),
    )
    stream = load_stream(settings, None, seed=0)
    stream = Stream(stream.name, stream.tasks[:2], None, "", "", ())
    experiment, at = Online(settings), RunFolder(tmp_path, "recipe")
    # The standard deviation of targets is one; a coin has 0.69 nats.
    worst = 0.6 if data == "toy" else 0.4
    for method in methods:
        found = experiment.run(Job(method, 0), {0: stream}, at)
        with np.load(tmp_path / "predictions" / f"{method}-seed0.npz") as file:
            arrays = dict(file)
        assert found["over_tasks"]["nlpd"][0] < worst, method
        assert ("inducing" in arrays) == (method in ("grid", "ovc", "ovc-optz", "osgpr", "osvgp"))


def test_the_hyperparameters_of_the_first_task_are_those_of_greatest_evidence():
    settings = GPSettings(num_inducing=5, lengthscale=1.0, noise=0.5)
    parts = StreamSettings(num_tasks=6)
    chosen = OnlineSettings(data="toy", method=("ovc",), stream=parts, model=settings)
    stream = load_stream(chosen, None, seed=0)
    kernel, likelihood = estimate(stream, settings, fourier=False, seed=0)
    x, y = stream.tasks[0].x, stream.tasks[0].y

    def evidence(lengthscale, variance, noise):
        K = variance * torch.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2)
        K = K + noise * torch.eye(len(x), dtype=torch.float64)
        law = torch.distributions.MultivariateNormal(torch.zeros_like(y), K)
        return float(law.log_prob(y))

    best = [kernel.lengthscale.item(), kernel.outputscale.item(), likelihood.noise.item()]
    assert evidence(*best) > evidence(1.0, 1.0, 0.5)
    for place in range(3):
        for factor in (0.8, 1.25):
            other = list(best)
            other[place] *= factor
            assert evidence(*other) <= evidence(*best) + 1e-6


def test_a_new_basis_is_one_entry_of_the_methods(monkeypatch, tmp_path):
    entry = Method("a grid of twice as many", "time", lambda s, _: UniformGrid(2 * s.num_inducing))
    monkeypatch.setitem(METHODS, "dense", entry)
    settings = OnlineSettings(
        data="toy",
        method=("dense",),
        seeds=(0,),
        stream=StreamSettings(num_tasks=3),
        model=GPSettings(num_inducing=4, hyperparameters="fixed"),
    )
    folder = run(Online(settings), Options(run_dir=tmp_path / "run"), recipe="toy")
    with np.load(folder / "predictions" / "dense-seed0.npz") as arrays:
        assert arrays["inducing"].shape == (3, 8)
    assert "`dense`: a grid of twice as many" in (folder / "report.md").read_text()
