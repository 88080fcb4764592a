"""Theorem 5.4.1 against conditioning of the whole video's covariance matrix."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pseudovideo.corruptions import (
    PseudoVideoConfig,
    image_spectrum,
    prediction_error,
    prediction_errors,
)

NOISE = ("first-order-noise", "high-order-noise", "matched-noise")


def config(kind, num_frames=5, **changes):
    return PseudoVideoConfig(kind=kind, num_frames=num_frames, **changes)


@pytest.mark.parametrize("kind", NOISE)
def test_the_errors_are_the_traces_of_dense_gaussian_conditioning(kind, video_covariance):
    """Images with a full covariance, every frame, every subset of the frames before it."""
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    covariance = factor @ factor.mT
    settings = config(kind, beta_min=0.01, beta_max=0.3)
    joint = video_covariance(covariance, settings)
    spectrum = torch.linalg.eigvalsh(covariance)
    for frame in range(5):
        for size in range(frame + 1):
            for known in itertools.combinations(range(frame), size):
                given_frames = list(known)
                K = joint[given_frames][:, :, given_frames].reshape(3 * size, 3 * size)
                k = joint[given_frames][:, :, frame].reshape(3 * size, 3)
                rest = joint[frame, :, frame] - k.mT @ torch.linalg.solve(K, k)
                found = prediction_error(spectrum, settings, frame=frame, context=given_frames)
                assert float(found.sum()) == pytest.approx(float(rest.trace()), rel=1e-9)


def test_the_error_from_one_frame_is_the_wiener_filters():
    spectrum = torch.tensor([0.0, 1e-6, 0.3, 200.0], dtype=torch.float64)
    found = prediction_error(spectrum, config("first-order-noise"), frame=4, context=[3])
    signal, noise = 1 - 1e-4, 1e-4
    torch.testing.assert_close(
        found, spectrum * noise / (signal * spectrum + noise), rtol=1e-12, atol=0
    )


def test_high_order_gains_strictly_from_every_further_frame():
    found = prediction_errors(torch.tensor([0.5, 2.0]), config("high-order-noise", 8))
    assert (found.from_nearest.diff() < 0).all()
    assert (found.next_frame[1:] < found.next_from_previous[1:]).all()


def test_matched_noise_tells_as_much_by_one_frame_and_less_by_several():
    spectrum = torch.tensor([0.0, 0.01, 3.0], dtype=torch.float64)
    high, matched = (prediction_errors(spectrum, config(kind, 8)) for kind in NOISE[1:])
    for frame in range(7):
        one, other = (
            prediction_error(spectrum, config(kind, 8), frame=7, context=[frame])
            for kind in NOISE[1:]
        )
        torch.testing.assert_close(one, other, rtol=1e-9, atol=0)
    assert float(high.from_first[0]) == pytest.approx(float(matched.from_first[0]), rel=1e-9)
    assert (high.from_first[1:] < matched.from_first[1:]).all()


def test_a_context_is_the_frames_before_and_nothing_else():
    spectrum, settings = torch.tensor([0.3, 4.0]), config("high-order-noise", 6)
    found = prediction_errors(spectrum, settings, context=2)
    for t in range(1, 6):
        expected = prediction_error(spectrum, settings, frame=t, context=range(max(0, t - 2), t))
        assert float(found.next_frame[t - 1]) == float(expected.mean())
    one = prediction_errors(spectrum, settings, context=1)
    assert torch.equal(one.next_frame, one.next_from_previous)


def test_without_noise_nothing_is_uncertain():
    settings = config("high-order-noise", beta_min=0.0, beta_max=0.0)
    found = prediction_errors(torch.tensor([0.0, 1.0, 7.0]), settings)
    torch.testing.assert_close(torch.stack(found), torch.zeros(4, 4).double(), rtol=0, atol=1e-25)


def test_the_spectrum_is_that_of_the_sample_covariance():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(40, 2, 2, 3, generator=generator, dtype=torch.float64)
    expected = torch.linalg.eigvalsh(images.flatten(1).mT.cov()).flip(0)
    torch.testing.assert_close(image_spectrum(images), expected)
    # Fewer images than pixels: the other product, filled with zeros.
    few = image_spectrum(images[:5])
    expected = torch.linalg.eigvalsh(images[:5].flatten(1).mT.cov()).flip(0)
    torch.testing.assert_close(few, expected, atol=1e-12, rtol=1e-9)
    assert int((few > 1e-10).sum()) == 4


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0, 300), min_size=1, max_size=5),
    st.integers(3, 9),
    st.floats(0, 0.2),
    st.floats(0, 0.6),
    st.sampled_from(NOISE),
)
def test_no_frame_more_makes_the_error_larger(eigenvalues, num_frames, beta_min, more, kind):
    spectrum = torch.tensor(eigenvalues, dtype=torch.float64)
    found = prediction_errors(
        spectrum, config(kind, num_frames, beta_min=beta_min, beta_max=beta_min + more)
    )
    slack = 1e-12 * (1 + float(spectrum.max()))
    for errors in (found.from_nearest, found.from_first):
        assert (errors >= 0).all()
        assert (errors.diff() <= slack).all()
    assert (found.next_frame <= found.next_from_previous + slack).all()
    assert float(found.from_nearest[-1] - found.from_first[-1]) == pytest.approx(0, abs=slack)
    if kind != "high-order-noise":
        # Markov: further frames tell nothing.
        torch.testing.assert_close(
            found.from_nearest, found.from_nearest[:1].expand(num_frames - 1), rtol=1e-9, atol=slack
        )
        torch.testing.assert_close(
            found.next_frame, found.next_from_previous, rtol=1e-9, atol=slack
        )
