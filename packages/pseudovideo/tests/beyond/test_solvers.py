"""Solvers of the probability flow: their order where it is solved in closed form, and diffusers."""

import math
from itertools import pairwise, product
from typing import get_args

import diffusers
import numpy as np
import pytest
import torch
from gaussian_data import exact_network, moments
from tiny_video import SIZES, seeded, shaken, video_model

from pseudovideo import ImageDiffusion, ImageDiffusionConfig
from pseudovideo.beyond.solvers import SOLVERS
from pseudovideo.diffusion import denoise
from pseudovideo.diffusion.base import Sampler, frame_noise, sample_stage
from pseudovideo.diffusion.gaussian import GaussianDiffusion
from pseudovideo.diffusion.stages import Stage
from pseudovideo.integrations.diffusers.ddpm import to_ddpm_pipeline
from pseudovideo.labels import Classes
from pseudovideo.spec import PREDICTIONS, ScheduleName

# Of numpy, where diffusers' schedulers make arrays of tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
MEAN, STD = 0.2, 0.25


def start(*shape):
    return torch.randn(*shape, generator=seeded(0), dtype=torch.float64)


def flow_end(x, alpha_bar, mean, std):
    """The end of the probability flow of N(mean, std²) from x at a step.

    dx/dλ keeps (x − √ᾱ·mean)/√(ᾱ·std² + 1 − ᾱ), as all marginals are Gaussian.
    """
    return mean + std * (x - alpha_bar.sqrt() * mean) / (alpha_bar * std**2 + 1 - alpha_bar).sqrt()


def predicting(process, noise_network):
    """What a network of another prediction returns where `noise_network` returns the noise."""
    scale = 1000 / process.original_steps

    def network(x_t, times):
        eps, place = noise_network(x_t, times).chunk(2, dim=1)
        numbers = torch.tensor(process.timesteps)
        t = torch.searchsorted(numbers, (times / scale).round().long())
        x0 = process.predict_x0(x_t, eps, t)
        return torch.cat([process.target(x0, eps, t), place], dim=1)

    return network


@pytest.mark.parametrize(("solver", "order"), [(None, 1), ("dpm++", 2), ("unipc", 2), ("heun", 2)])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_errors_fall_with_the_order_of_the_solver(solver, order, prediction):
    x, errors = start(8, 1, 2, 2), []
    for steps in (25, 49, 97):
        # Leaps that are equal, of which none is too long for second order.
        kept = (2 * torch.linspace(7, -5, steps).double()).sigmoid()
        before = torch.cat((torch.ones(1).double(), kept[:-1]))
        process = GaussianDiffusion(1 - kept / before, prediction=prediction)
        network = predicting(process, exact_network(process, MEAN, STD))
        if solver is None:  # DDIM, of order 1: what the others are better than
            found = denoise(network, x, process, step_noise=start, eta=0.0, limit=9.0)
        else:
            found = SOLVERS[solver].solve(network, x, process, limit=9.0)
        exact = flow_end(x, kept[-1], MEAN, STD)
        errors.append(float((found - exact).square().mean().sqrt()))
    for before, after in pairwise(errors):
        assert math.log2(before / after) > order - 0.3
    assert errors[-1] < (2e-2 if order == 1 else 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_guided_images_end_at_the_flow_of_the_guided_mean(monkeypatch, solver, prediction):
    """The noise of N(m, s²) is linear in m: guided it is that of m_u + g (m_c − m_u)."""
    sizes = SIZES | {"num_steps": 2000, "num_classes": 2, "label_dropout": 0.1}
    model = ImageDiffusion(ImageDiffusionConfig(**sizes, prediction=prediction)).double()
    process, guidance, std = model.diffusion, 2.5, 0.15
    means = torch.tensor([-0.08, 0.1, 0.02]).double()  # of the classes, and without one
    networks = [predicting(process, exact_network(process, float(mean), std)) for mean in means]

    def forward(x_t, times, tokens):
        outputs = torch.stack([network(x_t, times) for network in networks])
        return outputs[tokens, torch.arange(len(tokens))]

    monkeypatch.setattr(model, "forward", forward)
    labels, seen, errors = torch.tensor([0, 1]), {}, []
    mean = (means[2] + guidance * (means[labels] - means[2])).view(-1, 1, 1, 1)
    for steps in (50, 100):
        asked = {
            "labels": labels,
            "guidance": guidance,
            "num_steps": steps,
            "solver": SOLVERS[solver],
        }
        found = model.sample(2, generator=seeded(0), watch=seen.setdefault, **asked)
        exact = flow_end(seen[steps].double(), process.alpha_bars[-1], mean, std)
        errors.append(float((found - exact).square().mean().sqrt()))
    assert errors[1] < errors[0] / 3
    assert errors[1] < 0.1 * std
    # Of other guidance they are further away than they are now.
    assert float((mean - means[labels].view(-1, 1, 1, 1)).abs().min()) > 0.5 * std


@pytest.mark.parametrize("solver", SOLVERS)
@torch.no_grad()
def test_guidance_one_and_zero_are_the_models_with_and_without_the_class(solver):
    torch.manual_seed(0)
    sizes = SIZES | {"num_steps": 6, "num_classes": 3, "label_dropout": 0.1}
    model = shaken(ImageDiffusion(ImageDiffusionConfig(**sizes)))
    labels, ends = torch.tensor([2, 0, 1]), []
    for guidance, tokens in ((1.0, labels), (0.0, torch.full_like(labels, 3))):
        seen = {}
        given = {
            "labels": labels,
            "guidance": guidance,
            "solver": SOLVERS[solver],
            "generator": seeded(4),
        }
        drawn = model.sample(3, watch=seen.setdefault, **given)

        def told(x, times, tokens=tokens):
            return model(x, times, tokens)

        ends.append(drawn)
        assert torch.equal(drawn, SOLVERS[solver].solve(told, seen[6], model.diffusion))
    assert (ends[0] - ends[1]).abs().max() > 1e-3


def slow_multistep(kept, std, corrected):
    """Spread of the samples of N(0, std²), on which every step of the solvers is a product.

    Lu et al., equation 4.9, and Zhao et al., equations 3 to 9, in their notation, with second
    order over leaps of at most twice the one before.
    """
    alpha, sigma = np.sqrt(kept), np.sqrt(1 - kept)
    lam, x, images, order = np.log(alpha / sigma), 1.0, {}, 1
    first = x
    last = len(kept) - 1
    for i in range(last, -1, -1):
        images[i] = x * alpha[i] * std**2 / (kept[i] * std**2 + 1 - kept[i])
        if corrected and (order == 2 or i == last - 1):
            h = lam[i] - lam[i + 1]
            rho, slopes, bh = np.array([0.5]), [images[i] - images[i + 1]], np.expm1(-h)
            if i < last - 1:
                r = (lam[i + 2] - lam[i + 1]) / h
                phi_2 = (bh + h) / -h  # −h φ_2(−h), then −h φ_3(−h)
                phi_3 = phi_2 / -h - 0.5
                rho = np.linalg.solve([[1, 1], [r, 1]], [phi_2 / bh, 2 * phi_3 / bh])
                slopes = [(images[i + 2] - images[i + 1]) / r, *slopes]
            x = first - alpha[i] * bh * rho @ slopes
        if i == 0:
            return images[0]
        h = lam[i - 1] - lam[i]
        first = sigma[i - 1] / sigma[i] * x - alpha[i - 1] * np.expm1(-h) * images[i]
        x, order = first, 1
        if i < last and h <= 2 * (lam[i] - lam[i + 1]):
            slope = (images[i] - images[i + 1]) / ((lam[i] - lam[i + 1]) / h)
            x, order = first - alpha[i - 1] * np.expm1(-h) / 2 * slope, 2
    raise AssertionError


STDS = (0.1, 0.3, 0.6)


def spreads(process, solver):
    """Spreads of what a solver makes of N(0.1, std²), one for each of `STDS`."""
    numbers, scale = torch.tensor(process.timesteps), 1000 / process.original_steps
    std = torch.tensor(STDS).double().view(1, 1, 1, 3)

    def network(x, times):
        step = torch.searchsorted(numbers, (times[:1] / scale).round().long())
        kept = process.alpha_bars[step]
        slope, offset, _ = moments(kept, 0.1, std)
        eps = (x - kept.sqrt() * (slope * x + offset)) / (1 - kept).sqrt()
        return torch.cat([eps, eps], dim=1)

    x = torch.tensor([-1.0, 0, 1]).double().view(3, 1, 1, 1).expand(3, 1, 1, 3)
    if solver is None:
        drawn = denoise(network, x, process, step_noise=start, eta=0.0, limit=9.0)
    else:
        drawn = SOLVERS[solver].solve(network, x, process, limit=9.0)
    low, middle, high = drawn[:, 0, 0]
    assert (middle - 0.1).abs().max() < 2e-3
    return ((high - low) / 2).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "num_steps"), [*product(get_args(ScheduleName), (40, 1000))])
def test_samples_are_as_wide_as_the_data_to_within_the_error_of_ddim(schedule, num_steps):
    """With few steps and many: second order over too long a leap is worse than first."""
    learned = GaussianDiffusion.make(num_steps, schedule)
    for steps in (2, 3, 4, 5, 7, 10, 13, 20, 30, 40, *((100,) if num_steps > 100 else ())):
        process = learned.respaced(steps)
        drawn = {solver: spreads(process, solver) for solver in (None, *SOLVERS)}
        for place, std in enumerate(STDS):
            error = abs(drawn[None][place] - std)
            for solver in SOLVERS:
                # The image at t = 0 alone is off by up to 10⁻³.
                assert abs(drawn[solver][place] - std) < error + 1e-3, (steps, std, solver)
            for solver in ("dpm++", "unipc"):
                exact = slow_multistep(process.alpha_bars.numpy(), std, solver == "unipc")
                assert drawn[solver][place] == pytest.approx(exact, rel=1e-6), (steps, std, solver)


@pytest.mark.parametrize(
    ("solver", "steps", "found"),
    [("dpm++", 20, 0.2911), ("unipc", 20, 0.2913), ("heun", 20, 0.2904), ("heun", 3, 0.0874)],
)
def test_few_steps_of_the_cosine_schedule_draw_no_wider_than_the_data(solver, steps, found):
    """With second order over the last leap they were 0.356, 0.355, 0.303 and 0.548."""
    process = GaussianDiffusion.make(1000, "cosine").respaced(steps)
    assert spreads(process, solver)[1] == pytest.approx(found, abs=1e-4)


def test_eulers_method_is_ddim():
    """On x/√ᾱ against √(1/ᾱ − 1), which is why it has no name of its own here."""
    process = GaussianDiffusion.make(200, "cosine").respaced(20)
    network, x = exact_network(process, MEAN, STD), start(8, 1, 2, 2)
    expected = denoise(network, x, process, step_noise=start, eta=0.0, limit=9.0)
    kept = process.alpha_bars
    sigmas = torch.cat([kept.new_zeros(1), (1 / kept - 1).sqrt()])
    y = x / kept[-1].sqrt()
    for t in reversed(range(20)):
        times = process.model_times(torch.full((8,), t))
        eps = network(kept[t].sqrt() * y, times)[:, :1]
        y = y + (sigmas[t] - sigmas[t + 1]) * eps
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("steps", [5, 20])
@pytest.mark.parametrize(("solver", "kind"), [("dpm++", "DPMSolver"), ("unipc", "UniPC")])
def test_images_are_those_of_diffusers_pipeline(solver, kind, steps):
    """With its own clipping, at the same steps."""
    torch.manual_seed(0)
    sizes = {"image_size": 8, "channels": 1, "base_channels": 8, "num_groups": 4, "num_heads": 2}
    sizes |= {"channel_multipliers": (1, 2), "attention_sizes": (4,), "num_res_blocks": 1}
    # No more steps than are taken: diffusers spaces its own otherwise.
    model = ImageDiffusion(ImageDiffusionConfig(**sizes, num_steps=steps, schedule="cosine"))
    for value in model.parameters():
        value.data += 0.1 * torch.randn_like(value)
    pipeline = to_ddpm_pipeline(model.eval(), variance="fixed")
    pipeline.set_progress_bar_config(disable=True)
    scheduler = getattr(diffusers, f"{kind}MultistepScheduler")
    options = {"timestep_spacing": "trailing", "thresholding": True, "sample_max_value": 1.0}
    pipeline.scheduler = scheduler.from_config(pipeline.scheduler.config, **options)
    if solver == "unipc":  # whose step takes no generator, which the pipeline gives it
        step = pipeline.scheduler.step
        pipeline.scheduler.step = lambda *args, generator: step(*args)
    theirs = pipeline(4, generator=seeded(0), num_inference_steps=steps, output_type="np").images
    noise = torch.randn(4, 1, 8, 8, generator=seeded(0))
    ours = SOLVERS[solver].solve(model, noise, model.diffusion)
    expected = torch.from_numpy(theirs).movedim(-1, 1)
    # In float32 their last 1 − β has two digits, and their image of pure noise four.
    torch.testing.assert_close((ours / 2 + 0.5).clamp(0, 1), expected, rtol=0, atol=5e-3)
    assert expected.std() > 0.1


def gaussian_stage(monkeypatch, model, covariance, means):
    """Replace a network by the best one for frames z ~ N(m, K) of independent pixels.

    m is the same for all frames and pixels: the entry of `means` of the token.
    """

    def predict(pixels, times, window, memories, tokens):
        step = int((times[0] / 1000 * model.config.num_steps).round())
        kept = model.diffusion.alpha_bars[step]
        numbers, observed = window.frames[0].tolist(), window.observed[0]
        own = covariance[numbers][:, numbers]
        scale = torch.where(observed, torch.tensor(1.0).double(), kept.sqrt())
        noise = torch.where(observed, torch.tensor(0.0).double(), 1 - kept)
        given = scale[:, None] * own * scale + noise.diag()
        gain = torch.linalg.solve(given, scale[:, None] * own).T
        mean = means[tokens].view(-1, 1, 1, 1, 1)
        gaps = pixels - scale.view(-1, 1, 1, 1) * mean
        z = mean + torch.einsum("ij,bjchw->bichw", gain, gaps)
        eps = (pixels - kept.sqrt() * z) / (1 - kept).sqrt()
        return torch.cat([eps, torch.zeros_like(eps)], dim=2)

    monkeypatch.setattr(model.network, "forward", predict)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_stages_converge_to_the_flow_of_the_conditional_gaussian(monkeypatch, solver, guidance):
    """Guided it is that of the mean m_u + g (m_c − m_u), as the noise is linear in m."""
    model = video_model(num_steps=2000)
    factor = torch.tensor(
        [[0.5, 0, 0, 0], [0.3, 0.3, 0, 0], [0.2, 0.2, 0.2, 0], [0.1, 0.2, 0.1, 0.2]]
    ).double()
    covariance = factor @ factor.T
    means, labels = torch.tensor([0.1, -0.2, 0.05]).double(), torch.tensor([1, 0, 1])
    gaussian_stage(monkeypatch, model, covariance, means)
    guided = (means[2] + guidance * (means[labels] - means[2])).view(-1, 1, 1, 1)
    observed = 0.3 * start(3, 2, 1, 8, 8)
    gain = torch.linalg.solve(covariance[:2, :2], covariance[:2, 2])
    mean = guided + torch.einsum("k,bkchw->bchw", gain, observed - guided[:, None])
    std = (covariance[2, 2] - gain @ covariance[:2, 2]).sqrt()
    numbers, errors = torch.arange(3), []
    for steps in (50, 200):
        process = model.diffusion.respaced(steps)
        classes = Classes(labels, guidance, none=2)
        sampler = Sampler(process, numbers, 7, classes, solver=SOLVERS[solver])
        found = sample_stage(model, Stage((0, 1), (2,)), observed, sampler)
        x = frame_noise(numbers, (2,), (1, 8, 8), seed=7, step=steps)[:, 0].double()
        exact = flow_end(x, process.alpha_bars[-1], mean, std)
        errors.append(float((found[:, 0] - exact).square().mean().sqrt()))
    # A quarter of the steps.
    assert errors[1] < errors[0] / 5
    assert errors[1] < 0.002 * float(std)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("one_way", [False, True])
def test_frames_that_are_done_stay_bit_identical_and_batches_do_not_matter(solver, one_way):
    model, seen, passed = video_model(one_way=one_way), [], []
    drawn = model.sample(
        3,
        num_steps=6,
        solver=SOLVERS[solver],
        generator=seeded(0),
        batch_size=3,
        watch=lambda left, videos: seen.append((left, videos)),
    )
    assert [left for left, _ in seen] == list(range(18, -1, -1))
    states = [videos for _, videos in seen]
    assert torch.equal(states[-1], drawn)
    for state in states[6:]:
        assert torch.equal(state[:, :2], drawn[:, :2])
    for state in states[12:]:
        assert torch.equal(state[:, 2], drawn[:, 2])
    assert drawn[:, -1].abs().max() <= 1 + 1e-6
    model.network.unet.register_forward_pre_hook(lambda unet, args: passed.append(len(args[0])))
    again = model.sample(3, num_steps=6, solver=SOLVERS[solver], generator=seeded(0), batch_size=2)
    # Sums of the schedulers are in float32.
    torch.testing.assert_close(again, drawn, rtol=0, atol=1e-5)
    assert sum(passed) == 3 * model.evaluations_per_sample(6, SOLVERS[solver])
    # Heun's method has no second slope over the leaps from pure noise, to t = 0, and to the image.
    process = model.diffusion.respaced(6)
    assert SOLVERS[solver].evaluations(process) == (9 if solver == "heun" else 6)
    assert (model.sample(1, num_steps=6, generator=seeded(0)) - drawn[:1]).abs().mean() > 0.01


def test_learned_variances_play_no_part():
    process = GaussianDiffusion.make(100, "cosine").respaced(10)
    x = start(4, 1, 2, 2)
    for solver in SOLVERS:
        low, high = (
            SOLVERS[solver].solve(exact_network(process, MEAN, STD, place=place), x, process)
            for place in (-1.0, 1.0)
        )
        assert torch.equal(low, high)


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": SOLVERS["heun"], "eta": 0.0}, "eta must be None with a solver, got 0.0"),
        ({"solver": SOLVERS["unipc"], "num_steps": 41}, "num_steps must be from 2 to the 40 steps"),
        ({"solver": SOLVERS["unipc"], "num_steps": 1}, "num_steps must be from 2 to the 40 steps"),
    ],
)
def test_what_no_solver_can_do_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        video_model().sample(2, **settings)
