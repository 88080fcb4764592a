import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from ohsvgp import ExactGP, Gaussian, OnlineGP, PivotedCholesky
from ohsvgp.likelihoods import Bernoulli, Poisson
from ohsvgp.tasks import (
    Task,
    curves,
    cut_channels,
    evaluate,
    learn,
    predict_on_grid,
    scores,
    sequential_splits,
    split_into_tasks,
    standardised,
    stratified_splits,
)
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import RBF


def rng(seed=0):
    return np.random.default_rng(seed)


def test_sequential_tasks_are_equal_disjoint_and_have_their_own_points_for_evaluation():
    x, test = np.linspace(3.0, 8.0, 101), np.zeros(101, dtype=np.bool_)
    test[rng().choice(101, 20, replace=False)] = True
    tasks = split_into_tasks(x, np.sin(x), sequential_splits(x, test, 4))
    lengths = [len(task.y) for task in tasks]
    assert sum(lengths) == 81
    assert max(lengths) - min(lengths) <= 1
    for number, (earlier, later) in enumerate(pairwise(tasks)):
        assert earlier.x.max() < later.x.min()
        assert earlier.test_x.max() <= earlier.x.max()
        assert number == 0 or earlier.test_x.min() > tasks[number - 1].x.max()
    everything = torch.cat([torch.cat([task.x, task.test_x]) for task in tasks])
    assert sorted(everything.tolist()) == x.tolist()


@pytest.mark.parametrize(
    ("count", "num_tasks", "share"),
    [(30, 10, 0.2), (31, 10, 0.2), (80, 10, 0.2), (100, 7, 0.5), (60, 4, 0.01), (40, 5, 0.99)],
)
def test_each_stratified_task_has_its_share_for_evaluation(count, num_tasks, share):
    splits = stratified_splits(count, num_tasks, share, seed=0)
    again, other = (stratified_splits(count, num_tasks, share, seed=seed) for seed in (0, 1))
    kept, same, different = (np.concatenate([s[1] for s in f]) for f in (splits, again, other))
    assert np.array_equal(kept, same)
    assert share > 0.9 or not np.array_equal(kept, different)
    learned = [len(own) for own, _ in splits]
    assert 1 <= min(learned) <= max(learned) <= min(learned) + 2
    for own, test in splits:
        assert 1 <= len(test) < max(2.0, share * (len(own) + len(test)) + 1.0)
        assert test.max() < own.max()
    for (own, _), (later, test) in pairwise(splits):
        assert own.max() < min(later.min(), test.min())
    assert sorted(np.concatenate([np.concatenate(pair) for pair in splits])) == [*range(count)]


def test_targets_are_standardised_on_the_points_to_learn():
    values, splits = np.stack([np.arange(9.0), -np.arange(9.0)]), [(np.arange(6), np.arange(6, 9))]
    found = standardised(values, splits)
    assert found[:, :6].mean(1) == pytest.approx(0.0, abs=1e-12)
    assert found[:, :6].std(1) == pytest.approx(1.0)
    assert found[0, 8] > 1.0


def lines(count, *, step=2.0, moved=False, **options):
    time = 10.0 + step * np.arange(count)
    values = np.stack([time, 2.0 * time], axis=1)
    if moved:
        values[:, 1] = np.arange(count) >= count // 2  # constant in the first task
    given = {"num_tasks": 2, "test_share": 0.2, "rng": rng(), **options}
    return cut_channels(time, values, **given)


def test_tasks_of_channels_are_counted_in_lengths_of_the_first():
    first, second = lines(21)
    everything = torch.cat([first.x, first.test_x, second.x, second.test_x]).sort().values
    # Ten steps in the first task, eleven in the second: what is left over is in the last.
    torch.testing.assert_close(everything, torch.arange(21).double() / 9)
    assert float(first.x.max()) == 1.0 < float(second.x.min())
    assert len(first.test_x) == len(second.test_x) == 2
    assert [len(task.x) + len(task.test_x) for task in lines(21, task_length=5)] == [5, 5]


def test_channels_are_standardised_by_what_the_first_task_learns():
    first, second = lines(40, moved=True)
    torch.testing.assert_close(first.y.mean(0), torch.zeros(2).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(first.y[:, 0].std(), torch.tensor(1.0).double())
    assert set(second.y[:, 1].tolist()) == {1.0}
    assert float(second.y[:, 0].min()) > 1.0
    assert lines(40, standardise=False)[0].y.min() >= 10.0


class Constant(ExactGP):
    """Predicts the same everywhere."""

    def __init__(self, mean, variance, likelihood):
        self.mean, self.variance, self.likelihood = mean, variance, likelihood.double()

    def predict(self, x):
        each = torch.ones(x.shape[:1], dtype=torch.float64)
        return DiagonalGaussian(self.mean * each, self.variance * each)


def task(*test_y):
    y = torch.tensor(test_y, dtype=torch.float64)
    zeros = torch.zeros(3).double()
    return Task(zeros, zeros, torch.zeros(len(y)).double(), y)


def measured(model, *tasks):
    return evaluate(model, tasks, torch.Generator().manual_seed(0))


def test_metrics_of_each_task_and_of_all_points_at_once():
    each, over = measured(Constant(1.0, 0.5, Gaussian(0.25)), task(1.0), task(3.0, 0.0))
    density = stats.norm(1.0, math.sqrt(0.75)).logpdf
    assert [found["rmse"] for found in each] == pytest.approx([0.0, math.sqrt(2.5)])
    assert each[0]["nlpd"] == pytest.approx(-density(1.0))
    assert over["nlpd"] == pytest.approx(-(density(1.0) + density(3.0) + density(0.0)) / 3)
    assert over["rmse"] == pytest.approx(math.sqrt(5 / 3))
    # E|Y − y| − ½ E|Y − Y'| of N(1, 0.75).
    law = stats.norm(1.0, math.sqrt(0.75))
    errors = [law.expect(lambda x, y=y: abs(x - y), epsabs=1e-9) for y in (1.0, 3.0, 0.0)]
    assert over["crps"] == pytest.approx(sum(errors) / 3 - math.sqrt(0.75 / math.pi))


def test_classes_have_accuracy_in_place_of_errors():
    each, over = measured(Constant(0.7, 0.2, Bernoulli()), task(1.0, 1.0), task(0.0))
    assert [found["accuracy"] for found in each] == [1.0, 0.0]
    assert over["accuracy"] == pytest.approx(2 / 3)
    assert list(over) == ["nlpd", "crps", "accuracy"]


@pytest.mark.slow
def test_counts_have_a_coverage_that_is_small_for_exact_predictions_only():
    rate, generator = 20.0, torch.Generator().manual_seed(0)
    counts = torch.poisson(torch.full((100,), rate).double(), generator=generator).tolist()
    right, wrong = (
        measured(Constant(math.log(factor * rate), 1e-12, Poisson()), task(*counts))[1]["ece"]
        for factor in (1.0, 1.5)
    )
    assert right < 0.1 < 0.3 < wrong


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


def test_early_inducing_points_are_filled_up_with_nan():
    def numbers(*values):
        return torch.tensor(values, dtype=torch.float64)

    grid = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
    tasks = [
        Task(numbers(3, 4), numbers(1, -1), numbers(3.5), numbers(1)),
        Task(numbers(5), numbers(0), numbers(4.5), numbers(2)),
    ]
    model, seen = OnlineGP(RBF(1), Gaussian(0.5), PivotedCholesky(3), t0=2.0), []
    for task in tasks:
        assert learn(model, task) >= 0.0
        seen.append(predict_on_grid(model, grid))
    arrays = curves(tasks, grid, seen)
    noisy = model.predict(grid, include_noise=True).variance.sqrt()
    assert arrays["sd"][1].tolist() == pytest.approx(noisy.tolist())  # of a new y
    assert arrays["inducing"].isnan().tolist() == [[False, False, True], [False, False, False]]
    assert sorted(arrays["inducing"][1].tolist()) == pytest.approx([3.0, 4.0, 5.0])
    assert arrays["train_task"].tolist() == [0, 0, 1]
    assert arrays["test_y"].tolist() == [1.0, 2.0]
