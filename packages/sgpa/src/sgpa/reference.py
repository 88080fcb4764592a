r"""Sparse GP attention as the thesis prints it: the yardstick of the tests and of the benchmark.

Nothing here is meant to be fast. Equations 3.15 and B.11 are followed letter by letter, the way the
authors' released layer computes them: the T×T kernel matrix from broadcast differences, explicit
inverses of K_gg, and a covariance for every output dimension out of tensors of shape (batch, heads,
channels, tokens, inducing) that autograd keeps.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from probseq.linalg import safe_cholesky
from probseq.transformers.outputs import AttentionOutput
from probseq.transformers.protocol import check_tokens
from sgpa.attention import SparseGPAttention
from sgpa.posterior import factor_from_raw

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
