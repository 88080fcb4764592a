"""Inducing points: choice by chance or by pivots, and learning by Adam on the online bound."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from ohsvgp import Gaussian, OnlineGP
from ohsvgp.bases.base import Advance, Basis
from ohsvgp.bases.learning import learn_nodes
from ohsvgp.bases.pivoted import pivots
from ohsvgp.bases.points import AdamSteps, PivotedCholesky, RandomSubset
from ohsvgp.exact import exact_posterior
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


@pytest.mark.parametrize("basis_class", BASES)
def test_fewer_candidates_than_wanted_are_all_taken(basis_class: type[Basis]) -> None:
    kernel, basis = rbf(2), basis_class(6)
    first, second, third = normal(2, 2, seed=1), normal(3, 2, seed=2), normal(9, 2, seed=3)
    one = basis.advance(step(kernel, first))
    assert isinstance(one, PointFunctional)
    assert rows(one.nodes) == rows(first)
    two = basis.advance(step(kernel, second, one))
    assert isinstance(two, PointFunctional)
    assert rows(two.nodes) == rows(first) | rows(second)
    three = basis.advance(step(kernel, third, two))
    assert isinstance(three, PointFunctional)
    assert three.num_inducing == 6
    assert rows(three.nodes) < rows(first) | rows(second) | rows(third)


@pytest.mark.parametrize(("n", "kept"), [(50, 7), (4, 7), (3, 7), (2, 8), (1, 9)])
def test_random_subset_keeps_seven_tenths_or_what_new_points_leave(n: int, kept: int) -> None:
    kernel, old = rbf(), normal(10, 1, seed=1)
    new = normal(n, 1, seed=2)
    found = RandomSubset(10).advance(step(kernel, new, PointFunctional(old)))
    assert isinstance(found, PointFunctional)
    assert found.num_inducing == 10
    assert len(rows(found.nodes) & rows(old)) == kept
    assert len(rows(found.nodes) & rows(new)) == 10 - kept


def test_random_subset_follows_the_generator() -> None:
    kernel, x = rbf(), normal(30, 1)
    draws = [RandomSubset(5).advance(step(kernel, x, seed=seed)) for seed in (1, 1, 2)]
    nodes = [draw.tensors()["nodes"] for draw in draws]
    assert torch.equal(nodes[0], nodes[1])
    assert not torch.equal(nodes[0], nodes[2])


def test_random_subset_takes_every_candidate_equally_often() -> None:
    kernel, x = rbf(), torch.arange(8, dtype=torch.float64)[:, None]
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(8)
    for _ in range(400):
        found = RandomSubset(4).advance(Advance(kernel, None, x, 1.0, generator=generator))
        counts[found.tensors()["nodes"][:, 0].long()] += 1
    # 200 expected, standard deviation 10.
    assert float((counts - 200).abs().max()) < 40


@pytest.mark.parametrize("basis_class", BASES)
def test_without_new_inputs_the_set_stays(basis_class: type[Basis]) -> None:
    kernel, old = rbf(), PointFunctional(normal(4, 1))
    assert basis_class(6).advance(step(kernel, normal(0, 1), old)) is old
    with pytest.raises(ValueError, match="inputs must hold at least one point"):
        basis_class(6).advance(step(kernel, normal(0, 1)))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("basis_class", BASES)
def test_variances_are_never_negative_and_the_state_round_trip_is_exact(
    basis_class: type[Basis], dtype: torch.dtype
) -> None:
    t = torch.linspace(0.0, 20.0, 80, dtype=torch.float64)
    y = t.sin()

    def model() -> OnlineGP:
        kernel = Matern32(1, lengthscale=2.0)
        return OnlineGP(kernel, Gaussian(1e-4), basis_class(25), seed=3, dtype=dtype)

    gp = model()
    for part in torch.arange(60).chunk(6):
        gp.update(t[part], y[part])
    grid = torch.linspace(0.0, 30.0, 200, dtype=torch.float64)
    # Whitening with the jitter of float32 is good to 1e-6.
    limit = -1e-10 if dtype == torch.float64 else -1e-5
    assert float(gp.predict(grid).variance.min()) > limit
    copy = model()
    copy.load_state_dict(gp.state_dict())
    assert torch.equal(gp.predict(grid).mean, copy.predict(grid).mean)
    # The generator is part of the state: both choose the same points next.
    for one in (gp, copy):
        one.update(t[60:], y[60:])
    assert torch.equal(gp.predict(grid).mean, copy.predict(grid).mean)


def test_pivots_of_a_real_series_predict_as_the_exact_process(
    solar: tuple[np.ndarray, np.ndarray],
) -> None:
    x, y = (torch.from_numpy(part) for part in solar)
    kernel = RBF(1, lengthscale=0.4, outputscale=0.77).double().requires_grad_(False)
    train = torch.arange(391) % 5 > 0
    exact = exact_posterior(kernel, 0.0075, x[train, None], y[train], x[~train, None])
    spread = []
    for M in (50, 90, 150):
        gp = OnlineGP(kernel, Gaussian(0.0075), PivotedCholesky(M))
        for part in train.nonzero()[:, 0].chunk(10):
            gp.update(x[part], y[part])
        found = gp.predict(x[~train])
        spread.append((found.mean - exact.mean).square().mean().sqrt().item())
    assert spread[0] > 3 * spread[1] > 9 * spread[2]
    # The posterior's own standard deviation is 0.09.
    assert spread[2] < 0.01


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomSubset(0), "num_inducing must be a whole number of at least 1, got 0"),
        (lambda: PivotedCholesky(-1), "num_inducing must be a whole number of at least 1, got -1"),
        (lambda: AdamSteps(steps=0), "steps must be a whole number of at least 1, got 0"),
        (lambda: AdamSteps(learning_rate=0.0), "learning_rate must be positive"),
        (lambda: AdamSteps(learning_rate=math.nan), "learning_rate must be positive"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
