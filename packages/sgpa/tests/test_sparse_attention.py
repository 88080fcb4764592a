"""Sparse GP attention passes the suite that every attention module passes."""

import copy
import math

import pytest
import torch
from torch.testing import assert_close

from probseq.testing.attention import AttentionSuite
from probseq.transformers import TransformerConfig, vision_transformer
from sgpa import SGPAConfig, SparseGPAttention, StandardSparseGPAttention
from sgpa.posterior import _quadratic_form


class TestOrthogonalRBF(AttentionSuite):
    options = {}  # noqa: RUF012
    compile_imports = "from sgpa import *"
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


class TestInducingCovariance(TestOrthogonalRBF):
    options = {"covariance": "inducing"}  # noqa: RUF012
    compile_modules = ("SparseGPAttention(4, 2, 3, covariance='inducing')",)


class TestOrthogonalExponential(TestOrthogonalRBF):
    options = {"kernel": "exponential"}  # noqa: RUF012
    compile_modules = ()
    long_tokens = None
    # Unbounded: exp(|q|²) leaves float32 at an offset of 30 or a lengthscale e⁻³ times the usual.
    offset = 1.0
    log_lengthscale_shifts = (-2.0, 3.0)


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


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [{"kernel": "exponential"}, {"kernel": "rbf", "num_inducing": 32}]
)
def test_float32_and_float64_are_one_model_where_the_inducing_inputs_are_hard_to_tell_apart(
    options,
):
    options = {"num_inducing": 8, **options}
    for seed, offset in ((1, 0.0), (1, 30.0), (2, 30.0)):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            low = SparseGPAttention(8, 2, **options).eval()
            x = torch.randn(2, 16, 8) + offset
        mask = torch.arange(16) < torch.tensor([16, 5])[:, None]
        if low.kernel_name == "rbf":  # e⁴ is what the exponential kernel starts with
            low.kernel.raw_lengthscale += 4.0
        high = copy.deepcopy(low).double()
        found, expected = low.posterior(x, mask), high.posterior(x.double(), mask)
        for moment in ("mean", "variance"):
            exact = getattr(expected, moment)[:, mask]
            # Forty times the round-off of the inputs' squares.
            tolerance = 5e-6 * float(exact.abs().max())
            assert_close(getattr(found, moment)[:, mask].double(), exact, rtol=0.0, atol=tolerance)
        assert_close(
            low(x, mask).penalty.double(), high(x.double(), mask).penalty, rtol=1e-6, atol=0
        )


@torch.no_grad()
@pytest.mark.parametrize("variant", ["orthogonal", "decoupled"])
def test_the_divergence_of_known_tokens_is_right_and_never_negative_in_float32(variant):
    # Long lengthscales and no global part: all that the tokens say is known, and what is left of
    # the divergence is a ten-thousandth nat, the difference of two numbers near one hundred.
    for seed in range(10):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layer = SparseGPAttention(8, 2, 32, variant=variant, initial_posterior="prior")
            x = torch.randn(2, 64, 8)
        layer.kernel.raw_lengthscale += 4.0
        found = float(layer(x).penalty)
        expected = float(copy.deepcopy(layer).double()(x.double()).penalty)
        assert found >= 0.0
        assert abs(found - expected) < expected


@torch.no_grad()
def test_a_divergence_near_zero_is_not_negative_in_float32():
    for make in (
        lambda: SparseGPAttention(8, 2, 8, initial_posterior="prior"),
        lambda: StandardSparseGPAttention(8, 2, 16),
    ):
        for seed in range(10):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                layer = make()
                for name, parameter in layer.named_parameters():
                    if name in ("raw_inducing_factor", "to_factor.weight"):
                        parameter.copy_(1e-5 * torch.randn_like(parameter))
                    elif name in ("inducing_mean", "to_v.weight"):
                        parameter.zero_()
                x = torch.randn(3, 16, 8)
            assert float(layer(x).penalty) >= 0.0


def test_the_quadratic_form_is_exact_where_round_off_leaves_it_be():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1, 1, 6, 2, generator=generator, dtype=torch.float64)
    root = torch.randn(1, 1, 6, 3, generator=generator, dtype=torch.float64)
    root = root / root.norm(dim=-1, keepdim=True)
    # Of rank three, of rank one (its bound), and the identity, all with variances of one.
    for matrix in (root @ root.mT, torch.ones(1, 1, 6, 6), torch.eye(6)[None, None]):
        matrix = matrix.to(values)
        expected = torch.einsum("hbtc,hbtu,hbuc->hbc", values, matrix, values)
        assert_close(_quadratic_form(values, matrix @ values, None), expected)
        torch.autograd.gradcheck(
            lambda v, matrix=matrix: _quadratic_form(v, matrix @ v, None),
            values.clone().requires_grad_(),
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dropout": math.nan}, r"dropout must be in \[0, 1\), got nan"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"jitter": 0.0}, "jitter must be positive and finite, got 0.0"),
        ({"jitter": math.nan}, "jitter must be positive and finite, got nan"),
        ({"initial_variance": math.inf}, "initial_variance must be positive and finite, got inf"),
    ],
)
@pytest.mark.parametrize("maker", [SparseGPAttention, StandardSparseGPAttention])
def test_bad_arguments_are_refused_by_name(maker, changes, message):
    with pytest.raises(ValueError, match=message):
        maker(4, 2, 8, **changes)


@pytest.mark.parametrize("covariance", ["diag", "inducing", "full"])
def test_without_samples_the_output_is_the_posterior_s_mean(covariance):
    torch.manual_seed(0)
    attention = SparseGPAttention(8, 2, 3, covariance=covariance, sample=False).double().eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    heads = attention.posterior(x).mean
    expected = attention.to_out(heads.permute(1, 2, 0, 3).reshape(2, 5, 8))
    found, penalty = attention(x, num_samples=3)
    assert_close(found, expected.repeat(3, 1, 1))
    attention.sample = True
    assert not torch.equal(attention(x).values, expected)
    assert_close(attention(x).penalty, penalty)


def test_without_samples_a_model_runs_once_and_copies_its_end():
    config = TransformerConfig(depth=2, dim=8, num_heads=2, hidden_dim=12)
    seen = []
    torch.manual_seed(0)
    for sample in (True, False):
        model = vision_transformer(
            config,
            SGPAConfig(num_inducing=3, sample=sample),
            image_size=4,
            patch_size=2,
            channels=1,
            num_classes=3,
        ).eval()
        rows = []
        last = model.encoder.attention[-1]
        last.register_forward_hook(lambda own, given, found, rows=rows: rows.append(len(given[0])))
        logits = model(torch.randn(2, 1, 4, 4), num_samples=5).logits
        assert logits.shape == (5, 2, 3)
        seen.append(rows)
    assert seen == [[10], [2]]
    assert torch.equal(logits, logits[:1].expand(5, 2, 3))
