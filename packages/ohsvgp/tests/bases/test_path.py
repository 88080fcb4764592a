"""Models on a path through inputs of several dimensions: both memories, orders, states."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ohsvgp import Gaussian, OnlineGP
from ohsvgp.bases.ordering import path_order
from ohsvgp.bases.path import Path
from ohsvgp.bases.path_inducing import cell_weights
from ohsvgp.hippo.random_features import FeatureKernel
from ohsvgp.inducing import PointFunctional
from probseq.kernels import RBF

DIM = 3


def stream(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, (3 * x).sin().sum(-1) + 0.1 * noise


def model(M: int, **options: Any) -> OnlineGP:
    lengthscale = torch.tensor([0.5, 0.7, 1.0], dtype=torch.float64)
    return OnlineGP(RBF(DIM, lengthscale=lengthscale), Gaussian(0.01), Path(M, **options))


@pytest.mark.parametrize("memory", ["features", "inputs"])
def test_the_gradient_of_the_bound_is_its_slope(memory: Any) -> None:
    x, y = stream(25)
    gp = model(6, memory=memory, num_features=30)
    raw = gp.kernel.raw_lengthscale
    gp.energy(x, y).backward()
    assert raw.grad is not None
    values = []
    for shift in (1e-5, -1e-5):
        with torch.no_grad():
            raw[0, 1] += shift
            values.append(float(gp.energy(x, y)))
            raw[0, 1] -= shift
    slope = (values[0] - values[1]) / 2e-5
    assert abs(float(raw.grad[0, 1]) - slope) < 1e-5 * abs(slope)


@pytest.mark.parametrize("order", ["given", "kernel-max", "kernel-min", "random"])
def test_both_memories_are_one_model_under_the_kernel_of_the_features(order: Any) -> None:
    x, y = stream(60)
    kernel = RBF(DIM, lengthscale=0.6).double()
    features = OnlineGP(kernel, Gaussian(0.01), Path(9, num_features=40, order=order))
    frequencies = features.basis.tensors()["frequencies"]
    inputs = OnlineGP(
        FeatureKernel(kernel, frequencies), Gaussian(0.01), Path(9, memory="inputs", order=order)
    )
    inputs.generator.set_state(features.generator.get_state())
    for part in torch.arange(60).split([5, 1, 34, 20]):
        a, b = features.update(x[part], y[part]), inputs.update(x[part], y[part])
        torch.testing.assert_close(a.energy, b.energy, rtol=1e-7, atol=1e-7)
    a, b = features.predict(x), inputs.predict(x)
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(a.variance, b.variance, rtol=1e-7, atol=1e-7)


def test_the_end_of_the_path_starts_the_next_task() -> None:
    x, y = stream(30)
    gp = model(4, memory="inputs", order="kernel-max")
    gp.update(x[:15], y[:15])
    gp.update(x[15:], y[15:])
    path = gp.state_dict()["inducing.nodes"]
    assert torch.equal(path[:15], x[:15][path_order("kernel-max", gp.kernel, x[:15])])
    later = path_order("kernel-max", gp.kernel, x[15:], path[14])
    assert torch.equal(path[15:], x[15:][later])


def test_the_order_goes_by_the_kernel_and_not_by_its_features() -> None:
    x, y = stream(30)
    gp = model(4, num_features=3, order="kernel-max")
    gp.update(x, y)
    ends = [
        x[path_order("kernel-max", kernel, x)][-1]
        for kernel in (gp.kernel, gp.basis.prior(gp.kernel))
    ]
    assert not torch.equal(ends[0], ends[1])
    assert torch.equal(gp.state_dict()["inducing.last"], ends[0])


@pytest.mark.parametrize("memory", ["features", "inputs"])
def test_more_inducing_variables_than_points_make_the_exact_process(memory: Any) -> None:
    """256 functionals of 8 points span the points: the posterior is that of the exact GP."""
    x, y = stream(40)
    gp = model(256, memory=memory, num_features=60)
    first = gp.update(x[:8], y[:8])
    assert first.jitter_used < 1.1e-8
    kernel = gp.basis.prior(gp.kernel)

    def exact(n: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            K = kernel(x[:n], x[:n]) + 0.01 * torch.eye(n, dtype=torch.float64)
            k = kernel(x[:n], x)
            mean = k.mT @ torch.linalg.solve(K, y[:n])
            return mean, (kernel.diag(x) - (k * torch.linalg.solve(K, k)).sum(0))

    for n in (8, 9, 40):
        if n > 8:
            old = int(gp.state.count) if gp.state else 0
            gp.update(x[old:n], y[old:n])
        mean, variance = exact(n)
        law = gp.predict(x)
        torch.testing.assert_close(law.mean, mean, rtol=0, atol=1e-4)
        torch.testing.assert_close(law.variance, variance, rtol=0, atol=1e-4)


def test_the_feature_memory_does_not_grow_and_the_input_memory_keeps_only_inputs() -> None:
    x, y = stream(60)
    sizes: dict[str, list[int]] = {}
    for memory in ("features", "inputs"):
        gp = model(5, memory=memory, num_features=30)
        for part in torch.arange(60).split(20):
            gp.update(x[part], y[part])
            total = sum(tensor.numel() for tensor in gp.state_dict().values())
            sizes.setdefault(memory, []).append(total)
    assert len(set(sizes["features"])) == 1
    assert np.diff(sizes["inputs"]).tolist() == [20 * DIM, 20 * DIM]


def test_hyperparameters_may_change_with_kept_inputs_and_not_with_features() -> None:
    x, y = stream(40)
    gp = model(6, memory="inputs")
    gp.update(x[:20], y[:20])
    with torch.no_grad():
        gp.kernel.raw_lengthscale.add_(0.3)
    gp.update(x[20:], y[20:])
    state = gp.state
    assert state is not None
    expected = PointFunctional(x, cell_weights(6, 0, 40))
    with torch.no_grad():
        torch.testing.assert_close(
            state.inducing.covariance(gp.kernel), expected.covariance(gp.kernel)
        )
    fixed = model(6, num_features=30)
    fixed.update(x[:20], y[:20])
    with torch.no_grad():
        fixed.kernel.raw_lengthscale.add_(0.3)
    with pytest.raises(ValueError, match="kernel must keep its hyperparameters once Path"):
        fixed.update(x[20:], y[20:])


def test_kernels_per_series_share_one_path() -> None:
    x, y = stream(30)
    y = torch.stack([y, y.square() / 4])
    scales = torch.tensor([0.5, 1.5], dtype=torch.float64)[:, None, None].expand(2, 1, DIM)
    both = OnlineGP(
        RBF(DIM, batch_shape=(2,), lengthscale=scales), Gaussian(0.01), Path(6, memory="inputs")
    )
    for part in torch.arange(30).split(10):
        both.update(x[part], y[:, part])
    for series in range(2):
        single = OnlineGP(
            RBF(DIM, lengthscale=scales[series]), Gaussian(0.01), Path(6, memory="inputs")
        )
        for part in torch.arange(30).split(10):
            single.update(x[part], y[series, part])
        torch.testing.assert_close(both.predict(x).mean[series], single.predict(x).mean)
        torch.testing.assert_close(both.predict(x).variance[series], single.predict(x).variance)


def test_a_first_batch_without_inputs_is_refused_and_a_later_one_changes_nothing() -> None:
    x, y = stream(10)
    gp = model(3, num_features=20)
    with pytest.raises(ValueError, match="t must hold at least one input at first"):
        gp.update(x[:0], y[:0])
    gp.update(x, y)
    before = gp.predict(x)
    assert gp.update(x[:0], y[:0]).n_new == 0
    torch.testing.assert_close(gp.predict(x).mean, before.mean)
