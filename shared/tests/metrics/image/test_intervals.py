import math

import numpy as np
import pytest
import torch

from probseq.metrics.image import (
    FeatureMoments,
    frechet_distance,
    frechet_interval,
    inception_interval,
    inception_score,
    kernel_interval,
    precision_recall,
    precision_recall_intervals,
)


def features(n, d, seed=0, spread=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(n, d, generator=generator, dtype=torch.float64) + shift


def taken(count, draws, seed):
    """The rows of each draw."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(count, (draws, count), generator=generator)


def by_hand(estimate, drawn, least=-math.inf):
    value = 2 * estimate - np.mean(drawn)
    around = 1.959963984540054 * np.std(drawn, ddof=1)
    return estimate, *(max(end, least) for end in (value, value - around, value + around))


@pytest.mark.parametrize("moments", [False, True])
def test_frechet_intervals_are_those_of_rows_drawn_anew(moments):
    real, fake = features(60, 4, seed=1), features(40, 4, seed=2, spread=1.5, shift=0.4)
    reference = FeatureMoments.of(real) if moments else real
    found = frechet_interval(reference, fake, draws=7, generator=torch.Generator().manual_seed(3))
    drawn = [float(frechet_distance(real, fake[rows])) for rows in taken(40, 7, 3)]
    expected = by_hand(float(frechet_distance(real, fake)), drawn, 0.0)
    assert found[:4] == pytest.approx(expected, rel=1e-9)
    assert found.draws == 7


def test_frechet_intervals_take_a_reference_without_spread_in_some_direction():
    real, fake = features(60, 4, seed=1), features(40, 4, seed=2)
    real[:, 3] = 1.0
    found = frechet_interval(real, fake, draws=3, generator=torch.Generator().manual_seed(3))
    drawn = [float(frechet_distance(real, fake[rows])) for rows in taken(40, 3, 3)]
    expected = by_hand(float(frechet_distance(real, fake)), drawn, 0.0)
    assert found[:4] == pytest.approx(expected, rel=1e-6)


def cubed(x, y):
    return (sum(a * b for a, b in zip(x, y, strict=True)) / len(x) + 1) ** 3


def test_kernel_intervals_are_the_slow_loops_in_which_no_sample_meets_itself():
    real, fake = features(9, 3, seed=1).tolist(), features(7, 3, seed=2, shift=0.5).tolist()
    n, m = len(real), len(fake)

    def distance(rows):
        pairs = [(a, b) for a in rows for b in rows if a != b]
        own = sum(cubed(fake[a], fake[b]) for a, b in pairs) / len(pairs)
        reference = sum(cubed(real[i], real[j]) for i in range(n) for j in range(n) if i != j)
        across = sum(cubed(x, fake[j]) for x in real for j in rows) / (n * m)
        return reference / (n * (n - 1)) + own - 2 * across

    found = kernel_interval(
        torch.tensor(real, dtype=torch.float64),
        torch.tensor(fake, dtype=torch.float64),
        draws=5,
        generator=torch.Generator().manual_seed(4),
    )
    drawn = [distance(rows.tolist()) for rows in taken(m, 5, 4)]
    assert found[:4] == pytest.approx(by_hand(distance(list(range(m))), drawn), rel=1e-9)


def test_a_set_against_itself_is_below_zero_by_the_diagonal():
    x = features(9, 4, seed=8)
    kernel = (x @ x.T / 4 + 1) ** 3
    off = (kernel.sum() - kernel.trace()) / (9 * 8)
    expected = 2 / 9 * float(off - kernel.trace() / 9)
    assert expected < 0
    assert kernel_interval(x.float(), x.float(), draws=2).estimate == pytest.approx(expected, 1e-6)


def test_inception_intervals_are_those_of_rows_drawn_anew():
    probabilities = (2 * features(30, 5, seed=5)).softmax(dim=1)
    found = inception_interval(probabilities, draws=6, generator=torch.Generator().manual_seed(6))
    drawn = [inception_score(probabilities[rows], splits=1).mean for rows in taken(30, 6, 6)]
    expected = by_hand(inception_score(probabilities, splits=1).mean, drawn, 1.0)
    assert found[:4] == pytest.approx(expected, rel=1e-9)


# Of so many sets of samples at least so many intervals hold the truth: fewer happen once in 10,000
# times where each does with probability 0.95.
SETS, LEAST = 80, 69


def test_nineteen_of_twenty_frechet_intervals_hold_the_distance_between_the_gaussians():
    # N(0, I) and N(μ, diag(s²)): |μ|² + Σ (s − 1)².
    scale, mean = torch.linspace(0.6, 1.5, 6, dtype=torch.float64), 0.2
    truth = 6 * mean**2 + float((scale - 1).square().sum())
    identity = torch.eye(6, dtype=torch.float64)
    reference = FeatureMoments(2, torch.zeros(6, dtype=torch.float64), identity)
    generator = torch.Generator().manual_seed(0)
    found = [
        frechet_interval(
            reference, features(200, 6, seed=seed) * scale + mean, draws=100, generator=generator
        )
        for seed in range(SETS)
    ]
    assert sum(one.low <= truth <= one.high for one in found) >= LEAST
    # Without the correction fewer would: the distance is biased upwards by more than its error.
    errors = torch.tensor([[one.estimate - truth, one.value - truth] for one in found])
    bias, left = errors.mean(dim=0).tolist()
    assert abs(left) < 0.3 * bias
    # Not because they are wide: their half width is 1.96 standard deviations of the estimate.
    widths = torch.tensor([(one.high - one.low) / 2 for one in found])
    assert float(widths.mean() / (1.96 * errors[:, 0].std())) == pytest.approx(1.0, abs=0.3)


def test_nineteen_of_twenty_kernel_intervals_hold_the_distance_of_all_samples_there_are():
    real = features(100, 4, seed=1000)

    def draw(count, seed):
        return features(count, 4, seed=seed, spread=1.2, shift=0.3)

    everything = draw(4000, 2000)
    truth = kernel_interval(real, everything, draws=2).estimate
    generator = torch.Generator().manual_seed(0)
    found = [
        kernel_interval(real, draw(150, seed), draws=100, generator=generator)
        for seed in range(SETS)
    ]
    assert sum(one.low <= truth <= one.high for one in found) >= LEAST
    spread = torch.tensor([one.estimate for one in found]).std()
    widths = torch.tensor([(one.high - one.low) / 2 for one in found])
    assert float(widths.mean() / (1.96 * spread)) == pytest.approx(1.0, abs=0.3)


def test_nineteen_of_twenty_inception_intervals_hold_the_score_of_all_samples_there_are():
    def draw(count, seed):
        return (2 * features(count, 6, seed=seed)).softmax(dim=1)

    truth = inception_score(draw(100_000, 5000), splits=1).mean
    generator = torch.Generator().manual_seed(0)
    found = [
        inception_interval(draw(150, seed), draws=100, generator=generator) for seed in range(SETS)
    ]
    assert sum(one.low <= truth <= one.high for one in found) >= LEAST


def test_the_generator_settles_the_draw():
    real, fake = features(60, 3, seed=1), features(50, 3, seed=2, shift=2.0)
    first, again = (
        frechet_interval(real, fake, draws=20, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert first == again


def test_bad_features_and_draws_are_refused(plain_calls):
    x = features(9, 3)
    for call, message in (
        (lambda: frechet_interval(x, x[:3]), "fake must hold more features than their dimension 3"),
        (lambda: frechet_interval(x[:1], x), "real must hold at least 2 features"),
        (lambda: frechet_interval(x[:, :2], x), "same dimension"),
        (lambda: frechet_interval(x, x, draws=1), "draws must be at least 2, got 1"),
        (lambda: kernel_interval(x, x[:1]), "fake must hold at least 2 features, got 1"),
        (lambda: kernel_interval(x, x * math.nan), "fake must be finite"),
        (lambda: inception_interval(torch.ones(1, 1)), "at least 2 samples, got 1"),
        (lambda: inception_interval(torch.ones(3, 2)), "rows of probabilities"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_intervals_of_precision_and_recall_are_those_of_rows_drawn_anew():
    real, fake = features(40, 3, seed=1), features(30, 3, seed=2, spread=1.2, shift=0.8)
    found = precision_recall_intervals(
        real, fake, draws=9, generator=torch.Generator().manual_seed(3)
    )
    drawn = [precision_recall(real, fake[rows])[:4] for rows in taken(30, 9, 3)]
    spread = np.std(drawn, axis=0, ddof=1)
    z = 1.959963984540054
    for name, s, value in zip(found, spread, precision_recall(real, fake)[:4], strict=True):
        one = found[name]
        assert one.estimate == one.value == pytest.approx(value)
        if name == "density":
            assert (one.low, one.high) == pytest.approx((value - z * s, value + z * s))
            continue
        # Wilson's ends solve (x − p)² = z² x(1 − x)/N.
        count = value * (1 - value) / s**2
        for end in (one.low, one.high):
            assert (end - value) ** 2 == pytest.approx(z**2 * end * (1 - end) / count, rel=1e-6)
        assert one.low < value < one.high


def test_shares_of_all_and_of_none_have_intervals_too():
    x = features(50, 2, seed=1)
    found = precision_recall_intervals(x, x + 100.0, draws=5)
    # Wilson's for none of 50: z²/(50 + z²).
    assert (found["precision"].low, found["precision"].high) == pytest.approx((0, 0.0714), abs=1e-4)
    assert (found["density"].low, found["density"].high) == (0.0, 0.0)
    same = precision_recall_intervals(x, x.clone(), draws=5)
    assert (same["precision"].low, same["precision"].high) == pytest.approx((0.9286, 1), abs=1e-4)


@pytest.mark.slow
def test_nineteen_of_twenty_intervals_hold_what_new_samples_have_on_average():
    real = features(120, 4, seed=1000)

    def draw(seed):
        return features(120, 4, seed=seed, spread=0.8, shift=0.3)

    means = torch.tensor([precision_recall(real, draw(10_000 + seed))[:4] for seed in range(400)])
    truth, generator = means.mean(dim=0).tolist(), torch.Generator().manual_seed(0)
    found = [
        precision_recall_intervals(real, draw(seed), draws=100, generator=generator)
        for seed in range(SETS)
    ]
    for place, name in enumerate(found[0]):
        ends = [(one[name].low, one[name].high) for one in found]
        assert sum(low <= truth[place] <= high for low, high in ends) >= LEAST, name
        width = np.mean([(high - low) / 2 for low, high in ends])
        assert width / (1.96 * float(means[:, place].std())) == pytest.approx(1.0, abs=0.4), name
