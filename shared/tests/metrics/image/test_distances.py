import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probseq.metrics.image import FeatureMoments, frechet_distance, kernel_distance


def features(n, d, seed=0, spread=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return spread * x @ mixing + shift


def by_sqrtm(real, fake):
    """Heusel et al.'s formula with a matrix square root and numpy's covariances."""
    real, fake = real.double().numpy(), fake.double().numpy()
    s1, s2 = np.cov(real, rowvar=False), np.cov(fake, rowvar=False)
    root = scipy.linalg.sqrtm(s1 @ s2).real
    shift = real.mean(0) - fake.mean(0)
    return shift @ shift + np.trace(s1) + np.trace(s2) - 2 * np.trace(root)


def of_covariance(mean, covariance, count=1000):
    mean, covariance = (torch.as_tensor(a, dtype=torch.float64) for a in (mean, covariance))
    return FeatureMoments(count, mean, covariance * (count - 1))


@pytest.mark.parametrize(("n", "m"), [(50, 60), (50, 40), (200, 9)])
def test_it_is_the_formula_with_a_matrix_square_root(n, m):
    real, fake = features(n, 8, seed=1), features(m, 8, seed=2, spread=1.7, shift=0.3)
    assert float(frechet_distance(real, fake)) == pytest.approx(by_sqrtm(real, fake), rel=1e-9)


def test_matrices_of_several_blocks_are_the_formula_too():
    real, fake = features(700, 300, seed=7), features(650, 300, seed=8, spread=1.7)
    assert float(frechet_distance(real, fake)) == pytest.approx(by_sqrtm(real, fake), rel=1e-9)


def test_commuting_covariances_have_the_closed_form():
    # S₁ and S₂ with the same eigenvectors: Σ (√λ₁ − √λ₂)² and the shift.
    generator = torch.Generator().manual_seed(5)
    q = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    first = torch.tensor([4.0, 1.0, 0.25, 9.0, 2.0, 1e-3], dtype=torch.float64)
    second = torch.tensor([1.0, 1.0, 4.0, 0.0, 3.0, 5.0], dtype=torch.float64)
    mean = torch.arange(6.0, dtype=torch.float64)
    one = of_covariance(mean, q * first @ q.T)
    other = of_covariance(mean + 0.5, q * second @ q.T)
    expected = float((first.sqrt() - second.sqrt()).square().sum()) + 6 * 0.25
    # The direction without spread costs the root of its round-off.
    assert float(frechet_distance(one, other)) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("n", "d"), [(200, 10), (10, 200), (30, 30), (31, 30)])
def test_a_set_is_at_no_distance_from_itself(n, d):
    real = features(n, d, seed=6)
    spread = float(real.var(dim=0).sum())
    # √ of round-off of 1e-16 in each direction without spread, in units of the spread.
    assert float(frechet_distance(real, real.clone())) <= 1e-7 * spread
    moments = FeatureMoments.of(real)
    assert float(frechet_distance(moments, moments)) <= 1e-6 * spread
    assert float(frechet_distance(moments, real)) <= 1e-6 * spread


@pytest.mark.parametrize(
    ("n", "m", "d"), [(12, 15, 40), (12, 100, 40), (100, 12, 40), (12, 41, 40)]
)
def test_fewer_features_than_dimensions_give_the_number_of_the_large_matrices(n, m, d):
    real, fake = features(n, d, seed=7), features(m, d, seed=8, shift=0.1)
    expected = float(frechet_distance(FeatureMoments.of(real), FeatureMoments.of(fake)))
    assert float(frechet_distance(real, fake)) == pytest.approx(expected, rel=1e-6)
    # The eigenvalues of the unsymmetric product are a third way.
    product = np.cov(real.numpy(), rowvar=False) @ np.cov(fake.numpy(), rowvar=False)
    root = np.sqrt(np.linalg.eigvals(product).astype(complex)).real.sum()
    spread = float(real.var(dim=0).sum() + fake.var(dim=0).sum())
    shift = float((real.mean(dim=0) - fake.mean(dim=0)).square().sum())
    assert float(frechet_distance(real, fake)) == pytest.approx(shift + spread - 2 * root, rel=1e-5)


def test_features_that_never_move_make_no_jitter():
    # Dead units, as behind a rectifier: the covariance is singular on both sides.
    real, fake = features(60, 8, seed=9), features(70, 8, seed=10)
    padded = [torch.nn.functional.pad(x, (3, 4)) for x in (real, fake)]
    expected = float(frechet_distance(real, fake))
    assert float(frechet_distance(*padded)) == pytest.approx(expected, rel=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 20), m=st.integers(2, 20), d=st.integers(1, 12), seed=st.integers(0, 10_000)
)
def test_it_is_symmetric_not_negative_and_blind_to_rotation_and_shift(n, m, d, seed):
    real, fake = features(n, d, seed=seed), features(m, d, seed=seed + 1, shift=0.4)
    found = float(frechet_distance(real, fake))
    scale = 1e-6 * float(real.var(dim=0).sum() + fake.var(dim=0).sum())
    assert found >= 0.0
    assert float(frechet_distance(fake, real)) == pytest.approx(found, abs=scale)
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    moved = frechet_distance(real @ q + 2.0, fake @ q + 2.0)
    assert float(moved) == pytest.approx(found, abs=scale)
    assert float(frechet_distance(3 * real, 3 * fake)) == pytest.approx(9 * found, abs=10 * scale)


def test_single_precision_is_raised_before_anything_is_subtracted():
    x = (features(64, 4, seed=12) + 300).float()
    assert FeatureMoments.of(x).mean.dtype == torch.float64
    assert float(frechet_distance(x, x[torch.randperm(64)])) < 1e-6


def test_the_kernel_distance_is_the_loop_over_all_pairs_that_differ():
    x, y = features(5, 3, seed=1), features(4, 3, seed=2, shift=0.5)

    def mean(a, b, *, pairs):
        return np.mean(
            [
                float((p @ q / 3 + 1) ** 3)
                for i, p in enumerate(a)
                for j, q in enumerate(b)
                if pairs or i != j
            ]
        )

    expected = mean(x, x, pairs=False) + mean(y, y, pairs=False) - 2 * mean(x, y, pairs=True)
    assert float(kernel_distance(x, y)) == pytest.approx(expected)


def test_bad_features_are_refused(plain_calls):
    good = features(10, 3)
    with pytest.raises(ValueError, match=r"real must hold at least 2 features .* got 1"):
        frechet_distance(good[:1], good)
    with pytest.raises(ValueError, match=r"fake must hold at least 2 features .* got 1"):
        frechet_distance(good, FeatureMoments.of(good[:1]))
    with pytest.raises(ValueError, match="same dimension, got 3 and 2"):
        frechet_distance(good, good[:, :2])
    with pytest.raises(ValueError, match=r"fake must have shape \(n, d\).*got \(10, 3, 1\)"):
        frechet_distance(good, good[..., None])
    with pytest.raises(ValueError, match="real must be finite, got 1 NaN"):
        frechet_distance(good.where(good != good[3, 1], torch.nan), good)
    with pytest.raises(ValueError, match="floating-point"):
        frechet_distance(good.long(), good)
