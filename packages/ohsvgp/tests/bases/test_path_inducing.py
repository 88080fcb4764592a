"""Inducing sets along a path: closed forms against loops, quadrature and plain functionals."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, linalg
from scipy.special import eval_legendre
from torch import Tensor

from ohsvgp.bases import path_inducing
from ohsvgp.bases.base import Advance
from ohsvgp.bases.path import Path
from ohsvgp.bases.path_inducing import PathFeatures, cell_weights
from ohsvgp.hippo.random_features import FeatureKernel
from ohsvgp.inducing import Inducing, PointFunctional
from probseq.kernels import RBF, Kernel, Matern32

DIM = 3


def stream(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, (3 * x).sin().sum(-1) + 0.1 * noise


def bound(kernel: Kernel, M: int, **options: Any) -> Path:
    basis = Path(M, **options)
    basis.bind(kernel, torch.Generator().manual_seed(0))
    return basis


def walk(basis: Path, kernel: Kernel, parts: list[Tensor]) -> Inducing:
    """The inducing set after the parts, one after the other."""
    old: Inducing | None = None
    seen = 0
    for part in parts:
        seen += len(part)
        old = basis.advance(Advance(basis.prior(kernel), old, part, float(seen)))
    assert old is not None
    return old


def legs(M: int) -> tuple[np.ndarray, np.ndarray]:
    """A and b of thesis Eq. 2.15, d/dt c = (−A c + b f)/t, entry by entry."""
    A = np.zeros((M, M))
    for m in range(M):
        A[m, m] = m + 1
        for k in range(m):
            A[m, k] = np.sqrt((2 * m + 1) * (2 * k + 1))
    return A, np.sqrt(2 * np.arange(M) + 1)


def loop_of_exact_steps(M: int, values: np.ndarray, step: float) -> np.ndarray:
    """C after a point at a time: over each cell f is constant, and c relaxes towards f·e_0."""
    A, _ = legs(M)
    c = np.outer(np.eye(M)[0], values[0])
    for i in range(1, len(values)):
        rest = np.outer(np.eye(M)[0], values[i])
        c = rest + linalg.expm(-A * np.log((i + 1) * step / (i * step))) @ (c - rest)
    return c


def test_cell_weights_integrate_the_polynomials_over_the_cells() -> None:
    M, T = 7, 9
    W = cell_weights(M, 4, T)
    assert W.shape == (M, 5)
    for m in range(M):
        for i in range(5, T + 1):
            expected = integrate.quad(
                lambda s, m=m: np.sqrt(2 * m + 1) * eval_legendre(m, 2 * s / T - 1) / T, i - 1, i
            )[0]
            assert abs(float(W[m, i - 5]) - expected) < 1e-14


@pytest.mark.parametrize("step", [1.0, 0.01])
def test_block_equals_the_loop_of_exact_steps_for_any_time_step(step: float) -> None:
    kernel = RBF(DIM).double()
    x, _ = stream(40)
    basis = bound(kernel, 12, num_features=20)
    values = FeatureKernel(kernel, basis.frequencies).features(x).detach().numpy()
    expected = loop_of_exact_steps(12, values, step)
    for sizes in ([40], [1, 15, 24], [1] * 40):
        block = walk(basis, kernel, list(x.split(sizes)))
        assert isinstance(block, PathFeatures)
        assert np.abs(block.coefficients.detach().numpy() - expected).max() < 1e-13


def test_euler_steps_of_eq_4_18_converge_to_the_block_as_they_become_finer() -> None:
    M, kernel = 6, RBF(DIM).double()
    x, _ = stream(12)
    basis = bound(kernel, M, num_features=10)
    values = FeatureKernel(kernel, basis.frequencies).features(x).detach().numpy()
    exact = walk(basis, kernel, [x])
    assert isinstance(exact, PathFeatures)
    A, b = legs(M)

    def euler(steps: int) -> float:
        c = np.outer(np.eye(M)[0], values[0])
        for i in range(1, len(values)):
            for t in i + np.arange(steps) / steps:
                c = c + (-A @ c + np.outer(b, values[i])) / (t * steps)
        return float(np.abs(c - exact.coefficients.detach().numpy()).max())

    errors = [euler(steps) for steps in (50, 100, 200, 400)]
    ratios = [coarse / fine for coarse, fine in pairwise(errors)]
    assert all(1.8 < ratio < 2.2 for ratio in ratios)
    # The thesis takes one step a point.
    assert euler(1) > 100 * errors[-1]


@pytest.mark.parametrize("kernel", [RBF(DIM), Matern32(DIM, lengthscale=0.4)])
def test_covariances_of_kept_inputs_are_those_of_the_plain_functional(kernel: Kernel) -> None:
    kernel = kernel.double()
    x, _ = stream(50)
    basis = bound(kernel, 8, memory="inputs")
    old = walk(basis, kernel, [x[:20], x[20:30]])
    new = walk(basis, kernel, [x[:20], x[20:30], x[30:31], x[31:]])
    plain_old = PointFunctional(x[:30], cell_weights(8, 0, 30))
    plain_new = PointFunctional(x, cell_weights(8, 0, 50))
    with torch.no_grad():
        torch.testing.assert_close(new.covariance(kernel), plain_new.covariance(kernel))
        torch.testing.assert_close(
            old.cross_inducing(kernel, new), plain_old.cross_inducing(kernel, plain_new)
        )
        torch.testing.assert_close(
            new.cross_inducing(kernel, old), plain_new.cross_inducing(kernel, plain_old)
        )
        torch.testing.assert_close(new.cross(kernel, x[:7]), plain_new.cross(kernel, x[:7]))
        # The joint covariance of old, new and function values has no negative eigenvalue.
        cross = old.cross_inducing(kernel, new)
        joint = torch.cat(
            [
                torch.cat([old.covariance(kernel), cross, old.cross(kernel, x)], dim=1),
                torch.cat([cross.mT, new.covariance(kernel), new.cross(kernel, x)], dim=1),
                torch.cat([old.cross(kernel, x).mT, new.cross(kernel, x).mT, kernel(x, x)], dim=1),
            ]
        )
        assert float(torch.linalg.eigvalsh(joint).min()) > -1e-12


@pytest.mark.parametrize("tile", [1, 4])
def test_tiles_change_nothing(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = RBF(DIM, batch_shape=(2,), lengthscale=torch.tensor([0.4, 1.0])[:, None, None])
    kernel = kernel.double()
    x, _ = stream(9)
    whole = walk(bound(kernel, 5, memory="inputs"), kernel, [x])
    expected = whole.covariance(kernel)
    assert expected.shape == (2, 5, 5)
    monkeypatch.setattr(path_inducing, "_TILE", tile)
    blocks = walk(bound(kernel, 5, memory="inputs"), kernel, [x])
    torch.testing.assert_close(blocks.covariance(kernel), expected)
    crossed = blocks.cross(kernel, x)
    monkeypatch.undo()
    torch.testing.assert_close(crossed, whole.cross(kernel, x))


def test_gradients_reach_the_hyperparameters_through_the_kept_covariance() -> None:
    kernel = RBF(DIM, lengthscale=0.7).double()
    x, _ = stream(30)
    kept = walk(bound(kernel, 4, memory="inputs"), kernel, [x[:10], x[10:]])

    kept.covariance(kernel).square().sum().backward()
    raw, shift = kernel.raw_lengthscale.detach().clone(), torch.zeros(1, DIM, dtype=torch.float64)
    shift[0, 1] = 1e-5
    with torch.no_grad():
        kernel.raw_lengthscale.copy_(raw + shift)
        above = kept.covariance(kernel).square().sum()
        kernel.raw_lengthscale.copy_(raw - shift)
        below = kept.covariance(kernel).square().sum()
    gradient = kernel.raw_lengthscale.grad
    assert gradient is not None
    torch.testing.assert_close(gradient[0, 1], (above - below) / 2e-5, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("order", ["given", "kernel-max"])
@torch.no_grad()
def test_what_is_kept_of_the_last_batch_is_what_is_computed_anew(order: str) -> None:
    kernel = RBF(DIM, lengthscale=0.7).double()
    x, _ = stream(40)
    basis = bound(kernel, 6, memory="inputs", order=order)
    first = walk(basis, kernel, [x[:15]])
    second = basis.advance(Advance(kernel, first, x[15:32], 32.0))
    third = basis.advance(Advance(kernel, basis.restore(second.tensors()), x[32:], 40.0))
    for old, new, batch in ((first, second, x[15:32]), (second, third, x[32:])):
        restored = basis.restore(old.tensors()), basis.restore(new.tensors())
        torch.testing.assert_close(new.cross(kernel, batch), restored[1].cross(kernel, batch))
        torch.testing.assert_close(
            old.cross_inducing(kernel, new), restored[0].cross_inducing(kernel, restored[1])
        )
    # Two batches later, and under other hyperparameters, it is another one.
    plain = [basis.restore(each.tensors()) for each in (first, third)]
    torch.testing.assert_close(
        first.cross_inducing(kernel, third), plain[0].cross_inducing(kernel, plain[1])
    )
    kernel.raw_lengthscale += 0.1
    torch.testing.assert_close(third.cross(kernel, x[32:]), plain[1].cross(kernel, x[32:]))
    torch.testing.assert_close(
        second.cross_inducing(kernel, third),
        basis.restore(second.tensors()).cross_inducing(kernel, plain[1]),
    )
