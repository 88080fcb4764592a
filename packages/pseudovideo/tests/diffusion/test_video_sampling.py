import numpy as np
import pytest
import torch
from tiny_video import frames, seeded, video_model

from pseudovideo.corruptions import PseudoVideoConfig
from pseudovideo.corruptions.gaussian import prediction_errors
from pseudovideo.corruptions.noise import noise_coefficients
from pseudovideo.diffusion import base, video_unet
from pseudovideo.diffusion.errors import frame_errors
from pseudovideo.diffusion.frame_windows import FrameWindow
from pseudovideo.sampling import draw_noise, draw_seed


@pytest.fixture(scope="module")
def models():
    """Without and with one-way conditioning, of the same weights.

    Both tell the noise to be the noisy frames plus what the network says: of the latter alone most
    numbers would end at the limits, where all samples are alike.
    """
    both = video_model(), video_model(one_way=True)
    for model in both:

        def forward(pixels, times, window, memories=None, labels=None, network=model.network):
            output = video_unet.VideoUNet.forward(network, pixels, times, window, memories)
            return output + torch.cat([pixels, 0 * pixels], dim=2)

        model.network.forward = forward
    return both


def slow_sample(model, number, seed, *, num_steps, eta):
    """One video, with everything passed through the network at each step, formulas written out."""
    config, steps = model.config, model.diffusion.respaced(num_steps)
    ab = steps.alpha_bars
    shape = (1, 8, 8)

    def noise(frame, step):
        numbers = torch.tensor([number])
        return draw_noise(numbers, shape, seed=seed, step=step, frame=frame)[0].double()

    video = torch.zeros(config.num_frames, *shape, dtype=torch.float64)
    plan = [(list(range(config.context)), [])]
    for frame in range(config.context, config.num_frames):
        plan.append(([frame], list(range(frame - config.context, frame))))
    for latent, observed in plan:
        limit = 1.0 if latent == [config.num_frames - 1] else 6.1
        x = torch.stack([noise(frame, steps.num_steps) for frame in latent])
        window = FrameWindow(
            torch.tensor([observed + latent]),
            torch.tensor([[True] * len(observed) + [False] * len(latent)]),
            torch.tensor([[False] * len(observed) + [True] * len(latent)]),
        )
        for t in reversed(range(steps.num_steps)):
            time = torch.tensor([steps.timesteps[t] * 1000 / config.num_steps])
            pixels = torch.cat([video[observed], x])[None]
            output = model.network(pixels, time, window)[0, len(observed) :]
            eps, v = output[:, :1], output[:, 1:]
            before = ab[t - 1] if t else torch.tensor(1.0).double()
            beta = 1 - ab[t] / before
            x0 = ((x - (1 - ab[t]).sqrt() * eps) / ab[t].sqrt()).clamp(-limit, limit)
            eps = (x - ab[t].sqrt() * x0) / (1 - ab[t]).sqrt()
            least = beta * (1 - before) / (1 - ab[t])
            if t == 0:
                x = x0
                continue
            fresh = torch.stack([noise(frame, t) for frame in latent])
            if eta is None:
                mean = before.sqrt() * beta / (1 - ab[t]) * x0
                mean = mean + (1 - beta).sqrt() * (1 - before) / (1 - ab[t]) * x
                log_variance = (v + 1) / 2 * beta.log() + (1 - v) / 2 * least.log()
                x = mean + (log_variance / 2).exp() * fresh
            else:
                direction = (1 - before - eta**2 * least).sqrt()
                x = before.sqrt() * x0 + direction * eps + eta * least.sqrt() * fresh
        video[latent] = x
    return video


@pytest.mark.slow
@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("eta", [None, 0.6])
def test_samples_are_those_of_the_formulas_without_cache_or_batches(models, one_way, eta):
    model = models[one_way]
    drawn = model.sample(3, num_steps=4, eta=eta, generator=seeded(7), batch_size=2)
    seed = draw_seed(seeded(7))
    for number in (0, 2):
        slow = slow_sample(model, number, seed, num_steps=4, eta=eta)
        torch.testing.assert_close(drawn[number], slow, rtol=0, atol=1e-5)
    assert (drawn[:, :3].abs() < 6).double().mean() > 0.7
    assert (drawn[:, 3].abs() < 0.999).double().mean() > 0.3
    assert drawn[:, -1].abs().max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("one_way", [False, True])
def test_samples_do_not_depend_on_the_size_of_batches_or_their_number(models, one_way):
    draw = models[one_way].sample
    whole = draw(3, num_steps=3, generator=seeded(0))
    for n, batch_size in [(3, 1), (3, 2), (1, 64)]:
        some = draw(n, num_steps=3, generator=seeded(0), batch_size=batch_size)
        torch.testing.assert_close(some, whole[:n], rtol=0, atol=1e-9)
    assert (draw(3, num_steps=3, generator=seeded(1)) - whole).abs().mean() > 0.05


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize(("num_frames", "context"), [(4, 2), (3, 1)])
def test_evaluations_are_the_frames_that_pass_through_the_network(one_way, num_frames, context):
    model = video_model(num_frames=num_frames, context=context, one_way=one_way)
    passed = []

    model.network.unet.register_forward_pre_hook(lambda unet, args: passed.append(len(args[0])))
    model.sample(3, num_steps=3, generator=seeded(0), batch_size=2)
    assert sum(passed) == 3 * model.evaluations_per_sample(3)


def test_one_way_conditioning_takes_two_to_three_times_fewer_evaluations():
    for num_frames, context, stages, ratio in [(4, 2, 3, 2.0), (8, 4, 5, 3.0)]:
        two_way, one_way = (
            video_model(num_frames=num_frames, context=context, one_way=flag, num_steps=1000)
            for flag in (False, True)
        )
        assert len(two_way.stages) * two_way.diffusion.num_steps == stages * 1000
        evaluations = two_way.evaluations_per_sample()
        assert evaluations / one_way.evaluations_per_sample() == pytest.approx(ratio, rel=0.01)
        assert evaluations == 1000 * (context + (num_frames - context) * (context + 1))


def ideal_network(monkeypatch, model, covariance):
    """Replace a network by the best one for videos of independent Gaussian pixels.

    For frames z ~ N(0, K) it tells E[ε | x_t, z_S] by conditioning densely.
    """

    def predict(pixels, times, window, memories=None, labels=None):
        t = int((times[0] / 1000 * model.config.num_steps).round())
        ab = model.diffusion.alpha_bars[t]
        numbers, observed = window.frames[0].tolist(), window.observed[0]
        K = covariance[numbers][:, numbers]
        scale = torch.where(observed, torch.tensor(1.0).double(), ab.sqrt())
        noise = torch.where(observed, torch.tensor(0.0).double(), 1 - ab)
        # Given are the observed frames themselves and √ᾱ z + √(1−ᾱ) ε of the latent ones.
        given = scale[:, None] * K * scale + noise.diag()
        gain = torch.linalg.solve(given, scale[:, None] * K).T
        z = torch.einsum("ij,bjchw->bichw", gain, pixels)
        eps = (pixels - ab.sqrt() * z) / (1 - ab).sqrt()
        return torch.cat([eps, torch.zeros_like(eps)], dim=2)

    monkeypatch.setattr(model.network, "forward", predict)


def gaussian_video():
    """Covariance of the frames of one pixel of variance 0.04, and the kind of video."""
    kind = PseudoVideoConfig(num_frames=4, kind="high-order-noise", beta_min=0.05, beta_max=0.3)
    mean, mixing = noise_coefficients(kind)
    return 0.04 * mean[:, None] * mean + mixing @ mixing.T, kind


def test_frame_errors_of_the_ideal_network_are_the_theorems(monkeypatch):
    model = video_model(num_steps=100)
    covariance, kind = gaussian_video()
    ideal_network(monkeypatch, model, covariance)
    generator = seeded(5)
    factor = torch.linalg.cholesky(covariance)
    videos = torch.einsum(
        "ts,bschw->btchw", factor, torch.randn(100, 4, 1, 8, 8, generator=generator).double()
    )
    exact = prediction_errors(torch.full((64,), 0.04), kind, context=2).next_frame
    for frame in (2, 3):
        samples = model.predict_frames(
            videos, frame, num_samples=3, generator=generator, batch_size=300
        )
        errors = frame_errors(videos[:, frame], samples)
        deviation = float(errors.std() / len(errors) ** 0.5)
        assert deviation < 0.05 * exact[frame - 1]
        assert float(errors.mean()) == pytest.approx(float(exact[frame - 1]), abs=4 * deviation)
        # Without the correction for the number of samples it would be a third more.
        naive = (videos[:, frame] - samples.mean(1)).square().mean()
        assert naive > 1.2 * exact[frame - 1]


def test_predicted_frames_depend_on_their_context_alone(models):
    videos = frames(2, 4, 1, 8, 8)

    def predict(given, frame, **settings):
        return models[1].predict_frames(
            given, frame, num_samples=3, num_steps=3, generator=seeded(0), **settings
        )

    for frame in (2, 3):
        drawn = predict(videos, frame)
        assert drawn.shape == (2, 3, 1, 8, 8)
        for other in range(4):
            altered = videos.clone()
            altered[:, other] += 0.3
            same = torch.equal(predict(altered, frame), drawn)
            assert same == (other not in (frame - 1, frame - 2))
        batches = []
        again = predict(videos, frame, batch_size=4, progress=batches.append)
        assert batches == [4, 2]
        torch.testing.assert_close(again, drawn, rtol=0, atol=1e-9)
        # Samples of one video differ.
        assert (drawn[:, 0] - drawn[:, 1]).abs().mean() > 0.01


def test_frames_with_noise_go_beyond_the_range_of_images(monkeypatch, models):
    model = models[0]

    def far_out(pixels, times, window, memories=None, labels=None):
        t = int((times[0] / 1000 * model.config.num_steps).round())
        ab = model.diffusion.alpha_bars[t]
        value = torch.tensor([1.5, -4.0, 7.0, 2.0])[window.frames][..., None, None, None]
        eps = (pixels - ab.sqrt() * value) / (1 - ab).sqrt()
        return torch.cat([eps, torch.zeros_like(eps)], dim=2)

    monkeypatch.setattr(model.network, "forward", far_out)
    drawn = model.sample(2, num_steps=5, generator=seeded(0))
    expected = torch.tensor([1.5, -4.0, 6.1, 1.0], dtype=torch.float64)
    torch.testing.assert_close(drawn.mean((0, 2, 3, 4)), expected, rtol=0, atol=1e-6)
    for frame in (2, 3):
        predicted = model.predict_frames(drawn, frame, num_samples=1, num_steps=5)
        assert float(predicted.mean()) == pytest.approx(float(expected[frame]), abs=1e-6)


@pytest.mark.parametrize("kind", ["first-order-noise", "high-order-noise", "matched-noise"])
@pytest.mark.parametrize("num_frames", [2, 4, 18, 64])
@pytest.mark.parametrize("beta", [0.05, 0.1, 0.9])
def test_the_limit_of_frames_is_six_standard_deviations_of_their_noise_away(kind, num_frames, beta):
    config = PseudoVideoConfig(num_frames=num_frames, kind=kind, beta_min=beta, beta_max=beta)
    mean, mixing = noise_coefficients(config)
    # The brightest pixel is 1.
    reached = mean + 6 * mixing.square().sum(1).sqrt()
    assert float(reached.max()) < base.FRAME_LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("first", [2, 3])
def test_noise_of_later_frames_never_changes_earlier_samples(monkeypatch, models, one_way, first):
    model = models[one_way]
    before = model.sample(2, num_steps=4, generator=seeded(0))

    def altered(numbers, shape, *, seed, step, frame=0):
        noise = draw_noise(numbers, shape, seed=seed, step=step, frame=frame)
        return -noise if frame >= first else noise

    monkeypatch.setattr(base, "draw_noise", altered)
    after = model.sample(2, num_steps=4, generator=seeded(0))
    assert torch.equal(after[:, :first], before[:, :first])
    for frame in range(first, 4):
        assert (after[:, frame] - before[:, frame]).abs().max() > 0.01


@pytest.mark.slow
def test_the_ideal_network_draws_the_videos_of_the_context_window(monkeypatch):
    model = video_model(num_steps=200, context=1)
    covariance, _ = gaussian_video()
    ideal_network(monkeypatch, model, covariance)
    drawn = model.sample(150, eta=0.0, generator=seeded(3), batch_size=150)
    values = drawn.movedim(1, -1).reshape(-1, 4)
    found = values.T @ values / len(values)
    # With a context of 1 the model is the Markov chain with the true pairs of neighbours.
    expected = covariance.clone()
    for frame in range(2, 4):
        weight = covariance[frame, frame - 1] / covariance[frame - 1, frame - 1]
        expected[frame, : frame - 1] = weight * expected[frame - 1, : frame - 1]
        expected[: frame - 1, frame] = expected[frame, : frame - 1]
    scale = expected.diagonal().sqrt()
    correlation = found / scale[:, None] / scale
    np.testing.assert_allclose(
        correlation, expected / scale[:, None] / scale, atol=5 * (2 / len(values)) ** 0.5 + 0.01
    )
