"""The process against chains, quadrature and diffusers' schedulers, in float64."""

import math

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from gaussian_data import exact_network

from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.schedules import cosine_betas, linear_betas


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.fixture(params=["linear", "cosine"])
def diffusion(request):
    return GaussianDiffusion.make(1000, request.param)


def test_noise_is_added_as_a_chain_of_steps_does():
    """Mean and variance of x_t | x_0 by running x_t = √(1−β) x_{t−1} + √β ε step by step."""
    diffusion = GaussianDiffusion.make(30, "cosine")
    factor, variance = 1.0, 0.0
    one, zero = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, 1).double()
    for t, beta in enumerate(diffusion.betas.tolist()):
        factor, variance = math.sqrt(1 - beta) * factor, (1 - beta) * variance + beta
        assert float(diffusion.add_noise(one, zero, t)) == pytest.approx(factor, rel=1e-12)
        assert float(diffusion.add_noise(zero, one, t)) ** 2 == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("t", [1, 5, 20, 29])
def test_the_posterior_is_bayes_rule_on_a_grid(t):
    """q(x_{t−1} | x_t, x_0) ∝ q(x_t | x_{t−1}) q(x_{t−1} | x_0), normalised by quadrature."""
    diffusion = GaussianDiffusion.make(30, "linear")
    x0, x_t, beta, before = 0.4, -0.7, diffusion.betas[t], diffusion.alpha_bars[t - 1]
    grid = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    log_prior = -0.5 * (grid - before.sqrt() * x0) ** 2 / (1 - before)
    log_step = -0.5 * (x_t - (1 - beta).sqrt() * grid) ** 2 / beta
    weights = torch.softmax(log_prior + log_step, dim=0)
    mean = (weights * grid).sum()
    variance = (weights * (grid - mean) ** 2).sum()
    at = torch.full((1, 1, 1, 1), 1.0, dtype=torch.float64)
    found, log_variance = diffusion.posterior(x0 * at, x_t * at, torch.tensor([t]))
    torch.testing.assert_close(found.flatten()[0], mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(log_variance.flatten()[0], variance.log(), rtol=1e-7, atol=1e-7)


def test_the_posterior_of_step_0_is_the_image_with_the_next_steps_variance(diffusion):
    x0, x_t = normal(2, 1, 3, 3), normal(2, 1, 3, 3, seed=1)
    mean, first = diffusion.posterior(x0, x_t, 0)
    assert torch.equal(mean, x0)
    _, second = diffusion.posterior(x0, x_t, 1)
    assert torch.equal(first, second)


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_what_is_learned_gives_predict_x0_and_eps_back(schedule, prediction):
    diffusion = GaussianDiffusion.make(1000, schedule, prediction)
    x0, noise, t = normal(3, 2, 4, 4), normal(3, 2, 4, 4, seed=1), torch.tensor([1, 400, 990])
    x_t = diffusion.add_noise(x0, noise, t)
    found = diffusion.predict_x0_and_eps(diffusion.target(x0, noise, t), x_t, t)
    torch.testing.assert_close(found, (x0, noise), rtol=1e-8, atol=1e-8)


def test_v_is_the_slope_of_the_noisy_image_in_its_angle():
    """With √ᾱ = cos φ and √(1−ᾱ) = sin φ, x_t = cos φ x_0 + sin φ ε, and v is dx_t/dφ."""
    diffusion = GaussianDiffusion.make(1000, "cosine", "v")
    x0, noise, t, width = normal(1, 1, 4, 4), normal(1, 1, 4, 4, seed=1), 400, 1e-5
    angle = math.acos(math.sqrt(float(diffusion.alpha_bars[t])))
    ahead, back = (math.cos(angle + h) * x0 + math.sin(angle + h) * noise for h in (width, -width))
    slope = (ahead - back) / (2 * width)
    torch.testing.assert_close(diffusion.target(x0, noise, t), slope, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("prediction", ["epsilon", "x0", "v"])
@pytest.mark.parametrize("t", [1, 30, 600, 998])
def test_the_best_prediction_of_gaussian_images_gives_the_exact_reversal(t, prediction):
    """E[target | x_t] and E[x_{t−1} | x_t], each by conditioning the joint Gaussian of a pixel."""
    diffusion, mean, std = GaussianDiffusion.make(1000, "cosine", prediction), 0.3, 0.4
    # x_0, x_{t−1} and x_t of independent x_0, noise up to t−1, and noise of step t.
    kept, before, beta = (float(v) for v in (*diffusion.alpha_bars[[t, t - 1]], diffusion.betas[t]))
    mixing = torch.tensor(
        [
            [1.0, 0.0, 0.0],
            [math.sqrt(before), math.sqrt(1 - before), 0.0],
            [math.sqrt(kept), math.sqrt((1 - beta) * (1 - before)), math.sqrt(beta)],
        ],
        dtype=torch.float64,
    )
    covariance = mixing * torch.tensor([std**2, 1.0, 1.0]) @ mixing.T
    means = mixing @ torch.tensor([mean, 0.0, 0.0], dtype=torch.float64)
    x_t = normal(2, 1, 3, 3)
    x0, earlier = (
        means[i] + covariance[i, 2] / covariance[2, 2] * (x_t - means[2]) for i in (0, 1)
    )
    noise = (x_t - math.sqrt(kept) * x0) / math.sqrt(1 - kept)
    best = {"epsilon": noise, "x0": x0, "v": math.sqrt(kept) * noise - math.sqrt(1 - kept) * x0}
    output = torch.cat((best[prediction], torch.zeros_like(x_t)), dim=1)
    reverse = diffusion.p_mean_variance(output, x_t, t, limit=None)
    torch.testing.assert_close(reverse.x0, x0, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(reverse.mean, earlier, rtol=1e-8, atol=1e-8)
    # Without noise DDIM moves image and noise to the level before.
    moved = math.sqrt(before) * x0 + math.sqrt(1 - before) * noise
    found = diffusion.ddim_step(output, x_t, t, eta=0.0, limit=None)
    torch.testing.assert_close(found, moved, rtol=1e-8, atol=1e-8)


def test_each_entry_has_its_own_step(diffusion):
    x_t, output, noise = normal(4, 1, 3, 3), normal(4, 2, 3, 3, seed=1), normal(4, 1, 3, 3, seed=2)
    t = torch.tensor([0, 7, 7, 999])
    for call in (diffusion.step, lambda *a: diffusion.ddim_step(*a, eta=0.5)):
        together = call(output, x_t, t, noise)
        for i, step in enumerate(t.tolist()):
            one = slice(i, i + 1)
            for form in (step, torch.tensor(step), torch.tensor([step])):
                alone = call(output[one], x_t[one], form, noise[one])
                torch.testing.assert_close(together[one], alone, rtol=1e-13, atol=1e-13)


def exactly_ours(scheduler, diffusion):
    """A scheduler of diffusers with tables in float64: theirs are float32."""
    scheduler.betas, scheduler.alphas = diffusion.betas, 1 - diffusion.betas
    scheduler.alphas_cumprod = diffusion.alpha_bars
    scheduler.one = scheduler.final_alpha_cumprod = torch.tensor(1.0, dtype=torch.float64)
    return scheduler


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("t", [1, 2, 300, 999])
def test_a_step_with_learned_variance_is_diffusers(diffusion, t, clip):
    scheduler = exactly_ours(
        DDPMScheduler(num_train_timesteps=1000, variance_type="learned_range", clip_sample=clip),
        diffusion,
    )
    x_t, output = normal(2, 3, 4, 4), 0.5 * normal(2, 6, 4, 4, seed=1)
    expected = scheduler.step(output, t, x_t, generator=torch.Generator().manual_seed(7))
    noise = normal(2, 3, 4, 4, seed=7)
    found = diffusion.step(output, x_t, t, noise, limit=1.0 if clip else None)
    torch.testing.assert_close(found, expected.prev_sample, rtol=1e-9, atol=1e-9)


def test_the_last_step_is_the_mean_whatever_the_noise(diffusion):
    x_t, output = normal(2, 1, 4, 4), normal(2, 2, 4, 4, seed=1)
    scheduler = exactly_ours(
        DDPMScheduler(num_train_timesteps=1000, variance_type="learned_range"), diffusion
    )
    expected = scheduler.step(output, 0, x_t).prev_sample
    with_noise = diffusion.step(output, x_t, 0, 100 * normal(2, 1, 4, 4, seed=2))
    torch.testing.assert_close(with_noise, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(with_noise, diffusion.step(output, x_t, 0))


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("place", [0, 1, 12, 24])
def test_a_ddim_step_is_diffusers(diffusion, place, eta, clip):
    scheduler = DDIMScheduler(num_train_timesteps=1000, clip_sample=clip)
    scheduler.set_timesteps(25)
    exactly_ours(scheduler, diffusion)
    x_t, output, noise = normal(2, 3, 4, 4), normal(2, 6, 4, 4, seed=1), normal(2, 3, 4, 4, seed=2)
    steps = range(0, 1000, 40)  # those of diffusers
    kept = diffusion.alpha_bars[::40]
    betas = 1 - kept / torch.cat((kept.new_ones(1), kept[:-1]))
    spaced = GaussianDiffusion(betas, timesteps=steps, original_steps=1000)
    expected = scheduler.step(
        output[:, :3],
        40 * place,
        x_t,
        eta=eta,
        # Theirs keeps the noise that belongs to the unclipped image, unless asked.
        use_clipped_model_output=clip,
        variance_noise=noise,
    ).prev_sample
    found = spaced.ddim_step(output, x_t, place, noise, eta=eta, limit=1.0 if clip else None)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_ddim_with_eta_1_has_the_posteriors_mean_and_variance(diffusion):
    x_t, output = normal(3, 1, 4, 4), normal(3, 2, 4, 4, seed=1)
    t = torch.tensor([1, 40, 999])
    reverse = diffusion.p_mean_variance(output, x_t, t)
    mean, log_variance = diffusion.posterior(reverse.x0, x_t, t)
    zero, one = torch.zeros_like(x_t), torch.ones_like(x_t)
    found = diffusion.ddim_step(output, x_t, t, zero, eta=1.0)
    torch.testing.assert_close(found, mean, rtol=1e-9, atol=1e-9)
    spread = diffusion.ddim_step(output, x_t, t, one, eta=1.0) - found
    torch.testing.assert_close(spread, (log_variance / 2).exp(), rtol=1e-9, atol=1e-12)


def test_the_variance_lies_between_the_posteriors_and_beta(diffusion):
    x_t, t = normal(2, 1, 2, 2), torch.tensor([3, 700])
    ends = []
    for place in (-1.0, 1.0):
        output = torch.cat((x_t, torch.full_like(x_t, place)), dim=1)
        ends.append(diffusion.p_mean_variance(output, x_t, t).log_variance[:, 0, 0, 0].exp())
    torch.testing.assert_close(ends[1], diffusion.betas[t], rtol=1e-12, atol=0)
    kept = diffusion.alpha_bars
    expected = diffusion.betas[t] * (1 - kept[t - 1]) / (1 - kept[t])
    torch.testing.assert_close(ends[0], expected, rtol=1e-12, atol=0)


def test_predicted_images_are_clipped_only_when_asked(diffusion):
    x_t, output = 3 * normal(2, 1, 4, 4), normal(2, 2, 4, 4, seed=1)
    free = diffusion.p_mean_variance(output, x_t, 200, limit=None)
    clipped = diffusion.p_mean_variance(output, x_t, 200)
    assert free.x0.abs().max() > 1
    assert torch.equal(clipped.x0, free.x0.clamp(-1, 1))
    assert torch.equal(clipped.log_variance, free.log_variance)
    expected, _ = diffusion.posterior(clipped.x0, x_t, 200)
    assert torch.equal(clipped.mean, expected)


@pytest.mark.parametrize("spec", [2, 25, 999])
def test_respacing_keeps_alpha_bar(diffusion, spec):
    spaced = diffusion.respaced(spec)
    kept = diffusion.alpha_bars[list(spaced.timesteps)]
    # ᾱ is built of 1−β, which has the rounding of 1.
    torch.testing.assert_close(spaced.alpha_bars, kept, rtol=1e-10, atol=1e-14)
    times = torch.arange(spaced.num_steps)
    assert spaced.model_times(times).tolist() == [float(step) for step in spaced.timesteps]
    x0, noise = normal(1, 1, 2, 2), normal(1, 1, 2, 2, seed=1)
    torch.testing.assert_close(
        spaced.add_noise(x0, noise, spaced.num_steps - 1),
        diffusion.add_noise(x0, noise, spaced.timesteps[-1]),
    )


def test_a_respaced_posterior_leads_to_the_kept_marginal():
    """x_{t'} drawn from the posterior at x_t ~ q(x_t | x_0) is q(x_{t'} | x_0) of the original."""
    original = GaussianDiffusion.make(1000, "linear")
    spaced = original.respaced(10)
    zero, one = torch.zeros(1, 1, 1, 1).double(), torch.ones(1, 1, 1, 1).double()
    for t in range(1, 10):
        from_state, log_variance = (float(v) for v in spaced.posterior(zero, one, t))
        from_image = float(spaced.posterior(one, zero, t)[0])
        kept, before = (float(original.alpha_bars[spaced.timesteps[i]]) for i in (t, t - 1))
        mean = from_image + from_state * math.sqrt(kept)
        variance = math.exp(log_variance) + from_state**2 * (1 - kept)
        assert mean == pytest.approx(math.sqrt(before), rel=1e-9)
        assert variance == pytest.approx(1 - before, rel=1e-9)


def test_the_network_is_told_times_of_a_process_of_a_thousand_steps():
    times = GaussianDiffusion.make(4000, "linear").model_times(torch.tensor([0, 1, 3999]))
    assert times.tolist() == [0, 0.25, 999.75]
    assert GaussianDiffusion.make(50, "linear").model_times(torch.tensor([49])).tolist() == [980]


@pytest.mark.parametrize("steps", [1000, 4000])
def test_single_precision_is_as_good_as_its_own_rounding(steps):
    """Tables stay float64 until they meet the images: 1−ᾱ_0 = 10⁻⁴ has all its digits."""
    # In float32 tables the posterior's weights at the first steps would be off by 10⁻³.
    diffusion = GaussianDiffusion.make(steps, "linear")
    t = torch.tensor([0, 1, steps // 2, steps - 1])
    x0, noise = normal(4, 1, 4, 4).clamp(-1, 1), normal(4, 1, 4, 4, seed=1)
    output = normal(4, 2, 4, 4, seed=2)
    x_t = diffusion.add_noise(x0, noise, t)
    for call in (diffusion.posterior, diffusion.add_noise):
        exact, rough = call(x0, noise, t), call(x0.float(), noise.float(), t)
        if call == diffusion.posterior:
            exact, rough = torch.stack(exact), torch.stack(rough)
        assert rough.dtype == torch.float32
        assert exact.dtype == torch.float64
        assert ((rough - exact).abs() / (1 + exact.abs())).max() < 5e-7
    exact = diffusion.step(output, x_t, t, noise)
    rough = diffusion.step(output.float(), x_t.float(), t, noise.float())
    torch.testing.assert_close(rough.double(), exact, rtol=1e-5, atol=1e-5)


def test_half_precision_of_a_network_under_autocast_is_lifted_before_it_is_used(diffusion):
    x_t, noise = normal(2, 1, 4, 4).float(), normal(2, 1, 4, 4, seed=1).float()
    output = normal(2, 2, 4, 4, seed=2).bfloat16()
    t = torch.tensor([1, 900])
    with torch.autocast("cpu", torch.bfloat16):
        found = diffusion.step(output, x_t, t, noise), diffusion.ddim_step(output, x_t, t, eta=0.0)
    lifted = output.float()
    expected = diffusion.step(lifted, x_t, t, noise), diffusion.ddim_step(lifted, x_t, t, eta=0.0)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


def test_processes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="of the image's variance"):
        GaussianDiffusion(linear_betas(1000)[:500])
    with pytest.raises(ValueError, match=r"in \(0, 1\)"):
        GaussianDiffusion(-cosine_betas(10))
    with pytest.raises(ValueError, match="timesteps must be 10 ascending numbers"):
        GaussianDiffusion(cosine_betas(10), timesteps=range(5), original_steps=10)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (0, "count must be a whole number of at least 1"),
        (1, "at least two steps"),
        (1001, "count must be at most the 1000 steps, got 1001"),
    ],
)
def test_respacing_that_leaves_no_process_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        GaussianDiffusion.make(1000, "linear").respaced(spec)


def test_a_process_first_used_in_inference_mode_serves_to_train():
    diffusion = GaussianDiffusion.make(20, "cosine")
    images = torch.zeros(1, 1, 2, 2)
    with torch.inference_mode():
        diffusion.add_noise(images, images, 3)
    leaf = images.clone().requires_grad_()
    diffusion.add_noise(leaf, images, 3).sum().backward()
    assert float(leaf.grad.mean()) == pytest.approx(float(diffusion.alpha_bars[3]) ** 0.5)


def test_the_exact_network_of_the_tests_reverses_the_chain():
    """Marginals of p(x_{t−1} | x_t) q(x_t) are q(x_{t−1}): what the sampling tests rest on."""
    diffusion, mean, std = GaussianDiffusion.make(40, "cosine"), 0.3, 0.2
    network = exact_network(diffusion, mean, std)
    zero, one = torch.zeros(1, 1, 1, 1).double(), torch.ones(1, 1, 1, 1).double()
    for t in range(1, 40):
        times = diffusion.model_times(torch.tensor([t]))
        at_zero, at_one = (
            diffusion.p_mean_variance(network(x, times), x, t, limit=None) for x in (zero, one)
        )
        offset, slope = float(at_zero.mean), float(at_one.mean - at_zero.mean)
        kept, before = diffusion.alpha_bars[t], diffusion.alpha_bars[t - 1]
        variance = float(at_one.log_variance.exp()) + slope**2 * float(kept * std**2 + 1 - kept)
        assert offset + slope * float(kept.sqrt()) * mean == pytest.approx(
            float(before.sqrt()) * mean
        )
        assert variance == pytest.approx(float(before * std**2 + 1 - before))
