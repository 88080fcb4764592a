"""Orders of the points of a path, against loops that follow the definitions."""

import pytest
import torch
from torch import Tensor

from ohsvgp.bases import ordering
from ohsvgp.bases.ordering import greedy_order, path_order
from probseq.kernels import RBF, Kernel, Matern12


def points(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=generator, dtype=torch.float64)


def by_the_definition(kernel: Kernel, x: Tensor, start: Tensor, nearest: bool) -> list[int]:
    left, at, order = list(range(len(x))), start, []
    while left:
        values = {i: float(kernel(at[None], x[i][None]).detach()) for i in left}
        best = max(left, key=lambda i: values[i]) if nearest else min(left, key=values.__getitem__)
        order.append(best)
        left.remove(best)
        at = x[best]
    return order


@pytest.mark.slow
@pytest.mark.parametrize("nearest", [True, False])
@pytest.mark.parametrize("limit", [0, 2048])
def test_greedy_rules_agree_with_a_loop_over_their_definition(
    nearest: bool, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "_MATRIX_LIMIT", limit)
    lengthscale = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    for seed, kernel in enumerate((RBF(3, lengthscale=lengthscale), Matern12(3).double())):
        x, start = points(30, seed), points(1, seed + 10)[0]
        expected = by_the_definition(kernel, x, start, nearest)
        assert greedy_order(kernel, x, start, nearest=nearest).tolist() == expected
        assert expected != list(range(30))


def test_the_first_task_starts_from_the_origin_and_later_ones_from_the_end_of_the_path() -> None:
    kernel, x, end = RBF(3).double(), points(12), points(1, 5)[0]
    for rule, nearest in (("kernel-max", True), ("kernel-min", False)):
        first = by_the_definition(kernel, x, torch.zeros(3, dtype=torch.float64), nearest)
        assert path_order(rule, kernel, x).tolist() == first
        later = by_the_definition(kernel, x, end, nearest)
        assert path_order(rule, kernel, x, end).tolist() == later
        assert first != later


def test_of_equally_near_points_the_earliest_comes_first() -> None:
    # On a line: elsewhere distances are products of matrices, which may round equal rows unequally.
    x = torch.tensor([[9.0], [1.0], [1.0], [9.0]], dtype=torch.float64)
    assert path_order("kernel-max", RBF(1).double(), x).tolist() == [1, 2, 0, 3]
    # All values underflow to zero here: what is left comes as it is.
    far = 1e3 * torch.arange(1.0, 5.0, dtype=torch.float64)[:, None].expand(4, 2)
    assert path_order("kernel-min", RBF(2).double(), far).tolist() == [0, 1, 2, 3]


def test_the_sum_over_a_batch_of_kernels_decides() -> None:
    batch = RBF(3, batch_shape=(2,), lengthscale=torch.tensor([0.3, 2.0])[:, None, None]).double()
    x, start = points(20), points(1, 3)[0]

    class Summed(RBF):
        def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
            return batch(x, z).sum(0)

    expected = by_the_definition(Summed(3).double(), x, start, True)
    assert greedy_order(batch, x, start, nearest=True).tolist() == expected


def test_given_keeps_the_stream_and_random_obeys_its_generator() -> None:
    kernel, x = RBF(3).double(), points(40)
    assert path_order("given", kernel, x).tolist() == list(range(40))
    draws = [
        path_order("random", kernel, x, generator=torch.Generator().manual_seed(seed)).tolist()
        for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert sorted(draws[2]) == list(range(40)) != draws[2]
