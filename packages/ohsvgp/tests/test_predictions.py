"""Predictions of an online Gaussian process: moments, samples, coefficients, changed kernels."""

from typing import Any

import torch
from torch import Tensor

from ohsvgp import Gaussian, LegS, OnlineGP
from ohsvgp.bases import Basis
from probseq.kernels import RBF, Kernel

NOISE = 0.02
GRID = torch.linspace(-1, 12, 40, dtype=torch.float64)


def stream(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    t = (10 * torch.rand(n, generator=generator, dtype=torch.float64)).sort().values
    return t, t.sin() + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


def rbf(lengthscale: float = 0.8) -> Kernel:
    return RBF(1, lengthscale=torch.tensor(lengthscale, dtype=torch.float64))


def model(basis: Basis | None = None, kernel: Kernel | None = None, **options: Any) -> OnlineGP:
    noise = torch.tensor(NOISE, dtype=torch.float64)
    return OnlineGP(kernel or rbf(), Gaussian(noise), basis or LegS(9), **options)


def test_joint_and_noisy_predictions_belong_together() -> None:
    t, y = stream(30)
    gp = model()
    gp.update(t, y)
    single, joint = gp.predict(GRID), gp.predict(GRID, full_cov=True)
    torch.testing.assert_close(joint.mean, single.mean)
    torch.testing.assert_close(joint.variance, single.variance)
    assert float(torch.linalg.eigvalsh(joint.covariance).min()) > -1e-10
    noisy = gp.predict(GRID, include_noise=True)
    torch.testing.assert_close(noisy.mean, single.mean)
    torch.testing.assert_close(noisy.variance, single.variance + NOISE)
    targets = torch.linspace(-1, 1, 40, dtype=torch.float64)
    expected = torch.distributions.Normal(noisy.mean, noisy.variance.sqrt()).log_prob(targets)
    torch.testing.assert_close(gp.log_prob(GRID, targets), expected)


def test_samples_have_the_moments_of_the_posterior_and_obey_their_generator() -> None:
    t, y = stream(30)
    gp = model()
    gp.update(t, torch.stack([y, -y]))
    new = torch.tensor([0.0, 5.0, 11.0, 11.2], dtype=torch.float64)
    draws = gp.sample(new, 20_000, torch.Generator().manual_seed(3))
    assert draws.shape == (20_000, 2, 4)
    law = gp.predict(new, full_cov=True)
    torch.testing.assert_close(draws.mean(0), law.mean, rtol=0, atol=0.03)
    for series in range(2):
        covariance = draws[:, series].mT.cov()
        torch.testing.assert_close(covariance, law.covariance[series], rtol=0, atol=0.04)
    again = gp.sample(new, 20_000, torch.Generator().manual_seed(3))
    assert torch.equal(draws, again)


def test_coefficients_are_the_projections_of_the_posterior_process() -> None:
    """Thesis C.2: u = W f(nodes) under q(f) has the law q(u)."""
    t, y = stream(40)
    gp = model(LegS(9))
    gp.update(t, y)
    assert gp.state is not None
    tensors = gp.state.inducing.tensors()
    law = gp.predict(tensors["nodes"][:, 0] + t[0], full_cov=True)
    W, coefficients = tensors["weights"], gp.posterior_coefficients()
    torch.testing.assert_close(coefficients.mean, W @ law.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        coefficients.covariance, W @ law.covariance @ W.mT, rtol=0, atol=1e-6
    )
    # The finite-basis picture is their sum, and close to the process where M resolves it.
    fine = model(LegS(30), kernel=rbf(1.5))
    fine.update(t, y)
    inside = torch.linspace(float(t[0]) + 0.5, float(t[-1]) - 0.5, 50, dtype=torch.float64)
    picture, process = fine.reconstruct(inside), fine.predict(inside)
    torch.testing.assert_close(picture.mean, process.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(picture.variance, process.variance, rtol=0, atol=1e-3)


def test_changed_hyperparameters_are_followed_and_forgotten_again() -> None:
    t, y = stream(30)
    gp = model(t0=0.0)
    gp.update(t, y, t_end=10.0)
    before = gp.predict(GRID)
    with torch.no_grad():
        gp.kernel.raw_lengthscale.add_(0.2)
    changed, absorbed = gp.predict(GRID), gp.updated([], [])
    assert float((changed.mean - before.mean).abs().max()) > 1e-3
    # What the change does to predictions, an update without data makes lasting.
    torch.testing.assert_close(absorbed.predict(GRID).mean, changed.mean)
    torch.testing.assert_close(absorbed.predict(GRID).variance, changed.variance)
    with torch.no_grad():
        gp.kernel.raw_lengthscale.sub_(0.2)
    torch.testing.assert_close(gp.predict(GRID).mean, before.mean, rtol=0, atol=1e-7)


def test_a_changed_kernel_sees_the_old_data_as_noisy_values_of_the_old_inducing_variables() -> None:
    """The old site stays: pseudo-data at u_a with the precision of the data (Bui et al. 2017)."""
    (t1, y1), (t2, y2) = (part[:15] for part in stream(30)), (part[15:] for part in stream(30))
    gp = model(LegS(7), t0=0.0, alpha=0.0)
    gp.update(t1, y1)
    old = gp.state
    assert old is not None
    R, (G, h) = old.whitening.matrix, old.site
    with torch.no_grad():
        gp.kernel.raw_lengthscale.add_(0.3)
    gp.update(t2, y2)
    assert gp.state is not None
    a, b, kernel = old.inducing, gp.state.inducing, gp.kernel
    with torch.no_grad():
        K_bb = b.covariance(kernel) + gp.state.whitening.jitter * torch.eye(7, dtype=torch.float64)
        # Precision and shift of the sites as functions of u_b, through E[u_a | u_b] = C u_b.
        C = R @ torch.linalg.solve(K_bb, a.cross_inducing(kernel, b).mT).mT
        F = torch.linalg.solve(K_bb, b.cross(kernel, t2[:, None])).mT
        precision = torch.linalg.inv(K_bb) + C.mT @ G @ C + F.mT @ F / NOISE
        S = torch.linalg.inv(precision)
        mean = S @ (C.mT @ h + F.mT @ y2 / NOISE)
        H = torch.linalg.solve(K_bb, b.cross(kernel, GRID[:, None])).mT
        expected = H @ mean
    torch.testing.assert_close(gp.predict(GRID).mean, expected, rtol=0, atol=1e-6)
