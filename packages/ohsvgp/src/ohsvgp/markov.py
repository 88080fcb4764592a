"""Sums of exponentials over many nodes, without the matrix of all pairs."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

# Nodes of a block, within which all pairs are taken.
_BLOCK = 32


def exponential_sums(
    weights: Float[Tensor, "*#b m q"], nodes: Float[Tensor, "*#b q"], x: Float[Tensor, "*#b n"]
) -> Float[Tensor, "*b m n"]:
    """Return Σ_j W_mj exp(−|s_j − x|) in O(M (Q + n)).

    With L_i = Σ_{j ≤ i} W_j e^{−(s_i − s_j)} and R_i = Σ_{j ≥ i} W_j e^{−(s_j − s_i)} for nodes
    in order, and s_i ≤ x < s_{i+1}, the sum is e^{−(x − s_i)} L_i + e^{−(s_{i+1} − x)} R_{i+1}.

    Nodes and x, in any order, are in units of the lengthscale.
    """
    batch = torch.broadcast_tensors(weights[..., 0, 0], nodes[..., 0], x[..., 0])[0].shape
    M, Q = weights.shape[-2:]
    s, order = nodes.expand(*batch, Q).sort(-1)
    W = _take(weights.expand(*batch, M, Q), order)
    x = x.expand(*batch, x.shape[-1]).contiguous()
    L, R = _running_sums(W, s)
    after = torch.searchsorted(s.detach(), x.detach(), right=True)
    i, j = (after - 1).clamp_min(0), after.clamp_max(Q - 1)
    # Beyond the first and the last node one side is empty.
    from_left = torch.where(after > 0, _decay(x, s.gather(-1, i)), 0)
    from_right = torch.where(after < Q, _decay(x, s.gather(-1, j)), 0)
    return from_left[..., None, :] * _take(L, i) + from_right[..., None, :] * _take(R, j)


def _running_sums(W: Float[Tensor, "*b m q"], s: Float[Tensor, "*b q"]) -> tuple[Tensor, Tensor]:
    """Return L and R for nodes in order: within blocks of nodes, and from other blocks."""
    Q = s.shape[-1]
    padding = -Q % _BLOCK
    s = torch.cat([s, s[..., -1:].expand(*s.shape[:-1], padding)], -1).unflatten(-1, (-1, _BLOCK))
    padded = torch.nn.functional.pad(W, (0, padding))
    blocks = padded.unflatten(-1, (-1, _BLOCK)).transpose(-3, -2)  # (*b, blocks, M, _BLOCK)
    first, last = s[..., :1], s[..., -1:]
    K = _decay(s[..., :, None], s[..., None, :])
    L, R = blocks @ K.triu(), blocks @ K.tril()
    # From the last node of an earlier block (column) to the first one of a block (row).
    D = _decay(first, last.mT).tril(-1)
    before = torch.einsum("...ab,...bm->...am", D, L[..., -1])
    after = torch.einsum("...ba,...bm->...am", D, R[..., 0])
    left = L + before[..., None] * _decay(s, first)[..., None, :]
    right = R + after[..., None] * _decay(s, last)[..., None, :]
    return _merge_blocks(left, Q), _merge_blocks(right, Q)


def _merge_blocks(blocks: Tensor, Q: int) -> Tensor:
    return blocks.transpose(-3, -2).flatten(-2)[..., :Q]


def _take(sums: Float[Tensor, "*b m q"], index: Int64[Tensor, "*b n"]) -> Tensor:
    return sums.gather(-1, index[..., None, :].expand(*sums.shape[:-1], index.shape[-1]))


def _decay(x: Tensor, z: Tensor) -> Tensor:
    return (-(x - z).abs()).exp()
