"""Singular values of trained attention matrices (section D.6, Fig. 4).

The approximate posterior of the paper keeps the top s singular functions of the attention kernel
and drops the rest: it is as good as the attention matrices are of low rank.
"""

from collections.abc import Iterable
from functools import partial
from inspect import signature
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kepsvgp.attention import KernelEigenPairAttention
from probseq.precision import full_precision
from probseq.transformers import Encoder, SoftmaxAttention
from probseq.transformers.protocol import check_tokens


class LayerSpectrum(NamedTuple):
    """Singular values of a block's attention matrices, averaged over data, of each head."""

    layer: int  # index of the block
    values: Float[Tensor, "heads tokens"]  # each one's share in their sum, largest first
    energy: Float[Tensor, "heads tokens"]  # share of their squares that the first 1, 2, ... hold

    @property
    def cumulative(self) -> Float[Tensor, "heads tokens"]:
        """Normalised cumulative singular values, what Fig. 4 shows."""
        return self.values.cumsum(-1)


@torch.no_grad()
def attention_spectrum(
    model: nn.Module, batches: Iterable[tuple[Tensor, ...]]
) -> list[LayerSpectrum]:
    """Return the spectrum of each block's attention matrices, of a trained transformer on data.

    Softmax attention has its T×T matrix of weights, kernel-eigen-pair attention the matrix of its
    kernel; blocks with other attention are left out. Of a padded sequence the matrix between real
    tokens counts; spectra are as long as the longest sequence. ``batches`` has the arguments of
    ``model``: images, or tokens and mask; a TypeError says where there are more or fewer.
    """
    layers = {
        index: attention
        for encoder in model.modules()
        if isinstance(encoder, Encoder)
        for index, attention in enumerate(encoder.attention)
        if isinstance(attention, (SoftmaxAttention, KernelEigenPairAttention))
    }
    if not layers:
        raise ValueError(
            f"model must have softmax or kernel-eigen-pair attention, got {type(model).__name__}"
        )
    collected: dict[int, list[Tensor]] = {index: [] for index in layers}

    def record(index: int, module: nn.Module, inputs: tuple[Tensor, Tensor | None]) -> None:
        matrix = full_precision(attention_matrix(module, *inputs))
        if not bool(matrix.isfinite().all()):
            raise ValueError(
                f"batches must lead to finite attention, got NaN or infinity in block {index}"
            )
        collected[index].append(torch.linalg.svdvals(matrix).cpu())

    handles = [
        module.register_forward_pre_hook(partial(record, index)) for index, module in layers.items()
    ]
    try:
        for inputs in batches:
            try:
                signature(model.forward).bind(*inputs)
            except TypeError as error:
                raise TypeError(f"batches must hold what model takes: {error}") from error
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not all(collected.values()):
        raise ValueError("batches must hold at least one batch, got none")
    return [_mean_spectrum(index, values) for index, values in collected.items()]


def attention_matrix(
    module: nn.Module,
    x: Float[Tensor, "batch tokens dim"],
    mask: Bool[Tensor, "batch tokens"] | None = None,
) -> Float[Tensor, "batch heads tokens tokens"]:
    """Return the weights of softmax attention, or the other's kernel, T×T, zero at padding."""
    if isinstance(module, KernelEigenPairAttention):
        return module.kernel(x, mask)
    if not isinstance(module, SoftmaxAttention):
        raise ValueError(
            f"module must be softmax or kernel-eigen-pair attention, got {type(module).__name__}"
        )
    check_tokens(x, mask, module.dim, getattr(module.to_qkv, "weight", x), half=True)
    queries, keys, _ = rearrange(
        module.to_qkv(x), "b t (three h d) -> three b h t d", three=3, h=module.num_heads
    )
    # softmax(q kᵀ / √d) over real keys.
    logits = queries @ keys.mT / queries.shape[-1] ** 0.5
    if mask is None:
        return logits.softmax(-1)
    both = mask[:, None, :, None] & mask[:, None, None, :]
    return logits.masked_fill(~both, -torch.inf).softmax(-1).masked_fill(~both, 0.0)


def _mean_spectrum(layer: int, batches: list[Tensor]) -> LayerSpectrum:
    """Average over sequences of the normalised spectra of batches of different lengths."""
    longest = max(batch.shape[-1] for batch in batches)
    singular = torch.cat(
        [nn.functional.pad(batch, (0, longest - batch.shape[-1])) for batch in batches]
    ).double()
    squares = singular.square()
    return LayerSpectrum(
        layer,
        (singular / singular.sum(-1, keepdim=True)).mean(0),
        (squares.cumsum(-1) / squares.sum(-1, keepdim=True)).mean(0),
    )
