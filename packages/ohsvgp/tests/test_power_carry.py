"""Carrying a site to new inducing variables: against dense marginalisation and quadrature."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from ohsvgp.core import CarriedSite, Site, carry_site

ALPHAS = [0.1, 0.25, 0.5, 0.75, 1.0]


class Problem(NamedTuple):
    """An old site on v_a, and v_a | v_b ~ N(T v_b, C)."""

    site: Site
    T: Tensor
    C: Tensor


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem(
    m: int, k: int, *, rank: int, batch: tuple[int, ...] = (), inside: bool = False
) -> Problem:
    """A random one; G has this rank, and h lies in its range if ``inside``."""
    root = normal(*batch, m, rank, seed=1)
    h = (root @ normal(*batch, rank, 1, seed=2))[..., 0] if inside else normal(*batch, m, seed=2)
    joint = normal(*batch, m + k, m + k + 3, seed=3)
    K = joint @ joint.mT / (m + k)
    R_a, R_b = (
        torch.linalg.inv(torch.linalg.cholesky(part)) for part in (K[..., :m, :m], K[..., m:, m:])
    )
    T = R_a @ K[..., :m, m:] @ R_b.mT
    C = torch.eye(m, dtype=torch.float64) - T @ T.mT
    return Problem(Site(root @ root.mT, h), T, C)


def log_factor(carried: CarriedSite, v: Tensor) -> Tensor:
    """Log t_b at points v of shape (n, k)."""
    G, h = carried.site
    return -0.5 * ((v @ G) * v).sum(-1) + v @ h + carried.log_scale


def log_integral(G: Tensor, h: Tensor) -> Tensor:
    """Log of the integral of exp(−½ vᵀGv + hᵀv) against N(0, I), from a determinant and a solve."""
    A = torch.eye(G.shape[-1], dtype=G.dtype) + G
    quadratic = (h * torch.linalg.solve(A, h[..., None])[..., 0]).sum(-1)
    return 0.5 * quadratic - 0.5 * torch.logdet(A)


@pytest.mark.parametrize("inside", [True, False], ids=["h in the range of G", "h outside too"])
@pytest.mark.parametrize(("m", "k", "rank"), [(5, 3, 2), (4, 6, 4), (6, 1, 3), (3, 3, 1)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_the_whole_power_is_the_marginal_of_the_joint_gaussian(
    m: int, k: int, rank: int, batch: tuple[int, ...], inside: bool
) -> None:
    (G, h), T, C = problem(m, k, rank=rank, batch=batch, inside=inside)
    found = carry_site(Site(G, h), T, C, alpha=1.0)
    # The joint of (v_b, v_a) in information form, times the site; v_a is then integrated out.
    P = torch.linalg.inv(C)
    J_aa, J_ba = P + G, -T.mT @ P
    J_bb = torch.eye(k, dtype=torch.float64) + T.mT @ P @ T
    gain = J_ba @ torch.linalg.inv(J_aa)
    precision = J_bb - gain @ J_ba.mT - torch.eye(k, dtype=torch.float64)
    shift = -(gain @ h[..., None])[..., 0]
    inner = (h * torch.linalg.solve(J_aa, h[..., None])[..., 0]).sum(-1)
    scale = 0.5 * (inner - torch.logdet(J_aa) + torch.logdet(P)) - log_integral(G, h)
    torch.testing.assert_close(found.site.precision, precision, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.site.shift, shift, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.log_scale, scale, rtol=1e-9, atol=1e-10)
    lost = 0.5 * torch.logdet(torch.eye(m, dtype=torch.float64) + G @ C)
    torch.testing.assert_close(found.lost_information, lost, rtol=1e-9, atol=1e-10)
    # The marginal of a normalised law is normalised.
    total = log_integral(*found.site) + found.log_scale
    torch.testing.assert_close(total, torch.zeros(batch, dtype=torch.float64), rtol=0, atol=1e-10)


def grid(m: int) -> tuple[Tensor, Tensor]:
    """Points of (−10, 10)ᵐ and logs of their weights under N(0, I), by the trapezoidal rule."""
    axis = torch.linspace(-10.0, 10.0, 401, dtype=torch.float64)
    z = torch.cartesian_prod(*[axis] * m).reshape(-1, m)
    step = float(axis[1] - axis[0])
    return z, -0.5 * z.square().sum(-1) + m * math.log(step / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("alpha", [0.0, *ALPHAS])
@pytest.mark.parametrize(("m", "k", "rank"), [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 2)])
def test_powers_are_those_of_the_integral_by_quadrature(
    m: int, k: int, rank: int, alpha: float
) -> None:
    (G, h), T, C = problem(m, k, rank=rank)
    z, log_weights = grid(m)

    def log_site(v: Tensor) -> Tensor:
        return -0.5 * ((v @ G) * v).sum(-1) + v @ h

    partition = torch.logsumexp(log_site(z) + log_weights, 0)
    points = normal(6, k, seed=7) * 1.5
    spread = z @ torch.linalg.cholesky(C).mT
    expected = []
    for v_b in points:
        log_t = log_site(T @ v_b + spread) - partition
        if alpha == 0:
            expected.append((log_weights.exp() * log_t).sum())
        else:
            expected.append(torch.logsumexp(alpha * log_t + log_weights, 0) / alpha)
    found = log_factor(carry_site(Site(G, h), T, C, alpha=alpha), points)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-9, atol=1e-10)


def test_small_powers_tend_to_the_mean_of_the_log() -> None:
    old, T, C = problem(5, 3, rank=3)
    G, h = old

    def parts(alpha: float) -> Tensor:
        found = carry_site(old, T, C, alpha=alpha)
        scalars = torch.stack([found.log_scale, found.lost_information])
        return torch.cat([found.site.precision.flatten(), found.site.shift, scalars])

    # Richardson's extrapolation to 0 from three powers: an error of the order of α³.
    whole, half, quarter = (parts(1e-4 / d) for d in (1, 2, 4))
    limit = (4 * (2 * quarter - half) - (2 * half - whole)) / 3
    lost = 0.5 * torch.trace(G @ C)
    scalars = torch.stack([-lost - log_integral(G, h), lost])
    expected = torch.cat([(T.mT @ G @ T).flatten(), T.mT @ h, scalars])
    torch.testing.assert_close(limit, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(parts(0.0), expected, rtol=1e-12, atol=1e-12)
    # The limit is no matter of course: they differ by the order of α.
    assert float((whole - expected).abs().max()) > 1e-6


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_gradients_in_the_transition_and_the_covariance_are_right(alpha: float) -> None:
    old, T, C = problem(4, 3, rank=2)
    root = torch.linalg.cholesky(C).requires_grad_()

    def parts(T: Tensor, root: Tensor) -> tuple[Tensor, ...]:
        found = carry_site(old, T, root @ root.mT, alpha=alpha)
        return *found.site, found.log_scale, found.lost_information

    assert torch.autograd.gradcheck(parts, (T.requires_grad_(), root))


def test_round_off_of_the_covariance_times_a_large_precision_does_no_harm() -> None:
    # The old variables are the new ones: C is zero, but for a round-off of this size and sign.
    eye = torch.eye(3, dtype=torch.float64)
    old = Site(1e12 * eye, 1e12 * torch.ones(3, dtype=torch.float64))
    found = carry_site(old, eye, -1e-10 * eye, alpha=0.5)
    torch.testing.assert_close(found.site.precision, old.precision)
    torch.testing.assert_close(found.site.shift, old.shift)
    assert float(found.lost_information) == 0.0


def test_a_precision_that_round_off_made_indefinite_is_that_of_its_positive_part() -> None:
    old, T, C = problem(5, 3, rank=2, inside=True)
    # Far below what matters, and beyond what the diagonal's own round-off hides.
    worn = Site(old.precision - 1e-12 * torch.eye(5, dtype=torch.float64), old.shift)
    for mine, expected in zip(
        carry_site(worn, T, C, alpha=0.5).site, carry_site(old, T, C, alpha=0.5).site, strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-10)
