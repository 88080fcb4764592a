"""Sums and products of kernels, against covariances of processes that are added and multiplied."""

import pytest
import torch

from probseq.kernels import (
    RBF,
    Constant,
    Exponential,
    Linear,
    Matern32,
    Periodic,
    Product,
    Sum,
    White,
)


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def rbf(d=2, **options):
    return RBF(d, lengthscale=0.7, outputscale=1.3, **options).double()


def test_a_sum_and_a_product_have_the_sum_and_the_product_of_the_matrices():
    a, b, c = rbf(), Linear(2, outputscale=0.4).double(), Periodic(2, period=2.0).double()
    x, z = points(5, 2), points(4, 2, seed=1)
    torch.testing.assert_close((a + b * c)(x, z), a(x, z) + b(x, z) * c(x, z))
    torch.testing.assert_close(((a + b) * c)(x, z), (a(x, z) + b(x, z)) * c(x, z))
    torch.testing.assert_close((2.5 * a)(x, z), 2.5 * a(x, z))
    torch.testing.assert_close((a * 2.5).diag(x), 2.5 * a.diag(x))
    for kernel in (a + b * c, (a + b) * c, 0.5 * (a + c)):
        torch.testing.assert_close(kernel.diag(x), kernel(x, x).diagonal())


def test_nested_parts_are_flattened_and_parameters_are_shared_with_the_parts():
    a, b, c = rbf(), rbf(), rbf()
    assert [*Sum(a, Sum(b, c)).kernels] == [a, b, c]
    assert [*((a * b) * c).kernels] == [a, b, c]
    assert len(Product(a, Sum(b, c)).kernels) == 2
    parameters = list((a + b).parameters())
    assert parameters == [*a.parameters(), *b.parameters()]
    assert len(list((a + a).parameters())) == 2


def test_batches_of_parts_broadcast():
    many = RBF(2, batch_shape=(3,), lengthscale=torch.tensor([0.5, 1.0, 2.0])[:, None, None])
    kernel = many.double() + rbf()
    x = points(5, 2)
    assert kernel.batch_shape == (3,)
    torch.testing.assert_close(kernel(x, x), many(x, x) + rbf()(x, x))
    torch.testing.assert_close(kernel.diag(x), many.diag(x) + rbf().diag(x))
    assert kernel.resolution.shape == (3, 1, 2)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match=r"parts must have the same dim .* got dim \[2, 3\]"):
        rbf() + rbf(3)
    with pytest.raises(ValueError, match=r"parts must have .* batch_shape \[\(2,\), \(3,\)\]"):
        rbf(batch_shape=(2,)) * rbf(batch_shape=(3,))
    with pytest.raises(ValueError, match="parts must be one kernel or more, got none"):
        Sum()
    with pytest.raises(ValueError, match="factor must be"):
        -1.0 * rbf()


def test_gradients_reach_all_parts():
    kernel = 0.5 * (rbf(1) * Periodic(1).double() + Linear(1).double()) + Constant(1).double()
    x = points(5, 1)
    kernel(x, x).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in kernel.parameters())


def test_white_noise_is_left_out_of_what_is_continuous():
    a, b, white = rbf(), Matern32(2).double(), White(2).double()
    assert (a + b).continuous is not None
    same = a * b
    assert same.continuous is same
    x = points(5, 2)
    kernel = (a + white) * b + white
    torch.testing.assert_close(kernel.continuous(x, x), (a * b)(x, x))
    assert (a * white).continuous is None
    assert (white + a * white).continuous is None


def test_resolution_is_that_of_the_fastest_part_and_none_of_lines():
    kernel = Constant(1) * Linear(1) + RBF(1, lengthscale=3.0) + Periodic(1, period=6.0)
    assert kernel.resolution.item() == pytest.approx(6 / (2 * torch.pi), rel=1e-6)
    assert (Constant(1) + Linear(1)).resolution.item() == torch.inf


def test_spectra_expand_products_and_are_unknown_where_a_part_has_none():
    a, b, c = RBF(1).spectra(1e-8)[0], Periodic(1).spectra(1e-8)[0], Matern32(1).spectra(1e-8)[0]
    terms = ((RBF(1) + Matern32(1)) * Periodic(1)).spectra(1e-8)
    assert [term.band for term in terms] == [a.band + b.band, b.band]
    assert [term.rough for term in terms] == [(), c.rough]
    assert (RBF(1) + Exponential(1)).spectra(1e-8) is None
    assert (RBF(1) * Exponential(1)).spectra(1e-8) is None
    assert White(1).spectra(1e-8) == []


@pytest.mark.parametrize(
    "kernel", [rbf(), Constant(2), White(2), Linear(2), Periodic(2) + White(2)]
)
def test_variances_and_covariances_have_the_wider_dtype(kernel):
    x = points(3, 2)
    for own, given, expected in (
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.float32, torch.float32),
    ):
        found = kernel.to(own)
        assert found(x.to(given), x.to(given)).dtype == found.diag(x.to(given)).dtype == expected
