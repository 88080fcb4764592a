"""The canonical kernel against its definition, entry by entry."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from cgpt import kernel
from cgpt.kernel import canonical_kernels

PAIRS = ((0, 0), (0, 2), (2, 1), (1, 1))


@pytest.mark.parametrize("chunk", [1, 50, 2**15])
def test_equals_the_definition_entry_by_entry(draw, monkeypatch, chunk):
    monkeypatch.setattr(kernel, "_CPU_CHUNK", chunk)
    tokens, scales = draw(3, 3, 5, 4), 0.3 * draw(4, 1, 1, 1, seed=1)
    actual = canonical_kernels(tokens, scales, PAIRS).tolist()
    for pair, (row, column) in enumerate(PAIRS):
        for batch in range(3):
            left, right = tokens[row, batch].tolist(), tokens[column, batch].tolist()
            for i, j in itertools.product(range(5), range(5)):
                square = sum((a - b) ** 2 for a, b in zip(left[i], right[j], strict=True))
                expected = math.exp(float(scales[pair]) - 0.5 * square)
                assert actual[pair][batch][i][j] == pytest.approx(expected, rel=1e-12)


def test_padding_is_zero_whatever_it_holds(draw):
    tokens, scales = draw(3, 2, 5, 4), torch.zeros(4, 1, 1, 1, dtype=torch.float64)
    real = torch.arange(5) < torch.tensor([5, 3])[:, None]
    both = real[:, :, None] & real[:, None, :]
    actual = canonical_kernels(tokens, scales, PAIRS, both)
    assert_close(actual[:, 0], canonical_kernels(tokens, scales, PAIRS)[:, 0])
    assert_close(actual[:, 1, :3, :3], canonical_kernels(tokens, scales, PAIRS)[:, 1, :3, :3])
    assert not actual[:, 1, 3:].any()
    assert not actual[:, 1, :, 3:].any()


def test_gradients_agree_with_finite_differences(draw):
    tokens = draw(3, 2, 4, 2).requires_grad_()
    scales = draw(4, 1, 1, 1, seed=1).requires_grad_()
    real = torch.arange(4) < torch.tensor([4, 2])[:, None]
    both = real[:, :, None] & real[:, None, :]
    assert torch.autograd.gradcheck(
        lambda t, s: canonical_kernels(t, s, PAIRS, both), (tokens, scales)
    )


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_float32_is_right_to_its_last_digits_far_from_the_origin(draw, size):
    # The expansion of the square in float32 is wrong by 1e-4 at the larger size.
    tokens = size * draw(3, 1, 8, 16).float()
    tokens[:, :, 4:] = tokens[:, :, :4] + 0.1  # near one another, far from zero
    scales = torch.zeros(4, 1, 1, 1)
    actual = canonical_kernels(tokens, scales, PAIRS)
    expected = canonical_kernels(tokens.double(), scales.double(), PAIRS)
    assert (expected > 0.5).any()
    assert_close(actual.double(), expected, rtol=1e-6, atol=2.0**-49)


def test_no_denormal_numbers_come_out(draw):
    for dtype in (torch.float32, torch.float64):
        tokens = 5.0 * draw(3, 1, 40, 8).to(dtype)
        kernels = canonical_kernels(tokens, torch.zeros(4, 1, 1, 1, dtype=dtype), PAIRS)
        assert not kernels.all()
        smallest = kernels[kernels > 0].min()
        assert smallest.square() > torch.finfo(dtype).tiny
