"""A training step whose backward pass runs inside autocast."""

import pytest
import torch
from torch.testing import assert_close

from cgpt import CorrelatedGPAttention, SparseCorrelatedGPAttention
from cgpt.kernel import canonical_kernels

MODULES = {
    "full": lambda: CorrelatedGPAttention(8, 2, noise=0.5),
    "sparse": lambda: SparseCorrelatedGPAttention(8, 2, 4, noise=0.5),
    "sparse, fitc": lambda: SparseCorrelatedGPAttention(8, 2, 4, noise=0.5, conditional="fitc"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_a_backward_pass_inside_autocast_equals_the_one_outside(name, dtype):
    """But for the products that autograd differentiates: inside, those are in half precision."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = MODULES[name]()
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)

    def gradients(*, inside):
        module.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values, penalty = module(x)
            loss = values.float().square().sum() + 0.1 * penalty
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return {key: parameter.grad for key, parameter in module.named_parameters()}

    found, expected = gradients(inside=True), gradients(inside=False)
    for key, gradient in expected.items():
        assert found[key].dtype == gradient.dtype == torch.float32
        scale = float(gradient.abs().max())
        assert_close(found[key], gradient, atol=0.05 * scale, rtol=0)


def test_gradients_by_hand_ignore_autocast_to_the_last_digit(draw):
    tokens = draw(2, 2, 1, 5, 3).float().requires_grad_()
    scales, weights = draw(2, 1, 1, 1, 1).float().requires_grad_(), draw(2, 2, 1, 5, 5).float()

    def kernels():
        return canonical_kernels(tokens, scales, ((0, 1), (1, 1)))

    expected = torch.autograd.grad(kernels(), (tokens, scales), weights)
    out = kernels()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(out, (tokens, scales), weights)
    assert_close(found, expected, atol=0, rtol=0)
