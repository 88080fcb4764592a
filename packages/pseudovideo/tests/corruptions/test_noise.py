"""Coefficients of noise videos against their recursions written out, and against DDPM's."""

import math

import pytest
import torch

from pseudovideo.corruptions import PseudoVideoConfig, noise_coefficients
from pseudovideo.corruptions.noise import noise_betas

NOISE = ("first-order-noise", "high-order-noise", "matched-noise")


def config(kind, num_frames=6, **changes):
    return PseudoVideoConfig(kind=kind, num_frames=num_frames, **changes)


def slow_video(x, noise, betas, *, high_order):
    """z_T, …, z_1 by the chapter's two formulas, then turned round."""
    frames = [x]
    for t, beta in enumerate(betas, start=1):
        around = sum(frames) / t if high_order else frames[-1]
        frames.append(math.sqrt(1 - beta) * around + math.sqrt(beta) * noise[t - 1])
    return torch.stack(frames[::-1])


@pytest.mark.parametrize("kind", NOISE[:2])
def test_the_closed_form_is_the_recursion(kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, generator=generator, dtype=torch.float64)
    noise = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    betas = [1e-4 + k * (0.05 - 1e-4) / 4 for k in range(5)]
    mean, mixing = noise_coefficients(config(kind))
    expected = slow_video(x, noise, betas, high_order=kind == "high-order-noise")
    torch.testing.assert_close(mean[:, None] * x + mixing @ noise, expected, rtol=0, atol=1e-13)


def test_first_order_marginals_are_those_of_ddpm():
    settings = config("first-order-noise", num_frames=9, beta_max=0.3)
    mean, mixing = noise_coefficients(settings)
    kept = 1.0
    for t in range(9):
        if t:
            kept *= 1 - (1e-4 + (t - 1) * (0.3 - 1e-4) / 7)
        assert float(mean[8 - t]) == pytest.approx(math.sqrt(kept), rel=1e-13)
        assert float(mixing[8 - t].square().sum()) == pytest.approx(1 - kept, abs=1e-14)


def test_the_two_orders_differ_from_the_third_frame_on():
    first, high = (noise_coefficients(config(kind)) for kind in NOISE[:2])
    for one, other in zip(first, high, strict=True):
        assert torch.equal(one[-2:], other[-2:])
        assert not torch.allclose(one[-3], other[-3], rtol=1e-6)


@pytest.mark.parametrize("kind", NOISE)
def test_the_last_frame_is_the_predict_x0_and_eps_grows_away_from_it(kind):
    mean, mixing = noise_coefficients(config(kind))
    assert float(mean[-1]) == 1
    assert not mixing[-1].any()
    ratio = mixing.square().sum(-1) / mean.square()
    assert (ratio[:-1] > ratio[1:]).all()


@pytest.mark.parametrize(("beta_min", "beta_max"), [(1e-4, 0.05), (0.02, 0.02), (0.0, 0.9)])
def test_matched_noise_is_first_order_with_the_signal_to_noise_ratios_of_high_order(
    beta_min, beta_max
):
    high, matched = (
        config(kind, num_frames=8, beta_min=beta_min, beta_max=beta_max) for kind in NOISE[1:]
    )
    betas = noise_betas(matched)
    assert ((betas >= -1e-15) & (betas < 1)).all()
    ratios = []
    for settings in (high, matched):
        mean, mixing = noise_coefficients(settings)
        ratios.append(mixing.square().sum(-1) / mean.square())
    torch.testing.assert_close(ratios[1], ratios[0], rtol=1e-10, atol=1e-14)
    # It is a first-order video: a row without its own noise is a multiple of the row after it.
    mean, mixing = noise_coefficients(matched)
    assert float(mean[0]) == pytest.approx(float((1 - betas).sqrt().prod()), rel=1e-13)
    torch.testing.assert_close(mixing[:-1, 0] * mean[-2], mixing[-2, 0] * mean[:-1])


def test_kinds_without_noise_are_refused():
    with pytest.raises(ValueError, match="kind of noise, got 'blur'"):
        noise_coefficients(config("blur"))
