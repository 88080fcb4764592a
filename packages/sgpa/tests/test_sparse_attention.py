"""Sparse GP attention passes the suite that every attention module passes."""

import pytest
import torch

from probseq.testing.attention import AttentionSuite
from sgpa import SparseGPAttention, StandardSparseGPAttention


class TestOrthogonalRBF(AttentionSuite):
    options = {}  # noqa: RUF012
    compile_imports = "from sgpa import SparseGPAttention, StandardSparseGPAttention"
    compile_modules = (
        "SparseGPAttention(4, 2, 3)",
        "SparseGPAttention(4, 2, 3, kernel='exponential', covariance='full')",
        "StandardSparseGPAttention(4, 2, 6)",
    )

    def make(self, dim, num_heads):
        return SparseGPAttention(dim, num_heads, 3, **self.options)


class TestDecoupledRBF(TestOrthogonalRBF):
    options = {"variant": "decoupled"}  # noqa: RUF012
    compile_modules = ()
    long_tokens = None


class TestOneInducingInput(TestOrthogonalRBF):
    compile_modules = ()
    long_tokens = None

    def make(self, dim, num_heads):
        return SparseGPAttention(dim, num_heads, 1)


class TestFullCovariance(TestOrthogonalRBF):
    options = {"covariance": "full"}  # noqa: RUF012
    compile_modules = ()
    # A Cholesky factor follows the order of the tokens; the law of the draws doesn't.
    permuted_noises = (0.0,)
    # T×T is documented.
    long_tokens = None


class TestOrthogonalExponential(TestOrthogonalRBF):
    options = {"kernel": "exponential"}  # noqa: RUF012
    compile_modules = ()
    long_tokens = None
    # Unbounded: exp(|q|²) leaves float32 at an offset of 30 or a lengthscale e⁻³ times the usual.
    offset = 1.0
    log_lengthscale_shifts = (-2.0, 3.0)
    # Long lengthscales make a nearly singular covariance, where the jitter, 1e-6 in float32 and
    # 1e-8 in float64, shows.
    float32_tol = 1e-3


class TestStandard(AttentionSuite):
    # Column t of the factor belongs to position t.
    permuted_noises = ()
    long_tokens = None
    # The factor's logarithm is linear in the tokens, whose norm is 1 behind a LayerNorm.
    offset = 3.0
    covariance = "diag"

    def make(self, dim, num_heads):
        return StandardSparseGPAttention(dim, num_heads, 16, covariance=self.covariance)

    def test_too_many_tokens_are_refused_by_name(self):
        with pytest.raises(ValueError, match="x must have at most max_tokens=16 tokens, got 17"):
            self.build()(self.tokens(1, 17, 4))


class TestStandardFull(TestStandard):
    covariance = "full"


@pytest.mark.parametrize("num_samples", [0, -1])
def test_sample_counts_below_one_are_refused(num_samples):
    layer = SparseGPAttention(8, 2, 3)
    with pytest.raises(ValueError, match="num_samples must be None or at least 1"):
        layer(torch.zeros(1, 4, 8), num_samples=num_samples)
