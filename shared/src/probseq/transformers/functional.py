r"""Kernel attention :math:`F = K_{qk} v` (thesis Eq. 3.2) with exact results and O(T) memory.

Two ways to the same sum, chosen by the number of keys:

- few keys: one matrix product and an in-place ``exp2``;
- many keys: softmax attention with a sink. Append one key whose logit is 0 for every query and
  whose value is zero but for a 1 in an extra channel. Then the softmax's normaliser
  :math:`Z_i = 1 + \sum_j e^{l_{ij}}` comes back in that channel as :math:`1/Z_i`, and dividing by
  it undoes the normalisation: the unnormalised kernel sum, from a fused attention routine that
  never stores the T×T matrix, forward or backward.

Inputs are already divided by the lengthscales; the outputscale is the caller's.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

KernelName = Literal["rbf", "exponential"]

# Below this many keys the plain product is the faster one.
DENSE_KEYS = 256
# exp2 costs less than exp, and on the CPU far less where the result underflows.
_ROOT_LOG2E = math.sqrt(math.log2(math.e))
# Logit of a padded key in the fused routine: exp(-1e4) is zero, and 0 * -1e4 is not NaN.
_PADDED_LOGIT = -1e4


def kernel_attention(
    queries: Float[Tensor, "*batch queries dim"],
    keys: Float[Tensor, "*batch keys dim"],
    values: Float[Tensor, "*batch keys channels"],
    *,
    kernel: KernelName,
    key_mask: Bool[Tensor, "*batch_or_one keys"] | None = None,
) -> Float[Tensor, "*batch queries channels"]:
    r"""Compute :math:`\sum_j k(q_i, k_j) v_j` without normalisation (thesis Eq. 3.2).

    ``"rbf"`` is :math:`k(q, k) = \exp(-\tfrac12 |q - k|^2)`, ``"exponential"`` is
    :math:`k(q, k) = \exp(q^\top k)`.

    Args:
        queries: ``(..., queries, dim)``, divided by the lengthscales.
        keys: ``(..., keys, dim)``, divided by the lengthscales.
        values: ``(..., keys, channels)``.
        kernel: which kernel.
        key_mask: true at real keys, broadcastable to ``(..., keys)``; the others take no part.

    Returns:
        ``(..., queries, channels)``.
    """
    if key_mask is not None:
        # Filled, not multiplied: padding may hold anything.
        hidden = ~key_mask.unsqueeze(-1)
        keys = keys.masked_fill(hidden, 0.0)
        values = values.masked_fill(hidden, 0.0)
    if kernel == "rbf":
        centre = _mean_key(keys, key_mask)
        queries, keys = queries - centre, keys - centre
    if keys.shape[-2] < DENSE_KEYS:
        return _dense_kernel(queries, keys, kernel) @ values
    return _fused_kernel_attention(queries, keys, values, kernel, key_mask)


def rbf_matrix(
    x: Float[Tensor, "*batch n dim"], z: Float[Tensor, "*batch m dim"]
) -> Float[Tensor, "*batch n m"]:
    r"""Compute :math:`\exp(-\tfrac12 |x_i - z_j|^2)` by one matrix product.

    In float32 the expansion of the square needs ``x`` and ``z`` near the origin: centre both first.
    """
    return _dense_kernel(x, z, "rbf")


def _mean_key(keys: Tensor, key_mask: Tensor | None) -> Tensor:
    """Mean of the real keys: the kernel is invariant to it, float32 is not, the gradient is 0."""
    with torch.no_grad():
        if key_mask is None:
            return keys.mean(-2, keepdim=True)
        count = key_mask.sum(-1).clamp(min=1)[..., None, None]
        return keys.sum(-2, keepdim=True) / count


def _dense_kernel(queries: Tensor, keys: Tensor, kernel: KernelName) -> Tensor:
    queries, keys = queries * _ROOT_LOG2E, keys * _ROOT_LOG2E
    if kernel == "rbf":
        queries, keys = _squared_distance_features(queries, keys)
    return torch.exp2_(queries @ keys.mT)


def _squared_distance_features(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Features whose inner product is -|q - k|²/2: [q, 1, -|q|²/2] and [k, -|k|²/2, 1]."""
    half_q = -0.5 * queries.square().sum(-1, keepdim=True)
    half_k = -0.5 * keys.square().sum(-1, keepdim=True)
    return (
        torch.cat([queries, torch.ones_like(half_q), half_q], -1),
        torch.cat([keys, half_k, torch.ones_like(half_k)], -1),
    )


def _fused_kernel_attention(
    queries: Tensor, keys: Tensor, values: Tensor, kernel: KernelName, key_mask: Tensor | None
) -> Tensor:
    channels = values.shape[-1]
    if kernel == "rbf":
        queries, keys = _squared_distance_features(queries, keys)
    if key_mask is not None:
        bias = torch.where(key_mask, 0.0, _PADDED_LOGIT).to(keys.dtype).unsqueeze(-1)
        keys = torch.cat([keys, bias.expand(*keys.shape[:-1], 1)], -1)
        queries = F.pad(queries, (0, 1), value=1.0)
    # The sink key is zero, so its logit is; the fused routines want one width for all, a multiple
    # of 4 (16 bytes in float32).
    width = -(-max(queries.shape[-1], channels + 1) // 4) * 4
    sink = values.new_zeros(width)
    sink[channels] = 1.0
    queries = F.pad(queries, (0, width - queries.shape[-1]))
    keys = F.pad(keys, (0, width - keys.shape[-1], 0, 1))
    values = F.pad(values, (0, width - channels))
    values = torch.cat([values, sink.expand(*values.shape[:-2], 1, width)], -2)
    out = F.scaled_dot_product_attention(queries, keys, values, scale=1.0)
    return out[..., :channels] / out[..., channels : channels + 1]
