"""The layer against the thesis' formulas taken literally, in float64."""

import pytest
import torch

from sgpa import SparseGPAttention
from sgpa.reference import literal_attention

BATCH, TOKENS, HEADS, WIDTH, INDUCING = 3, 7, 3, 4, 5


def make_attention(kernel, **options):
    torch.manual_seed(0)
    dim = HEADS * WIDTH
    attention = SparseGPAttention(dim, HEADS, INDUCING, kernel=kernel, **options).double()
    with torch.no_grad():
        # Close enough that kernel values are far from both 0 and 1.
        attention.kernel.raw_lengthscale.copy_(0.3 * torch.randn(HEADS, 1, WIDTH) + 0.5)
        attention.kernel.raw_outputscale.copy_(0.5 * torch.randn(HEADS))
    return attention


def make_input():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, TOKENS, HEADS * WIDTH, generator=generator, dtype=torch.float64)
    mask = torch.arange(TOKENS) < torch.tensor([[TOKENS], [4], [1]])
    return x, mask


def run_both(attention, x, mask):
    """Outputs of layer and reference for the same noise."""
    ours = attention(x, mask, generator=torch.Generator().manual_seed(2))
    noise = torch.randn(
        (HEADS, len(x), TOKENS, WIDTH),
        generator=torch.Generator().manual_seed(2),
        dtype=torch.float64,
    ).transpose(0, 1)
    return ours, literal_attention(attention, x, mask, noise)


def real_tokens(values, mask):
    return values if mask is None else values[mask]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("variant", ["orthogonal", "decoupled"])
@pytest.mark.parametrize("kernel", ["rbf", "exponential"])
def test_values_and_penalty_are_those_of_the_printed_formulas(kernel, variant, masked):
    attention = make_attention(kernel, variant=variant)
    x, mask = make_input()
    mask = mask if masked else None
    ours, literal = run_both(attention, x, mask)
    # A kernel matrix of condition 1e3 is inverted explicitly: a few digits of 16 are lost.
    torch.testing.assert_close(
        real_tokens(ours.values, mask), real_tokens(literal.values, mask), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(ours.penalty, literal.penalty, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "exponential"])
def test_gradients_are_those_of_the_printed_formulas(kernel, masked):
    attention = make_attention(kernel)
    x, mask = make_input()
    x.requires_grad_()
    mask = mask if masked else None
    inputs = [x, *attention.parameters()]
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    gradients = [
        torch.autograd.grad(
            real_tokens(output.values * weights, mask).sum() + output.penalty, inputs
        )
        for output in run_both(attention, x, mask)
    ]
    for ours, literal in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, literal, rtol=1e-8, atol=1e-8)


def test_the_global_part_is_weighted_by_the_size_of_the_data_set():
    attention = make_attention("rbf", kl_weighting="dataset", num_data=50)
    ours, literal = run_both(attention, *make_input())
    torch.testing.assert_close(ours.penalty, literal.penalty, rtol=1e-9, atol=0.0)
    # The weight matters: this is no test of two numbers that are both one.
    assert abs(ours.penalty - run_both(make_attention("rbf"), *make_input())[0].penalty) > 1.0


def test_draws_without_given_noise_have_the_posterior_variance():
    attention = make_attention("rbf")
    x = make_input()[0][:1].expand(4000, -1, -1)
    torch.manual_seed(4)
    with torch.no_grad():
        attention.to_out[0].weight.copy_(torch.eye(HEADS * WIDTH))
        drawn = literal_attention(attention, x).values.var(0)
        expected = attention.posterior(x[:1]).variance[:, 0]
    expected = expected.permute(1, 0, 2).reshape(TOKENS, -1)
    # A variance of 4000 draws has a standard error of 2.2 %.
    torch.testing.assert_close(drawn, expected, rtol=0.12, atol=0.0)
