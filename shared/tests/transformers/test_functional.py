"""Kernel attention against loops in float64, in blocks of any size, and its gradients."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from probseq.transformers import functional, kernel_attention, rbf_matrix


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def slow(queries, keys, values, kernel, mask=None):
    """Entry by entry."""
    out = np.zeros((*queries.shape[:-1], values.shape[-1]))
    for index in np.ndindex(*queries.shape[:-1]):
        q = queries[index].numpy()
        for j in range(keys.shape[-2]):
            if mask is not None and not mask[index[0], j]:
                continue
            k = keys[(*index[:-1], j)].numpy()
            logit = q @ k if kernel == "exponential" else -0.5 * ((q - k) ** 2).sum()
            out[index] += math.exp(logit) * values[(*index[:-1], j)].numpy()
    return torch.from_numpy(out)


@pytest.fixture(params=[(1, 1), (2, 4), (4, 48), None], ids=lambda size: f"tile={size}")
def tile(request, monkeypatch):
    """Tiles of one entry, of a few, of several batch items at once, and one tile for everything."""
    if request.param is not None:
        monkeypatch.setattr(functional, "_CPU_SIDE", request.param[0])
        monkeypatch.setattr(functional, "_CPU_ELEMENTS", request.param[1])


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "exponential"])
def test_equals_a_slow_loop(kernel, masked):
    queries, keys, values = draw(2, 3, 5, 4), draw(2, 3, 6, 4, seed=1), draw(2, 3, 6, 2, seed=2)
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]).bool() if masked else None
    key_mask = None if mask is None else mask[:, None]
    actual = kernel_attention(queries, keys, values, kernel=kernel, key_mask=key_mask)
    assert_close(actual, slow(queries, keys, values, kernel, mask))
    same = kernel_attention(keys, keys, values, kernel=kernel, key_mask=key_mask)
    # Where queries are keys, a hidden key's output has no meaning.
    real = slice(None) if mask is None else mask[:, None].expand(2, 3, 6)
    assert_close(same[real], slow(keys, keys, values, kernel, mask)[real])
    assert same.isfinite().all()


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("kernel", ["rbf", "exponential"])
def test_gradients_agree_with_finite_differences(kernel):
    mask = torch.tensor([[True, False, True], [True, True, True]])
    inputs = [draw(2, n, 2, seed=n).requires_grad_() for n in (4, 3, 3)]

    def attend(queries, keys, values):
        return kernel_attention(queries, keys, values, kernel=kernel, key_mask=mask)

    torch.autograd.gradcheck(attend, inputs)
    torch.autograd.gradcheck(lambda x, v: attend(x, x, v), inputs[1:])
    torch.autograd.gradcheck(lambda x, v: attend(x, x.clone(), v), inputs[1:])


@pytest.mark.parametrize("kernel", ["rbf", "exponential"])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(2, 0, 3), (2, 3, 0), (0, 3, 3)])
def test_a_sum_over_nothing_is_zero(kernel, batch, queries, keys):
    shapes = (batch, queries, 4), (batch, keys, 4), (batch, keys, 5)
    inputs = [draw(*shape).requires_grad_() for shape in shapes]
    out = kernel_attention(*inputs, kernel=kernel)
    assert_close(out, torch.zeros(batch, queries, 5, dtype=torch.float64))
    for gradient, shape in zip(torch.autograd.grad(out.sum(), inputs), shapes, strict=True):
        assert_close(gradient, torch.zeros(shape, dtype=torch.float64))


def test_operators_lay_out_their_results_as_compilers_expect():
    operators: Any = torch.ops.probseq
    x, v, grad = (draw(2, width, 5, seed=width).mT for width in (3, 2, 2))  # columns first
    for name in ("rbf", "exponential"):
        calls = {
            operators.symmetric_sum: (x, v, name),
            operators.symmetric_sum_gradients: (grad, x, v, name),
            operators.kernel_sum: (x, x + 1, v),
            operators.kernel_sum_gradients: (grad, x, x + 1, v),
        }
        for operator, inputs in calls.items():
            torch.library.opcheck(operator.default, inputs, test_utils="test_faketensor")


def test_rbf_matrix_equals_a_slow_loop_and_finite_differences():
    x, z = draw(2, 4, 3), draw(2, 5, 3, seed=1)
    expected = torch.stack(
        [
            torch.stack(
                [torch.stack([(-0.5 * (a - b).square().sum()).exp() for b in zs]) for a in xs]
            )
            for xs, zs in zip(x, z, strict=True)
        ]
    )
    assert_close(rbf_matrix(x, z), expected)
    torch.autograd.gradcheck(rbf_matrix, (x.requires_grad_(), z.requires_grad_()))
    torch.autograd.gradcheck(lambda x: rbf_matrix(x, x), x)


@pytest.mark.parametrize(("dtype", "cutoff"), [(torch.float32, -50), (torch.float64, -400)])
def test_kernel_values_below_the_cutoff_are_zero_and_others_are_not(dtype, cutoff):
    # log2 k = -½ r² log2 e.
    for exponent, kept in ((cutoff + 1, True), (cutoff - 1, False)):
        radius = math.sqrt(-2 * exponent / math.log2(math.e))
        x, z = torch.tensor([[radius]], dtype=dtype), torch.zeros(1, 1, dtype=dtype)
        one = torch.ones(1, 1, dtype=dtype)
        for value in (rbf_matrix(x, z), kernel_attention(x, z, one, kernel="rbf")):
            if kept:
                rtol = 1e-4 if dtype == torch.float32 else 1e-12
                assert_close(value.item(), 2.0**exponent, rtol=rtol, atol=0.0)
            else:
                assert value.item() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_hidden(bad):
    # A threshold that turns NaN into zero would hide a diverged run.
    x = draw(1, 3, 2)
    x[0, 1, 0] = bad
    out = kernel_attention(x, x, torch.ones(1, 3, 1, dtype=torch.float64), kernel="rbf")
    assert not out[0, 1].isfinite().any()
    assert rbf_matrix(x, x)[0, 1, 1].isnan()


def test_the_rbf_kernel_is_accurate_far_from_the_origin_in_float32():
    x = (draw(1, 20, 4) + 100).float()
    values = draw(1, 20, 2, seed=1).float()
    expected = kernel_attention(x.double(), x.double(), values.double(), kernel="rbf")
    actual = kernel_attention(x, x, values, kernel="rbf").double()
    assert_close(actual, expected, rtol=2e-6, atol=2e-6)
    # Padding takes no part in the centre.
    junk = torch.cat([x, torch.full((1, 5, 4), -1e4)], 1)
    padded = torch.nn.functional.pad(values, (0, 0, 0, 5))
    mask = torch.arange(25)[None] < 20
    masked = kernel_attention(junk, junk, padded, kernel="rbf", key_mask=mask)[:, :20]
    assert_close(masked.double(), expected, rtol=2e-6, atol=2e-6)
