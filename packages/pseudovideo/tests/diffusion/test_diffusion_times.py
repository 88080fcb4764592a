"""Steps to train at: their frequencies, unbiased weights, histories, exact resume."""

import pytest
import torch

from pseudovideo.diffusion.objective import ImportanceTimes


def filled(num_steps=6, history=3, seed=0):
    """A sampler that knows losses of every step, which differ a hundredfold."""
    times = ImportanceTimes(num_steps, history)
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-1, 1, num_steps)
    for _ in range(history):
        losses = scale * (0.5 + torch.rand(num_steps, generator=generator))
        times.update(torch.arange(num_steps), losses)
    return times


def test_steps_are_uniform_until_each_has_a_history():
    times = ImportanceTimes(4, history=2)
    uniform = torch.full((4,), 0.25)
    times.update(torch.tensor([0, 0, 1, 1, 2, 2, 3]), 10 * torch.rand(7))
    assert torch.equal(times.probabilities, uniform)
    t, weights = times.sample(50, torch.Generator().manual_seed(0))
    assert torch.equal(weights, torch.ones(50))
    assert set(t.tolist()) == {0, 1, 2, 3}
    times.update(torch.tensor([3]), torch.tensor([5.0]))
    assert not torch.allclose(times.probabilities, uniform)


def test_probabilities_are_the_roots_of_the_second_moments():
    times = ImportanceTimes(3, history=2)
    times.update(torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([3.0, 4, 1, 1, 0, 2]))
    roots = [(25 / 2) ** 0.5, 1.0, 2**0.5]
    expected = [0.999 * root / sum(roots) + 0.001 / 3 for root in roots]
    assert times.probabilities.tolist() == pytest.approx(expected)
    t, _ = times.sample(40_000, torch.Generator().manual_seed(1))
    frequencies = t.bincount(minlength=3) / 40_000
    assert frequencies.tolist() == pytest.approx(expected, abs=0.01)


def test_weighted_losses_are_unbiased():
    """Σ_t p_t w_t f_t = mean f exactly, and so in the mean over draws, with less variance."""
    times = filled()
    values = times.losses.mean(1)
    p = times.probabilities
    every = 1 / (6 * p)
    torch.testing.assert_close((p * every * values).sum(), values.mean())
    t, weights = times.sample(40_000, torch.Generator().manual_seed(2))
    torch.testing.assert_close(weights, every[t])
    weighted = weights * values[t]
    assert float(weighted.mean()) == pytest.approx(float(values.mean()), rel=0.01)
    uniform = torch.randint(6, (40_000,), generator=torch.Generator().manual_seed(2))
    assert weighted.var() < 0.05 * values[uniform].var()


def test_the_history_holds_the_last_losses_also_of_a_step_that_comes_often():
    """Against lists that drop their oldest entry."""
    times, lists = ImportanceTimes(4, history=3), [[] for _ in range(4)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        t = torch.randint(4, (9,), generator=generator)
        losses = torch.rand(9, generator=generator)
        times.update(t, losses)
        for step, loss in zip(t.tolist(), losses.tolist(), strict=True):
            lists[step] = [*lists[step], loss][-3:]
        for step in range(4):
            held = times.losses[step, : len(lists[step])].tolist()
            assert sorted(held) == pytest.approx(sorted(lists[step]))


def test_the_state_comes_back_to_the_last_bit():
    times = filled()
    restored = ImportanceTimes(6, history=3)
    restored.load_state_dict(times.state_dict())
    generators = [torch.Generator().manual_seed(4) for _ in range(2)]
    for _ in range(5):
        both = [one.sample(8, g) for one, g in zip((times, restored), generators, strict=True)]
        for first, second in zip(*both, strict=True):
            assert torch.equal(first, second)
        t = both[0][0]
        losses = (t + 1.0) / 7
        times.update(t, losses)
        restored.update(t, losses)
        assert torch.equal(times.losses, restored.losses)
        assert torch.equal(times.counts, restored.counts)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0])
def test_losses_that_tell_nothing_leave_steps_uniform(bad):
    times = filled()
    losses = torch.full((18,), 0.0)
    losses[7] = bad
    times.update(torch.arange(6).repeat(3), losses)
    assert times.probabilities.tolist() == pytest.approx([1 / 6] * 6)
    times.update(torch.arange(6).repeat(3), torch.arange(18) % 6 + 1.0)
    assert times.probabilities[5] > 4 * times.probabilities[0]


def test_a_step_without_losses_is_drawn_still():
    times = ImportanceTimes(2, history=1)
    times.update(torch.tensor([0, 1]), torch.tensor([0.0, 1.0]))
    t, weights = times.sample(20_000, torch.Generator().manual_seed(0))
    assert 0 < int((t == 0).sum()) < 40
    assert float(weights[t == 0][0]) == pytest.approx(1000, rel=1e-4)


def test_losses_are_taken_without_their_gradient():
    times = ImportanceTimes(2, history=1)
    losses = torch.ones(2, dtype=torch.float64, requires_grad=True)
    times.update(torch.tensor([0, 1]), losses)
    assert not times.losses.requires_grad


def test_an_empty_history_is_refused():
    with pytest.raises(ValueError, match="history must be a whole number of at least 1, got 0"):
        ImportanceTimes(5, history=0)


def test_steps_beyond_the_process_are_refused():
    times = ImportanceTimes(3)
    for step in (3, 10**9, -1):
        with pytest.raises(ValueError, match="t must be from 0 to 2"):
            times.update(torch.tensor([0, step]), torch.ones(2))
    assert torch.equal(times.counts, torch.zeros(3, dtype=torch.int64))
