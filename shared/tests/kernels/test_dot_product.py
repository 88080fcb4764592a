"""Exponential kernel."""

import math

import torch

from probseq.kernels import Exponential
from probseq.testing.kernels import KernelSuite


class TestExponential(KernelSuite):
    # Unbounded: exp(|x|²/σ²) leaves float32 at an offset of 30 or a lengthscale of e⁻³.
    offset = 1.0
    log_lengthscales = (0.0, 3.0)
    # An exponent of 20 turns its rounding error, 20 times 6e-8, into a relative one.
    float32_rtol = 1e-5

    def make_kernel(self, batch_shape, dim):
        return Exponential(dim, batch_shape=batch_shape)

    def reference(self, x, z, lengthscale, outputscale):
        return outputscale * math.exp(
            sum(a * b / ell**2 for a, b, ell in zip(x, z, lengthscale, strict=True))
        )


def test_exponential_attention_is_softmax_attention_with_sigma_squared_root_d():
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 6, 4, generator=generator, dtype=torch.float64)
    kernel = Exponential(4, batch_shape=(2,), lengthscale=4**0.25).double()
    weights = kernel(q, k)
    actual = weights @ v / weights.sum(-1, keepdim=True)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    # The initial lengthscale was rounded to float32.
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def test_a_small_outputscale_delays_overflow():
    x = torch.tensor([[9.5, 0.0]])
    assert Exponential(2)(x, x).isinf().all()
    assert Exponential(2, outputscale=math.exp(-4))(x, x).isfinite().all()
    assert Exponential(2, outputscale=math.exp(-4)).diag(x).isfinite().all()
