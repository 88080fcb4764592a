"""Softmax and kernel attention: the common suite, and equality with independent computations."""

import math

import pytest

from probseq.testing.attention import AttentionSuite
from probseq.transformers import KernelAttention, SoftmaxAttention


class TestSoftmaxAttention(AttentionSuite):
    half = True
    compile_imports = "from probseq.transformers import KernelAttention, SoftmaxAttention"
    compile_modules = (
        "SoftmaxAttention(4, 2)",
        "KernelAttention(4, 2)",
        "KernelAttention(4, 2, kernel='exponential', symmetric=False)",
    )

    def make(self, dim, num_heads):
        return SoftmaxAttention(dim, num_heads)


class KernelAttentionSuite(AttentionSuite):
    kernel = "rbf"
    symmetric = True

    def make(self, dim, num_heads):
        return KernelAttention(dim, num_heads, kernel=self.kernel, symmetric=self.symmetric)


class TestSymmetricRBFAttention(KernelAttentionSuite):
    pass


class TestAsymmetricRBFAttention(KernelAttentionSuite):
    symmetric = False


class TestSymmetricExponentialAttention(KernelAttentionSuite):
    kernel = "exponential"
    # The kernels differ in one elementwise step.
    long_tokens = None
    # Unbounded: exp(|q|²) leaves float32 at an offset of 30 or a lengthscale e⁻³ times the usual.
    offset = 1.0
    log_lengthscale_shifts = (-2.0, 3.0)


class TestAsymmetricExponentialAttention(TestSymmetricExponentialAttention):
    symmetric = False


@pytest.mark.parametrize("dropout", [-0.1, 1.0, math.nan])
@pytest.mark.parametrize("make", [SoftmaxAttention, KernelAttention])
def test_dropout_out_of_range_is_refused_by_name(make, dropout):
    with pytest.raises(ValueError, match=rf"dropout must be in \[0, 1\), got {dropout}"):
        make(4, 2, dropout=dropout)


@pytest.mark.parametrize("make", [SoftmaxAttention, KernelAttention])
@pytest.mark.parametrize(
    ("dim", "num_heads", "message"),
    [
        (0, 1, "dim must be a whole number of at least 1, got 0"),
        (-4, 2, "dim must be a whole number of at least 1, got -4"),
        (4, 0, "num_heads must be a whole number of at least 1, got 0"),
        (4, 3, "num_heads must divide dim=4, got num_heads=3"),
    ],
)
def test_widths_and_head_counts_out_of_range_are_refused_by_name(make, dim, num_heads, message):
    with pytest.raises(ValueError, match=message):
        make(dim, num_heads)
