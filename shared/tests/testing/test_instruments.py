"""What the compiler of the test suites notices."""

import pytest

from probseq.testing.instruments import compile_failure

DOUBLES = """
import torch
from torch import nn
from probseq.transformers.attention import AttentionOutput

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        {statement}
        return y

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad

class Layer(nn.Module):
    def forward(self, x, mask=None):
        return AttentionOutput(Double.apply(x), x.new_zeros(()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "named"),
    [("y.mul_(2)", "mul_"), ("y *= 2", "imul"), ("torch.mul(y, 2, out=y)", "out")],
)
def test_operations_in_place_inside_of_a_function_with_a_gradient_are_noticed(statement, named):
    # Their gradients are wrong with torch 2.11, and right with others.
    failure = compile_failure(DOUBLES.format(statement=statement), ["Layer()"])
    assert failure is not None
    assert "AssertionError" in failure
    assert named in failure
