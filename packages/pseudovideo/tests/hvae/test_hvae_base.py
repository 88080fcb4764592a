"""What both HVAEs share: the bound, its estimate, sampling, storage and training."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudovideo.corruptions.counter import counter_normal
from pseudovideo.hvae import HVAE, HeatHVAE, HVAEConfig, LearnedEncoderHVAE
from pseudovideo.sampling import draw_noise, draw_seed

Make = Callable[..., Any]
both = pytest.mark.parametrize("kind", [HeatHVAE, LearnedEncoderHVAE])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seed_of(seed: int) -> int:
    """The one integer that a call draws from its generator."""
    return int(torch.randint(2**63 - 1, (), generator=generator(seed)))


@both
def test_an_untrained_decoder_repeats_its_frame(kind: type[HVAE], tiny: Make) -> None:
    frames = torch.randn(3, 1, 8, 8, generator=generator())
    assert torch.equal(kind(tiny()).decode(frames, torch.tensor([1, 2, 4])), frames)


@both
def test_the_bound_is_the_sum_of_its_terms_written_out(
    kind: type[HVAE], tiny: Make, stirred: Make, few: Tensor
) -> None:
    config = tiny(num_levels=3, noise_std=0.1)
    model, images = stirred(kind(config).double()), few.double()
    result = model.bound(images, generator=generator(5))
    seed, delta = seed_of(5), 1.25 * 0.1
    for row, image in enumerate(images):
        means = [image]
        for t in range(1, 4):
            if kind is HeatHVAE:
                sigma = 0.5 * (6.0 / 0.5) ** ((t - 1) / 2)
                k = torch.arange(8.0, dtype=torch.float64)
                waves = ((k[:, None] * (k + 0.5)) * math.pi / 8).cos()
                decay = (-(math.pi**2) * (k[:, None] ** 2 + k**2) * sigma**2 / 128).exp()
                spectrum = torch.linalg.solve(waves.T, torch.linalg.solve(waves.T, image[0]).T).T
                means.append((waves.T @ (decay * spectrum) @ waves)[None])
            else:
                time = torch.tensor([t * 1000 / 3], dtype=torch.float64)
                means.append(model.encoder(image[None], time).sample[0].detach())
        total = 0.0
        for t in range(1, 4):
            noise = counter_normal(torch.tensor([row]), 64, seed=seed, epoch=t).double()
            z = means[t] + 0.1 * noise.view(1, 8, 8)
            time = torch.tensor([t * 1000 / 3], dtype=torch.float64)
            predicted = z + model.decoder(z[None], time).sample[0].detach()
            decoder = torch.distributions.Normal(predicted, delta)
            if t == 1:
                cost = -decoder.log_prob(image)
            else:
                encoder = torch.distributions.Normal(means[t - 1], 0.1)
                cost = torch.distributions.kl_divergence(encoder, decoder)
            torch.testing.assert_close(result.terms[row, t - 1], cost.mean())
            total += cost.mean().item()
        if kind is LearnedEncoderHVAE:
            last = torch.distributions.Normal(means[3], 0.1)
            kl = torch.distributions.kl_divergence(last, torch.distributions.Normal(0.0, 1.0))
            torch.testing.assert_close(result.prior[row], kl.mean())
            total += kl.mean().item()
        assert result.total[row].item() == pytest.approx(total, rel=1e-9)
    assert kind is LearnedEncoderHVAE or torch.equal(result.prior, torch.zeros(5).double())


@pytest.mark.slow
@both
def test_the_loss_is_an_unbiased_estimate_of_the_bound(
    kind: type[HVAE], tiny: Make, stirred: Make, few: Tensor
) -> None:
    model = stirred(kind(tiny(num_levels=3, noise_std=0.3)))
    images, g = few[:1].expand(100, -1, -1, -1), generator()
    with torch.no_grad():
        drawn = [model.training_losses(images, generator=g) for _ in range(40)]
        losses = torch.stack([parts["loss"] for parts in drawn])
        bound = model.bound(images.repeat(5, 1, 1, 1), generator=g)
    error = (losses.var() / len(losses) + bound.total.var() / len(bound.total)).sqrt()
    assert abs(losses.mean() - bound.total.mean()) < 4 * error
    # The error is small beside each term: a missing one would show.
    assert 6 * error < bound.terms.mean(0).min()
    assert kind is HeatHVAE or 6 * error < bound.prior.mean()
    for parts in drawn[:3]:
        torch.testing.assert_close(parts["loss"], parts["steps"] + parts["prior"])


@both
def test_each_level_from_the_first_to_the_last_is_drawn_equally_often(
    kind: type[HVAE], tiny: Make, monkeypatch: pytest.MonkeyPatch, few: Tensor
) -> None:
    model, seen = kind(tiny()), []
    original = kind.level_terms

    def record(self: HVAE, images: Tensor, t: Tensor, *others: Any) -> Any:
        seen.append(t)
        return original(self, images, t, *others)

    monkeypatch.setattr(kind, "level_terms", record)
    model.training_losses(few[:1].expand(1000, -1, -1, -1), generator=generator())
    counts = torch.cat(seen).bincount(minlength=5)
    assert len(counts) == 5
    assert counts[0] == 0
    # Five standard deviations of a binomial count with p = 1/4.
    assert (counts[1:] - 250).abs().max() < 5 * math.sqrt(1000 * 0.25 * 0.75)


@both
def test_samples_depend_on_the_seed_and_not_on_the_batch(
    kind: type[HVAE], tiny: Make, stirred: Make, few: Tensor
) -> None:
    model = stirred(kind(tiny(noise_std=0.1)), scale=0.05).eval()
    draws = [
        model.sample(n, images=few, generator=generator(seed), batch_size=size)
        for n, seed, size in [(7, 0, 7), (7, 0, 7), (7, 0, 2), (4, 0, 3), (7, 1, 7)]
    ]
    assert torch.equal(draws[0], draws[1])
    torch.testing.assert_close(draws[2], draws[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(draws[3], draws[0][:4], rtol=0, atol=1e-5)
    assert (draws[4] - draws[0]).abs().max() > 0.1
    assert (draws[0][0] - draws[0][1]).abs().max() > 0.1
    assert draws[0].abs().max() <= 1


@both
def test_sampling_walks_from_the_last_level_to_the_image_and_adds_no_noise_at_the_end(
    kind: type[HVAE], tiny: Make
) -> None:
    model = kind(tiny(image_size=16, attention_sizes=(8,), noise_std=0.2))
    # Of a grey image the prior is noise alone. A fresh decoder repeats its frame: what is drawn is
    # the prior's noise and that of the levels 3, 2 and 1.
    drawn = model.sample(40, images=torch.zeros(1, 1, 16, 16), generator=generator(), batch_size=25)
    seed, numbers = draw_seed(generator()), torch.arange(40)
    noise = [draw_noise(numbers, (1, 16, 16), seed=seed, step=level) for level in (4, 3, 2, 1)]
    first = 1.0 if kind is LearnedEncoderHVAE else 0.25
    expected = first * noise[0] + 0.25 * sum(noise[1:])
    torch.testing.assert_close(drawn, expected.clamp(-1, 1), rtol=0, atol=1e-5)
    # Each noise is its own.
    flat = torch.stack([part.flatten() for part in noise])
    assert (torch.corrcoef(flat) - torch.eye(4)).abs().max() < 0.05


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_precisions_compute_what_one_in_float32_does(
    kind: type[HVAE], dtype: torch.dtype, tiny: Make, stirred: Make, few: Tensor
) -> None:
    model = stirred(kind(tiny(noise_std=0.2)), scale=0.05)

    def results() -> list[Tensor]:
        return [
            model.training_losses(few, generator=generator())["loss"],
            model.bound(few, generator=generator()).total,
            model.sample(2, images=few, generator=generator()),
        ]

    expected = results()
    model.to(dtype)
    for found, other in zip(results(), expected, strict=True):
        assert found.dtype == torch.promote_types(dtype, torch.float32)
        tolerance = 1e-4 if dtype == torch.float64 else 0.05
        assert (found - other).norm() < tolerance * other.norm()


@both
def test_the_bound_and_samples_know_no_dropout_and_leave_the_mode_as_it_was(
    kind: type[HVAE], tiny: Make, stirred: Make, few: Tensor
) -> None:
    model = stirred(kind(tiny(dropout=0.5))).eval()

    def results() -> list[Tensor]:
        drawn = model.sample(2, images=few, generator=generator())
        return [drawn, model.bound(few, generator=generator()).total]

    expected = results()
    model.train()
    assert all(torch.equal(a, b) for a, b in zip(results(), expected, strict=True))
    assert all(module.training for module in model.modules())


@pytest.mark.slow
@both
def test_a_few_steps_on_binarised_digits_lower_the_bound(
    kind: type[HVAE], tiny: Callable[..., HVAEConfig], digits: Tensor
) -> None:
    torch.manual_seed(0)
    small = torch.nn.functional.avg_pool2d(digits, 2)
    binary = torch.where(small > 0, 1.0, -1.0)
    train, test = binary[:1500], binary[1500:1600]
    model = kind(tiny(noise_std=0.1))
    before = model.bound(test, generator=generator()).total.mean()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = generator(1)
    for _ in range(40):
        batch = train[torch.randint(len(train), (16,), generator=g)]
        loss = model.training_losses(batch, generator=g)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = model.bound(test, generator=generator()).total.mean()
    assert after < 0.7 * before
