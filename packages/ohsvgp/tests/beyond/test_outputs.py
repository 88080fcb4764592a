"""Several outputs: against dense algebra on Kronecker products."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ohsvgp import Gaussian, LegS, MultiOutputGP, OnlineGP, Path, UniformGrid
from probseq.kernels import RBF, Matern32

D, N = 3, 60
KERNEL = RBF(1, lengthscale=1.5).double()


def matrices(seed: int = 0) -> tuple[Tensor, Tensor]:
    """B and Σ without a common eigenvector."""
    A, C = torch.randn(
        2, D, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).unbind()
    return A @ A.mT + 0.1 * torch.eye(D), 0.05 * (C @ C.mT + 0.2 * torch.eye(D))


def data(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    t = 8 * torch.rand(N, generator=generator, dtype=torch.float64).sort().values
    return t, torch.randn(N, D, generator=generator, dtype=torch.float64)


def model(B: Tensor, Sigma: Tensor, basis=None, **options) -> MultiOutputGP:
    return MultiOutputGP(RBF(1, lengthscale=1.5), B, Sigma, basis or UniformGrid(30), **options)


def gram(a: Tensor, b: Tensor) -> np.ndarray:
    with torch.no_grad():
        return KERNEL(a[:, None], b[:, None]).numpy()


def dense(B: Tensor, Sigma: Tensor, t: Tensor, y: Tensor, new: Tensor):
    """Mean (m, D), covariance (m, D, m, D) and log evidence, all n·D numbers at once."""
    n, m = len(t), len(new)
    K = np.kron(gram(t, t), B) + np.kron(np.eye(n), Sigma)
    cross = np.kron(gram(new, t), B)
    mean = cross @ np.linalg.solve(K, y.numpy().ravel())
    cov = np.kron(gram(new, new), B) - cross @ np.linalg.solve(K, cross.T)
    flat = y.numpy().ravel()
    log = -0.5 * (flat @ np.linalg.solve(K, flat) + np.linalg.slogdet(2 * math.pi * K).logabsdet)
    return mean.reshape(m, D), cov.reshape(m, D, m, D), log


def test_with_enough_inducing_points_it_is_dense_conditioning_on_kronecker_products():
    (B, Sigma), (t, y) = matrices(), data()
    gp, energy = model(B, Sigma), 0.0
    for part in torch.arange(N).chunk(3):
        energy += float(gp.update(t[part], y[part], t_end=float(t[-1])).energy)
    new = torch.linspace(0.2, 7.8, 7, dtype=torch.float64)
    mean, cov, log = dense(B, Sigma, t, y, new)
    law = gp.predict(new)
    each = np.einsum("mimj->mij", cov)
    np.testing.assert_allclose(law.mean, mean, atol=2e-4)
    np.testing.assert_allclose(law.covariance, each, atol=2e-4)
    noisy = gp.predict(new, include_noise=True)
    np.testing.assert_allclose(noisy.covariance, each + Sigma.numpy(), atol=2e-4)
    assert energy == pytest.approx(log, abs=0.02)
    # log N(y; m, S) of whole rows.
    row = torch.randn(7, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = torch.distributions.MultivariateNormal(noisy.mean, noisy.covariance).log_prob(row)
    torch.testing.assert_close(gp.log_prob(new, row), expected)
    draws = gp.sample(new, 20_000, torch.Generator().manual_seed(0)).flatten(1)
    assert draws.shape == (20_000, 7 * D)
    np.testing.assert_allclose(draws.mean(0), mean.ravel(), atol=0.04)
    np.testing.assert_allclose(draws.T.cov(), cov.reshape(7 * D, 7 * D), atol=0.04)


def test_with_few_inducing_points_it_is_the_dense_sparse_posterior():
    (B, Sigma), (t, y) = matrices(), data()
    gp = model(B, Sigma, UniformGrid(6), rel_jitter=1e-12)
    gp.update(t[:25], y[:25], t_end=8.0)
    gp.update(t[25:], y[25:], t_end=8.0)
    z, new = torch.linspace(0, float(8.0 - t[0]), 6).double() + t[0], t[::9] + 0.05
    # S = (K_uu + K_uf (I ⊗ Σ)⁻¹ K_fu)⁻¹,  mean = K_*u S K_uf (I ⊗ Σ)⁻¹ y.
    Kuu, Kuf, Ksu = np.kron(gram(z, z), B), np.kron(gram(z, t), B), np.kron(gram(new, z), B)
    weighted = Kuf @ np.kron(np.eye(N), np.linalg.inv(Sigma))
    S = np.linalg.inv(Kuu + weighted @ Kuf.T)
    mean = Ksu @ S @ weighted @ y.numpy().ravel()
    cov = np.kron(gram(new, new), B) - Ksu @ (np.linalg.inv(Kuu) - S) @ Ksu.T
    law, m = gp.predict(new), len(new)
    np.testing.assert_allclose(law.mean, mean.reshape(m, D), atol=1e-6)
    expected = np.einsum("mimj->mij", cov.reshape(m, D, m, D))
    np.testing.assert_allclose(law.covariance, expected, atol=1e-6)


def test_without_covariance_outputs_are_series_of_their_own():
    t, y = data()
    variances, noises = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.1, 0.2, 0.3])
    gp = model(torch.diag(variances), noises, LegS(12))
    kernel = RBF(1, batch_shape=(D,), lengthscale=1.5, outputscale=variances)
    alone = OnlineGP(kernel, Gaussian(noises), LegS(12))
    for part in torch.arange(N).chunk(4):
        info, other = gp.update(t[part], y[part]), alone.update(t[part], y[part].mT)
        assert float(info.energy) == pytest.approx(float(other.energy.sum()), rel=1e-6)
    law, expected = gp.predict(t), alone.predict(t)
    torch.testing.assert_close(law.mean, expected.mean.mT, rtol=0, atol=1e-6)
    variance = law.covariance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(variance, expected.variance.mT, rtol=0, atol=1e-6)


def test_one_output_informs_the_others_and_points_of_several_dimensions_serve():
    x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f = x[:, 0].sin() * x[:, 1].cos()
    B = torch.full((2, 2), 0.99) + 0.01 * torch.eye(2)
    y = torch.stack([f, f], dim=-1)
    shared, apart = (
        MultiOutputGP(
            Matern32(2),
            each,
            torch.tensor([1e-3, 10.0]),
            Path(40, order="kernel-max", memory="inputs"),
        )
        for each in (B, torch.eye(2))
    )
    for gp in (shared, apart):
        gp.update(x[:60], y[:60])
    known, unknown = (gp.predict(x[60:]).mean[:, 1] - f[60:] for gp in (shared, apart))
    assert float(known.square().mean()) < 0.2 * float(unknown.square().mean())


@pytest.mark.slow
def test_the_fit_is_of_the_dense_evidence_and_finds_b_and_sigma():
    generator, n = torch.Generator().manual_seed(0), 400
    B, Sigma = matrices(3)
    t = torch.linspace(0, 60, n, dtype=torch.float64)
    root = torch.linalg.cholesky(KERNEL(t[:, None], t[:, None]).detach() + 1e-8 * torch.eye(n))
    noise, values = torch.randn(2, n, D, generator=generator, dtype=torch.float64)
    y = root @ values @ torch.linalg.cholesky(B).mT + noise @ torch.linalg.cholesky(Sigma).mT
    gp = model(torch.eye(D), 0.5)
    info = gp.fit_hyperparameters(t, y, steps=200)
    assert info.after > info.before + 100
    lengthscale = gp.gp.kernel.parts[1].lengthscale.detach()
    scale = float(gp.gp.kernel.parts[1].outputscale.detach())
    for found, true in ((gp.noise, Sigma), (scale * gp.covariance, B)):
        size = true.diagonal().sqrt()
        assert float(((found - true) / (size[:, None] * size)).abs().max()) < 0.6
    assert float(lengthscale) == pytest.approx(1.5, rel=0.3)
    # The evidence is that of all D·n numbers at once.
    begun = model(B, Sigma).fit_hyperparameters(t[:N], y[:N], steps=1).before
    assert begun == pytest.approx(float(dense(B, Sigma, t[:N], y[:N], t[:2])[2]), abs=1e-6)
    # Later the kernel moves and the series stay what they are.
    gp.update(t[:200], y[:200])
    noise = gp.noise
    gp.fit_hyperparameters(t[200:], y[200:], steps=2)
    assert torch.equal(gp.noise, noise)


def test_what_is_saved_predicts_the_same():
    (B, Sigma), (t, y) = matrices(), data()
    gp = model(B, Sigma)
    gp.update(t[:30], y[:30])
    again = model(torch.eye(D), 1.0)
    again.load_state_dict(gp.state_dict())
    for each in (gp, again):
        each.update(t[30:], y[30:])
    assert torch.equal(gp.predict(t).mean, again.predict(t).mean)
    assert torch.equal(gp.covariance, again.covariance)


def test_stamps_without_outputs_are_gaps():
    (B, Sigma), (t, y) = matrices(), data()
    holes = y.clone()
    holes[::4] = float("nan")
    kept = torch.arange(N) % 4 != 0
    gp, other = model(B, Sigma, t0=0.0), model(B, Sigma, t0=0.0)
    info = gp.update(t, holes, missing="drop")
    expected = other.update(t[kept], y[kept], t_end=float(t[-1]))
    assert float(info.energy) == pytest.approx(float(expected.energy), rel=1e-9)
    torch.testing.assert_close(gp.predict(t).mean, other.predict(t).mean)


def test_outputs_that_are_there_tell_of_a_stamp_what_dense_conditioning_says():
    (B, Sigma), (t, y) = matrices(), data()
    gp = model(B, Sigma, t0=0.0)
    gp.update(t[:-1], y[:-1], t_end=float(t[-1]))
    before = gp.predict(t[-1:])
    last = y[-1:].clone()
    last[0, 1] = float("nan")
    info = gp.update(t[-1:], last, missing="drop")
    after, seen = gp.predict(t[-1:]), [0, 2]
    C, m = before.covariance[0].numpy(), before.mean[0].numpy()
    S = C[np.ix_(seen, seen)] + Sigma.numpy()[np.ix_(seen, seen)]
    error = y[-1].numpy()[seen] - m[seen]
    gain = C[:, seen] @ np.linalg.inv(S)
    np.testing.assert_allclose(after.mean[0], m + gain @ error, atol=1e-6)
    log = -0.5 * (error @ np.linalg.solve(S, error) + np.linalg.slogdet(2 * math.pi * S).logabsdet)
    assert float(info.energy) == pytest.approx(log, abs=1e-6)
    # Between stamps the series count as independent: what is lost by that is less than by leaving
    # the row out.
    C_new = C - gain @ C[seen]
    kept, left = (np.abs(c - C_new).max() for c in (after.covariance[0].numpy(), C))
    assert kept < 0.7 * left


def test_outputs_that_are_independent_are_learned_with_gaps_of_their_own():
    t, y = data()
    scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    noise = torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)
    holes = y.masked_fill(
        torch.rand(N, D, generator=torch.Generator().manual_seed(3)) < 0.3, math.nan
    )
    gp = model(torch.diag(scale), noise, t0=0.0)
    gp.update(t, holes, missing="drop", t_end=8.0)
    law = gp.predict(t)
    for k in range(D):
        kernel = RBF(1, lengthscale=1.5, outputscale=float(scale[k]))
        each = OnlineGP(kernel, Gaussian(float(noise[k])), UniformGrid(30), t0=0.0)
        each.update(t, holes[:, k], missing="drop", t_end=8.0)
        torch.testing.assert_close(law.mean[:, k], each.predict(t).mean, rtol=0, atol=1e-5)
        variance = each.predict(t).variance
        torch.testing.assert_close(law.covariance[:, k, k], variance, rtol=0, atol=1e-5)


EYE = torch.eye(D)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"covariance": EYE[:2]}, r"covariance must have shape \(D, D\), got \(2, 3\)"),
        ({"covariance": -EYE}, "covariance must be symmetric and positive definite"),
        ({"covariance": EYE + EYE[[1, 0, 2]].triu()}, "covariance must be symmetric"),
        ({"covariance": EYE * math.nan}, "covariance must be symmetric"),
        ({"noise": EYE[:2, :2]}, r"noise must be of shape \(3, 3\) like covariance"),
        ({"noise": EYE[0, :2]}, r"noise must be a number, of shape \(3,\)"),
        ({"noise": 0.0}, "noise must be symmetric and positive definite"),
        ({"kernel": RBF(1, batch_shape=(3,))}, "kernel must have no batch dimensions"),
        ({"mean": None}, r"must leave out what one output alone has, got \['mean'\]"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    given = {"kernel": RBF(1), "covariance": EYE, "noise": 0.1, "basis": LegS(5), **changes}
    with pytest.raises(ValueError, match=message):
        MultiOutputGP(**given)


def test_bad_targets_are_refused_and_change_nothing():
    (B, Sigma), (t, y) = matrices(), data()
    gp = model(B, Sigma)
    holes = y.clone()
    holes[4, 1] = float("nan")
    with pytest.raises(ValueError, match='1 rows with NaN: pass missing="drop"'):
        gp.update(t, holes)
    with pytest.raises(ValueError, match=r"y must have shape \(n, 3\), got \(3, 60\)"):
        gp.update(t, y.mT)
    many = torch.arange(2001.0)
    with pytest.raises(ValueError, match="at most 2000 stamps to fit first, got 2001"):
        gp.fit_hyperparameters(many, torch.zeros(2001, D))
    assert gp.state is None
