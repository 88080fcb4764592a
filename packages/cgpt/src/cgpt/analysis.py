"""Oversmoothing: how alike the tokens of a sequence become with depth (CGPT paper, Fig. III)."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probseq.checks import check_floating
from probseq.transformers import AttentionOutput, Encoder, repeat_samples
from probseq.transformers.protocol import check_tokens


def mean_cosine_similarity(
    tokens: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
) -> Float[Tensor, " batch"]:
    r"""Mean cosine similarity of all pairs of different tokens of each sequence, in O(T).

    With the tokens' directions :math:`u_t`,

    .. math::
        \frac{1}{n(n-1)} \sum_{s \ne t} u_s^\top u_t = \frac{|\sum_t u_t|^2 - n}{n (n - 1)}.

    A token of zero length has no direction: it counts as similar to none, itself included. The mask
    is true at real tokens. NaN for sequences of fewer than two tokens.
    """
    check_floating(tokens=tokens)
    check_tokens(tokens, mask, tokens.shape[-1] if tokens.ndim else 0, tokens, half=True)
    # In float64: the difference of two sums would lose what float32 has.
    directions = F.normalize(tokens.double(), dim=-1)
    if mask is None:
        mask = torch.ones_like(tokens[..., 0], dtype=torch.bool)
    directions = directions.masked_fill(~mask[..., None], 0.0)
    # n, and |Σ u|² - Σ |u|².
    count = mask.sum(-1).double()
    pairs = directions.sum(-2).square().sum(-1) - directions.square().sum((-2, -1))
    pairs = (pairs / (count * (count - 1))).masked_fill(count < 2, torch.nan)
    return pairs.to(tokens.dtype)


@torch.no_grad()
def token_cosine_similarity(
    model: nn.Module,
    inputs: Tensor,
    mask: Bool[Tensor, "batch tokens"] | None = None,
    *,
    generator: torch.Generator | None = None,
    num_samples: int | None = None,
) -> Float[Tensor, "depth batch"]:
    """Similarity of the tokens that each attention module returns: a row a block.

    The outputs of a block's attention are compared, as in the paper, before the residual sum and
    the MLP. Padding is left out; a class token is a token. The model runs as it is: in evaluation
    mode stochastic attention draws, and the noise of its draws counts as difference between tokens.
    NaN for sequences of fewer than two tokens.

    Args:
        model: a transformer with an encoder of :mod:`probseq.transformers`.
        inputs: images or tokens.
        mask: true at real tokens, for models that take one.
        generator: source of the attention modules' draws.
        num_samples: average over so many draws; ``None`` for one.
    """
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, Encoder):
        raise ValueError(
            "model must have an encoder of probseq.transformers.Encoder, got "
            f"{type(model).__name__} with {type(encoder).__name__}"
        )
    batch = len(inputs)
    similarities: list[Tensor] = []

    def record(module: nn.Module, arguments: tuple[Any, ...], output: AttentionOutput) -> None:
        values, token_mask = output.values, arguments[1]
        if token_mask is not None and len(token_mask) < len(values):
            token_mask = repeat_samples(token_mask, len(values) // len(token_mask))
        similarity = mean_cosine_similarity(values, token_mask)
        similarities.append(similarity.view(-1, batch).mean(0))

    handles = [attention.register_forward_hook(record) for attention in encoder.attention]
    arguments = (inputs,) if mask is None else (inputs, mask)
    try:
        model(*arguments, generator=generator, num_samples=num_samples)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(similarities)
