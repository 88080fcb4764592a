"""The bound: masses that sum to 1, an independent loop, and cases whose answer is known."""

import math

import pytest
import torch
from gaussian_data import exact_network
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.likelihood import (
    bits_per_dim,
    discretized_log_likelihood,
    normal_kl,
    vlb_terms,
)
from pseudovideo.sampling import draw_noise, draw_seed

LEVELS = torch.linspace(-1, 1, 256, dtype=torch.float64)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def masses(mean, std, dtype=torch.float64):
    levels = LEVELS.to(dtype)
    means, log_variances = (torch.full_like(levels, v) for v in (mean, 2 * math.log(std)))
    return discretized_log_likelihood(levels, means, log_variances)


@settings(deadline=None, max_examples=100)
@given(st.floats(-3, 3), st.floats(-6, 3))
def test_the_masses_of_all_levels_sum_to_1(mean, log_std):
    total = torch.logsumexp(masses(mean, math.exp(log_std)), dim=0)
    assert float(total) == pytest.approx(0, abs=1e-11)
    single = torch.logsumexp(masses(mean, math.exp(log_std), torch.float32), dim=0)
    # Far out, a float32 Gaussian has the digits of its exponent: 10⁵ times 10⁻⁷.
    assert float(single) == pytest.approx(0, abs=1e-4 + 4e-7 * (mean / math.exp(log_std)) ** 2)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.6, 0.02), (-0.9, 0.3), (2.0, 0.05)])
def test_a_mass_is_the_integral_over_its_bin(mean, std):
    """Simpson's rule on the logarithm of the density, also 60 standard deviations out."""
    nodes = torch.linspace(-1 / 255, 1 / 255, 201, dtype=torch.float64)
    simpson = torch.ones(201, dtype=torch.float64)
    simpson[1:-1:2], simpson[2:-1:2] = 4, 2
    simpson *= (2 / 255) / 200 / 3
    density = stats.norm(mean, std).logpdf((LEVELS[1:-1, None] + nodes).numpy())
    expected = torch.logsumexp(torch.as_tensor(density) + simpson.log(), dim=1)
    torch.testing.assert_close(masses(mean, std)[1:-1], expected, rtol=1e-7, atol=1e-7)


def test_the_bins_at_the_ends_reach_to_infinity():
    found = masses(0.2, 0.5)
    gaussian = stats.norm(0.2, 0.5)
    assert float(found[0]) == pytest.approx(gaussian.logcdf(-1 + 1 / 255), rel=1e-10)
    assert float(found[-1]) == pytest.approx(gaussian.logsf(1 - 1 / 255), rel=1e-10)


def test_the_gradient_is_right_and_finite_however_far_the_level_is():
    images = LEVELS[::51].clone()
    mean = normal(6, seed=1).requires_grad_()
    log_variance = (normal(6, seed=2) - 3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda m, v: discretized_log_likelihood(images, m, v), (mean, log_variance)
    )
    for std in (1e-3, 1e-1, 1e9):
        far = torch.tensor([-30.0, -1, 0, 1, 30], requires_grad=True)
        width = torch.full((5,), 2 * math.log(std), requires_grad=True)
        value = discretized_log_likelihood(torch.tensor([1.0, 0, 1 / 255, -1, 1]), far, width)
        value.sum().backward()
        for tensor in (value, far.grad, width.grad):
            assert bool(tensor.isfinite().all())


def test_the_divergence_of_gaussians_is_torchs():
    m, v, m2, v2 = (normal(50, seed=seed) for seed in range(4))
    first, second = (
        torch.distributions.Normal(mean, (log / 2).exp()) for mean, log in ((m, v), (m2, v2))
    )
    expected = torch.distributions.kl_divergence(first, second)
    torch.testing.assert_close(normal_kl(m, v, m2, v2), expected, rtol=1e-10, atol=1e-12)


def test_a_divergence_of_nearly_equal_gaussians_keeps_its_digits():
    zero, shift = torch.zeros(1), torch.full((1,), 1e-3)
    # ½(e^d − 1 − d) = d²/4 + d³/12.
    assert float(normal_kl(zero, shift, zero, zero)) == pytest.approx(2.500833e-7, rel=1e-3)


@pytest.mark.parametrize("clip", [False, True])
def test_the_terms_are_those_of_a_loop_over_pixels(clip):
    diffusion = GaussianDiffusion.make(40, "linear")
    t = [0, 1, 17, 39]
    x0 = LEVELS[torch.randint(256, (4, 2, 2, 2), generator=torch.Generator().manual_seed(1))]
    x_t = diffusion.add_noise(x0, normal(4, 2, 2, 2), torch.tensor(t))
    output = normal(4, 4, 2, 2, seed=3)
    found = vlb_terms(diffusion, output, x0, x_t, torch.tensor(t), limit=1.0 if clip else None)

    betas = diffusion.betas.tolist()
    kept = [math.prod(1 - beta for beta in betas[: i + 1]) for i in range(40)]
    for entry, step in enumerate(t):
        before = kept[step - 1] if step else 1.0
        terms = []
        for pixel in range(8):
            x, y = (float(images[entry].flatten()[pixel]) for images in (x0, x_t))
            eps, v = (float(output[entry].flatten()[pixel + half]) for half in (0, 8))
            image = (y - math.sqrt(1 - kept[step]) * eps) / math.sqrt(kept[step])
            image = min(max(image, -1), 1) if clip else image
            # Of two Gaussian pieces of knowledge on x_{t−1}: around √ᾱ' x_0, and of x_t.
            if step:
                precision = 1 / (1 - before) + (1 - betas[step]) / betas[step]
                means = [
                    (
                        math.sqrt(before) * z / (1 - before)
                        + math.sqrt(1 - betas[step]) * y / betas[step]
                    )
                    / precision
                    for z in (x, image)
                ]
                least = 1 / precision
            else:
                means = [x, image]
                least = 1 / (1 / (1 - kept[0]) + (1 - betas[1]) / betas[1])
            variance = betas[step] ** ((v + 1) / 2) * least ** ((1 - v) / 2)
            if step:
                terms.append(
                    0.5 * math.log(variance / least)
                    + (least + (means[0] - means[1]) ** 2) / (2 * variance)
                    - 0.5
                )
            else:
                # ½erfc on the far side keeps the digits of a difference of Φ.
                side = 1 if x > image else -1
                low = math.inf if abs(x) == 1 and side * x > 0 else side * (x - image) + 1 / 255
                high = -math.inf if abs(x) == 1 and side * x < 0 else side * (x - image) - 1 / 255
                tails = [0.5 * math.erfc(z / math.sqrt(2 * variance)) for z in (high, low)]
                terms.append(-math.log(tails[0] - tails[1]))
        expected = sum(terms) / 8 / math.log(2)
        assert float(found[entry]) == pytest.approx(expected, rel=1e-7)


def quantised(mean, std, side, seed):
    """8-bit images of independent Gaussian pixels, and −log₂ of their probability per pixel."""
    pixels = (mean + std * normal(1, 1, side, side, seed=seed)).clamp(-1, 1)
    images = ((pixels + 1) * 127.5).round() / 127.5 - 1
    gaussian = stats.norm(mean, std)
    mass = gaussian.cdf(images + 1 / 255) - gaussian.cdf(images - 1 / 255)
    return images, -float(torch.as_tensor(mass).log2().mean())


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_bound_of_an_exact_reversal_is_the_datas_own_code_length(schedule):
    """Of Gaussian pixels p(x_{t−1} | x_t) is Gaussian: nothing is lost, at any number of steps."""
    images, expected = quantised(0.1, 0.25, 128, seed=0)
    diffusion = GaussianDiffusion.make(30, schedule)
    generator = torch.Generator().manual_seed(1)
    found = bits_per_dim(
        exact_network(diffusion, 0.1, 0.25), images, diffusion, generator=generator
    )
    # Near the entropy of the density, less the bits of a bin.
    entropy = 0.5 * math.log2(2 * math.pi * math.e * 0.25**2) - math.log2(2 / 255)
    assert expected == pytest.approx(entropy, abs=0.02)
    assert float(found.total) == pytest.approx(expected, abs=2e-3)


def test_the_priors_part_is_the_divergence_of_the_last_marginal():
    diffusion = GaussianDiffusion.make(1000, "linear")
    images = 0.9 * torch.ones(2, 1, 4, 4, dtype=torch.float64)
    short = diffusion.respaced(5)
    found = bits_per_dim(lambda x, times: torch.cat((x, 0 * x), dim=1), images, short)
    kept = float(short.alpha_bars[-1])
    expected = 0.5 * (kept * 0.81 + (1 - kept) - 1 - math.log(1 - kept)) / math.log(2)
    torch.testing.assert_close(found.prior, torch.full((2,), expected).double())
    torch.testing.assert_close(found.total, found.prior + found.terms.sum(1))


def test_the_errors_are_those_of_the_predicted_noise_and_progress_is_told():
    """A network that says 0 errs by the noise's own square, which is 1."""
    diffusion, images = GaussianDiffusion.make(25, "cosine"), torch.zeros(3, 1, 16, 16)
    calls = []

    def network(x, times):
        return torch.zeros(len(x), 2, *x.shape[2:])

    found = bits_per_dim(network, images, diffusion, progress=calls.append)
    assert calls == [1] * 25
    assert found.mse.shape == found.terms.shape == (3, 25)
    assert float(found.mse.mean()) == pytest.approx(1, abs=0.03)
    again = bits_per_dim(network, images, diffusion, generator=torch.Generator().manual_seed(0))
    first = bits_per_dim(network, images[:1], diffusion, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(again.total[:1], first.total)
    assert not torch.equal(again.mse[0], again.mse[1])


def test_each_step_is_judged_at_noise_of_its_own_with_predictions_in_range():
    diffusion, images = GaussianDiffusion.make(4, "cosine"), normal(2, 1, 3, 3).clamp(-1, 1)

    def network(x, times):
        # Far off: predicted images leave −1..1.
        return torch.cat((-x, 0.1 * x), dim=1)

    found = bits_per_dim(network, images, diffusion, generator=torch.Generator().manual_seed(6))
    seed = draw_seed(torch.Generator().manual_seed(6))
    for t in range(4):
        noise = draw_noise(torch.arange(2), (1, 3, 3), seed=seed, step=t).double()
        x_t = diffusion.add_noise(images, noise, t)
        output = network(x_t, None)
        terms = vlb_terms(diffusion, output, images, x_t, t, limit=1.0)
        assert torch.equal(found.terms[:, t], terms)
        if t > 0:
            assert not torch.allclose(
                terms, vlb_terms(diffusion, output, images, x_t, t, limit=None)
            )
        error = (output[:, :1] - noise).square().mean(dim=(1, 2, 3))
        torch.testing.assert_close(found.mse[:, t], error)


def test_with_the_variance_beta_the_bound_falls_to_the_code_length_as_steps_grow():
    images, expected = quantised(0.1, 0.25, 64, seed=0)
    excess = []
    for steps in (30, 60, 120):
        diffusion = GaussianDiffusion.make(steps, "linear")
        network = exact_network(diffusion, 0.1, 0.25, place=1.0)
        generator = torch.Generator().manual_seed(2)
        found = bits_per_dim(network, images, diffusion, generator=generator)
        excess.append(float(found.total) - expected)
    assert excess[0] == pytest.approx(0.23, abs=0.02)
    # About as 1/S.
    assert 0.4 < excess[1] / excess[0] < 0.6
    assert 0.4 < excess[2] / excess[1] < 0.6
