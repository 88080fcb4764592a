"""The layer against the thesis' formulas taken literally, equations 3.15 and B.11, in float64."""

import pytest
import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from probseq.linalg import safe_cholesky
from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import check_tokens
from sgpa import SparseGPAttention
from sgpa.posterior import factor_from_raw

BATCH, TOKENS, HEADS, WIDTH, INDUCING = 3, 7, 3, 4, 5
_VARIANCE_FLOOR = 1e-10


def literal_attention(
    module: SparseGPAttention,
    x: Float[Tensor, "batch tokens dim"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
    noise: Float[Tensor, "batch heads tokens channels"] | None = None,
) -> AttentionOutput:
    r"""Evaluate a :class:`~sgpa.attention.SparseGPAttention` by the printed formulas.

    Per head, with :math:`v_a` zero at padding and :math:`S_d = L R_d R_d^\top L^\top` (3.15):

    .. math::
        m_d &= K_{qk_a} v_{a,d} - K_{qk_g} K_{gg}^{-1} K_{gk_a} v_{a,d} + K_{qk_g} v_{g,d} \\
        \Sigma_d &= K_{qq} + K_{qk_g} K_{gg}^{-1} (S_d - K_{gg}) K_{gg}^{-1} K_{k_gq}

    of which the plain decoupled variant keeps the first term of the mean (B.14).

    The module stands in the first block, with ``covariance="diag"``; its output for the same
    standard normal ``noise``, which is drawn if ``None``, is equal to round-off.
    """
    check_tokens(x, mask, module.dim, getattr(module.to_qk, "weight", x))
    heads = module.num_heads
    queries, values = (
        rearrange(linear(x), "b t (h c) -> b h t c", h=heads)
        for linear in (module.to_qk, module.to_v)
    )
    if mask is not None:
        values = values.masked_fill(~mask[:, None, :, None], 0.0)
    rows = rearrange(module.to_qk.weight, "(h c) d -> h c d", h=heads)
    inducing = einsum(module.inducing_inputs, rows, "h m d, h c d -> h m c")

    k_qq = _kernel(module, queries, queries)
    k_qg = _kernel(module, queries, inducing)
    k_gg = _kernel(module, inducing, inducing)
    # As in the module, the jitter is relative to each inducing input's own variance.
    deviation = k_gg.diagonal(dim1=-2, dim2=-1).sqrt()[..., None]
    cholesky = deviation * safe_cholesky(k_gg / (deviation * deviation.mT), jitter=module.jitter)
    k_gg = cholesky @ cholesky.mT
    inverse = torch.cholesky_inverse(cholesky)
    root = cholesky[:, None] @ factor_from_raw(module.raw_inducing_factor)
    s_g = root @ root.mT

    mean = prior_mean = k_qq @ values
    if module.inducing_mean is not None:
        mean = mean - k_qg @ (inverse @ (k_qg.mT @ values)) + k_qg @ module.inducing_mean
    solved = k_qg @ inverse
    product = torch.einsum("bhtm,hcmn->bhctn", solved, s_g - k_gg[:, None])
    prior = k_qq.diagonal(dim1=-2, dim2=-1)[..., None]
    variance = prior + (product * solved[:, :, None]).sum(-1).mT
    variance = torch.maximum(variance, _VARIANCE_FLOOR * prior)
    samples = mean + variance.sqrt() * (torch.randn_like(mean) if noise is None else noise)

    # (B.11): the sum over dimensions of the sequences' part, then of the global one.
    local = (values * prior_mean).sum()
    if module.inducing_mean is not None:
        projected = k_qg.mT @ values
        local = local - (projected * (inverse @ projected)).sum()
    shared = torch.einsum("hcmn,hnm->", s_g, inverse) - _logdet(root).sum()
    shared = shared + values.shape[-1] * (_logdet(cholesky) - k_gg.shape[-1]).sum()
    if module.inducing_mean is not None:
        shared = shared + (module.inducing_mean * (k_gg @ module.inducing_mean)).sum()
    penalty = 0.5 * (local / len(x) + module.global_weight * shared)
    return AttentionOutput(module.to_out(rearrange(samples, "b h t c -> b t (h c)")), penalty)


def _kernel(
    module: SparseGPAttention,
    x: Float[Tensor, "*batch heads n channels"],
    z: Float[Tensor, "*batch2 heads m channels"],
) -> Float[Tensor, "*batch heads n m"]:
    """Kernel matrix of every head: of differences (RBF) or of products (exponential)."""
    x, z = x / module.kernel.lengthscale, z / module.kernel.lengthscale
    scale = module.kernel.outputscale[:, None, None]
    if module.kernel_name == "exponential":
        return scale * torch.exp(x @ z.mT)
    difference = x[..., :, None, :] - z[..., None, :, :]
    return scale * torch.exp(-0.5 * difference.square().sum(-1))


def _logdet(root: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b"]:
    """Log-determinant of a matrix from its Cholesky factor."""
    return 2.0 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def make_attention(kernel, **options):
    torch.manual_seed(0)
    dim = HEADS * WIDTH
    attention = SparseGPAttention(dim, HEADS, INDUCING, kernel=kernel, **options).double()
    with torch.no_grad():
        # Close enough that kernel values are far from both 0 and 1.
        attention.kernel.raw_lengthscale.copy_(0.3 * torch.randn(HEADS, 1, WIDTH) + 0.5)
        attention.kernel.raw_outputscale.copy_(0.5 * torch.randn(HEADS))
    return attention


def make_input():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, TOKENS, HEADS * WIDTH, generator=generator, dtype=torch.float64)
    mask = torch.arange(TOKENS) < torch.tensor([[TOKENS], [4], [1]])
    return x, mask


def run_both(attention, x, mask):
    """Outputs of layer and reference for the same noise."""
    ours = attention(x, mask, generator=torch.Generator().manual_seed(2))
    noise = torch.randn(
        (HEADS, len(x), TOKENS, WIDTH),
        generator=torch.Generator().manual_seed(2),
        dtype=torch.float64,
    ).transpose(0, 1)
    return ours, literal_attention(attention, x, mask, noise)


def real_tokens(values, mask):
    return values if mask is None else values[mask]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("variant", ["orthogonal", "decoupled"])
@pytest.mark.parametrize("kernel", ["rbf", "exponential"])
def test_values_and_penalty_are_those_of_the_printed_formulas(kernel, variant, masked):
    attention = make_attention(kernel, variant=variant)
    x, mask = make_input()
    mask = mask if masked else None
    ours, literal = run_both(attention, x, mask)
    # A kernel matrix of condition 1e3 is inverted explicitly: a few digits of 16 are lost.
    torch.testing.assert_close(
        real_tokens(ours.values, mask), real_tokens(literal.values, mask), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(ours.penalty, literal.penalty, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", ["rbf", "exponential"])
def test_gradients_are_those_of_the_printed_formulas(kernel, masked):
    attention = make_attention(kernel)
    x, mask = make_input()
    x.requires_grad_()
    mask = mask if masked else None
    inputs = [x, *attention.parameters()]
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    gradients = [
        torch.autograd.grad(
            real_tokens(output.values * weights, mask).sum() + output.penalty, inputs
        )
        for output in run_both(attention, x, mask)
    ]
    for ours, literal in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, literal, rtol=1e-8, atol=1e-8)


def test_the_global_part_is_weighted_by_the_size_of_the_data_set():
    attention = make_attention("rbf", kl_weighting="dataset", num_data=50)
    ours, literal = run_both(attention, *make_input())
    torch.testing.assert_close(ours.penalty, literal.penalty, rtol=1e-9, atol=0.0)
    # The weight matters: this is no test of two numbers that are both one.
    assert abs(ours.penalty - run_both(make_attention("rbf"), *make_input())[0].penalty) > 1.0


def test_draws_without_given_noise_have_the_posterior_variance():
    attention = make_attention("rbf")
    x = make_input()[0][:1].expand(4000, -1, -1)
    torch.manual_seed(4)
    with torch.no_grad():
        attention.to_out[0].weight.copy_(torch.eye(HEADS * WIDTH))
        drawn = literal_attention(attention, x).values.var(0)
        expected = attention.posterior(x[:1]).variance[:, 0]
    expected = expected.permute(1, 0, 2).reshape(TOKENS, -1)
    # A variance of 4000 draws has a standard error of 2.2 %.
    torch.testing.assert_close(drawn, expected, rtol=0.12, atol=0.0)
