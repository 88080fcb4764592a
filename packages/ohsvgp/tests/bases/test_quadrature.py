"""How close the default nodes come to the integrals, against panels that are cut at the kink."""

import math
import re

import numpy as np
import pytest
import torch
from scipy import special

from ohsvgp import Cosine, FouT, Gaussian, LagT, LegS, LegT, OnlineGP
from probseq.kernels import Kernel, parse_kernel
from probseq.kernels.base import Spectrum


def periodic(r):
    return np.exp(-2 * np.sin(math.pi * r / 7) ** 2)


def matern32(r):
    return (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r)


# Covariance at distances r in lengthscales, and the kernel of variance one with a lengthscale.
KERNELS = {
    "rbf({0})": lambda r: np.exp(-0.5 * r**2),
    "matern12({0})": lambda r: np.exp(-r),
    "matern32({0})": matern32,
    "matern52({0})": lambda r: (1 + math.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-math.sqrt(5) * r),
    "rational_quadratic(4*{0}, .7)": lambda r: (1 + r**2 / 22.4) ** -0.7,
    "periodic(7*{0})*rbf(9*{0})": lambda r: periodic(r) * np.exp(-0.5 * (r / 9) ** 2),
    "0.3*periodic(7*{0})*matern32({0}) + 0.6*rbf(2*{0}) + 0.1*constant": lambda r: (
        0.3 * periodic(r) * matern32(r) + 0.6 * np.exp(-(r**2) / 8) + 0.1
    ),
}
NODES, WEIGHTS = special.roots_legendre(24)


def make_kernel(text, lengthscale):
    # "7*{0}" becomes a number.
    text = re.sub(r"(?:([\d.]+)\*)?\{0\}", lambda m: repr(float(m[1] or 1) * lengthscale), text)
    return parse_kernel(text)


# The window is [0, 1], for LagT the past of 0, whose weight e^{−s} is below e^{−64} before −64.
LONG = ((10, 100.0), (50, 30.0))
BASES = {
    "LegS": LegS,
    "LegT": lambda M: LegT(M, 1.0),
    "FouT": lambda M: FouT(M, 1.0),
    "Cosine": Cosine,
    "LagT": lambda M: LagT(M, 1.0),
}


def functions(name, M, lengthscale, s):
    """The M functions times the density of their measure, shape (M, *s.shape)."""
    m = np.arange(M).reshape(-1, *[1] * s.ndim)
    match name:
        case "LegS" | "LegT":
            return np.sqrt(2 * m + 1) * special.eval_legendre(m, 2 * s - 1)
        case "FouT":
            phase = 2 * math.pi * ((m + 1) // 2) * (1 - s)
            waves = math.sqrt(2) * np.where(m % 2 == 1, np.cos(phase), np.sin(phase))
            return np.where(m == 0, 1.0, waves)
        case "Cosine":
            return np.cos(math.pi * m * (s + lengthscale) / (1 + 2 * lengthscale))
        case _:
            # (m + 1) L_{m+1} = (2m + 1 − a) L_m − m L_{m−1}, damped by e^{−a/2}.
            age = -s
            rows = [np.exp(-age / 2), (1 - age) * np.exp(-age / 2)]
            for k in range(1, M - 1):
                rows.append(((2 * k + 1 - age) * rows[k] - k * rows[k - 1]) / (k + 1))
            return np.stack(rows) * np.exp(-age / 2)


def cut(left, right):
    """Gauss-Legendre nodes and weights of panels, shape (*left.shape, 24)."""
    middle, half = (left + right)[..., None] / 2, (right - left)[..., None] / 2
    return middle + half * NODES, half * WEIGHTS


def cross(g, k, edges, x):
    """∫ k(s, x) g(s) ds, the panel that holds x cut there."""
    s, w = cut(edges[:-1], edges[1:])
    G = g(s) * w  # (M, panels, 24)
    own = np.clip(np.searchsorted(edges, x) - 1, 0, len(edges) - 2)
    K = k(np.abs(s[..., None] - x))  # (panels, 24, n)
    K[own, :, np.arange(len(x))] = 0.0
    total = np.tensordot(G, K, 2)
    bend = np.clip(x, edges[own], edges[own + 1])
    for left, right in ((edges[own], bend), (bend, edges[own + 1])):
        s, w = cut(left, right)
        total += np.sum(g(s) * w * k(np.abs(s - x[:, None])), -1)
    return total


@pytest.mark.parametrize(
    ("M", "lengthscales"),
    [(10, 1.0), (10, 20.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)],
)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("name", BASES)
def test_covariances_are_those_of_the_integrals_to_a_millionth(name, kind, M, lengthscales):
    panels = 12 if lengthscales == 1.0 else 60
    # LagT remembers about ten time scales.
    ell = (10.0 if name == "LagT" else 1.0) / lengthscales
    if name == "LagT":
        edges, end = -(np.linspace(9, 0, panels + 20) ** 2), 0.0
        x = np.concatenate([-(np.linspace(0, 4, 120) ** 2), [0.1]])
    else:
        edges, end = (1 - np.cos(math.pi * np.linspace(0, 1, panels + 1))) / 2, 1.0
        x = np.concatenate([(1 - np.cos(math.pi * np.linspace(0, 1, 121))) / 2, [-0.01, 1.01]])

    kernel = make_kernel(kind, ell)

    def g(s):
        return functions(name, M, float(kernel.resolution.detach()), s)

    def k(distance):
        return KERNELS[kind](distance / ell)

    with torch.no_grad():
        inducing = BASES[name](M).inducing(kernel, end)
        K_uf = inducing.cross(kernel, torch.from_numpy(x)[:, None]).numpy()
        K_uu = inducing.covariance(kernel).numpy()
    np.testing.assert_allclose(K_uf, cross(g, k, edges, x), rtol=0, atol=1e-6)
    # K_uf is smooth inside the window.
    s, w = (part.ravel() for part in np.broadcast_arrays(*cut(edges[:-1], edges[1:])))
    np.testing.assert_allclose(K_uu, cross(g, k, edges, s) @ (g(s) * w).T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lengthscales", [1.0, 10.0, 100.0])
def test_the_mean_of_a_matern12_process_has_the_variance_of_its_closed_form(lengthscales):
    kernel = make_kernel("matern12({0})", 2.0)
    with torch.no_grad():
        K = LegS(8).inducing(kernel, 2.0 * lengthscales).covariance(kernel)
    # (1/T²) ∫∫ e^{−|s − s'|/ℓ} ds ds' with T = κℓ.
    closed = 2 * (lengthscales - 1 + math.exp(-lengthscales)) / lengthscales**2
    assert abs(K[0, 0].item() - closed) < 1e-6


class Wave(Kernel):
    """cos κ(x − z), whose spectrum is one frequency."""

    def __init__(self, kappa):
        super().__init__(1)
        self.register_buffer("kappa", torch.tensor(kappa, dtype=torch.float64))

    @property
    def like(self):
        return self.kappa

    @property
    def resolution(self):
        return 1 / self.kappa.reshape(1, 1)

    def spectra(self, share):
        return [Spectrum(float(self.kappa))]

    def _covariance(self, x, z):
        return (self.kappa * (x - z.mT)).cos()

    def _variance(self, x):
        return torch.ones_like(x[..., 0])


def count(basis, kernel, length):
    return basis.inducing(kernel, length).nodes.shape[-2]


@pytest.mark.parametrize("kappa", [0.1, 8.0, 60.0, 320.0])
def test_a_kernel_whose_variance_is_all_at_its_highest_frequency_is_resolved_to_a_billionth(kappa):
    # cos κτ on windows of length 2: panels of 900 nodes are exact to round-off.
    kernel = Wave(kappa)
    x = torch.linspace(0, 2, 99, dtype=torch.float64)[:, None]
    for basis, exact in [
        (kind(M), kind(M, num_nodes=900)) for kind in (LegS, Cosine) for M in (10, 100)
    ]:
        with torch.no_grad():
            few, many = basis.inducing(kernel, 2.0), exact.inducing(kernel, 2.0)
            assert (few.cross(kernel, x) - many.cross(kernel, x)).abs().max() < 1e-9
            assert (few.covariance(kernel) - many.covariance(kernel)).abs().max() < 1e-9


def test_nodes_are_as_few_as_the_kernel_allows_up_to_100_lengthscales():
    smooth = make_kernel("rbf({0})", 1.0)
    for basis in (LegS(50), LegT(50, 97.0), FouT(50, 97.0), Cosine(50)):
        assert 200 < count(basis, smooth, 97.0) <= 240
    assert count(LegS(50), smooth, 1.0) == 64
    assert count(LegS(50), smooth, 150.0) == count(LegS(50), smooth, 1e6)
    # Beyond, 240 for M = 100: the state of a long stream is that of 100 lengthscales.
    assert count(LegS(100), smooth, 1e6) == count(LegS(100), smooth, 100.0) == 240
    rough = make_kernel("matern12({0})", 1.0)
    assert count(LegS(50), rough, 1.0) < count(LegS(50), rough, 10.0)
    assert count(LegS(50), rough, 100.0) == count(LegS(50), rough, 1e6)
    assert count(LegS(50, num_nodes=70), rough, 100.0) == 70
    assert count(LegS(50), rough, 0.0) == 200


def test_beyond_the_limit_of_nodes_predictions_are_those_of_the_integrals():
    # Three times as long as M = 20 functions resolve, and 200 lengthscales of 700 nodes' accuracy.
    t = torch.linspace(0.0, 200.0, 400, dtype=torch.float64)
    found = []
    for basis in (LegS(20), LegS(20, num_nodes=700)):
        gp = OnlineGP(make_kernel("rbf({0})", 1.0), Gaussian(0.01), basis)
        for part in torch.arange(400).chunk(4):
            gp.update(t[part], (0.1 * t[part]).sin())
        found.append(gp.predict(t))
    few, many = found
    assert (few.mean - many.mean).abs().max() < 1e-3
    assert (few.variance / many.variance - 1).abs().max() < 1e-3
