"""Outputs of attention modules and transformers."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class AttentionOutput(NamedTuple):
    """New token values, and the layer's KL divergence or regulariser, zero where it has none.

    With ``num_samples=S`` the samples are folded into the batch of the values, sample-major:
    ``(S * batch, tokens, dim)``. The penalty is in nats, averaged over the batch.
    """

    values: Float[Tensor, "batch tokens dim"]
    penalty: Float[Tensor, ""]


class TransformerOutput(NamedTuple):
    """Logits, with S first if ``num_samples=S`` was asked for, and the penalty."""

    logits: Float[Tensor, "*samples batch outputs"]
    penalty: Float[Tensor, ""]  # sum of the layers' penalties, in nats
