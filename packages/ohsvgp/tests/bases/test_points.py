"""Inducing points: choice by chance or by pivots, and learning by Adam on the online bound."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ohsvgp import Gaussian, OnlineGP
from ohsvgp.bases.base import Advance, Basis
from ohsvgp.bases.learning import learn_nodes
from ohsvgp.bases.pivoted import pivots
from ohsvgp.bases.points import AdamSteps, PivotedCholesky, RandomSubset
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.errors import CholeskyError
from probseq.kernels import RBF, Kernel, Matern32

BASES = [RandomSubset, PivotedCholesky]


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def rbf(dim: int = 1, lengthscale: float = 1.0) -> Kernel:
    return RBF(dim, lengthscale=lengthscale).double()


def step(
    kernel: Kernel, inputs: Tensor, previous: Inducing | None = None, seed: int = 0
) -> Advance:
    generator = torch.Generator().manual_seed(seed)
    return Advance(kernel, previous, inputs, 1.0, generator=generator)


def rows(points: Tensor) -> set[tuple[float, ...]]:
    return {tuple(point) for point in points.tolist()}


def slow_pivots(K: Tensor, count: int) -> list[int]:
    """Textbook: the Schur complement of all picked points is formed anew for each pick."""
    picked: list[int] = []
    for _ in range(count):
        best, best_variance = -1, -math.inf
        for i in range(K.shape[0]):
            if i in picked:
                continue
            cross = K[i, picked]
            variance = K[i, i] - cross @ torch.linalg.solve(K[picked][:, picked], cross)
            if float(variance) > best_variance:
                best, best_variance = i, float(variance)
        picked.append(best)
    return picked


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("count", [12, 6], ids=["by the matrix", "row by row"])
def test_pivots_are_those_of_a_slow_loop(dim: int, count: int) -> None:
    kernel, x = Matern32(dim, lengthscale=0.7).double(), normal(40, dim)
    K = kernel(x, x).detach()
    assert pivots(kernel, x, count).tolist() == slow_pivots(K, count)


@pytest.mark.parametrize("count", [8, 6], ids=["by the matrix", "row by row"])
def test_each_kernel_of_a_batch_picks_as_it_would_alone(count: int) -> None:
    lengthscale = torch.tensor([0.2, 2.0], dtype=torch.float64)[:, None, None]
    batch = Matern32(1, batch_shape=(2,), lengthscale=lengthscale).double()
    x = normal(30, 1)
    found = pivots(batch, x, count)
    for i in range(2):
        alone = Matern32(1, lengthscale=lengthscale[i]).double()
        assert found[i].tolist() == pivots(alone, x, count).tolist()
    assert found[0].tolist() != found[1].tolist()


def test_pivots_stop_where_nothing_is_left_to_know() -> None:
    # Three places, each ten times.
    x = torch.tensor([0.0, 3.0, 6.0], dtype=torch.float64).repeat(10)[:, None]
    found = pivots(rbf(), x, 20)
    assert rows(x[found]) == {(0.0,), (3.0,), (6.0,)}
    assert found.shape == (3,)


def test_one_finished_member_of_a_batch_waits_for_the_others() -> None:
    lengthscale = torch.tensor([1e6, 0.1], dtype=torch.float64)[:, None, None]
    kernel = RBF(1, batch_shape=(2,), lengthscale=lengthscale).double()
    x = torch.linspace(0.0, 5.0, 12, dtype=torch.float64)[:, None]
    found = pivots(kernel, x, 12)
    # Every point once, in both.
    assert [sorted(member) for member in found.tolist()] == [list(range(12))] * 2


@pytest.mark.parametrize(("n", "kept"), [(50, 7), (4, 7), (3, 7), (2, 8), (1, 9)])
def test_random_subset_keeps_seven_tenths_or_what_new_points_leave(n: int, kept: int) -> None:
    kernel, old = rbf(), normal(10, 1, seed=1)
    new = normal(n, 1, seed=2)
    found = RandomSubset(10).advance(step(kernel, new, PointFunctional(old)))
    assert isinstance(found, PointFunctional)
    assert found.num_inducing == 10
    assert len(rows(found.nodes) & rows(old)) == kept
    assert len(rows(found.nodes) & rows(new)) == 10 - kept


def test_random_subset_takes_every_candidate_equally_often() -> None:
    kernel, x = rbf(), torch.arange(8, dtype=torch.float64)[:, None]
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(8)
    for _ in range(400):
        found = RandomSubset(4).advance(Advance(kernel, None, x, 1.0, generator=generator))
        counts[found.tensors()["nodes"][:, 0].long()] += 1
    # 200 expected, standard deviation 10.
    assert float((counts - 200).abs().max()) < 40


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("basis_class", BASES)
def test_all_points_as_inducing_points_give_the_exact_posterior(
    basis_class: type[Basis], dim: int
) -> None:
    x, y = normal(12, dim).sort(0).values, normal(12, seed=1)
    kernel, noise = Matern32(dim).double(), 0.1
    gp = OnlineGP(kernel, Gaussian(noise), basis_class(12))
    for part in torch.arange(12).chunk(3):
        gp.update(x[part, 0] if dim == 1 else x[part], y[part])
    new = x[0] + normal(7, dim, seed=2).abs()
    found = gp.predict(new[:, 0] if dim == 1 else new)
    K = kernel(x, x) + noise * torch.eye(12)
    expected = kernel(new, x) @ torch.linalg.solve(K, y)
    variance = 1 - (kernel(new, x) * torch.linalg.solve(K, kernel(x, new)).mT).sum(-1)
    # The jitter of K_uu.
    torch.testing.assert_close(found.mean, expected.detach(), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.variance, variance.detach(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("basis_class", BASES)
def test_learned_points_raise_the_bound(basis_class: Callable[..., Basis]) -> None:
    t = torch.linspace(0.0, 6.0, 30, dtype=torch.float64)
    y = (2 * t).sin()
    kernel = rbf(lengthscale=0.8)
    bounds = {}
    for learn in (None, AdamSteps(steps=25, learning_rate=0.05)):
        gp = OnlineGP(kernel, Gaussian(0.01), basis_class(5, learn=learn))
        first = gp.update(t[:15], y[:15])
        bounds[learn is None] = float(first.energy)
        gp.update(t[15:], y[15:])
    assert bounds[False] > bounds[True] + 0.3
    # Nothing was accumulated in the model's parameters.
    assert kernel.raw_lengthscale.grad is None


def test_learning_finds_the_maximum_in_units_of_the_lengthscale() -> None:
    target = torch.tensor([[3.0, 300.0]], dtype=torch.float64)
    scale = torch.tensor([[1.0, 100.0]], dtype=torch.float64)

    def objective(inducing: Inducing) -> Tensor:
        return -((inducing.tensors()["nodes"] - target) / scale).square().sum()

    options = AdamSteps(steps=300, learning_rate=0.05)
    found = learn_nodes(torch.zeros_like(target), scale, objective, options)
    torch.testing.assert_close(found.nodes / scale, target / scale, atol=1e-3, rtol=0)


def test_learning_keeps_the_best_points_that_it_met() -> None:
    # Steps of one overshoot the maximum at 0.1 and never come back as close.
    def objective(inducing: Inducing) -> Tensor:
        return -(inducing.tensors()["nodes"] - 0.1).abs().sum()

    start = torch.zeros(1, 1, dtype=torch.float64)
    found = learn_nodes(
        start, torch.ones_like(start), objective, AdamSteps(steps=3, learning_rate=1.0)
    )
    assert float(found.nodes) == 0.0


def test_where_the_last_step_of_learning_leads_counts_too() -> None:
    def objective(inducing: Inducing) -> Tensor:
        return inducing.tensors()["nodes"].sum()

    start = torch.zeros(1, 1, dtype=torch.float64)
    options = AdamSteps(steps=1, learning_rate=0.2)
    found = learn_nodes(start, torch.ones_like(start), objective, options)
    # Adam's first step has the length of the learning rate.
    assert math.isclose(float(found.nodes), 0.2, rel_tol=1e-6)


def test_each_kernel_of_a_batch_learns_points_of_its_own() -> None:
    lengthscale = torch.tensor([0.3, 1.5], dtype=torch.float64)[:, None, None]
    kernel = RBF(1, batch_shape=(2,), lengthscale=lengthscale).double()
    t = torch.linspace(0.0, 4.0, 20, dtype=torch.float64)
    basis = RandomSubset(4, learn=AdamSteps(steps=3))
    gp = OnlineGP(kernel, Gaussian(0.1), basis)
    gp.update(t, torch.stack([t.sin(), t.cos()]))
    assert gp.state is not None
    nodes = gp.state.inducing.tensors()["nodes"]
    assert nodes.shape == (2, 4, 1)
    assert not torch.equal(nodes[0], nodes[1])


@pytest.mark.parametrize("failure", ["nan", "cholesky"])
def test_failure_while_learning_names_the_step(failure: str) -> None:
    def objective(inducing: Inducing) -> Tensor:
        nodes = inducing.tensors()["nodes"]
        if float(nodes.detach()) < 0.5:
            return nodes.sum()
        if failure == "nan":
            return nodes.sum() * math.nan
        raise CholeskyError("indefinite")

    start = torch.zeros(1, 1, dtype=torch.float64)
    options = AdamSteps(steps=9, learning_rate=0.2)
    with pytest.raises(CholeskyError, match="failed at step 3"):
        learn_nodes(start, torch.ones_like(start), objective, options)
