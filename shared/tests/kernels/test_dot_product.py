"""Exponential kernel and cosine features."""

import math

import numpy as np
import torch
from sklearn.metrics.pairwise import cosine_similarity

from probseq.kernels import Exponential, cosine_features
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


def test_cosine_features_have_the_cosine_similarity_as_kernel():
    rng = np.random.default_rng(0)
    x, z, weight = rng.normal(size=(5, 4)), rng.normal(size=(6, 4)), rng.normal(size=(3, 4))
    expected = cosine_similarity(x @ weight.T, z @ weight.T)
    phi_x = cosine_features(torch.from_numpy(x), torch.from_numpy(weight))
    phi_z = cosine_features(torch.from_numpy(z), torch.from_numpy(weight))
    np.testing.assert_allclose((phi_x @ phi_z.mT).numpy(), expected, rtol=1e-12, atol=1e-14)


def test_cosine_features_of_a_batch_of_heads_are_a_stack():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
    batched = cosine_features(x, weight)
    for b in range(3):
        for h in range(2):
            torch.testing.assert_close(batched[b, h], cosine_features(x[b, h], weight[h]))


def test_cosine_features_pass_gradcheck_and_do_not_see_the_length_of_the_input():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(cosine_features, (x, weight))
    torch.testing.assert_close(cosine_features(7 * x, weight), cosine_features(x, weight))


def test_cosine_features_of_a_zero_token_are_zero_with_a_finite_gradient():
    weight = torch.ones(3, 4, requires_grad=True)
    x = torch.zeros(2, 4, requires_grad=True)
    features = cosine_features(x, weight)
    assert (features == 0).all()
    for gradient in torch.autograd.grad(features.sum(), [x, weight]):
        assert gradient.abs().max() <= 10
