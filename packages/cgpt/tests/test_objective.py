"""The objective and its schedule."""

import pytest
import torch
from torch.testing import assert_close

from cgpt import alpha_schedule, penalised_loss


def test_the_loss_is_the_likelihood_and_the_weighted_penalty():
    log_likelihood = torch.tensor([[-1.0, -2.0], [-3.0, -6.0]])
    loss = penalised_loss(log_likelihood, torch.tensor(10.0), alpha=0.3)
    assert_close(loss.nll, torch.tensor(3.0))
    assert_close(loss.penalty, torch.tensor(10.0))
    assert_close(loss.loss, torch.tensor(6.0))


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(0.0, 1.0, (0.0, 0.25, 1.0)), (0.5, 1.0, (0.5, 0.625, 1.0))]
)
def test_the_weight_grows_linearly(start, end, expected):
    actual = [alpha_schedule(progress, start=start, end=end) for progress in (0.0, 0.25, 1.0)]
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_progress_outside_training_is_refused(progress):
    with pytest.raises(ValueError, match="progress must be from 0 to 1"):
        alpha_schedule(progress)


def test_bad_weights_are_refused_by_name():
    with pytest.raises(ValueError, match=r"start must be finite and not negative, got -1.0"):
        alpha_schedule(0.5, start=-1.0)
    with pytest.raises(ValueError, match=r"alpha must be finite and not negative, got -0.1"):
        penalised_loss(torch.zeros(2), torch.tensor(0.0), alpha=-0.1)
    with pytest.raises(ValueError, match=r"end must be finite and not negative, got inf"):
        alpha_schedule(0.0, end=float("inf"))
    with pytest.raises(ValueError, match=r"alpha must be finite and not negative, got inf"):
        penalised_loss(torch.zeros(2), torch.tensor(0.0), alpha=float("inf"))
    with pytest.raises(
        ValueError, match=r"log_likelihood must .* one sequence, got shape \(3, 0\)"
    ):
        penalised_loss(torch.zeros(3, 0), torch.tensor(0.0), alpha=1.0)
