"""Thesis C.2: q(u) is the law of the posterior's projections, and Σ u_m g_m rebuilds it."""

import numpy as np
import pytest
import torch
from scipy import special

from ohsvgp import Gaussian, OnlineGP
from ohsvgp.bases.fourier import Cosine, FouT
from ohsvgp.bases.laguerre import LagT
from ohsvgp.bases.legendre import LegS, LegT
from probseq.kernels import RBF

END, ELL, THETA, TAU = 6.0, 1.1, 4.0, 0.8


def stream(seed=0):
    rng = np.random.default_rng(seed)
    x = np.append(np.sort(rng.uniform(0, END, 49)), END)
    return x, np.sin(2 * x) + 0.1 * rng.standard_normal(50)


def trained(basis, batches=3):
    x, y = stream()
    kernel = RBF(1, lengthscale=torch.tensor(ELL, dtype=torch.float64))
    gp = OnlineGP(kernel, Gaussian(0.01), basis, t0=0.0, rel_jitter=1e-11)
    for part in np.array_split(np.arange(len(x)), batches):
        gp.update(x[part], y[part])
    return gp


def legendre(m, s):
    return np.sqrt(2 * m + 1) * special.eval_legendre(m, s)


def wave(m, age):
    """1, √2 cos 2πa, √2 sin 2πa, √2 cos 4πa, …"""
    if m == 0:
        return np.ones_like(age)
    trigonometric = np.cos if m % 2 else np.sin
    return np.sqrt(2) * trigonometric(2 * np.pi * ((m + 1) // 2) * age)


# Basis, where its measure lives, density there, and its m-th function, written out again.
PROJECTIONS = {
    "LegS": (LegS(12), 0.0, lambda x: 1 / END, lambda m, x: legendre(m, 2 * x / END - 1)),
    "LegT": (
        LegT(12, THETA),
        END - THETA,
        lambda x: 1 / THETA,
        lambda m, x: legendre(m, 2 * (x - END) / THETA + 1),
    ),
    "LagT": (
        LagT(8, TAU),
        END - 45 * TAU,
        lambda x: np.exp(-(END - x) / TAU) / TAU,
        lambda m, x: special.eval_laguerre(m, (END - x) / TAU),
    ),
    "FouT": (
        FouT(12, THETA),
        END - THETA,
        lambda x: 1 / THETA,
        lambda m, x: wave(m, (END - x) / THETA),
    ),
    "Cosine": (
        Cosine(12),
        0.0,
        lambda x: 1 / END,
        lambda m, x: np.cos(np.pi * m * (x + ELL) / (END + 2 * ELL)),
    ),
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_q_of_u_has_the_moments_of_integrals_of_the_dense_posterior(name):
    basis, start, density, function = PROJECTIONS[name]
    gp = trained(basis)
    # 25 panels of 12 Gauss-Legendre nodes, whatever nodes the basis has.
    nodes, weights = special.roots_legendre(12)
    panels = np.linspace(start, END, 26)
    half = (END - start) / 50
    x = (panels[:-1, None] + (nodes + 1) * half).ravel()
    w = np.tile(weights * half, 25) * density(x)
    Phi = np.stack([function(m, x) * w for m in range(gp.basis.num_inducing)])
    dense, law = gp.predict(x, full_cov=True), gp.posterior_coefficients()
    # As good as the inverse of K_uu is: its jitter of 1e-11 stands between u and its whitening.
    np.testing.assert_allclose(law.mean, Phi @ dense.mean.numpy(), atol=1e-6)
    np.testing.assert_allclose(law.covariance, Phi @ dense.covariance.numpy() @ Phi.T, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "start"),
    [
        (LegS, 0.0),
        (lambda M: LegT(M, THETA), END - THETA),
        (lambda M: LagT(M, TAU), END - TAU),
        (Cosine, 0.0),
    ],
    ids=["LegS", "LegT", "LagT", "Cosine"],
)
def test_the_finite_sum_converges_to_a_smooth_posterior(make, start):
    x = np.linspace(start, END, 41)
    errors = []
    for M in (6, 14, 30):
        gp = trained(make(M), batches=1)
        finite, full = gp.reconstruct(x), gp.predict(x)
        errors.append(
            max(
                float((finite.mean - full.mean).abs().max()),
                float((finite.variance - full.variance).abs().max()),
            )
        )
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 1e-3


def test_the_finite_sum_follows_a_lengthscale_that_changed():
    gp = trained(Cosine(30), batches=1)
    with torch.no_grad():
        gp.kernel.raw_lengthscale.add_(0.2)
    x = np.linspace(0.0, END, 41)
    finite, full = gp.reconstruct(x), gp.predict(x)
    np.testing.assert_allclose(finite.mean, full.mean, atol=1e-3)
    np.testing.assert_allclose(finite.variance, full.variance, atol=1e-3)
