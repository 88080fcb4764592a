r"""The training objective :math:`-L_{ELBO} + \eta L_{KSVD}` (Eqs. 11, 20).

NaN and infinity in a tensor reach the result.
"""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from probseq.checks import check_floating, check_labels, check_not_negative


class NegativeELBO(NamedTuple):
    """The loss and its parts, in nats a sequence.

    Attributes:
        loss: ``nll + penalty_scale * penalty``.
        nll: expected negative log likelihood, estimated from the samples at hand.
        penalty: the layers' KL divergences plus η times their losses of the kernel SVD, not scaled.
    """

    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    penalty: Float[Tensor, ""]


def negative_elbo(
    logits: Float[Tensor, "*samples batch classes"],
    labels: Int[Tensor, " batch"],
    penalty: Float[Tensor, ""],
    *,
    penalty_scale: float = 1.0,
) -> NegativeELBO:
    """Loss of a classifier: negative ELBO plus the loss of the kernel SVD.

    Args:
        logits: ``(batch, classes)`` or ``(S, batch, classes)``.
        labels: class of each sequence.
        penalty: sum of the layers' penalties, from the transformer's output.
        penalty_scale: weight of the penalty; 1 is the paper's objective, less tempers it.

    Raises:
        ValueError: ``logits`` is empty, ``labels`` does not belong to it (see
            :func:`~probseq.checks.check_labels`), ``penalty`` is not one number, or
            ``penalty_scale`` is negative or not finite.
    """
    check_labels(labels, logits)
    check_floating(penalty=penalty)
    if logits.numel() == 0:
        raise ValueError(f"logits must hold at least one sequence, got {tuple(logits.shape)}")
    if penalty.ndim:
        raise ValueError(f"penalty must be one number, got shape {tuple(penalty.shape)}: sum it")
    check_not_negative(penalty_scale=penalty_scale)
    nll = F.cross_entropy(logits.flatten(0, -2), labels.expand(logits.shape[:-1]).flatten())
    return NegativeELBO(nll + penalty_scale * penalty, nll, penalty)
