"""The limited learner against its definition: a regression for each step, a walk of matrices."""

import pytest
import torch

from pseudovideo import PseudoVideoConfig
from pseudovideo.beyond.design import gaussian_distance, measure_design, video_covariance
from pseudovideo.beyond.design.covariances import block
from pseudovideo.beyond.design.criteria import design_stages
from pseudovideo.beyond.design.learner import chain, limited_draw
from pseudovideo.corruptions import ImageShape
from pseudovideo.diffusion import GaussianDiffusion
from pseudovideo.spec import DesignSpec

SHAPE = ImageShape(1, 8, 8)


def covariance():
    place = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)).double()
    near = (-0.1 * torch.cdist(place, place).square()).exp()
    return 0.05 * near + 1e-3 * torch.eye(64).double()


def covariance_of(kind, num_frames=3):
    settings = PseudoVideoConfig(kind=kind, num_frames=num_frames, beta_min=0.02, beta_max=0.2)
    hidden = torch.tensor([0.2, -1.0, 0.5, 0.1]) if kind == "patch-mask" else None
    return settings, video_covariance(covariance(), SHAPE, settings, hidden=hidden)


def slow_draw(joint, stage, process, ridge):
    """H and Q by the whole matrices: W of each step by a solve, then the walk with them."""
    V = block(joint, stage.latent, stage.latent)[0]
    Z = block(joint, stage.observed, stage.observed)[0]
    X = block(joint, stage.latent, stage.observed)[0]
    size, given = len(V), len(Z)
    eye = torch.eye(size, dtype=torch.float64)
    # ẑ = G c + F n with independent standard noise n, kept as its covariance.
    G, Q = torch.zeros(size, given, dtype=torch.float64), eye.clone()
    one, nothing = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 1, 1).double()
    for step in range(process.num_steps - 1, -1, -1):
        kept = float(process.alpha_bars[step])
        inputs = torch.cat(
            [
                torch.cat([kept * V + (1 - kept) * eye, kept**0.5 * X], dim=1),
                torch.cat([kept**0.5 * X.mT, Z], dim=1),
            ]
        )
        target = torch.zeros(size, size + given, dtype=torch.float64)
        target[:, :size] = (1 - kept) ** 0.5 * eye  # Cov(ε, (y, c))
        penalty = ridge * torch.eye(size + given, dtype=torch.float64)
        W = torch.linalg.solve(inputs + penalty, target.mT).mT
        error = eye - W @ target.mT - target @ W.mT + W @ inputs @ W.mT
        # x̂₀ = (y − √(1−ᾱ) W (y, c)) / √ᾱ, then the posterior's mean a x̂₀ + b y.
        a, b = (
            float(process.posterior(*pair, step)[0]) for pair in ((one, nothing), (nothing, one))
        )
        to_state = a * (eye - (1 - kept) ** 0.5 * W[:, :size]) / kept**0.5 + b * eye
        to_given = -a * (1 - kept) ** 0.5 / kept**0.5 * W[:, size:]
        variance = 0.0
        if step:
            before = float(process.alpha_bars[step - 1])
            beta = float(process.betas[step])
            least = beta * (1 - before) / (1 - kept)
            variance = least + a**2 * (1 - kept) / kept * float(error.trace()) / size
            variance = min(variance, beta)
        G, Q = to_state @ G + to_given, to_state @ Q @ to_state.mT + variance * eye
    return G, Q


@pytest.mark.parametrize("kind", ["pyramid", "low-pass", "blur-noise", "repeat", "patch-mask"])
@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.1])
def test_a_stage_is_the_walk_of_its_matrices(kind, ridge):
    settings, joint = covariance_of(kind)
    process = GaussianDiffusion.make(100, "cosine").respaced(7)
    for stage in design_stages(settings, DesignSpec(context=2)):
        found = limited_draw(joint, stage, process, ridge)
        G, Q = slow_draw(joint, stage, process, ridge)
        # The context of rounded frames is known to a few parts of 10⁵: conditions of 10⁷.
        torch.testing.assert_close(found.gain[0], G, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.noise[0], Q, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["first-order-noise", "high-order-noise"])
def test_blocks_of_noise_walk_as_one(kind):
    """Each eigenvalue alone, but with one variance of the steps for all pixels."""
    settings, joint = covariance_of(kind, 4)
    process = GaussianDiffusion.make(100, "cosine").respaced(7)
    for stage in design_stages(settings, DesignSpec(context=2)):
        found = limited_draw(joint, stage, process, 1e-2)
        one = torch.zeros(1, 4, 64, 4, 64, dtype=torch.float64)
        one[0].diagonal(dim1=1, dim2=3).copy_(joint[:, :, 0, :, 0].permute(1, 2, 0))
        _, Q = slow_draw(one, stage, process, 1e-2)
        latent = len(stage.latent)
        own = Q.view(latent, 64, latent, 64).diagonal(dim1=1, dim2=3).permute(2, 0, 1)
        torch.testing.assert_close(found.noise, own, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["pyramid", "high-order-noise", "patch-mask"])
def test_without_a_ridge_and_with_all_steps_the_images_are_right(kind):
    settings, joint = covariance_of(kind)
    distances = []
    for steps in (20, 1000):
        process = GaussianDiffusion.make(1000, "cosine").respaced(steps)
        plan = design_stages(settings, DesignSpec(context=2))
        draws = {stage: limited_draw(joint, stage, process, 0.0) for stage in plan}
        last = settings.num_frames - 1
        drawn, true = (block(one, [last], [last]) for one in (chain(joint, draws), joint))
        distances.append(
            float(gaussian_distance(drawn, true) / true.diagonal(dim1=1, dim2=2).sum())
        )
    assert distances[1] < 1e-4
    assert distances[1] < 0.1 * distances[0]


def test_a_larger_ridge_draws_images_that_are_further_away():
    settings = PseudoVideoConfig(kind="pyramid", num_frames=3)
    spec = DesignSpec(context=2, sampling_steps=50)
    found = [
        measure_design(covariance(), SHAPE, settings, DesignSpec(**(spec.to_dict() | {"ridge": r})))
        for r in (1e-3, 1e-2, 1e-1)
    ]
    distances = [each.distance for each in found]
    assert distances == sorted(distances)
    assert distances[0] < 0.5 * distances[2]


@pytest.mark.slow
def test_drawn_samples_of_the_learner_have_this_covariance():
    """Monte Carlo: denoisers fitted by ridge regression to drawn pairs, then the sampler itself."""
    settings, joint = covariance_of("pyramid", 2)
    (first, second) = design_stages(settings, DesignSpec(context=1))
    process, ridge, draws = GaussianDiffusion.make(100, "cosine").respaced(4), 1e-2, 60_000
    generator = torch.Generator().manual_seed(0)

    def normal(n):
        return torch.randn(n, 64, generator=generator, dtype=torch.float64)

    true = joint[0].flatten(2).flatten(0, 1)
    videos = torch.randn(draws, 128, generator=generator, dtype=torch.float64)
    videos = videos @ torch.linalg.cholesky(true).mT
    context, target = videos.split(64, dim=1)
    y = normal(draws)
    for step in range(3, -1, -1):
        kept = float(process.alpha_bars[step])
        noise = normal(draws)
        u = torch.cat([kept**0.5 * target + (1 - kept) ** 0.5 * noise, context], dim=1)
        gram = u.mT @ u / draws + ridge * torch.eye(128)
        W = torch.linalg.solve(gram, u.mT @ noise / draws)
        eps = torch.cat([y, context], dim=1) @ W
        x0 = (y - (1 - kept) ** 0.5 * eps) / kept**0.5
        if step == 0:
            y = x0
            break
        spread = float(((noise - u @ W).square()).mean()) * (1 - kept) / kept
        mean, log_least = process.posterior(x0[:, None, None], y[:, None, None], step)
        before, beta = float(process.alpha_bars[step - 1]), float(process.betas[step])
        a = beta * before**0.5 / (1 - kept)
        variance = min(float(log_least.exp().mean()) + a**2 * spread, beta)
        y = mean[:, 0, 0] + variance**0.5 * normal(draws)
    draw = limited_draw(joint, second, process, ridge)
    expected = draw.gain[0] @ block(joint, [0], [0])[0] @ draw.gain[0].mT + draw.noise[0]
    assert first.latent == (0,)
    # Deviations of a covariance of 60,000 draws are √2/245 of the variances at most.
    scale = expected.diagonal().sqrt()
    wrong = (y.mT.cov() - expected) / torch.outer(scale, scale)
    assert float(wrong.abs().max()) < 0.03
