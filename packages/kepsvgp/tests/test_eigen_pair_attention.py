"""Kernel-eigen-pair attention passes the suite that every attention module passes."""

import math

import pytest
import torch
from torch.testing import assert_close

from kepsvgp import KernelEigenPairAttention
from probseq.testing.attention import AttentionSuite

RANK = 2


class TestAddition(AttentionSuite):
    options = {}  # noqa: RUF012
    # W_e and W_r belong to the places of the tokens in f(X), W_1 to all places.
    permuted_noises = ()
    compile_imports = "from kepsvgp import KernelEigenPairAttention as Attention"
    compile_modules = (
        "Attention(4, 2, 2)",
        "Attention(4, 2, 2, projection_tokens=2, shared_u=False)",
        "Attention(4, 2, 2, merge='concatenation', max_tokens=7)",
        "Attention(4, 2, 2, merge='concatenation-low-rank', max_tokens=7, branches='ee')",
    )

    def make(self, dim, num_heads):
        return KernelEigenPairAttention(dim, num_heads, RANK, **self.options)

    def test_permuting_tokens_does_not_permute_values(self):
        module, x = self.build(), self.tokens(2, 6, 4)
        order = torch.tensor([3, 0, 5, 1, 4, 2])
        generators = [torch.Generator().manual_seed(0) for _ in range(2)]
        plain, permuted = (
            module(inputs, generator=generator).values
            for inputs, generator in zip((x, x[:, order]), generators, strict=True)
        )
        assert not torch.allclose(permuted, plain[:, order])


class Variant(TestAddition):
    __test__ = False
    compile_modules = ()
    # The suite above names the same code.
    long_tokens = None

    def __init_subclass__(cls):
        cls.__test__ = True


class TestFewProjectionTokens(Variant):
    # Sequences have more tokens than f(X), or fewer.
    options = {"projection_tokens": 3}  # noqa: RUF012


class TestRandomPosterior(Variant):
    options = {"initial_posterior": "random"}  # noqa: RUF012


class TestSeparateInducingVariables(Variant):
    options = {"shared_u": False}  # noqa: RUF012


class TestLeftBranchTwice(Variant):
    options = {"branches": "ee"}  # noqa: RUF012


class TestRightBranchTwice(Variant):
    options = {"branches": "rr"}  # noqa: RUF012


class TestConcatenation(Variant):
    options = {"merge": "concatenation", "max_tokens": 16}  # noqa: RUF012

    def test_too_many_tokens_are_refused_by_name(self):
        with pytest.raises(ValueError, match="x must have at most max_tokens=16 tokens, got 17"):
            self.build()(self.tokens(1, 17, 4))


class TestConcatenationOfSeparateProcesses(Variant):
    options = {"merge": "concatenation", "max_tokens": 16, "shared_u": False}  # noqa: RUF012


class TestLowRankConcatenation(TestConcatenation):
    options = {"merge": "concatenation-low-rank", "max_tokens": 16}  # noqa: RUF012

    @pytest.mark.slow
    def test_long_sequences_need_no_square_matrix(self):
        self.long_tokens = 20_000
        self.options = self.options | {"max_tokens": 20_000}
        super().test_long_sequences_need_no_square_matrix()


class TestAdditionUpToALength(TestConcatenation):
    options = {"max_tokens": 16}  # noqa: RUF012


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": math.nan}, r"dropout must be in \[0, 1\), got nan"),
        ({"rank": 0}, "rank must be a whole number of at least 1, got 0"),
        ({"rank": 9, "max_tokens": 8}, "rank must be at most max_tokens=8, got 9"),
        ({"projection_tokens": 2}, "rank must be at most projection_tokens=2, got 3"),
        ({"merge": "concatenation"}, "max_tokens must be given with merge='concatenation'"),
        ({"merge": "concatenation-low-rank"}, "max_tokens must be given with merge='concaten"),
        ({"merge": "sum"}, r"merge must be one of \('addition', .*, got 'sum'"),
        ({"branches": "re"}, r"branches must be one of \('er', .*, got 're'"),
        ({"initial_posterior": "zero"}, "initial_posterior must be one of .*, got 'zero'"),
        ({"eta": -1.0}, r"eta must be finite and not negative, got -1\.0"),
        ({"eta": float("nan")}, "eta must be finite and not negative, got nan"),
        ({"eta": float("inf")}, "eta must be finite and not negative, got inf"),
    ],
)
def test_bad_arguments_are_refused_by_name(options, message):
    arguments = {"rank": 3} | options
    # Unwrapped, because shape checks switched on here would refuse first.
    cls = KernelEigenPairAttention
    with pytest.raises(ValueError, match=message):
        cls.__init__.__wrapped__(cls.__new__(cls), 8, 2, **arguments)


@pytest.mark.parametrize("shared_u", [True, False])
def test_without_samples_the_output_is_the_mean_of_many_samples(shared_u):
    torch.manual_seed(0)
    attention = KernelEigenPairAttention(8, 2, 3, shared_u=shared_u).double().eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    drawn = attention(x, num_samples=20_000).values.unflatten(0, (20_000, 2))
    attention.sample = False
    found, penalty = attention(x, num_samples=2)
    error = drawn.std(0) / math.sqrt(20_000)
    assert_close(found[:2], found[2:], rtol=0.0, atol=0.0)
    assert float(((found[:2] - drawn.mean(0)) / error).detach().abs().max()) < 5.0
    attention.sample = True
    assert_close(attention(x).penalty, penalty)
