"""Stationary kernels: the shared suite, other libraries, and derivatives at coincident points."""

import math

import gpytorch
import pytest
import torch

from probseq.kernels import RBF, Matern12, Matern32, Matern52, Walk
from probseq.kernels.distances import scaled_squared_distance
from probseq.testing.instruments import compile_failure
from probseq.testing.kernels import KernelSuite


def scaled_distance(x, z, lengthscale):
    return math.sqrt(sum(((a - b) / ell) ** 2 for a, b, ell in zip(x, z, lengthscale, strict=True)))


class TestRBF(KernelSuite):
    def make_kernel(self, batch_shape, dim):
        return RBF(dim, batch_shape=batch_shape)

    def reference(self, x, z, lengthscale, outputscale):
        return outputscale * math.exp(-0.5 * scaled_distance(x, z, lengthscale) ** 2)


class TestMatern12(KernelSuite):
    def make_kernel(self, batch_shape, dim):
        return Matern12(dim, batch_shape=batch_shape)

    def reference(self, x, z, lengthscale, outputscale):
        return outputscale * math.exp(-scaled_distance(x, z, lengthscale))


class TestMatern32(KernelSuite):
    def make_kernel(self, batch_shape, dim):
        return Matern32(dim, batch_shape=batch_shape)

    def reference(self, x, z, lengthscale, outputscale):
        s = math.sqrt(3) * scaled_distance(x, z, lengthscale)
        return outputscale * (1 + s) * math.exp(-s)


class TestMatern52(KernelSuite):
    def make_kernel(self, batch_shape, dim):
        return Matern52(dim, batch_shape=batch_shape)

    def reference(self, x, z, lengthscale, outputscale):
        s = math.sqrt(5) * scaled_distance(x, z, lengthscale)
        return outputscale * (1 + s + s * s / 3) * math.exp(-s)


FAMILY = [(Matern12, 0.5), (Matern32, 1.5), (Matern52, 2.5), (RBF, math.inf)]


@pytest.mark.parametrize(("kernel_type", "nu"), FAMILY)
def test_values_and_gradients_equal_gpytorch(kernel_type, nu):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    z = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    if math.isinf(nu):
        oracle = gpytorch.kernels.RBFKernel(ard_num_dims=2).double()
    else:
        oracle = gpytorch.kernels.MaternKernel(nu=nu, ard_num_dims=2).double()
    lengthscale = torch.tensor([[0.7, 1.9]], dtype=torch.float64)
    oracle.lengthscale = lengthscale
    kernel = kernel_type(2, lengthscale=lengthscale)
    expected, actual = oracle(x, z).to_dense(), kernel(x, z)
    torch.testing.assert_close(actual, expected)
    weight = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weight * actual).sum(), x)
    (oracle_gradient,) = torch.autograd.grad((weight * expected).sum(), x)
    torch.testing.assert_close(gradient, oracle_gradient)


@pytest.mark.parametrize(
    ("kernel_type", "curvature"), [(RBF, 1.0), (Matern32, 3.0), (Matern52, 5 / 3)]
)
def test_second_derivative_at_coincident_points_is_the_analytic_one(kernel_type, curvature):
    # The variance of the process' derivative, ∂²k/∂x∂z at x = z: σ_f²/ℓ² times 1, 3 or 5/3.
    lengthscale, outputscale = torch.tensor([0.5, 2.0], dtype=torch.float64)
    kernel = kernel_type(1, lengthscale=lengthscale, outputscale=outputscale)
    x = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True)
    z = x.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(kernel(x, z).sum(), x, create_graph=True)
    (mixed,) = torch.autograd.grad(slope.sum(), z)
    assert slope.item() == 0.0
    assert mixed.item() == pytest.approx(2.0 / 0.25 * curvature, rel=1e-12)


def test_matern12_has_derivative_zero_where_it_has_none():
    kernel = Matern12(1)
    x = torch.zeros(2, 1, requires_grad=True)
    (slope,) = torch.autograd.grad(kernel(x, x.detach()).sum(), x)
    assert slope.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("kernel_type", [RBF, Matern12, Matern32, Matern52])
def test_float32_near_duplicates_far_out_keep_their_distances(kernel_type):
    # Spacing 2^-17 at offset 32 is exact in float32, and its square is below one rounding error
    # of |x|² = 1024: without centring every digit of the distance is lost.
    x = 32 + torch.tensor([[0.0], [2.0**-17], [2.0**-16]])
    kernel = kernel_type(1, lengthscale=2.0**-16)
    expected = kernel.double()(x.double(), x.double())
    actual = kernel.float()(x, x)
    # Distances up to two lengthscales: a few roundings of the lengthscale count up to four times.
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=0)


def test_centring_decides_whether_float32_covariances_are_positive_definite():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 32, 2, generator=generator) + 30
    gram = RBF(2)(x, x)
    jittered = gram.detach() + 1e-6 * torch.eye(32)
    assert torch.linalg.cholesky_ex(jittered).info.eq(0).all()
    # The same matrices, expanded without centring.
    squares = x.square().sum(-1)
    naive = squares[..., None] + squares[..., None, :] - 2 * x @ x.mT
    naive = torch.exp(-0.5 * naive) + 1e-6 * torch.eye(32)
    assert torch.linalg.cholesky_ex(naive).info.ne(0).float().mean() > 0.5


def test_exact_and_expanded_distances_agree_and_sum_broadcast_gradients():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    z = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(2, 1, 3, generator=generator, dtype=torch.float64)
    direct = ((x[..., :, None, :] - z[..., None, :, :]) * scale[..., None, :]).square().sum(-1)
    expected = torch.autograd.grad(direct.sin().sum(), [x, z])
    for exact in (False, True):
        distance = scaled_squared_distance(x, z, scale, exact=exact)
        torch.testing.assert_close(distance, direct)
        gradients = torch.autograd.grad(distance.sin().sum(), [x, z])
        torch.testing.assert_close(gradients, expected)


def test_round_off_of_huge_distances_never_exceeds_the_variance():
    # |x|² near 1e8: the expansion's error of about 10 would be an exponent of +5 where it is
    # negative.
    generator = torch.Generator().manual_seed(0)
    x = 1e4 * torch.randn(50, 3, generator=generator)
    gram = RBF(3, outputscale=2.0)(x, x.clone())
    assert gram.isfinite().all()
    assert (gram <= 2).all()
    assert (gram - gram.diag().diag()).abs().max() == 0


def test_initial_values_are_read_back_in_user_units_per_head():
    lengthscale = torch.tensor([[[0.5, 2.0]], [[1.0, 4.0]]])
    kernel = RBF(2, batch_shape=(2,), lengthscale=lengthscale, outputscale=torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(kernel.lengthscale, lengthscale)
    torch.testing.assert_close(kernel.outputscale, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(kernel.raw_lengthscale, lengthscale.log())
    # Broadcast initial values must be independent parameters, not views of one number.
    shared = RBF(3, batch_shape=(2,), lengthscale=0.5)
    with torch.no_grad():
        shared.raw_lengthscale[0, 0, 0] = 7.0
    assert (shared.raw_lengthscale == 7.0).sum() == 1


def test_a_walk_has_the_increments_of_a_random_walk_and_a_lengthscale_that_stays() -> None:
    kernel = Walk(step=0.5, outputscale=3.0).double()
    assert [name for name, raw in kernel.named_parameters() if raw.requires_grad] == [
        "raw_outputscale"
    ]
    t = torch.tensor([0.0, 0.5, 1.0, 5.0], dtype=torch.float64)[:, None]
    with torch.no_grad():
        K = kernel(t, t)
    torch.testing.assert_close(K, 3 * torch.exp(-torch.cdist(t, t) / 500))
    # var(f(s) − f(t)) is 2σ²h/1000 of h steps.
    increments = K.diagonal() + K[0, 0] - 2 * K[0]
    wanted = 2 * 3 * torch.tensor([0.0, 1, 2, 10], dtype=torch.float64) / 1000
    torch.testing.assert_close(increments, wanted, rtol=0.01, atol=1e-12)
    kernel.set_step(2.0)
    assert float(kernel.lengthscale.detach()) == pytest.approx(2000.0)


COMPILED = """
from torch import nn
from probseq.kernels import RBF
from probseq.transformers.attention import AttentionOutput

class Covariances(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.kernel = RBF(dim)

    def forward(self, x, mask=None):
        x = x[..., : self.kernel.dim]
        return AttentionOutput(self.kernel(x, x), x.new_zeros(()))
"""


@pytest.mark.slow
def test_compiled_kernels_have_the_same_gradients_on_a_line_and_in_space():
    failure = compile_failure(COMPILED, ["Covariances(1)", "Covariances(4)"])
    assert failure is None, failure
