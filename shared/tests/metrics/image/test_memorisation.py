import math

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probseq.metrics.image import memorisation, nearest


def features(n, d, seed=0, spread=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(n, d, generator=generator, dtype=torch.float64) + shift


@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(1, 12), n=st.integers(1, 12), levels=st.integers(1, 6), seed=st.integers(0, 999)
)
def test_it_counts_pairs_and_is_scipys_statistic(m, n, levels, seed):
    # Few levels, so that many distances are equal.
    generator = torch.Generator().manual_seed(seed)
    test, fake = (torch.randint(levels, (count,), generator=generator).double() for count in (m, n))
    pairs = [(f < t) + 0.5 * (f == t) for f in fake.tolist() for t in test.tolist()]
    found = memorisation(test, fake)
    assert found.nearer == pytest.approx(sum(pairs) / (m * n))
    if len({*test.tolist(), *fake.tolist()}) == 1:
        assert (found.nearer, found.c_t) == (0.5, 0.0)
        return
    # scipy tells no statistic, but two probabilities of it.
    for side, sign in (("less", 1.0), ("greater", -1.0)):
        theirs = scipy.stats.mannwhitneyu(
            fake, test, alternative=side, method="asymptotic", use_continuity=False
        )
        assert scipy.stats.norm.cdf(sign * found.c_t) == pytest.approx(theirs.pvalue, rel=1e-6)


def test_new_draws_are_as_near_as_test_images_copies_nearer_and_noise_farther():
    train, test = features(400, 6, seed=1), features(300, 6, seed=2)
    known = nearest(test, train).distance
    fresh, copied, noise = (
        memorisation(known, nearest(x, train).distance)
        for x in (
            features(300, 6, seed=3),
            train[:300] + 0.01 * features(300, 6, seed=4),
            features(300, 6, seed=5, spread=4.0),
        )
    )
    assert abs(fresh.c_t) < 4.0
    assert fresh.nearer == pytest.approx(0.5, abs=0.1)
    assert copied.nearer == 1.0
    assert copied.c_t < -20.0
    assert noise.nearer < 0.05
    assert noise.c_t > 15.0


def test_exact_copies_are_found_and_are_at_no_distance():
    train = features(50, 8, seed=1) + 1e4
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    found = nearest(train[order], train)
    assert torch.equal(found.number, order)
    assert torch.equal(found.distance, torch.zeros(50, dtype=torch.float64))


@pytest.mark.parametrize("block", [1, 40, 2**24])
def test_the_nearest_is_that_of_all_distances(block, monkeypatch):
    monkeypatch.setattr("probseq.metrics.image._features._BLOCK", block)
    x, y = features(20, 5, seed=1), features(30, 5, seed=2)
    found = nearest(x, y)
    for row, (distance, index) in enumerate(zip(*found, strict=True)):
        distances = [math.dist(x[row].tolist(), other) for other in y.tolist()]
        assert float(distance) == pytest.approx(min(distances))
        assert distances.index(min(distances)) == int(index)


def test_bad_distances_are_refused(plain_calls):
    x = torch.ones(3)
    for call, message in (
        (lambda: memorisation(x[:0], x), "test must not be empty"),
        (lambda: memorisation(x, x[None]), "fake must have shape"),
        (lambda: memorisation(x, x * math.nan), "fake must be finite"),
        (lambda: nearest(x[None], x[None, :2]), "features and references must have features"),
        (lambda: nearest(x, x[None]), "features must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
