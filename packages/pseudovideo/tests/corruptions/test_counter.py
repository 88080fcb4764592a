"""Counter-based normal numbers: the published hash, invariances, and statistical quality."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pseudovideo.corruptions.counter import counter_normal

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(word):
    """The finaliser in Python's whole numbers, as published."""
    word &= MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def slow_normal(index, count, seed, epoch):
    pairs = (count + 1) // 2
    stream = splitmix(splitmix(seed + GOLDEN) + epoch * GOLDEN)
    key = splitmix(index * GOLDEN + stream)
    cosines, sines = [], []
    for place in range(1, pairs + 1):
        word = splitmix(key ^ splitmix(place * GOLDEN))
        radius = math.sqrt(-2 * math.log(((word >> 32) + 0.5) / 2**32))
        angle = 2 * math.pi * ((word & 0xFFFFFFFF) + 0.5) / 2**32
        cosines.append(radius * math.cos(angle))
        sines.append(radius * math.sin(angle))
    return (cosines + sines)[:count]


def test_the_hash_is_the_published_one():
    """The first outputs of splitmix64 from state 1234567, as its implementations print them."""
    state, outputs = 1234567, []
    for _ in range(2):
        state += GOLDEN
        outputs.append(splitmix(state))
    assert outputs == [6457827717110365317, 3203168211198807973]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(-(2**63), 2**64), st.integers(0, 2**40), st.integers(0, 2**62), st.integers(1, 9)
)
def test_tensor_arithmetic_equals_whole_numbers(seed, epoch, index, count):
    found = counter_normal(torch.tensor([index]), count, seed=seed, epoch=epoch)
    expected = torch.tensor([slow_normal(index, count, seed, epoch)], dtype=torch.float32)
    # Where the first uniform number is close to 1, float32 has few digits of its logarithm.
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def unmixed(word):
    """The inverse of `splitmix`: shifts and odd multipliers can be undone."""

    def unshifted(word, shift):
        found = word
        for _ in range(64 // shift):
            found = word ^ (found >> shift)
        return found

    word = unshifted(word, 31)
    word = unshifted(word * pow(0x94D049BB133111EB, -1, 2**64) & MASK, 27)
    return unshifted(word * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK, 30)


@pytest.mark.parametrize("low", [0, 1, MASK >> 32])
def test_the_smallest_uniform_number_gives_the_largest_normal_ones_and_no_infinity(low):
    """The index is the one whose first hash has 32 zeros above the given lower bits."""
    assert unmixed(splitmix(1234567)) == 1234567
    stream = splitmix(splitmix(GOLDEN))
    key = unmixed(low) ^ splitmix(GOLDEN)
    # A hash of the index' own: key = splitmix(index * GOLDEN + stream).
    index = (unmixed(key) - stream) * pow(GOLDEN, -1, 2**64) & MASK
    index -= 2**64 * (index >= 2**63)
    found = counter_normal(torch.tensor([index]), 2, seed=0, epoch=0)[0]
    assert float(found.norm()) == pytest.approx(math.sqrt(2 * math.log(2**33)), rel=1e-6)


def test_a_sample_does_not_depend_on_its_batch():
    index = torch.tensor([7, 0, 123456789, 3])
    whole = counter_normal(index, 10, seed=1, epoch=2)
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(counter_normal(index[order], 10, seed=1, epoch=2), whole[order])
    parts = [counter_normal(part, 10, seed=1, epoch=2) for part in index.split(3)]
    assert torch.equal(torch.cat(parts), whole)


def test_seed_epoch_and_index_each_give_other_numbers():
    def draw(seed, epoch, index):
        return counter_normal(torch.tensor([index]), 6, seed=seed, epoch=epoch)

    places = [(s, e, i) for s in range(3) for e in range(3) for i in range(3)]
    drawn = torch.cat([draw(*place) for place in places])
    assert len(drawn.unique(dim=0)) == len(places)
    assert len(drawn.flatten().unique()) == drawn.numel()


@pytest.fixture(scope="module")
def numbers():
    """(4 epochs, 500 images, 512 pixels)."""
    draws = [counter_normal(torch.arange(500), 512, seed=3, epoch=e) for e in range(4)]
    return torch.stack(draws).double()


def test_the_distribution_is_normal_by_kolmogorov_and_smirnov(numbers):
    assert stats.kstest(numbers.flatten()[:200_000].numpy(), "norm").pvalue > 1e-3
    # Every pixel, each over its own 2,000 numbers: the p-values are uniform.
    values = [stats.kstest(numbers[..., k].flatten().numpy(), "norm").pvalue for k in range(64)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def correlations(rows):
    rows = rows - rows.mean(-1, keepdim=True)
    rows = rows / rows.norm(dim=-1, keepdim=True)
    products = rows @ rows.mT
    return products[~torch.eye(len(products), dtype=torch.bool)]


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("axis", ["pixel", "index", "epoch"])
def test_neither_values_nor_squares_correlate(numbers, axis, power):
    """All pairs along an axis: the mean of N times the squared correlation is 1."""
    source = {
        "pixel": numbers.permute(2, 0, 1),
        "index": numbers.permute(1, 0, 2),
        "epoch": numbers,
    }[axis]
    rows = source.flatten(1) ** power
    scaled = correlations(rows) * math.sqrt(rows.shape[1])
    pairs = len(scaled) / 2
    assert abs(float(scaled.square().mean()) - 1) < 5 * math.sqrt(2 / pairs)
    assert abs(float(scaled.mean())) < 5 / math.sqrt(pairs)
    assert float(scaled.abs().max()) < 6
