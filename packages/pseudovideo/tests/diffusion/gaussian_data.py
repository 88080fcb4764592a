"""The network that reverses a diffusion of independent Gaussian pixels exactly."""

import torch


def moments(alpha_bar, mean, std):
    """Slope a, offset b and variance of x_0 | x_t = N(a x_t + b, variance), by conditioning."""
    slope = alpha_bar.sqrt() * std**2 / (alpha_bar * std**2 + 1 - alpha_bar)
    offset = mean - slope * alpha_bar.sqrt() * mean
    return slope, offset, std**2 * (1 - slope * alpha_bar.sqrt())


def exact_network(diffusion, mean, std, place=None):
    """Noise and place of the variance that give p(x_{t−1} | x_t) of pixels N(mean, std²).

    `initialise` gives another, constant one.
    """
    betas, kept = diffusion.betas, diffusion.alpha_bars
    before = torch.cat((torch.ones(1, dtype=torch.float64), kept[:-1]))
    posterior = betas * (1 - before) / (1 - kept)
    slope, offset, left = moments(kept, mean, std)
    # Variance of x_{t−1} given x_t: the posterior's and what is unknown of x_0.
    variance = posterior + (before.sqrt() * betas / (1 - kept)) ** 2 * left
    least = torch.cat((posterior[1:2], posterior[1:])).log()
    places = 2 * (variance.log() - least) / (betas.log() - least) - 1
    scale, numbers = 1000 / diffusion.original_steps, torch.tensor(diffusion.timesteps)

    def network(x, times):
        steps = torch.searchsorted(numbers, (times / scale).round().long())
        a, b, abar, v = (
            table[steps].reshape(-1, 1, 1, 1) for table in (slope, offset, kept, places)
        )
        eps = (x - abar.sqrt() * (a * x + b)) / (1 - abar).sqrt()
        v = v if place is None else torch.full_like(v, place)
        return torch.cat((eps, v.expand(x.shape)), dim=1).to(x.dtype)

    return network
