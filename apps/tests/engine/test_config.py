import pytest
import torch

from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.trainer import epoch_order

BASE = {"epochs": 4, "batch_size": 8, "learning_rate": 1e-3}
STEPS = {"batch_size": 8, "learning_rate": 1e-3, "steps": 100, "warmup_steps": 99}
SCHEDULES = ("linear", "cosine", "constant")


@pytest.mark.parametrize(
    ("base", "name", "value"),
    [
        (BASE, "epochs", 0),
        (BASE, "learning_rate", 0.0),
        (BASE, "final_learning_rate", 2e-3),  # may not grow after the warm-up
        (BASE, "grad_clip", 0.0),
        (BASE, "warmup_epochs", 4),
        (BASE, "warmup_steps", 1),
        (BASE, "ema_decay", 1.0),
        (BASE, "device", "cuda:1x"),
        (STEPS, "steps", 0),
        (STEPS, "warmup_steps", 100),
        (STEPS, "warmup_epochs", 1),
        (STEPS, "epochs", 4),
    ],
)
def test_a_senseless_value_is_refused_by_name(base, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        TrainConfig.from_dict({**base, name: value})


def rates(schedule, **changes):
    values = {"epochs": 5, "batch_size": 1, "learning_rate": 1.0, "final_learning_rate": 0.1}
    config = TrainConfig(**(values | changes), schedule=schedule)
    return [config.step_size(step, 10) for step in range(10 * config.epochs)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_warm_up_rises_by_equal_steps_from_near_zero_to_the_peak(schedule):
    found = rates(schedule, warmup_epochs=2)
    assert found[:21] == pytest.approx([*((i + 1) / 20 for i in range(20)), 1.0])
    assert found[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1)


@pytest.mark.parametrize("warmup", [0, 1])
def test_the_linear_schedule_falls_by_equal_steps_from_peak_to_end(warmup):
    steps = 49 - 10 * warmup
    expected = [1.0 - 0.9 * i / steps for i in range(steps + 1)]
    assert rates("linear", warmup_epochs=warmup)[10 * warmup :] == pytest.approx(expected)


def test_the_cosine_schedule_agrees_with_torchs():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=49, eta_min=0.1)
    expected = []
    for _ in range(50):
        expected.append(oracle.get_last_lr()[0])
        optimizer.step()
        oracle.step()
    assert rates("cosine") == pytest.approx(expected)


def test_the_constant_schedule_and_a_run_of_one_step_stay_at_the_peak():
    assert set(rates("constant")) == {1.0}
    assert TrainConfig(**BASE | {"epochs": 1}).step_size(0, 1) == pytest.approx(1e-3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_length_in_steps_gives_the_step_sizes_of_as_many_epochs(schedule):
    """50 steps are 5 epochs of 10; with passes of 7, where 50 is in the middle of one, too."""
    values = {"batch_size": 1, "learning_rate": 1.0, "final_learning_rate": 0.1}
    config = TrainConfig(**values, steps=50, warmup_steps=20, schedule=schedule)
    for size in (10, 7):
        found = [config.step_size(step, size) for step in range(50)]
        assert found == rates(schedule, warmup_epochs=2)


def test_each_epoch_visits_every_example_once_in_an_order_of_its_own():
    orders = [epoch_order(0, epoch, 50) for epoch in range(3)] + [epoch_order(1, 0, 50)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(50))
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert torch.equal(orders[1], epoch_order(0, 1, 50))


def test_streams_of_different_purpose_rank_and_run_have_different_seeds():
    purposes = ("loss", "global", "order")
    seeds = {derive_seed(s, purpose, i) for s in range(3) for purpose in purposes for i in range(3)}
    assert len(seeds) == 27
