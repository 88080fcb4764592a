"""The functional core against explicit Gaussian algebra, dense conditioning and sampling."""

import math

import pytest
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


@pytest.mark.parametrize(("lengthscale", "outputscale"), [(0.7, 1.3), (0.9, 1.3), (0.5, 2.5)])
def test_the_whitened_update_is_the_explicit_one_of_bui_under_changed_hyperparameters(
    lengthscale: float, outputscale: float
) -> None:
    """Bui et al. 2017: D_a = (S_a⁻¹ − K'_aa⁻¹)⁻¹ is the noise of m̃ = D_a S_a⁻¹ m_a, seen at a."""
    before, now = rbf(), rbf(lengthscale, outputscale)
    a, b = PointFunctional(points(0.0, 0.6, 1.3)), PointFunctional(points(0.1, 0.9, 1.8, 2.6))
    (x1, y1), (x2, y2) = data(8, 0.0, 1.4), data(7, 1.5, 3.0, 1)
    K_old = a.covariance(before)
    R_a = whitener(K_old)
    old = absorbed(before, a, R_a, empty(3), x1, y1)
    R_b = whitener(b.covariance(now))
    T = core.transition(R_a, a.cross_inducing(now, b), R_b)
    prior_a = R_a @ a.covariance(now) @ R_a.mT
    known = core.carry_site(old, T, prior_a - T @ T.mT)
    site = absorbed(now, b, R_b, known, x2, y2)
    law = core.posterior(site)

    L_a = torch.linalg.inv(R_a)
    moments = core.posterior(old)
    m_a = L_a @ moments.mean
    S_a = L_a @ torch.cholesky_inverse(moments.root) @ L_a.mT
    D_a = torch.linalg.inv(torch.linalg.inv(S_a) - torch.linalg.inv(K_old))
    pseudo = D_a @ torch.linalg.solve(S_a, m_a)
    # The new data and the pseudo-data are all observed through b.
    K_bb = b.covariance(now)
    H = torch.cat([b.cross(now, x2).mT, a.cross_inducing(now, b)]) @ torch.linalg.inv(K_bb)
    noise = torch.block_diag(NOISE * torch.eye(7, dtype=torch.float64), D_a)
    total = H @ K_bb @ H.mT + noise
    seen = torch.cat([y2, pseudo])
    mean = K_bb @ H.mT @ torch.linalg.solve(total, seen)
    covariance = K_bb - K_bb @ H.mT @ torch.linalg.solve(total, H @ K_bb)
    L_b = torch.linalg.inv(R_b)
    torch.testing.assert_close(L_b @ law.mean, mean, rtol=1e-7, atol=1e-8)
    whole = L_b @ torch.cholesky_inverse(law.root) @ L_b.mT
    torch.testing.assert_close(whole, covariance, rtol=1e-7, atol=1e-8)

    # Their collapsed bound: log N(seen; 0, total) and the corrections for f | b and a | b.
    bound = core.online_bound(
        known,
        site,
        core.features(now, b, R_b, x2),
        now.diag(x2),
        y2,
        torch.tensor(NOISE, dtype=torch.float64),
    )
    conditional_f = now.diag(x2) - (H[:7] @ K_bb * H[:7]).sum(-1)
    conditional_a = a.covariance(now) - H[7:] @ K_bb @ H[7:].mT
    lost = 0.5 * torch.linalg.solve(D_a, conditional_a).diagonal().sum()
    torch.testing.assert_close(bound.lost_information, lost, rtol=1e-7, atol=1e-9)
    # N(pseudo; a, D_a) differs from q(a)/p(a) by a constant.
    constant = (
        0.5 * (torch.logdet(K_old) - torch.logdet(S_a) + torch.logdet(D_a))
        + 1.5 * math.log(2 * math.pi)
        - 0.5 * m_a @ torch.linalg.solve(S_a, m_a)
        + 0.5 * pseudo @ torch.linalg.solve(D_a, pseudo)
    )
    expected = log_normal(seen, total) - conditional_f.sum() / (2 * NOISE) - lost + constant
    torch.testing.assert_close(bound.value, expected, rtol=1e-7, atol=1e-7)


def test_bounds_of_batches_add_up_to_that_of_all_data_with_a_fixed_set() -> None:
    kernel, (x, y), u = rbf(), data(12, 0.0, 3.0), PointFunctional(points(0.2, 1.1, 2.3))
    R, noise = whitener(u.covariance(kernel)), torch.tensor(NOISE, dtype=torch.float64)

    def bound(known: CarriedSite, part: slice) -> tuple[Site, Tensor]:
        new = absorbed(kernel, u, R, known, x[part], y[part])
        Psi = core.features(kernel, u, R, x[part])
        value = core.online_bound(known, new, Psi, kernel.diag(x[part]), y[part], noise).value
        return new, value

    whole, total = bound(empty(3), slice(0, 12))
    first, one = bound(empty(3), slice(0, 5))
    second, two = bound(core.carry_site(first, None), slice(5, 12))
    torch.testing.assert_close(one + two, total, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(second.precision, whole.precision)
    torch.testing.assert_close(second.shift, whole.shift)


def test_the_uncollapsed_bound_at_the_optimum_is_the_collapsed_one_and_lower_elsewhere() -> None:
    kernel, (x, y) = rbf(), data(8, 0.0, 3.0)
    a, b = PointFunctional(points(0.0, 0.8, 1.9)), PointFunctional(points(0.2, 1.1, 2.3, 2.9))
    R_a, R_b = whitener(a.covariance(kernel)), whitener(b.covariance(kernel))
    old = absorbed(kernel, a, R_a, empty(3), *data(6, 0.0, 1.0, 3))
    known = carried(old, core.transition(R_a, a.cross_inducing(kernel, b), R_b))
    new = absorbed(kernel, b, R_b, known, x, y)
    Psi = core.features(kernel, b, R_b, x)
    noise = torch.tensor(NOISE, dtype=torch.float64)
    collapsed = core.online_bound(known, new, Psi, kernel.diag(x), y, noise)

    def uncollapsed(mean: Tensor, covariance: Tensor) -> Tensor:
        f = Psi.mT @ mean
        variance = kernel.diag(x) - Psi.square().sum(0) + ((covariance @ Psi) * Psi).sum(0)
        expected = -0.5 * (((y - f).square() + variance) / NOISE + math.log(2 * math.pi * NOISE))
        return core.uncollapsed_bound(
            expected.sum(), collapsed.unexplained, known, mean, covariance
        ).value

    law = core.posterior(new)
    S = torch.cholesky_inverse(law.root)
    torch.testing.assert_close(uncollapsed(law.mean, S), collapsed.value, rtol=1e-10, atol=1e-10)
    for mean, covariance in ((law.mean + 0.05, S), (law.mean, 1.2 * S), (law.mean, 0.8 * S)):
        assert uncollapsed(mean, covariance) < collapsed.value - 1e-4


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


def test_lost_information_is_what_the_new_set_does_not_span() -> None:
    kernel = rbf()
    a, same, far = (
        PointFunctional(points(0.0, 1.0)),
        PointFunctional(points(1.0, 0.0, 2.0)),
        PointFunctional(points(50.0, 60.0)),
    )
    R = whitener(a.covariance(kernel))
    old = absorbed(kernel, a, R, empty(2), *data(5, 0.0, 1.0))

    def lost(b: PointFunctional) -> float:
        T = core.transition(R, a.cross_inducing(kernel, b), whitener(b.covariance(kernel)))
        return float(carried(old, T).lost_information)

    assert abs(lost(same)) < 1e-10
    assert math.isclose(lost(far), 0.5 * float(old.precision.trace()), rel_tol=1e-12)
    between = lost(PointFunctional(points(0.4, 1.5)))
    assert 0 < between < lost(far)
    assert float(core.carry_site(old, None).lost_information) == 0.0


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


def test_a_batch_is_a_stack_of_single_calls() -> None:
    kernel, u = rbf(), PointFunctional(points(0.0, 1.0, 2.0))
    x, y = data(6, 0.0, 2.0)
    y = torch.stack([y, y.square(), -y])
    R = whitener(u.covariance(kernel))
    noise = torch.tensor([0.05, 0.1, 0.2], dtype=torch.float64)
    precision = (1 / noise)[:, None].expand(3, 6)
    Psi = core.features(kernel, u, R, x)
    batch = core.whitened_update(empty(3).site, Psi, precision, precision * y)
    bound = core.online_bound(empty(3), batch, Psi, kernel.diag(x), y, noise[:, None])
    law = core.predict(core.posterior(batch), Psi, kernel.diag(x))
    for i in range(3):
        single = core.whitened_update(empty(3).site, Psi, precision[i], precision[i] * y[i])
        one = core.online_bound(empty(3), single, Psi, kernel.diag(x), y[i], noise[i])
        torch.testing.assert_close(bound.value[i], one.value)
        alone = core.predict(core.posterior(single), Psi, kernel.diag(x))
        torch.testing.assert_close(law.mean[i], alone.mean)
        torch.testing.assert_close(law.variance[i], alone.variance)


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
