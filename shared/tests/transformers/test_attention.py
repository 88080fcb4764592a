"""Softmax and kernel attention: the common suite, and equality with independent computations."""

import itertools

import pytest
import torch

from probseq.testing.attention import AttentionSuite
from probseq.transformers import KernelAttention, SoftmaxAttention


class TestSoftmaxAttention(AttentionSuite):
    half = True
    compile_imports = "from probseq.transformers import *"
    compile_modules = (
        "SoftmaxAttention(4, 2)",
        "SoftmaxAttention(4, 2, num_keys=3)",
        "KernelAttention(4, 2)",
        "KernelAttention(4, 2, kernel='exponential', symmetric=False)",
        "KernelAttention(4, 2, noise=0.1)",
    )

    def make(self, dim, num_heads):
        return SoftmaxAttention(dim, num_heads)


class TestSoftmaxAttentionThroughLearnedKeys(AttentionSuite):
    half = True

    def make(self, dim, num_heads):
        return SoftmaxAttention(dim, num_heads, num_keys=3)

    def test_a_token_reads_what_learned_queries_have_read_of_the_real_tokens(self):
        module, x = self.build(), self.tokens(2, 5, 4)
        mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        heads = torch.zeros(2, 5, 4, dtype=torch.float64)
        learned_queries, learned_keys = module.learned.detach()[:, 0]
        for sequence, head, token in itertools.product(range(2), range(2), range(5)):
            rows = slice(2 * head, 2 * head + 2)
            q, k, v = (weight[rows] for weight in module.to_qkv.weight.detach().chunk(3))
            real = x[sequence, mask[sequence]]
            summaries = torch.stack(
                [
                    (real @ k.T @ each / 2**0.5).softmax(0) @ (real @ v.T)
                    for each in learned_queries[head]
                ]
            )
            logits = learned_keys[head] @ q @ x[sequence, token] / 2**0.5
            heads[sequence, token, rows] = logits.softmax(0) @ summaries
        torch.testing.assert_close(module(x, mask).values, module.to_out(heads))


class KernelAttentionSuite(AttentionSuite):
    kernel = "rbf"
    symmetric = True

    def make(self, dim, num_heads):
        return KernelAttention(dim, num_heads, kernel=self.kernel, symmetric=self.symmetric)


class TestSymmetricRBFAttention(KernelAttentionSuite):
    pass


class TestAsymmetricRBFAttention(KernelAttentionSuite):
    symmetric = False


class TestNoisyKernelAttention(AttentionSuite):
    long_tokens = None

    def make(self, dim, num_heads):
        return KernelAttention(dim, num_heads, noise=0.3)

    def test_each_sample_adds_noise_of_that_deviation_to_the_heads(self):
        noisy, x = self.build(), self.tokens(2, 3, 4)
        plain = KernelAttention(4, 2).double()
        plain.load_state_dict(noisy.state_dict())
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            drawn = noisy(x, generator=generator, num_samples=20_000).values.unflatten(0, (-1, 2))
            centred = drawn - plain(x).values
        weight = noisy.to_out[0].weight.detach()
        # W ε with ε ~ N(0, σ² I): covariance σ² W Wᵀ, the same at all tokens, none between them.
        flat = centred.permute(1, 2, 3, 0).reshape(2 * 3 * 4, -1)
        expected = torch.block_diag(*[0.09 * weight @ weight.mT] * 6)
        torch.testing.assert_close(flat.cov(), expected, rtol=0, atol=0.1 * float(expected.max()))
        torch.testing.assert_close(flat.mean(1), torch.zeros(24).double(), rtol=0, atol=0.02)


class TestSymmetricExponentialAttention(KernelAttentionSuite):
    kernel = "exponential"
    # The kernels differ in one elementwise step.
    long_tokens = None
    # Unbounded: exp(|q|²) leaves float32 at an offset of 30 or a lengthscale e⁻³ times the usual.
    offset = 1.0
    log_lengthscale_shifts = (-2.0, 3.0)


class TestAsymmetricExponentialAttention(TestSymmetricExponentialAttention):
    symmetric = False


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


def test_learned_keys_below_one_are_refused_by_name():
    with pytest.raises(ValueError, match="num_keys must be a whole number of at least 1, got 0"):
        SoftmaxAttention(4, 2, num_keys=0)


@pytest.mark.parametrize("num_samples", [0, -1])
def test_sample_counts_below_one_are_refused_by_name(num_samples):
    with pytest.raises(ValueError, match="num_samples must be a whole number of at least 1"):
        SoftmaxAttention(4, 2)(torch.zeros(1, 3, 4), num_samples=num_samples)
