from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from probseq_apps.data.series import Series
from probseq_apps.data.tables import Table
from probseq_apps.experiments.streams import cut_series, cut_table, load_stream
from probseq_apps.settings.online import GPSettings, OnlineSettings, StreamSettings


def settings(num_tasks=4, likelihood="gaussian", **stream):
    return OnlineSettings(
        method=("ohsvgp",),
        stream=StreamSettings(num_tasks=num_tasks, **stream),
        model=GPSettings(likelihood=likelihood),
    )


def series(count=101):
    time = np.linspace(3.0, 8.0, count)
    return Series("own", time, 5.0 + 2.0 * np.sin(time), "t", "y")


def test_tasks_are_sequential_equal_and_disjoint():
    stream = cut_series(series(), settings(), seed=0)
    sizes = [len(task.y) for task in stream.tasks]
    assert sum(sizes) == 81
    assert max(sizes) - min(sizes) <= 1
    for earlier, later in zip(stream.tasks, stream.tasks[1:], strict=False):
        assert earlier.x.max() < later.x.min()
        assert earlier.test_x.max() < later.test_x.min()
    everything = torch.cat([torch.cat([task.x, task.test_x]) for task in stream.tasks])
    assert sorted(everything.tolist()) == series().time.tolist()


def test_points_for_evaluation_lie_in_the_time_of_their_task():
    tasks = cut_series(series(), settings(), seed=1).tasks
    for number, task in enumerate(tasks[:-1]):
        assert task.test_x.max() <= task.x.max()
        if number:
            assert task.test_x.min() > tasks[number - 1].x.max()


def test_the_seed_chooses_the_split():
    first, again, other = (cut_series(series(), settings(), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.tasks[0].x, again.tasks[0].x)
    assert not torch.equal(first.tasks[0].test_x, other.tasks[0].test_x)


def test_targets_are_standardised_on_the_training_points_for_gaussian_noise_only():
    stream = cut_series(series(), settings(), seed=0)
    y = torch.cat([task.y for task in stream.tasks])
    assert y.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert y.std(correction=0).item() == pytest.approx(1.0)
    counts = replace(series(), values=np.arange(101.0))
    plain = cut_series(counts, settings(likelihood="poisson"), seed=0)
    assert torch.cat([task.test_y for task in plain.tasks]).max() <= 100.0
    assert plain.tasks[0].y.tolist() == plain.tasks[0].y.round().tolist()


def test_points_are_sorted_by_the_first_input_or_by_their_distance_from_the_origin():
    x = np.random.default_rng(0).normal(size=(60, 3)) * [1.0, 10.0, 0.1] + 4.0
    test = np.arange(60) % 3 == 0
    table = Table("own", x, x[:, 0], test, ("a", "b", "c"), "y")
    first = cut_table(table, settings(num_tasks=3), seed=0)
    inputs = torch.cat([task.x for task in first.tasks])
    assert (inputs[1:, 0] >= inputs[:-1, 0]).all()
    assert inputs.mean(0).tolist() == pytest.approx([0.0] * 3, abs=1e-12)
    assert inputs.std(0, correction=0).tolist() == pytest.approx([1.0] * 3)
    l2 = cut_table(table, settings(num_tasks=3, order="l2"), seed=0)
    norms = torch.cat([task.x for task in l2.tasks])
    norms = norms.norm(dim=1)
    assert (norms[1:] >= norms[:-1]).all()
    assert first.dim == 3
    assert first.grid is None


def test_moons_keep_their_plane_and_get_a_grid_around_them():
    chosen = OnlineSettings(
        data="two-moons",
        method=("ovc",),
        stream=StreamSettings(num_tasks=3),
        model=GPSettings(likelihood="bernoulli"),
    )
    stream = load_stream(chosen, None, seed=0)
    x = torch.cat([task.x for task in stream.tasks])
    assert x.shape == (450, 2)
    assert stream.grid is not None
    assert (stream.grid.amin(0) < x.amin(0)).all()
    assert (stream.grid.amax(0) > x.amax(0)).all()


@pytest.mark.parametrize(
    ("count", "num_tasks", "named"),
    [
        (20, 17, "--num-tasks must be at most"),
        (20, 12, "for evaluation with seed 0: lower --num-tasks or raise --test-share"),
    ],
)
def test_too_few_points_for_the_tasks_are_refused(count, num_tasks, named):
    with pytest.raises(ValueError, match=named):
        cut_series(series(count), settings(num_tasks=num_tasks), seed=0)


def test_constant_targets_are_refused():
    with pytest.raises(ValueError, match="nothing to learn"):
        cut_series(replace(series(), values=np.ones(101)), settings(), seed=0)


@pytest.mark.parametrize(
    ("count", "num_tasks", "test_share"),
    [(30, 10, 0.2), (31, 10, 0.2), (80, 10, 0.2), (100, 7, 0.5), (60, 4, 0.01), (40, 5, 0.99)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_each_task_of_an_own_file_has_its_share_for_evaluation(count, num_tasks, test_share, seed):
    own = replace(series(count), name="csv:own.csv")
    tasks = cut_series(own, settings(num_tasks=num_tasks, test_share=test_share), seed=seed).tasks
    learned = [len(task.y) for task in tasks]
    assert min(learned) >= 1
    assert max(learned) - min(learned) <= 2
    for task in tasks:
        share = test_share * (len(task.y) + len(task.test_y))
        assert 1 <= len(task.test_y) < max(2.0, share + 1.0)
    everything = torch.cat([torch.cat([task.x, task.test_x]) for task in tasks])
    assert sorted(everything.tolist()) == own.time.tolist()
    for task, later in pairwise(tasks):
        assert task.test_x.max() < task.x.max()
        assert task.x.max() < min(later.x.min(), later.test_x.min())


def test_the_seed_chooses_the_split_of_an_own_file():
    own = replace(series(), name="csv:own.csv")
    first, again, other = (cut_series(own, settings(), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.tasks[1].test_x, again.tasks[1].test_x)
    assert not torch.equal(first.tasks[1].test_x, other.tasks[1].test_x)


def test_the_split_of_a_standard_set_is_that_of_scikit_learn():
    kept = train_test_split(np.arange(101), test_size=20, random_state=3)[1]
    tasks = cut_series(series(), settings(), seed=3).tasks
    found = torch.cat([task.test_x for task in tasks])
    assert found.tolist() == series().time[np.sort(kept)].tolist()


def test_an_own_file_too_short_for_its_tasks_is_refused():
    own = replace(series(29), name="csv:own.csv")
    with pytest.raises(ValueError, match=r"29 points.*10 tasks.*seed 4.*--test-share 0.2.*--num-t"):
        cut_series(own, settings(num_tasks=10), seed=4)
