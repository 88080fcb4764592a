"""What holds for every basis of time: valid covariances, invariances, limits, saved states."""

import math
import warnings

import numpy as np
import pytest
import torch

from ohsvgp import Gaussian, OnlineGP
from ohsvgp.bases.base import TimeBasis
from ohsvgp.bases.fourier import Cosine, FouT
from ohsvgp.bases.grid import UniformGrid
from ohsvgp.bases.laguerre import LagT
from ohsvgp.bases.legendre import LegS, LegT
from ohsvgp.inducing import PointFunctional
from probseq.kernels import RBF, Matern12, Matern32, Matern52

# From M and a factor of time; the window of the sliding ones is a part of the stream's 6 units.
BASES = {
    "LegS": lambda M, scale=1.0: LegS(M),
    "LegT": lambda M, scale=1.0: LegT(M, 4.0 * scale),
    "LagT": lambda M, scale=1.0: LagT(M, 1.5 * scale, num_nodes=1000),
    "FouT": lambda M, scale=1.0: FouT(M, 4.0 * scale),
    "Cosine": lambda M, scale=1.0: Cosine(M),
    "UniformGrid": lambda M, scale=1.0: UniformGrid(M),
}
every_basis = pytest.mark.parametrize("name", BASES)


def stream(n=60, end=6.0, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, end, n))
    x[0], x[-1] = 0.0, end
    return x, np.sin(2 * x) + 0.1 * rng.standard_normal(n)


def make_kernel(kind=RBF, lengthscale=0.8):
    return kind(1, lengthscale=torch.tensor(lengthscale, dtype=torch.float64))


def learn(basis, x, y, *, kernel=None, noise=0.02, batches=4, **options):
    gp = OnlineGP(kernel or make_kernel(), Gaussian(noise), basis, **options)
    for part in np.array_split(np.arange(len(x)), batches):
        gp.update(x[part], y[part])
    return gp


def exact(x, y, new, noise, lengthscale):
    """Mean and variance of the exact RBF process, dense."""

    def k(a, b):
        return np.exp(-0.5 * ((a[:, None] - b) / lengthscale) ** 2)

    K = k(x, x) + noise * np.eye(len(x))
    K_s = k(x, new)
    return K_s.T @ np.linalg.solve(K, y), 1 - np.sum(K_s * np.linalg.solve(K, K_s), 0)


@every_basis
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("kind", [RBF, Matern12, Matern32, Matern52])
def test_no_variance_is_negative_before_any_clamp(name, kind, dtype):
    x, y = stream()
    with warnings.catch_warnings():
        # A smooth kernel in float32 may need more jitter than the default, and says so.
        warnings.simplefilter("ignore")
        gp = learn(BASES[name](25), x, y, kernel=make_kernel(kind), noise=1e-4, dtype=dtype, t0=0.0)
    # The covariance is not clamped.
    variance = gp.predict(np.linspace(0, 8, 161), full_cov=True).variance
    assert variance.dtype == dtype
    # k** − ΣP² + Σ(C⁻¹P)² cancels numbers of size one. In float32 whitening with jitter j holds
    # ΣP² to about eps/√j = 1e-4; the grid, worst of all, is seen at −1.5e-4, the others above 0.
    assert float(variance.min()) >= (-1e-10 if dtype == torch.float64 else -1e-5)
    assert float(variance.max()) <= 1 + 1e-3


@every_basis
@pytest.mark.parametrize("kind", [RBF, Matern12])
def test_old_and_new_inducing_variables_and_values_have_a_joint_covariance(name, kind):
    kernel, basis = make_kernel(kind), BASES[name](15)
    x = torch.linspace(-1, 8, 12, dtype=torch.float64)[:, None]
    with torch.no_grad():
        old, new = basis.inducing(kernel, 3.0), basis.inducing(kernel, 5.0)
        K_ab = old.cross_inducing(kernel, new)
        K_ax, K_bx = old.cross(kernel, x), new.cross(kernel, x)
        rows = [
            torch.cat([old.covariance(kernel), K_ab, K_ax], -1),
            torch.cat([K_ab.mT, new.covariance(kernel), K_bx], -1),
            torch.cat([K_ax.mT, K_bx.mT, kernel(x, x)], -1),
        ]
        values = torch.linalg.eigvalsh(torch.cat(rows))
    assert float(values[0]) > -1e-13 * float(values[-1])
    assert K_ab.abs().max() > 0.1 * old.covariance(kernel).abs().max()


@every_basis
def test_predictions_do_not_depend_on_the_unit_and_origin_of_time(name):
    x, y = stream()
    new = np.linspace(0, 7, 15)
    plain = learn(BASES[name](14), x, y).predict(new)
    scale, shift = 12.5, 1900.0
    moved = learn(
        BASES[name](14, scale), scale * x + shift, y, kernel=make_kernel(lengthscale=0.8 * scale)
    ).predict(scale * new + shift)
    # Round-off of 1900 + 12.5 x, divided by the jitter of 1e-8.
    np.testing.assert_allclose(moved.mean, plain.mean, atol=1e-6)
    np.testing.assert_allclose(moved.variance, plain.variance, atol=1e-6)


class Mixed(TimeBasis):
    """Inducing variables A u of those of another basis."""

    def __init__(self, basis, A):
        self.basis, self.A, self.num_inducing = basis, A, basis.num_inducing

    def inducing(self, kernel, length):
        u = self.basis.inducing(kernel, length)
        return PointFunctional(u.nodes, self.A if u.weights is None else self.A @ u.weights)


@every_basis
def test_predictions_do_not_depend_on_an_invertible_mixing_of_the_inducing_variables(name):
    x, y = stream()
    M, new = 10, np.linspace(0, 7, 15)
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(M, M, generator=generator, dtype=torch.float64)
    A = torch.eye(M, dtype=torch.float64) + 0.2 * noise
    kernel = make_kernel(Matern32)
    # A rough kernel, and the least jitter, which is no invariant: it is noise on u itself.
    plain = learn(BASES[name](M), x, y, kernel=kernel, rel_jitter=1e-14)
    mixed = learn(Mixed(BASES[name](M), A), x, y, kernel=kernel, rel_jitter=1e-14)
    np.testing.assert_allclose(mixed.predict(new).mean, plain.predict(new).mean, atol=1e-6)
    np.testing.assert_allclose(mixed.predict(new).variance, plain.predict(new).variance, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "tolerance"),
    # Values on a fine grid are nearly dependent: their K_uu is the worst conditioned of all.
    [(LegS, 1e-6), (lambda M: LegT(M, 10.0), 1e-6), (Cosine, 1e-6), (UniformGrid, 2e-5)],
    ids=["LegS", "LegT", "Cosine", "UniformGrid"],
)
def test_the_mean_converges_to_the_exact_process_as_coefficients_are_added(make, tolerance):
    x, y = stream(300, end=10.0, seed=4)
    new = np.linspace(0, 10, 81)
    mean, variance = exact(x, y, new, noise=0.02, lengthscale=0.6)
    errors = []
    for M in (12, 24, 80):
        kernel = make_kernel(lengthscale=0.6)
        # What is left at M = 80 is the square root of the jitter.
        gp = learn(make(M), x, y, kernel=kernel, batches=10, rel_jitter=1e-12, t0=0.0)
        predicted = gp.predict(new)
        errors.append(np.abs(predicted.mean.numpy() - mean).max())
    assert errors[2] < tolerance < errors[1] < errors[0]
    np.testing.assert_allclose(predicted.variance, variance, atol=1e-7)


@every_basis
def test_one_point_at_a_time_equals_batches_inside_a_window(name):
    x, y = stream(40)
    models = []
    for batches in (1, 5, 40):
        gp = OnlineGP(make_kernel(), Gaussian(0.02), BASES[name](14), t0=0.0, rebase="manual")
        gp.rebase(t_end=6.0)
        bound = 0.0
        for part in np.array_split(np.arange(40), batches):
            bound += float(gp.update(x[part], y[part]).energy)
        models.append((gp.predict(np.linspace(0, 7, 15)), bound))
    for predicted, bound in models[1:]:
        np.testing.assert_allclose(predicted.mean, models[0][0].mean, atol=1e-9)
        np.testing.assert_allclose(predicted.variance, models[0][0].variance, atol=1e-9)
        assert abs(bound - models[0][1]) < 1e-7


@every_basis
def test_a_first_batch_of_one_point_is_enough_and_more_can_follow(name):
    gp = OnlineGP(make_kernel(), Gaussian(0.25), BASES[name](40))
    gp.update([3.0], [1.0])
    at_point = gp.predict([3.0])
    # The value itself is known in a window of no length: y/(1 + σ²), σ²/(1 + σ²).
    if name in ("LegS", "Cosine", "UniformGrid"):
        assert abs(float(at_point.mean) - 0.8) < 1e-6
        assert abs(float(at_point.variance) - 0.2) < 1e-6
        assert float(gp.update([3.0], [1.0]).energy) == pytest.approx(
            -0.5 * (0.2**2 / 0.45 + math.log(2 * math.pi * 0.45)), abs=1e-6
        )
    gp.update([3.5, 4.0, 6.0], [1.0, 0.9, 0.1])
    if name in ("LegS", "Cosine", "UniformGrid"):
        x = np.array([3.0, 3.0, 3.5, 4.0, 6.0])
        mean, _ = exact(x, np.array([1, 1, 1, 0.9, 0.1]), x, noise=0.25, lengthscale=0.8)
        np.testing.assert_allclose(gp.predict(x).mean, mean, atol=1e-5)
    assert torch.isfinite(gp.predict([2.0, 5.0, 9.0]).mean).all()
