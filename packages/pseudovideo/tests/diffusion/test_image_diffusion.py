"""Improved DDPM of images: its losses, its samples and its bound, and a fit from end to end."""

import math

import pytest
import torch
from improved_ddpm import randomised
from tiny_video import SIZES

from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.likelihood import bits_per_dim
from pseudovideo.sampling import draw_seed
from pseudovideo.spec import ImageDiffusionConfig


def config(**changes):
    return ImageDiffusionConfig(**SIZES | {"num_steps": 6} | changes)


def model(**changes):
    return randomised(ImageDiffusion(config(**changes)).double().eval(), 0)


def images(count, channels=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, channels, 8, 8), generator=generator)
    return pixels.double() / 127.5 - 1


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def betas_of(steps):
    """The cosine schedule, from its definition."""

    def kept(u):
        return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2

    return [min(1 - kept((i + 1) / steps) / kept(i / steps), 0.999) for i in range(steps)]


@torch.no_grad()
def test_losses_are_the_noise_s_error_and_the_bound_s_terms_by_hand():
    steps, t = 6, torch.tensor([0, 3, 5])
    net, x0 = model(num_steps=steps, channels=2), images(3, 2)
    numbers, seed = torch.arange(3), draw_seed(seeded())
    noise = counter_normal(numbers, 128, seed=seed, epoch=0).view(3, 2, 8, 8).double()
    losses = net.training_losses(x0, t, generator=seeded())
    betas = betas_of(steps)
    bars = [math.prod(1 - beta for beta in betas[: i + 1]) for i in range(steps)]
    for n, step in enumerate(t.tolist()):
        bar, beta = bars[step], betas[step]
        x_t = math.sqrt(bar) * x0[n] + math.sqrt(1 - bar) * noise[n]
        output = net(x_t[None], torch.tensor([step * 1000 / steps]))[0]
        eps, place = output[:2], output[2:]
        mse = (eps - noise[n]).square().mean()
        before = bars[step - 1] if step else 1.0
        least = math.log(betas[1] * (1 - bars[0]) / (1 - bars[1]))
        if step:
            least = math.log(beta * (1 - before) / (1 - bar))
        log_variance = (place + 1) / 2 * math.log(beta) + (1 - place) / 2 * least
        predicted = (x_t - math.sqrt(1 - bar) * eps) / math.sqrt(bar)
        of_x0 = beta * math.sqrt(before) / (1 - bar)
        of_x_t = (1 - before) * math.sqrt(1 - beta) / (1 - bar)
        if step:
            gap = (of_x0 * (x0[n] - predicted)).square()
            ratio = (least - log_variance).exp()
            nats = 0.5 * (log_variance - least + ratio - 1 + gap / log_variance.exp())
        else:
            normal = torch.distributions.Normal(
                of_x0 * predicted + of_x_t * x_t, (log_variance / 2).exp()
            )
            upper = torch.where(x0[n] > 0.999, 1.0, normal.cdf(x0[n] + 1 / 255))
            lower = torch.where(x0[n] < -0.999, 0.0, normal.cdf(x0[n] - 1 / 255))
            # Differences of Φ written so hold their digits near the mean alone.
            assert (upper - lower).min() > 1e-8
            nats = -(upper - lower).log()
        vlb = nats.mean() / math.log(2)
        torch.testing.assert_close(losses.mse[n], mse, rtol=1e-7, atol=0)
        torch.testing.assert_close(losses.vlb[n], vlb, rtol=1e-6, atol=0)
        torch.testing.assert_close(losses.loss[n], mse + steps / 1000 * vlb, rtol=1e-6, atol=0)


def test_the_network_is_told_steps_on_the_scale_of_1000(monkeypatch):
    net, told = model(num_steps=4000), []
    forward = ImageDiffusion.forward
    monkeypatch.setattr(
        ImageDiffusion,
        "forward",
        lambda self, x, times, labels=None: (told.append(times), forward(self, x, times))[1],
    )
    net.training_losses(images(3), torch.tensor([0, 1, 3999]))
    assert told[0].tolist() == [0.0, 0.25, 999.75]
    net.sample(1, num_steps=4)
    assert torch.cat(told[1:]).tolist() == [999.75, 666.5, 333.25, 0.0]


@pytest.mark.parametrize("eta", [None, 0.0, 0.7])
def test_samples_are_those_of_the_walk_written_out(eta):
    steps, net = 6, model()
    found = net.sample(2, eta=eta, generator=seeded())
    seed, numbers = draw_seed(seeded()), torch.arange(2)

    def noise(step):
        return counter_normal(numbers, 64, seed=seed, epoch=step).view(2, 1, 8, 8).double()

    betas = betas_of(steps)
    bars = [math.prod(1 - beta for beta in betas[: i + 1]) for i in range(steps)]
    x = noise(steps)
    for step in reversed(range(steps)):
        bar, before, beta = bars[step], bars[step - 1] if step else 1.0, betas[step]
        with torch.no_grad():
            eps, place = net(x, torch.full((2,), step * 1000 / steps)).split(1, dim=1)
        x0 = ((x - math.sqrt(1 - bar) * eps) / math.sqrt(bar)).clamp(-1, 1)
        posterior = beta * (1 - before) / (1 - bar)
        if eta is None:
            x = (beta * math.sqrt(before) * x0 + (1 - before) * math.sqrt(1 - beta) * x) / (1 - bar)
            if step:
                share = (place + 1) / 2
                log_variance = share * math.log(beta) + (1 - share) * math.log(posterior)
                x = x + (log_variance / 2).exp() * noise(step)
        else:
            eps = (x - math.sqrt(bar) * x0) / math.sqrt(1 - bar)
            x = math.sqrt(before) * x0 + math.sqrt(1 - before - eta**2 * posterior) * eps
            x = x + eta * math.sqrt(posterior) * noise(step)
    assert found.std() > 0.1
    torch.testing.assert_close(found, x, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_sample_depends_on_its_number_and_on_nothing_else():
    net = model()
    five = net.sample(5, generator=seeded())
    for batch_size in (1, 2, 4):
        again = net.sample(5, generator=seeded(), batch_size=batch_size)
        torch.testing.assert_close(again, five, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(net.sample(2, generator=seeded()), five[:2], rtol=1e-9, atol=1e-9)
    assert (five[1:] - five[:-1]).abs().amax((1, 2, 3)).min() > 1e-3
    assert (net.sample(5, generator=seeded(4)) - five).abs().max() > 1e-3
    torch.manual_seed(8)
    one = net.sample(1)
    torch.manual_seed(8)
    assert torch.equal(net.sample(1), one)


def test_the_bound_is_the_process_s_own_of_this_network():
    net, x0 = model(), images(3)
    calls = []
    found = net.bits_per_dim(x0, generator=seeded(), progress=calls.append)
    expected = bits_per_dim(net, x0, net.diffusion, generator=seeded())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert calls == [1] * 6
    assert not found.total.requires_grad


def test_a_model_can_be_built_on_meta_with_its_schedule():
    with torch.device("meta"):
        made = ImageDiffusion(config())
    assert all(weight.is_meta for weight in made.parameters())
    assert torch.equal(made.diffusion.betas, model().diffusion.betas)


def test_every_weight_has_a_gradient_and_channels_last_has_the_same_one():
    gradients = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        net = randomised(ImageDiffusion(config(channels=3)), 0).to(memory_format=memory_format)
        x0 = images(2, 3).float().contiguous(memory_format=memory_format)
        net.training_losses(x0, torch.tensor([1, 4]), generator=seeded()).loss.mean().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in net.parameters())
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4 * gradients[0].abs().max())


def test_losses_are_float32_where_the_network_runs_in_bfloat16():
    net, x0 = randomised(ImageDiffusion(config()), 0), images(2).float()
    t = torch.tensor([1, 4])
    exact = net.training_losses(x0, t, generator=seeded())
    with torch.autocast("cpu", torch.bfloat16):
        lean = net.training_losses(x0, t, generator=seeded())
        drawn = net.sample(1, num_steps=2, generator=seeded())
    assert {part.dtype for part in (*lean, drawn)} == {torch.float32}
    torch.testing.assert_close(lean.loss, exact.loss, rtol=0.05, atol=0)


@pytest.mark.parametrize(
    ("dtype", "found", "tolerance"),
    [(torch.bfloat16, torch.float32, 0.05), (torch.float64, torch.float64, 1e-4)],
)
def test_models_of_other_precisions_compute_what_one_in_float32_does(dtype, found, tolerance):
    net, x0, t = randomised(ImageDiffusion(config()), 0), images(2).float(), torch.tensor([1, 4])

    def results():
        return (
            net.training_losses(x0, t, generator=seeded()).loss,
            net.bits_per_dim(x0, generator=seeded()).total,
            net.sample(2, eta=0.0, num_steps=2, generator=seeded()),
        )

    expected = results()
    net.to(dtype)
    for one, other in zip(results(), expected, strict=True):
        assert one.dtype == found
        # Of samples the mean: single pixels of a network without training may jump.
        one, other = (part if part.ndim == 1 else part.abs().mean() for part in (one, other))
        torch.testing.assert_close(one.to(other), other, rtol=tolerance, atol=0)


def test_samples_and_the_bound_know_no_dropout_and_leave_the_mode_as_it_was():
    net, x0 = model(dropout=0.5), images(2)
    expected = net.sample(2, generator=seeded()), net.bits_per_dim(x0, generator=seeded()).total
    net.train()
    net.unet.conv_in.eval()
    found = net.sample(2, generator=seeded()), net.bits_per_dim(x0, generator=seeded()).total
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    with pytest.raises(ZeroDivisionError):
        net.bits_per_dim(x0, progress=lambda count: count / 0)
    modes = {name for name, module in net.named_modules() if not module.training}
    assert modes == {"unet.conv_in"}
