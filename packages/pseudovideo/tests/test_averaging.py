"""The moving average of weights: by hand, in training, and as a state."""

import math

import pytest
import torch
from torch import nn

from pseudovideo import HeatHVAE, HVAEConfig, WeightAverage


def by_hand(values, decay):
    """The recursion on plain numbers: the first value is where the average begins."""
    average = values[0]
    for n, value in enumerate(values[1:]):
        d = min(decay, (1 + n) / (10 + n))
        average = d * average + (1 - d) * value
    return average


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_a_models_average_is_that_of_its_weights_after_each_step(digits, decay):
    torch.manual_seed(0)
    model = HeatHVAE(
        HVAEConfig(image_size=16, channels=1, base_channels=4, num_groups=2, num_res_blocks=1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def weights():
        return torch.cat([p.detach().double().flatten() for p in model.parameters()])

    seen, average = [weights()], WeightAverage(model, decay)
    for step in range(6):
        optimizer.zero_grad()
        model.training_losses(digits[:8])["loss"].backward()
        optimizer.step()
        average.update(step)
        seen.append(weights())
    expected = by_hand(seen, decay)
    with average.applied():
        # Float32 sums of 7 terms.
        torch.testing.assert_close(weights(), expected, atol=1e-6, rtol=1e-5)
        drawn = model.sample(2, images=digits[:4], generator=torch.Generator().manual_seed(1))
    assert torch.equal(weights(), seen[-1])
    average.apply()
    again = model.sample(2, images=digits[:4], generator=torch.Generator().manual_seed(1))
    assert torch.equal(again, drawn)


def test_training_goes_on_from_a_stored_average_as_without_a_break():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    path = [[torch.randn_like(p) for p in model.parameters()] for _ in range(6)]

    def follow(average, start, end):
        for step in range(start, end):
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), path[step], strict=True):
                    parameter.copy_(value)
            average.update(step)

    whole = WeightAverage(model, 0.9)
    follow(whole, 0, 3)
    stored = whole.state_dict()
    follow(whole, 3, 6)
    resumed = WeightAverage(model, 0.9)
    resumed.load_state_dict(stored)
    follow(resumed, 3, 6)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_the_trained_weights_come_back_even_when_scoring_fails():
    model = nn.Linear(3, 2)
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1.0)
    before = model.weight.clone()

    def fail():
        with average.applied():
            assert not torch.equal(model.weight, before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(model.weight, before)


def test_half_precision_weights_are_averaged_in_float32():
    """Increments of a thousandth of the weight vanish in bfloat16, which has 8 bits."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    average = WeightAverage(model, 0.999)
    with torch.no_grad():
        model.weight.fill_(2.0)
    for step in range(100_000, 100_100):
        average.update(step)
    [found] = average.state_dict().values()
    assert float(found) == pytest.approx(2 - 0.999**100, rel=1e-5)
    with average.applied():
        assert model.weight.dtype == torch.bfloat16


def test_a_state_that_was_taken_is_not_moved_by_later_updates():
    model = nn.Linear(2, 1, bias=False)
    average = WeightAverage(model, 0.9)
    before = model.weight.detach().clone()
    state = average.state_dict()
    with torch.no_grad():
        model.weight.add_(1.0)
    average.update(0)
    torch.testing.assert_close(state["weight"], before, rtol=0, atol=0)
    # The first step keeps a tenth.
    torch.testing.assert_close(average.state_dict()["weight"], before + 0.9)


def test_averages_of_another_model_are_refused_by_name():
    average = WeightAverage(nn.Linear(3, 2), 0.9)
    with pytest.raises(ValueError, match=r"differ in \[\('bias', \(2,\)\)\]"):
        average.load_state_dict({"weight": torch.zeros(2, 3)})
    wide = torch.zeros(2, 1)
    with pytest.raises(ValueError, match=r"\('weight', \(2, 1\)\), \('weight', \(2, 3\)\)"):
        average.load_state_dict({"weight": wide, "bias": torch.zeros(2)})


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, math.nan])
def test_a_decay_that_averages_nothing_is_refused(decay):
    with pytest.raises(ValueError, match="decay must be above 0 and below 1, got"):
        WeightAverage(nn.Linear(3, 2), decay)
