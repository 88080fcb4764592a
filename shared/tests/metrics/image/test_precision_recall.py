import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probseq.metrics.image import precision_recall


def features(n, d, seed=0, spread=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(n, d, generator=generator, dtype=torch.float64) + shift


def by_loops(real, fake, k):
    """Both parts by definition, distance by distance."""
    real, fake = real.tolist(), fake.tolist()

    def covered(points, centres):
        radii = [
            sorted(math.dist(a, b) for j, b in enumerate(centres) if j != i)[k - 1]
            for i, a in enumerate(centres)
        ]
        inside = [
            any(math.dist(p, a) <= r for a, r in zip(centres, radii, strict=True)) for p in points
        ]
        return sum(inside) / len(inside)

    return covered(fake, real), covered(real, fake)


def balls_by_loops(real, fake, k):
    """Density and coverage by definition."""
    real, fake = real.tolist(), fake.tolist()
    radii = [
        sorted(math.dist(a, b) for j, b in enumerate(real) if j != i)[k - 1]
        for i, a in enumerate(real)
    ]
    inside = [[math.dist(p, a) <= r for a, r in zip(real, radii, strict=True)] for p in fake]
    covered = [any(column) for column in zip(*inside, strict=True)]
    return sum(map(sum, inside)) / (k * len(fake)), sum(covered) / len(real)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(5, 40),
    m=st.integers(5, 40),
    d=st.integers(1, 5),
    k=st.integers(1, 4),
    seed=st.integers(0, 10_000),
)
def test_it_is_the_slow_loops(n, m, d, k, seed):
    real, fake = features(n, d, seed=seed), features(m, d, seed=seed + 1, spread=0.8, shift=0.7)
    found = precision_recall(real, fake, neighbours=k)
    assert (found.precision, found.recall) == pytest.approx(by_loops(real, fake, k))
    assert (found.density, found.coverage) == pytest.approx(balls_by_loops(real, fake, k))
    assert found.neighbours == k


@pytest.mark.parametrize("k", [1, 3])
def test_it_is_torch_fidelitys_number(k):
    metric = pytest.importorskip("torch_fidelity.metric_prc")
    real, fake = features(200, 6, seed=1), features(150, 6, seed=2, spread=0.7, shift=0.5)
    expected = metric.prc_features_to_metric(fake, real, prc_neighborhood=k, verbose=False)
    found = precision_recall(real, fake, neighbours=k)
    assert 0.0 < found.recall < found.precision < 1.0
    assert found.precision == pytest.approx(expected[metric.KEY_METRIC_PRECISION], rel=1e-6)
    assert found.recall == pytest.approx(expected[metric.KEY_METRIC_RECALL], rel=1e-6)


def test_equal_sets_cover_each_other_and_disjoint_ones_nothing():
    x = features(50, 8, seed=3)
    for same in (x, x.flip(0), x[:1].expand(50, 8), x + 1e6):
        assert precision_recall(same, same.clone())[:2] == (1.0, 1.0)
    assert precision_recall(x, x + 1e3)[:2] == (0.0, 0.0)


def test_few_modes_cost_recall_and_stray_samples_precision():
    modes = 100.0 * torch.eye(4, dtype=torch.float64)
    real = torch.cat([features(25, 4, seed=k) + modes[k] for k in range(4)])
    one_mode = features(60, 4, seed=10, spread=0.5) + modes[0]
    found = precision_recall(real, one_mode)
    assert found.precision > 0.9
    assert found.recall <= 0.25
    stray = torch.cat([real + 0.01, features(100, 4, seed=11) - 300.0])
    found = precision_recall(real, stray)
    assert found.precision == pytest.approx(0.5)
    assert found.recall == 1.0


def test_the_rim_of_a_ball_belongs_to_it_and_a_feature_is_not_its_own_neighbour():
    real = torch.tensor([[0.0], [1.0], [3.0], [7.0]])  # nearest neighbours: 1, 1, 2, 4
    fake = torch.tensor([[-1.0], [-1.25], [11.0], [11.5], [1e3]])
    assert precision_recall(real, fake, neighbours=1).precision == pytest.approx(2 / 5)
    assert precision_recall(real.flip(0), fake, neighbours=1).precision == pytest.approx(2 / 5)


def test_many_features_are_met_in_blocks_with_the_same_result(monkeypatch):
    real, fake = features(83, 4, seed=5), features(61, 4, seed=6, shift=0.8)
    whole = precision_recall(real, fake)
    largest = []
    kept = torch.addmm

    def spy(*args, **options):
        largest.append(kept(*args, **options))
        return largest[-1]

    monkeypatch.setattr(torch, "addmm", spy)
    for block in (1, 200, 83 * 61):
        largest.clear()
        # The package has a function of the module's name.
        module = importlib.import_module("probseq.metrics.image._features")
        monkeypatch.setattr(module, "_BLOCK", block)
        assert precision_recall(real, fake) == whole
        # A row is the least.
        assert max(matrix.numel() for matrix in largest) <= max(block, 83)


def test_bad_features_and_neighbours_are_refused(plain_calls):
    good = features(10, 3)
    with pytest.raises(ValueError, match=r"neighbours must be 1\.\.3, .* got 4"):
        precision_recall(good, good[:4], neighbours=4)
    with pytest.raises(ValueError, match=r"neighbours must be 1\.\.9, .* got 0"):
        precision_recall(good, good, neighbours=0)
    with pytest.raises(ValueError, match="same dimension, got 3 and 2"):
        precision_recall(good, good[:, :2])
    with pytest.raises(ValueError, match=r"real must have shape \(n, d\).*got \(10, 3, 1\)"):
        precision_recall(good[..., None], good)
    with pytest.raises(ValueError, match="fake must be finite, got 1 NaN"):
        precision_recall(good, good.where(good != good[3, 1], torch.nan))


def test_one_feature_far_from_all_others_does_not_widen_the_balls_of_these():
    """Samples at a distance of 1 from balls of radius about 0.1."""
    real = features(40, 3, spread=0.02)
    fake = features(40, 3, seed=1, spread=0.02, shift=1.0)
    assert precision_recall(real, fake).precision == 0.0
    fake[0] = 3e6
    assert precision_recall(real, fake)[:2] == pytest.approx(by_loops(real, fake, 3))
    real[0] = -3e6
    found = precision_recall(real, fake)
    assert found.precision == 0.0
    assert found[:2] == pytest.approx(by_loops(real, fake, 3))
