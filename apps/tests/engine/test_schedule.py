import math
from itertools import pairwise

import pytest
import torch

from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.trainer import epoch_order


def rates(schedule, **changes):
    values = {"epochs": 5, "batch_size": 1, "learning_rate": 1.0, "final_learning_rate": 0.1}
    config = TrainConfig(**(values | changes), schedule=schedule)
    return [config.step_size(step, 10) for step in range(10 * config.epochs)]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_warm_up_rises_by_equal_steps_from_near_zero_to_the_peak(schedule):
    warm = rates(schedule, warmup_epochs=2)[:20]
    assert warm == pytest.approx([(i + 1) / 20 for i in range(20)])


@pytest.mark.parametrize("warmup", [0, 1])
def test_the_linear_schedule_falls_by_equal_steps_from_peak_to_end(warmup):
    cold = rates("linear", warmup_epochs=warmup)[10 * warmup :]
    assert cold[0] == 1.0
    assert cold[-1] == pytest.approx(0.1)
    steps = [a - b for a, b in pairwise(cold)]
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_the_cosine_schedule_agrees_with_torchs():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=49, eta_min=0.1)
    expected = []
    for _ in range(50):
        expected.append(oracle.get_last_lr()[0])
        optimizer.step()
        oracle.step()
    assert rates("cosine") == pytest.approx(expected)


def test_the_constant_schedule_stays_at_the_peak():
    assert set(rates("constant")) == {1.0}


def test_a_run_of_one_step_uses_the_peak():
    config = TrainConfig(epochs=1, batch_size=8, learning_rate=0.5)
    assert math.isclose(config.step_size(0, 1), 0.5)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_a_length_in_steps_gives_the_step_sizes_of_as_many_epochs(schedule):
    """50 steps are 5 epochs of 10; with passes of 7, where 50 is in the middle of one, too."""
    values = {"batch_size": 1, "learning_rate": 1.0, "final_learning_rate": 0.1}
    config = TrainConfig(**values, steps=50, warmup_steps=20, schedule=schedule)
    for size in (10, 7):
        found = [config.step_size(step, size) for step in range(50)]
        assert found == rates(schedule, warmup_epochs=2)
    assert config.total_steps(7) == 50


def test_each_epoch_visits_every_example_once_in_an_order_of_its_own():
    orders = [epoch_order(0, epoch, 50) for epoch in range(3)] + [epoch_order(1, 0, 50)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(50))
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert torch.equal(orders[1], epoch_order(0, 1, 50))


def test_streams_of_different_purpose_rank_and_run_have_different_seeds():
    seeds = {
        derive_seed(seed, purpose, index)
        for seed in range(3)
        for purpose in ("loss", "global", "order")
        for index in range(3)
    }
    assert len(seeds) == 27
