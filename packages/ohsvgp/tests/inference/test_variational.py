"""Adam on the online bound, against the natural-gradient optimum."""

import pytest
import torch
from torch import Tensor

from ohsvgp import AdamSteps, LegS, OnlineGP, core
from ohsvgp.core import CarriedSite, Site
from ohsvgp.inference.natural import natural_update
from ohsvgp.inference.variational import variational_update
from ohsvgp.likelihoods import Bernoulli, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from probseq.kernels import RBF


def _problem() -> tuple[CarriedSite, Tensor, Tensor]:
    """A site on 4 variables carried to 5 new ones, Ψ and K_ff at 9 points."""
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(18, 20, generator=generator, dtype=torch.float64)
    K = root @ root.mT / 9
    R_a = torch.linalg.inv(torch.linalg.cholesky(K[:4, :4]))
    R_b = torch.linalg.inv(torch.linalg.cholesky(K[4:9, 4:9]))
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    site = Site(root @ root.mT, torch.randn(4, generator=generator, dtype=torch.float64))
    T = R_a @ K[:4, 4:9] @ R_b.mT
    carried = core.carry_site(site, T, torch.eye(4, dtype=torch.float64) - T @ T.mT)
    return carried, R_b @ K[4:9, 9:], K.diagonal()[9:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood",
    [Bernoulli(), Poisson(), NegativeBinomial(3.0).double(), StudentT(20.0, 2.0).double()],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_adam_ends_where_natural_gradients_do(likelihood: Likelihood) -> None:
    generator = torch.Generator().manual_seed(1)
    f = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    y, mask = likelihood.sample(f, generator).detach(), torch.arange(9) != 4
    problem = _problem()
    site, bound = variational_update(
        likelihood, *problem, y * mask, mask=mask, steps=400, learning_rate=0.05
    )
    expected, best = natural_update(likelihood, *problem, y * mask, mask=mask, iterations=30)
    assert (best.value - bound.value).min() > -1e-9
    torch.testing.assert_close(bound.value, best.value, rtol=0, atol=1e-5)
    q, p = core.posterior(site), core.posterior(expected)
    torch.testing.assert_close(q.mean, p.mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(
        torch.cholesky_inverse(q.root), torch.cholesky_inverse(p.root), rtol=0, atol=5e-3
    )


def test_more_steps_raise_the_bound_from_that_of_the_carried_posterior() -> None:
    problem, y = _problem(), torch.tensor([0, 3, 9, 1, 0, 2, 30, 1, 4], dtype=torch.float64)
    bounds = [
        variational_update(Poisson(), *problem, y, steps=steps)[1].value for steps in (1, 20, 60)
    ]
    assert bounds[0] < bounds[1] < bounds[2]


def test_state_stays_positive_semi_definite_before_convergence() -> None:
    carried, Psi, K_ff = _problem()
    y = 20 * torch.ones(9, dtype=torch.float64)
    site, _ = variational_update(StudentT(3.0, 0.1).double(), carried, Psi, K_ff, y, steps=20)
    added = site.precision - carried.site.precision
    assert torch.linalg.eigvalsh(added).min() > -1e-12


def test_bound_is_differentiable_in_the_likelihood_and_steps_leave_no_gradients() -> None:
    carried, Psi, K_ff = _problem()
    likelihood = NegativeBinomial(3.0).double()
    y = torch.tensor([0, 3, 9, 1, 0, 2, 30, 1, 4], dtype=torch.float64)
    data = carried, Psi.requires_grad_(), K_ff, y
    _, bound = variational_update(likelihood, *data, steps=500, learning_rate=0.05)
    assert likelihood.raw_dispersion.grad is None
    assert Psi.grad is None
    leaves = [likelihood.raw_dispersion, Psi]
    got = torch.autograd.grad(bound.value, leaves)
    best = natural_update(likelihood, *data, iterations=30)[1]
    for part, expected in zip(got, torch.autograd.grad(best.value, leaves), strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-2, atol=1e-2)


def test_works_where_gradients_are_off_and_without_data() -> None:
    carried, Psi, K_ff = _problem()
    with torch.no_grad():
        y = torch.ones(9, dtype=torch.float64)
        site, bound = variational_update(Bernoulli(), carried, Psi, K_ff, y, steps=2)
        assert not bound.value.requires_grad
        site, bound = variational_update(Bernoulli(), carried, Psi[:, :0], K_ff[:0], y[:0])
    torch.testing.assert_close(site.precision, carried.site.precision)
    assert bound.lost_information > 0


def test_gaussian_noise_gives_the_closed_form() -> None:
    carried, Psi, K_ff = _problem()
    y, noise = torch.linspace(-1, 1, 9, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    _, bound = variational_update(
        Gaussian(noise), carried, Psi, K_ff, y, steps=500, learning_rate=0.05
    )
    new = core.whitened_update(carried.site, Psi, (1 / noise).expand(9), y / noise)
    collapsed = core.online_bound(carried, new, Psi, K_ff, y, noise).value
    assert bound.value.item() == pytest.approx(collapsed.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    problem, y = _problem(), torch.ones(9, dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        variational_update(Bernoulli(), *problem, y, **options)
    with pytest.raises(ValueError, match="iterations must be a whole number of at least 1"):
        natural_update(Bernoulli(), *problem, y, iterations=0)


@pytest.mark.slow
def test_an_online_process_learns_by_adam_what_it_learns_by_natural_gradients() -> None:
    t = torch.linspace(0.0, 6.0, 40, dtype=torch.float64)
    counts = torch.tensor([i % 4 + i // 10 for i in range(40)], dtype=torch.float64)
    natural, adam = (
        OnlineGP(RBF(1), Poisson(), LegS(8), inference=inference)
        for inference in ("natural", AdamSteps(steps=1500, learning_rate=0.02))
    )
    for part in torch.arange(40).chunk(2):
        # From the same state: a bound is that of the new data given the posterior before, and
        # only under one and the same posterior is the natural-gradient optimum the largest.
        adam.load_state_dict(natural.state_dict())
        best, found = natural.update(t[part], counts[part]), adam.update(t[part], counts[part])
        assert 0 <= float(best.energy - found.energy) + 1e-9 < 1e-3
        # Adam it was: it comes close only.
        assert float(best.energy) != float(found.energy)
    torch.testing.assert_close(adam.predict(t).mean, natural.predict(t).mean, atol=5e-3, rtol=0)


def test_another_inference_is_refused(plain_calls) -> None:
    with pytest.raises(ValueError, match="inference must be \"natural\" or AdamSteps, got 'vi'"):
        OnlineGP(RBF(1), Poisson(), LegS(8), inference="vi")
