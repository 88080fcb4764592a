"""Projection by head against a linear layer."""

import torch
from torch.testing import assert_close

from cgpt.sparse_projection import project_heads


def test_parts_are_those_of_a_linear_layer_minus_the_origin(draw):
    x, weight, origin = draw(3, 5, 6), draw(24, 6, seed=1), draw(2, 1, 3, seed=2)
    parts = project_heads(x, weight, origin)
    expected = (x @ weight.mT).unflatten(-1, (4, 2, 3))
    for place, part in enumerate(parts):
        shift = origin[:, 0] if place < 3 else 0.0
        assert_close(part.permute(1, 2, 0, 3), expected[:, :, place] - shift)


def test_gradients_agree_with_finite_differences(draw):
    x, weight = draw(2, 3, 4).requires_grad_(), draw(16, 4, seed=1).requires_grad_()
    origin = draw(2, 1, 2, seed=2)
    assert torch.autograd.gradcheck(lambda x, weight: project_heads(x, weight, origin), (x, weight))


def test_half_precision_goes_in_and_gets_its_gradient(draw):
    x, weight = draw(2, 3, 4).bfloat16().requires_grad_(), draw(16, 4, seed=1).bfloat16()
    parts = project_heads(x, weight, torch.zeros(2, 1, 2))
    assert {part.dtype for part in parts} == {torch.float32}
    (gradient,) = torch.autograd.grad(sum(part.sum() for part in parts), x)
    assert_close(gradient, weight.float().sum(0).expand(2, 3, 4).bfloat16(), atol=0.1, rtol=0.05)


def test_half_precision_meets_float32_weights_under_autocast(draw):
    """What a residual stream in half precision gives."""
    x, weight = draw(2, 3, 4).bfloat16().requires_grad_(), draw(16, 4, seed=1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parts = project_heads(x, weight.requires_grad_(), torch.zeros(2, 1, 2))
    gradients = torch.autograd.grad(sum(part.sum() for part in parts), (x, weight))
    assert [gradient.dtype for gradient in gradients] == [torch.bfloat16, torch.float32]
    expected = weight.detach().sum(0).expand(2, 3, 4)
    assert_close(gradients[0].float(), expected, atol=0.1, rtol=0.05)
    expected = x.detach().float().sum((0, 1)).expand(16, 4)
    assert_close(gradients[1], expected, atol=0.1, rtol=0.05)
