"""When a loss is worth a warning."""

import torch

from ohsvgp.information_loss import InformationLoss
from ohsvgp.state import UpdateInfo


def update(old: float | list[float], new: float | list[float], n: int) -> UpdateInfo:
    """What tells of n observations, of which these nats were lost; a list for many series."""
    return UpdateInfo(
        energy=torch.zeros(()),
        lost_information=torch.tensor(old, dtype=torch.float64),
        unexplained=torch.tensor(new, dtype=torch.float64),
        jitter_used=1e-8,
        n_new=n,
        t_end=1.0,
    )


def test_a_nat_and_a_tenth_of_one_per_observation_may_go() -> None:
    for old, new, n in ((0.5, 0.5, 1), (1.0, 0.0, 10), (1.0, 1.0, 20), (0.0, 2.0, 20)):
        assert not InformationLoss().after(update(old, new, n)).large
    for old, new, n in ((0.6, 0.5, 1), (1.1, 0.0, 10), (1.0, 1.1, 20), (0.0, 2.1, 20)):
        assert InformationLoss().after(update(old, new, n)).large


def test_many_small_losses_add_up() -> None:
    losses, large = InformationLoss(), []
    for _ in range(6):
        losses = losses.after(update(0.0, 0.25, 1))
        large.append(losses.large)
    assert large == [False, False, False, False, True, True]
    assert (losses.total, losses.observed) == (1.5, 6)


def test_a_move_may_cost_what_all_observations_since_the_last_one_allow() -> None:
    losses = InformationLoss().after(update(0.0, 0.0, 100)).after(update(5.0, 0.0, 1))
    assert not losses.large
    assert losses.since_move == 0
    # And no more: five nats of one observation.
    assert losses.after(update(5.0, 0.0, 1)).large


def test_the_series_that_loses_most_counts() -> None:
    assert InformationLoss().after(update([0.0, 3.0], [0.0, 0.0], 2)).large
