"""Outputs of attention modules and transformers."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class AttentionOutput(NamedTuple):
    """Output of an attention module.

    Attributes:
        values: new token values, ``(batch, tokens, dim)``; with ``num_samples=S`` the samples are
            folded into the batch, sample-major: ``(S * batch, tokens, dim)``.
        penalty: the layer's KL divergence or regulariser in nats, averaged over the batch; zero for
            layers that have none.
    """

    values: Float[Tensor, "batch tokens dim"]
    penalty: Float[Tensor, ""]


class TransformerOutput(NamedTuple):
    """Output of a transformer.

    Attributes:
        logits: ``(batch, outputs)``, or ``(S, batch, outputs)`` if ``num_samples=S`` was asked for.
        penalty: sum of the layers' penalties, in nats.
    """

    logits: Float[Tensor, "*samples batch outputs"]
    penalty: Float[Tensor, ""]
