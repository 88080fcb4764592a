"""Sampling: exact moments, and noise by place alone."""

import math

import pytest
import torch
from gaussian_data import exact_network

from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.sampling import denoise
from pseudovideo.sampling import draw_noise

MEAN, STD = 0.3, 0.15


def sample(diffusion, network, numbers, *, eta=None, seed=5, shape=(1, 4, 4)):
    """Samples of given numbers in one batch."""
    numbers = torch.as_tensor(numbers)

    def noise(step):
        return draw_noise(numbers, shape, seed=seed, step=step).double()

    start = noise(diffusion.num_steps)
    return denoise(network, start, diffusion, step_noise=noise, eta=eta)


def learned_place(alpha_bars, t):
    """Where the exact variance of step t lies between the posterior's and β, logarithmically."""
    now, before = alpha_bars[t], alpha_bars[t - 1]
    beta = 1 - now / before
    least = beta * (1 - before) / (1 - now)
    unknown = STD**2 * (1 - now) / (now * STD**2 + 1 - now)
    exact = least + (beta * math.sqrt(before) / (1 - now)) ** 2 * unknown
    return math.log(exact / least) / math.log(beta / least)


def walked(diffusion, eta, trained):
    """Mean and standard deviation of exact samples, step by step as scalars.

    Variances were learned for the steps of the process `trained`.
    """
    mean, variance = 0.0, 1.0
    kept, steps = [1.0, *diffusion.alpha_bars.tolist()], diffusion.timesteps[::-1]
    for now, before, step in zip(kept[:0:-1], kept[-2::-1], steps, strict=True):
        known = now * STD**2 / (now * STD**2 + 1 - now)
        # x_0 = a x + b, and ε = (x − √ᾱ x_0)/√(1−ᾱ).
        a, b = known / math.sqrt(now), (1 - known) * MEAN
        beta = 1 - now / before
        fresh = (eta or 0.0) ** 2 * beta * (1 - before) / (1 - now)
        if eta is None:
            of_image = beta * math.sqrt(before) / (1 - now)
            of_state = (1 - before) * math.sqrt(now / before) / (1 - now)
            fresh = beta * (1 - before) / (1 - now)
            if before < 1:
                own = trained.timesteps.index(step)
                share = learned_place(trained.alpha_bars.tolist(), own)
                fresh *= (beta / fresh) ** share
        else:
            away = math.sqrt(1 - before - fresh) / math.sqrt(1 - now)
            of_image, of_state = math.sqrt(before) - away * math.sqrt(now), away
        slope = of_image * a + of_state
        mean, variance = slope * mean + of_image * b, slope**2 * variance + fresh
    return mean, math.sqrt(variance)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [5, 10, 20, 100])
@pytest.mark.parametrize("eta", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("trained_on", ["all steps", "those taken"])
def test_samples_of_gaussian_pixels_have_their_mean_and_variance(schedule, steps, eta, trained_on):
    """All are too narrow in few steps, but those of variances that were learned for these steps."""
    whole = GaussianDiffusion.make(1000, schedule)
    diffusion = whole.respaced(steps)
    trained = whole if trained_on == "all steps" else diffusion
    network = exact_network(trained, MEAN, STD)
    pixels = sample(diffusion, network, range(16), eta=eta, shape=(1, 32, 32)).flatten()
    mean, std = walked(diffusion, eta, trained)
    assert float(pixels.mean()) == pytest.approx(mean, abs=4 * std / len(pixels) ** 0.5)
    assert float(pixels.std()) == pytest.approx(std, rel=4 / (2 * len(pixels)) ** 0.5)
    exact = eta is None and trained is diffusion
    assert std == pytest.approx(STD, rel=0.01) if exact else std < STD


@pytest.mark.parametrize(("eta", "asked"), [(None, [3, 2, 1]), (0.7, [3, 2, 1]), (0.0, [])])
def test_noise_is_asked_for_where_it_has_a_part(eta, asked):
    diffusion = GaussianDiffusion.make(4, "cosine")
    steps = []

    def noise(step):
        steps.append(step)
        return torch.zeros(1, 1, 4, 4)

    start = torch.zeros(1, 1, 4, 4)
    network = exact_network(diffusion, MEAN, STD)
    denoise(network, start, diffusion, step_noise=noise, eta=eta)
    assert steps == asked


def test_images_lie_in_their_range_whatever_the_network_says():
    diffusion = GaussianDiffusion.make(30, "linear")
    for eta in (None, 0.0, 1.0):
        result = sample(diffusion, lambda x, times: torch.cat((-9 * x, 0 * x), 1), [0], eta=eta)
        assert float(result.abs().max()) == 1


def test_noise_differs_between_seeds_steps_frames_and_samples():
    numbers = torch.tensor([0, 1])
    draws = [
        draw_noise(numbers, (1, 8, 8), seed=seed, step=step, frame=frame)
        for seed in (0, 1)
        for step in (0, 1, 1000)
        for frame in (0, 1, 7)
    ]
    rows = torch.cat(draws).flatten(1)
    products = (rows @ rows.T / rows.shape[1]).fill_diagonal_(0)
    # 36 rows of 64 numbers: equal ones would have a product near 1.
    assert float(products.abs().max()) < 0.7
    assert float(rows.mean()) == pytest.approx(0, abs=0.08)
    assert float(rows.std()) == pytest.approx(1, abs=0.06)
