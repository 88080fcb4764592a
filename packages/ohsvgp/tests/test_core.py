"""The functional core against explicit Gaussian algebra, dense conditioning and sampling."""

import math

import torch
from torch import Tensor

from ohsvgp import core
from ohsvgp.core import CarriedSite, Site
from ohsvgp.inducing import PointFunctional
from probseq.kernels import RBF, Kernel

NOISE = 0.05


def rbf(lengthscale: float = 0.7, outputscale: float = 1.3) -> Kernel:
    return RBF(1, lengthscale=lengthscale, outputscale=outputscale).double().requires_grad_(False)


def points(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def data(n: int, start: float, stop: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.linspace(start, stop, n, dtype=torch.float64)[:, None]
    return x, (2 * x[:, 0]).sin() + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)


def whitener(K: Tensor) -> Tensor:
    return torch.linalg.inv(torch.linalg.cholesky(K))


def empty(M: int) -> CarriedSite:
    zero = torch.zeros(M, M, dtype=torch.float64)
    return core.carry_site(Site(zero, zero[0]), None)


def carried(old: Site, T: Tensor) -> CarriedSite:
    """Under unchanged hyperparameters, as the online bound does."""
    return core.carry_site(old, T, torch.eye(len(T), dtype=torch.float64) - T @ T.mT)


def absorbed(
    kernel: Kernel, u: PointFunctional, R: Tensor, before: CarriedSite, x: Tensor, y: Tensor
) -> Site:
    Psi = core.features(kernel, u, R, x)
    return core.whitened_update(before.site, Psi, torch.full_like(y, 1 / NOISE), y / NOISE)


def log_normal(y: Tensor, covariance: Tensor) -> Tensor:
    zero = torch.zeros_like(y)
    return torch.distributions.MultivariateNormal(zero, covariance).log_prob(y)


def test_the_posterior_is_that_of_dense_conditioning_when_data_lie_on_the_inducing_points() -> None:
    kernel, (x, y) = rbf(), data(6, 0.0, 3.0)
    u = PointFunctional(x)
    R = whitener(kernel(x, x))
    site = absorbed(kernel, u, R, empty(6), x, y)
    new = points(-0.5, 0.3, 1.7, 4.0)
    law = core.predict_joint(
        core.posterior(site), core.features(kernel, u, R, new), kernel(new, new)
    )
    gain = torch.linalg.solve(
        kernel(x, x) + NOISE * torch.eye(6, dtype=torch.float64), kernel(x, new)
    ).mT
    torch.testing.assert_close(law.mean, gain @ y, rtol=0, atol=1e-9)
    expected = kernel(new, new) - gain @ kernel(x, new)
    torch.testing.assert_close(law.covariance, expected, rtol=0, atol=1e-9)
    diagonal = core.predict(
        core.posterior(site), core.features(kernel, u, R, new), kernel.diag(new)
    )
    torch.testing.assert_close(diagonal.mean, law.mean)
    torch.testing.assert_close(diagonal.variance, law.variance)


def test_the_first_bound_is_the_collapsed_one_of_titsias() -> None:
    kernel, (x, y), u = rbf(), data(9, 0.0, 3.0), PointFunctional(points(0.2, 1.1, 2.3, 2.9))
    K_uu, K_uf = u.covariance(kernel), u.cross(kernel, x)
    R = whitener(K_uu)
    site = absorbed(kernel, u, R, empty(4), x, y)
    Psi = core.features(kernel, u, R, x)
    bound = core.online_bound(
        empty(4), site, Psi, kernel.diag(x), y, torch.tensor(NOISE, dtype=torch.float64)
    )
    Q = K_uf.mT @ torch.linalg.solve(K_uu, K_uf)
    trace = (kernel.diag(x) - Q.diagonal()).sum() / (2 * NOISE)
    expected = log_normal(y, Q + NOISE * torch.eye(9, dtype=torch.float64)) - trace
    torch.testing.assert_close(bound.value, expected, rtol=1e-10, atol=1e-9)
    assert float(bound.lost_information) == 0.0
    # A bound of the evidence, and the evidence itself where u holds all that f is at x.
    evidence = log_normal(y, kernel(x, x) + NOISE * torch.eye(9, dtype=torch.float64))
    assert bound.value < evidence
    full = PointFunctional(x)
    R = whitener(full.covariance(kernel))
    Psi = core.features(kernel, full, R, x)
    tight = core.online_bound(
        empty(9),
        absorbed(kernel, full, R, empty(9), x, y),
        Psi,
        kernel.diag(x),
        y,
        torch.tensor(NOISE, dtype=torch.float64),
    )
    torch.testing.assert_close(tight.value, evidence, rtol=1e-7, atol=1e-7)


def test_mixing_the_inducing_variables_changes_no_prediction_and_no_bound() -> None:
    kernel, (x, y) = rbf(), data(8, 0.0, 3.0)
    generator = torch.Generator().manual_seed(5)
    mix_a = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    mix_b = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    nodes_a, nodes_b = points(0.0, 0.8, 1.9), points(0.2, 1.1, 2.3, 2.9)
    results = []
    for W_a, W_b in ((None, None), (mix_a, mix_b)):
        a, b = PointFunctional(nodes_a, W_a), PointFunctional(nodes_b, W_b)
        R_a, R_b = whitener(a.covariance(kernel)), whitener(b.covariance(kernel))
        old = absorbed(kernel, a, R_a, empty(3), *data(6, 0.0, 1.0, 3))
        known = carried(old, core.transition(R_a, a.cross_inducing(kernel, b), R_b))
        new = absorbed(kernel, b, R_b, known, x, y)
        Psi = core.features(kernel, b, R_b, x)
        bound = core.online_bound(
            known, new, Psi, kernel.diag(x), y, torch.tensor(NOISE, dtype=torch.float64)
        )
        law = core.predict(core.posterior(new), Psi, kernel.diag(x))
        results.append((*bound, law.mean, law.variance))
    for plain, mixed in zip(*results, strict=True):
        torch.testing.assert_close(plain, mixed, rtol=1e-9, atol=1e-9)


def test_a_point_of_no_precision_counts_as_none() -> None:
    kernel, (x, y), u = rbf(), data(6, 0.0, 2.0), PointFunctional(points(0.0, 1.0, 2.0))
    R, noise = whitener(u.covariance(kernel)), torch.tensor(NOISE, dtype=torch.float64)
    kept = torch.tensor([True, True, False, True, False, True])
    Psi = core.features(kernel, u, R, x)
    hidden = y.masked_fill(~kept, 0.0)
    masked = core.whitened_update(empty(3).site, Psi, kept / NOISE, kept * hidden / NOISE)
    short = absorbed(kernel, u, R, empty(3), x[kept], y[kept])
    torch.testing.assert_close(masked.precision, short.precision)
    torch.testing.assert_close(masked.shift, short.shift)
    bounds = [
        core.online_bound(empty(3), masked, Psi, kernel.diag(x), hidden, noise, mask=kept),
        core.online_bound(empty(3), short, Psi[:, kept], kernel.diag(x[kept]), y[kept], noise),
    ]
    torch.testing.assert_close(bounds[0].value, bounds[1].value)
    torch.testing.assert_close(bounds[0].unexplained, bounds[1].unexplained)


def test_a_variance_below_round_off_of_the_prior_is_lifted_to_it() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    moments = core.posterior(Site(1e20 * eye, eye[0]))
    # Features whose square is above the prior variance by a rounding error.
    law = core.predict(moments, (1 + 1e-15) * eye, torch.ones(2, dtype=torch.float64))
    floor = torch.full((2,), torch.finfo(torch.float64).eps, dtype=torch.float64)
    assert torch.equal(law.variance, floor)


def test_gradients_of_the_bound_are_right() -> None:
    kernel, (x, y), u = rbf(), data(5, 0.0, 2.0), PointFunctional(points(0.0, 1.0, 2.0))

    def bound(raw: Tensor, noise: Tensor) -> Tensor:
        module = Bounded(kernel, u, x, y)
        return torch.func.functional_call(module, {"kernel.raw_lengthscale": raw}, noise)

    raw = kernel.raw_lengthscale.detach().clone().requires_grad_()
    noise = torch.tensor(NOISE, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(bound, (raw, noise))


class Bounded(torch.nn.Module):
    """The first bound as a function of the kernel's parameters."""

    def __init__(self, kernel: Kernel, u: PointFunctional, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.kernel, self.u, self.x, self.y = kernel, u, x, y

    def forward(self, noise: Tensor) -> Tensor:
        R = whitener(self.u.covariance(self.kernel))
        Psi = core.features(self.kernel, self.u, R, self.x)
        precision = (1 / noise).expand(self.y.shape)
        new = core.whitened_update(empty(3).site, Psi, precision, precision * self.y)
        diag = self.kernel.diag(self.x)
        return core.online_bound(empty(3), new, Psi, diag, self.y, noise).value


def test_a_precision_whose_identity_is_lost_to_round_off_has_a_factor() -> None:
    # The second pivot is -1e5: round-off of an information of 1e20.
    G = torch.tensor([[1.0, 1.0], [1.0, 1.0 - 1e-15]], dtype=torch.float64) * 1e20
    root = core.precision_root(torch.stack([G, torch.eye(2, dtype=torch.float64)]))
    assert (root.diagonal(dim1=-2, dim2=-1) > 0).all()
    torch.testing.assert_close(root[0] @ root[0].mT, G, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(root[1], math.sqrt(2.0) * torch.eye(2, dtype=torch.float64))


def test_a_variable_without_information_keeps_its_unit() -> None:
    scaled, scale = core._scaled(torch.diag(torch.tensor([4.0, 0.0], dtype=torch.float64)))
    assert scaled.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert scale.tolist() == [2.0, 1.0]
