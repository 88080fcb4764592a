"""Variational Fourier features against the definition of the RKHS and against the dense GP."""

import itertools
import math

import numpy as np
import pytest
import torch

from ohsvgp import Gaussian, OnlineGP
from ohsvgp.bases.base import Advance
from ohsvgp.bases.variational_fourier import FourierProjections, VariationalFourier
from ohsvgp.exact import exact_posterior
from probseq.kernels import Kernel, Matern12, Matern32, Matern52

START, END = -1.5, 2.5
MATERNS = [Matern12, Matern32, Matern52]


def make(kernel_class: type[Kernel], lengthscale: float = 0.7, outputscale: float = 1.3) -> Kernel:
    return kernel_class(1, lengthscale=lengthscale, outputscale=outputscale).double()


def projections(size: int, origin: float = 0.0) -> FourierProjections:
    interval = torch.tensor([START, END, origin], dtype=torch.float64)
    return FourierProjections(size, interval)


def feature_derivatives(size: int, x: np.ndarray) -> np.ndarray:
    """Derivatives 0..3 of all features at x, shape (4, size, n): all cosines, then all sines."""
    rows = []
    for i in range(size):
        cosine = i < size // 2 + 1
        w = 2 * math.pi * (i if cosine else i - size // 2) / (END - START)
        shift = math.pi / 2 if cosine else 0.0
        # The j-th derivative of sin(wx + shift) turns the angle by j quarters.
        angle = w * (x - START) + shift
        rows.append([w**j * np.sin(angle + j * math.pi / 2) for j in range(4)])
    return np.array(rows).transpose(1, 0, 2)


def normalised(kernel: Kernel, phi: np.ndarray) -> np.ndarray:
    """Features over √α, α the integral part of their squared norm, from the spectral density."""
    nu, scale = kernel.smoothness, kernel.lengthscale.item()
    size = phi.shape[1]
    w = np.array([i if i < size // 2 + 1 else i - size // 2 for i in range(size)])
    w = 2 * math.pi * w / (END - START)
    gammas = math.gamma(nu + 0.5) / math.gamma(nu)
    # Rasmussen & Williams 2006, Eq. 4.15, in angular frequencies.
    density = 2 * math.sqrt(math.pi) * gammas * (2 * nu) ** nu / scale ** (2 * nu)
    density = kernel.outputscale.item() * density * (2 * nu / scale**2 + w**2) ** -(nu + 0.5)
    alpha = (END - START) / 2 / density * np.where(w == 0, 2, 1)
    return phi / np.sqrt(alpha)[:, None]


def rkhs_inner(kernel: Kernel, f: np.ndarray, g: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Hensman et al.'s inner products, term by term, from derivatives at nodes and at the start.

    The last axis holds quadrature nodes, then the start of the interval.
    """
    lam = math.sqrt(2 * kernel.smoothness) / kernel.lengthscale.item()
    v = kernel.outputscale.item()
    orders = {0.5: [lam, 1], 1.5: [lam**2, 2 * lam, 1], 2.5: [lam**3, 3 * lam**2, 3 * lam, 1]}
    c = orders[kernel.smoothness]
    Lf = sum(c[j] * f[j][..., :-1] for j in range(len(c)))
    Lg = sum(c[j] * g[j][..., :-1] for j in range(len(c)))
    integral = np.einsum("in,jn,n->ij", Lf, Lg, w)
    f0, g0 = f[..., -1], g[..., -1]

    def at_start(i: int, j: int) -> np.ndarray:
        return np.outer(f0[i], g0[j])

    if kernel.smoothness == 0.5:
        return integral / (2 * lam * v) + at_start(0, 0) / v
    if kernel.smoothness == 1.5:
        return integral / (4 * lam**3 * v) + at_start(0, 0) / v + at_start(1, 1) / (lam**2 * v)
    return (
        3 / (16 * lam**5 * v) * integral
        + 9 / (8 * v) * at_start(0, 0)
        + 9 / (8 * lam**4 * v) * at_start(2, 2)
        + 3 / (lam**2 * v) * (at_start(1, 1) + (at_start(2, 0) + at_start(0, 2)) / 8)
    )


def gauss_legendre(pieces: list[float]) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.legendre.leggauss(80)
    ends = list(itertools.pairwise(pieces))
    nodes = np.concatenate([(a + b) / 2 + (b - a) / 2 * x for a, b in ends])
    return nodes, np.concatenate([(b - a) / 2 * w for a, b in ends])


@pytest.mark.parametrize("size", [7, 8, 1])
@pytest.mark.parametrize("kernel_class", MATERNS)
def test_covariance_is_the_rkhs_inner_product_of_the_features(
    kernel_class: type[Kernel], size: int
) -> None:
    kernel = make(kernel_class)
    nodes, weights = gauss_legendre([START, END])
    phi = normalised(kernel, feature_derivatives(size, np.append(nodes, START)))
    expected = rkhs_inner(kernel, phi, phi, weights)
    actual = projections(size).covariance(kernel).detach().numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("kernel_class", MATERNS)
def test_features_and_function_values_are_jointly_gaussian(kernel_class: type[Kernel]) -> None:
    kernel, size = make(kernel_class), 9
    x = torch.linspace(START, END, 60, dtype=torch.float64)[:, None]
    inducing = projections(size)
    K_uf = inducing.cross(kernel, x)
    top = torch.cat([inducing.covariance(kernel), K_uf], -1)
    joint = torch.cat([top, torch.cat([K_uf.mT, kernel(x, x)], -1)], -2).detach()
    scale = joint.diagonal().rsqrt()
    values = torch.linalg.eigvalsh(scale[:, None] * joint * scale)
    assert float(values.min()) > -1e-12


@pytest.mark.parametrize("kernel_class", MATERNS)
def test_online_posterior_converges_to_the_exact_one(kernel_class: type[Kernel]) -> None:
    generator = torch.Generator().manual_seed(3)
    t = torch.linspace(2.0, 8.0, 120, dtype=torch.float64)
    y = (2 * t).sin() + 0.1 * torch.randn(120, dtype=torch.float64, generator=generator)
    kernel = make(kernel_class, 1.0)
    grid = torch.linspace(2.0, 8.0, 50, dtype=torch.float64)
    exact = exact_posterior(kernel, 0.04, t[:, None], y, grid[:, None])
    errors = []
    for size in (31, 81, 241):
        # Features are periodic: the interval reaches six lengthscales beyond the data.
        gp = OnlineGP(kernel, Gaussian(0.04), VariationalFourier(size, -4.0, 14.0))
        for part in torch.arange(120).chunk(4):
            info = gp.update(t[part], y[part])
            assert float(info.lost_information) == 0
        found = gp.predict(grid)
        assert bool((found.variance > 0).all())
        errors.append(
            [
                (found.mean - exact.mean).abs().max().item(),
                (found.variance - exact.variance).abs().max().item(),
            ]
        )
    for coarse, middle, fine in zip(*errors, strict=True):
        assert coarse > middle > fine
    # Rough paths have slowly decaying Fourier coefficients.
    limit = {Matern12: 0.06, Matern32: 1e-3, Matern52: 1e-3}[kernel_class]
    assert max(errors[-1]) < limit


def test_queries_and_data_outside_the_interval_are_refused_in_units_of_the_user() -> None:
    gp = OnlineGP(make(Matern32), Gaussian(0.1), VariationalFourier(7, 10.0, 20.0))
    gp.update([10.0, 12.0], [0.0, 1.0])
    assert gp.predict([10.0, 20.0]).mean.shape == (2,)
    with pytest.raises(ValueError, match=r"in \[10, 20\].*got 20\.5"):
        gp.predict([15.0, 20.5])
    with pytest.raises(ValueError, match=r"in \[10, 20\].*got 21"):
        gp.update([13.0, 21.0], [0.0, 1.0])


@pytest.mark.parametrize("edge", [START, END])
def test_round_off_beyond_an_edge_is_no_query_outside(edge: float) -> None:
    kernel = make(Matern32)
    beyond = edge + math.copysign(1e-12, edge)
    x = torch.tensor([[edge], [beyond]], dtype=torch.float64)
    cross = projections(7).cross(kernel, x).detach()
    torch.testing.assert_close(cross[:, 0], cross[:, 1], rtol=0, atol=1e-10)


def test_hyperparameters_must_stay_once_data_are_absorbed() -> None:
    kernel = make(Matern32)
    gp = OnlineGP(kernel, Gaussian(0.1), VariationalFourier(7, 0.0, 2.0))
    gp.update([0.0, 1.0], [0.0, 1.0])
    with torch.no_grad():
        kernel.raw_lengthscale += 0.1
    with pytest.raises(ValueError, match="must keep its hyperparameters"):
        gp.update([1.5], [0.0])


def test_sets_of_another_interval_or_kind_have_no_cross_covariance() -> None:
    kernel, basis = make(Matern32), VariationalFourier(5, 0.0, 1.0)
    step = Advance(kernel, None, torch.zeros(1, 1, dtype=torch.float64), 1.0)
    inducing = basis.advance(step)
    other = VariationalFourier(5, 0.0, 2.0).advance(step)
    torch.testing.assert_close(
        inducing.cross_inducing(kernel, basis.restore(inducing.tensors())),
        inducing.covariance(kernel),
    )
    with pytest.raises(ValueError, match=r"interval \[0\.0, 1\.0\], got M=5 and \[0\.0, 2\.0\]"):
        inducing.cross_inducing(kernel, other)


@pytest.mark.parametrize("kernel_class", MATERNS)
def test_covariance_is_what_dense_function_values_imply(kernel_class: type[Kernel]) -> None:
    # u is a functional of f on the interval: K_uf K_ff⁻¹ K_fu tends to K_uu from below.
    kernel, inducing = make(kernel_class), projections(3)
    K_uu = inducing.covariance(kernel).detach()
    errors = []
    for n in (40, 80, 160):
        x = torch.linspace(START, END, n, dtype=torch.float64)[:, None]
        K_uf = inducing.cross(kernel, x)
        implied = K_uf @ torch.linalg.solve(kernel(x, x).detach(), K_uf.mT)
        errors.append((K_uu - implied).diagonal().sum().item())
    assert errors[0] > errors[1] > errors[2] > -1e-6
    assert errors[2] < 0.02 * K_uu.diagonal().sum().item()
