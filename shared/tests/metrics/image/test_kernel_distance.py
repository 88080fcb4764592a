import numpy as np
import pytest
import torch

from probseq.metrics.image import kernel_distance


def features(n, d, seed=0, spread=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(n, d, generator=generator, dtype=torch.float64) + shift


def by_loops(x, y):
    """Unbiased MMD² with (x·y/d + 1)³, pair by pair."""
    x, y = x.tolist(), y.tolist()

    def k(a, b):
        return (sum(p * q for p, q in zip(a, b, strict=True)) / len(a) + 1) ** 3

    def within(z):
        pairs = [k(a, b) for i, a in enumerate(z) for j, b in enumerate(z) if i != j]
        return sum(pairs) / len(pairs)

    between = [k(a, b) for a in x for b in y]
    return within(x) + within(y) - 2 * sum(between) / len(between)


def whole(x, y):
    """The distance of all features, which one subset of all is."""
    assert len(x) == len(y)
    return kernel_distance(x, y, subsets=1, subset_size=len(x))


@pytest.mark.parametrize(("n", "d"), [(2, 1), (7, 3), (12, 40)])
def test_it_is_the_slow_loops(n, d):
    real, fake = features(n, d, seed=1), features(n, d, seed=2, spread=1.5, shift=0.2)
    assert whole(real, fake).mean == pytest.approx(by_loops(real, fake), rel=1e-11, abs=1e-12)


def test_it_is_torch_fidelitys_number():
    metric = pytest.importorskip("torch_fidelity.metric_kid")
    real, fake = features(60, 16, seed=3), features(60, 16, seed=4, shift=-0.3)
    # All features are one subset, in whatever order each library draws it.
    expected = metric.kid_features_to_metric(
        real, fake, kid_subsets=3, kid_subset_size=60, rng_seed=0, verbose=False
    )
    found = kernel_distance(real, fake, subsets=3, subset_size=60)
    assert found.mean == pytest.approx(expected[metric.KEY_METRIC_KID_MEAN], rel=1e-10)
    assert found.std == pytest.approx(expected[metric.KEY_METRIC_KID_STD], abs=1e-12)
    # Subsets drawn by either have the same mean and the same spread.
    expected = metric.kid_features_to_metric(
        real, fake, kid_subsets=500, kid_subset_size=15, rng_seed=0, verbose=False
    )
    found = kernel_distance(
        real, fake, subsets=500, subset_size=15, generator=torch.Generator().manual_seed(5)
    )
    error = found.std / 500**0.5
    assert abs(found.mean - expected[metric.KEY_METRIC_KID_MEAN]) < 5 * 2**0.5 * error
    assert found.std == pytest.approx(expected[metric.KEY_METRIC_KID_STD], rel=0.3)


def test_small_subsets_are_not_biased():
    real, fake = features(40, 5, seed=6), features(40, 5, seed=7, spread=1.3)
    # All pairs are drawn alike: the expectation over subsets is the number of all features.
    expected = by_loops(real, fake)
    for size in (2, 20):
        found = kernel_distance(
            real,
            fake,
            subsets=1000,
            subset_size=size,
            generator=torch.Generator().manual_seed(size),
        )
        assert abs(found.mean - expected) < 5 * found.std / 1000**0.5
    assert (found.subsets, found.subset_size) == (1000, 20)


def test_sets_of_one_distribution_are_at_no_distance_on_average():
    found = np.array(
        [whole(features(20, 4, seed=k), features(20, 4, seed=1000 + k)).mean for k in range(300)]
    )
    assert abs(found.mean()) < 5 * found.std() / 300**0.5
    assert (found < 0).mean() > 0.3


def test_a_set_against_itself_is_below_zero_by_the_diagonal():
    x = features(9, 4, seed=8)
    kernel = (x @ x.T / 4 + 1) ** 3
    off = (kernel.sum() - kernel.trace()) / (9 * 8)
    expected = 2 / 9 * float(off - kernel.trace() / 9)
    assert whole(x, x).mean == pytest.approx(expected, rel=1e-11)
    assert expected < 0


def test_points_without_spread_have_the_kernels_own_distance():
    a, b = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([3.0, 1.0, -1.0])
    found = kernel_distance(a.expand(6, 3), b.expand(9, 3), subsets=4, subset_size=5)
    k = [(float(x @ y) / 3 + 1) ** 3 for x, y in ((a, a), (b, b), (a, b))]
    assert found.mean == pytest.approx(k[0] + k[1] - 2 * k[2], rel=1e-12)
    assert found.std == pytest.approx(0.0, abs=1e-12)


def test_the_generator_settles_the_draw():
    real, fake = features(30, 3, seed=9), features(25, 3, seed=10)

    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return kernel_distance(real, fake, subsets=4, subset_size=6, generator=generator)

    assert draw(0) == draw(0)
    assert draw(0).mean != draw(1).mean


def test_single_precision_loses_no_digits():
    real, fake = features(30, 6, seed=11).float(), features(30, 6, seed=12).float()
    expected = by_loops(real.double(), fake.double())
    assert whole(real, fake).mean == pytest.approx(expected, rel=1e-10)


def test_bad_features_and_subsets_are_refused(plain_calls):
    good = features(10, 3)
    with pytest.raises(ValueError, match=r"subset_size must be 2\.\.8, .* got 9"):
        kernel_distance(good, good[:8], subset_size=9)
    with pytest.raises(ValueError, match=r"subset_size must be 2\.\.10, .* got 1"):
        kernel_distance(good, good, subset_size=1)
    with pytest.raises(ValueError, match="subsets must be a whole number of at least 1, got 0"):
        kernel_distance(good, good, subsets=0, subset_size=2)
    with pytest.raises(ValueError, match="same dimension, got 3 and 2"):
        kernel_distance(good, good[:, :2], subset_size=2)
    with pytest.raises(ValueError, match=r"fake must have shape \(n, d\).*got \(10,\)"):
        kernel_distance(good, good[:, 0], subset_size=2)
    with pytest.raises(ValueError, match="real must be finite, got 1 NaN"):
        kernel_distance(good.where(good != good[3, 1], torch.nan), good, subset_size=2)
