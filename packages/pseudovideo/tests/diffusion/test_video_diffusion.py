import pytest
import torch
from einops import repeat
from sklearn.datasets import load_digits
from tiny_video import SIZES, frames, seeded, shaken, video_model

from pseudovideo.corruptions import PseudoVideoConfig, pseudo_videos
from pseudovideo.diffusion import video as video_module
from pseudovideo.diffusion.errors import frame_errors
from pseudovideo.diffusion.frame_windows import FrameWindow, Stage, draw_windows, stage_window
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective, HybridLosses, hybrid_losses
from pseudovideo.diffusion.video import VideoDiffusion
from pseudovideo.sampling import draw_noise, draw_seed
from pseudovideo.spec import ImageDiffusionConfig, VideoDiffusionConfig

STEPS = torch.tensor([3, 30, 11, 0, 22, 39])


def drawn_alike(model, videos, seed):
    """The windows and the noise that `training_losses` draws."""
    config, generator = model.config, seeded(seed)
    window = draw_windows(
        len(videos), num_frames=config.num_frames, context=config.context, generator=generator
    )
    shape = (window.frames.shape[1], *videos.shape[2:])
    noise = draw_noise(torch.arange(len(videos)), shape, seed=draw_seed(generator), step=0)
    return window, noise.double()


@pytest.mark.parametrize("settings", [{}, {"one_way": True}])
def test_the_loss_is_that_of_the_latent_frames_one_video_at_a_time(settings):
    model = video_model(**settings)
    videos = frames(6, 4, 1, 8, 8)
    losses = model.training_losses(videos, STEPS, generator=seeded(2))
    window, noise = drawn_alike(model, videos, 2)
    assert len(set(window.latent.sum(1).tolist())) > 1
    for row, t in enumerate(STEPS.tolist()):
        used = (window.observed | window.latent)[row].nonzero()[:, 0].tolist()
        latent = window.latent[row, used]
        x0, eps = videos[row, window.frames[row, used]], noise[row, used]
        ab = model.diffusion.alpha_bars[t]
        noisy = ab.sqrt() * x0 + (1 - ab).sqrt() * eps
        pixels = torch.where(latent[:, None, None, None], noisy, x0)
        # Without padding, and on its own.
        alone = FrameWindow(window.frames[row, used][None], ~latent[None], latent[None])
        output = model.network(pixels[None], torch.tensor([t * 25.0]), alone)[0, latent]
        mse = (output[:, :1] - eps[latent]).square().mean()
        assert float(losses.mse[row]) == pytest.approx(float(mse), abs=1e-6)
        steps = repeat(torch.tensor(t), "-> n", n=int(latent.sum()))
        expected = hybrid_losses(
            model.diffusion, output, x0[latent], noisy[latent], eps[latent], steps
        )
        vlb, loss = (float(part.mean()) for part in (expected.vlb, expected.loss))
        assert float(losses.vlb[row]) == pytest.approx(vlb, rel=1e-5)
        assert float(losses.loss[row]) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(("num_frames", "context"), [(4, 2), (8, 4), (5, 1)])
def test_all_frames_count_alike_in_the_mean_over_the_stages(monkeypatch, num_frames, context):
    model = video_model(num_frames=num_frames, context=context)
    plan, videos = model.stages, frames(1, num_frames, 1, 8, 8)
    shares = torch.zeros(num_frames, dtype=torch.float64)
    for stage in plan:
        window = stage_window(stage, 1)
        monkeypatch.setattr(video_module, "draw_windows", lambda *_, w=window, **__: w)
        for frame in stage.latent:
            # Nothing else than this frame is wrong.
            wrong = (window.frames[0] == frame).double()
            monkeypatch.setattr(
                video_module, "hybrid_losses", lambda *_, e=wrong, **__: HybridLosses(e, e, e)
            )
            losses = model.training_losses(videos, torch.tensor([3]))
            # A stage is drawn as often as it has latent frames.
            shares[frame] += losses.loss.sum() * len(stage.latent) / num_frames
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / num_frames))


@pytest.mark.parametrize("one_way", [False, True])
def test_later_frames_and_unused_ones_never_change_the_loss(one_way):
    model = video_model(one_way=one_way)
    videos = frames(6, 4, 1, 8, 8).requires_grad_()
    losses = model.training_losses(videos, STEPS, generator=seeded(3)).loss
    (gradient,) = torch.autograd.grad((losses * torch.linspace(1, 2, 6)).sum(), videos)
    window, _ = drawn_alike(model, videos.detach(), 3)
    kinds = set()
    for row in range(6):
        used = window.frames[row, window.observed[row] | window.latent[row]].tolist()
        kinds.add(tuple(used))
        for frame in range(4):
            moved = float(gradient[row, frame].abs().max())
            assert (moved > 1e-8) if frame in used else (moved == 0)
    assert len(kinds) == 3


@pytest.fixture(scope="module")
def image_and_video():
    """An image model, and a video model that has its weights and no temporal output."""
    torch.manual_seed(0)
    image = shaken(ImageDiffusion(ImageDiffusionConfig(**SIZES)))
    video = VideoDiffusion(VideoDiffusionConfig(**SIZES, num_frames=2, context=1)).double().eval()
    weights = image.unet.state_dict()
    first = weights["conv_in.weight"]
    weights["conv_in.weight"] = torch.cat([first, torch.ones_like(first)], dim=1)
    video.network.unet.load_state_dict(weights)
    return image, video.requires_grad_(False)


def test_with_one_frame_and_no_temporal_output_the_loss_is_the_image_models(image_and_video):
    image, video = image_and_video
    videos, steps = frames(8, 2, 1, 8, 8), torch.arange(0, 40, 5)
    losses = video.training_losses(videos, steps, generator=seeded(0))
    window, noise = drawn_alike(video, videos, 0)
    first = ~window.observed.any(1)
    assert 0 < int(first.sum()) < 8
    x0, eps, t = videos[first, 0], noise[first, 0], steps[first]
    x_t = image.diffusion.add_noise(x0, eps, t)
    output = image(x_t, image.diffusion.model_times(t))
    expected = hybrid_losses(image.diffusion, output, x0, x_t, eps, t)
    for found, other in zip(losses, expected, strict=True):
        torch.testing.assert_close(found[first], other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("eta", [None, 0.5])
def test_with_one_frame_and_no_temporal_output_samples_are_the_image_models(image_and_video, eta):
    image, video = image_and_video
    expected = image.sample(3, num_steps=5, eta=eta, generator=seeded(4))
    video.stages = (Stage((), (0,)),)
    drawn = video.sample(3, num_steps=5, eta=eta, generator=seeded(4))
    torch.testing.assert_close(drawn, expected, rtol=0, atol=1e-9)
    assert (expected.abs() < 1).any()


@pytest.mark.slow
def test_a_tiny_model_learns_to_predict_digits_from_their_noisy_frames():
    images = torch.as_tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1
    kind = PseudoVideoConfig(num_frames=2, kind="high-order-noise", beta_min=0.2, beta_max=0.2)
    torch.manual_seed(0)
    sizes = {**SIZES, "attention_sizes": (8,)}
    config = VideoDiffusionConfig(**sizes, num_frames=2, context=1, one_way=True)
    objective = DiffusionObjective(VideoDiffusion(config))
    optimiser = torch.optim.Adam(objective.parameters(), lr=8e-3, fused=True)
    generator, history = seeded(0), []
    for step in range(60):
        chosen = torch.randint(1_500, (32,), generator=generator)
        videos = pseudo_videos(images[chosen], kind, epoch=step, index=chosen)
        losses = objective(videos, generator=generator)
        optimiser.zero_grad()
        losses["loss"].backward()
        optimiser.step()
        history.append(losses["mse"].item())
    assert history[0] == pytest.approx(1, abs=0.1)
    assert sum(history[-20:]) / 20 < 0.4

    model = objective.model.eval()
    videos = pseudo_videos(images[1_500:1_564], kind, seed=1)
    samples = model.predict_frames(videos, 1, num_samples=2, num_steps=8, generator=generator)
    error = float(frame_errors(videos[:, 1], samples).mean())
    # Better than the best guess without the frame before, and than that frame itself.
    assert error < 0.65 * float(images.var(0).mean())
    assert error < 0.9 * float((videos[:, 1] - videos[:, 0]).square().mean())
