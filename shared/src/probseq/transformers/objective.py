"""The training objective of transformers with penalised layers.

NaN and infinity in a tensor reach the result.
"""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from probseq.checks import check_floating, check_labels, check_not_negative


class PenalisedLoss(NamedTuple):
    """The loss and its terms, in nats a sequence."""

    loss: Float[Tensor, ""]  # ``nll + penalty_scale * penalty``
    nll: Float[Tensor, ""]  # negative log likelihood, estimated from the samples at hand
    penalty: Float[Tensor, ""]  # sum of the layers' penalties, not scaled


def penalised_loss(
    log_likelihood: Float[Tensor, "*samples batch"],
    penalty: Float[Tensor, ""],
    *,
    penalty_scale: float = 1.0,
) -> PenalisedLoss:
    """Combine log likelihoods log p(y | f), for each sample if there are several, with penalties.

    Where the layers' penalties are KL divergences this is the negative evidence lower bound (thesis
    Eq. 3.18; KEP-SVGP, Eq. 20, plus η times its Eq. 11); where they are negative log densities, the
    objective of CGPT (Eq. 28). A scale of less than 1 tempers them.
    """
    check_floating(log_likelihood=log_likelihood, penalty=penalty)
    check_not_negative(penalty_scale=penalty_scale)
    if log_likelihood.numel() == 0:
        raise ValueError(
            "log_likelihood must hold at least one sequence, got shape "
            f"{tuple(log_likelihood.shape)}"
        )
    if penalty.ndim:
        raise ValueError(f"penalty must be one number, got shape {tuple(penalty.shape)}: sum it")
    nll = -log_likelihood.mean()
    return PenalisedLoss(nll + penalty_scale * penalty, nll, penalty)


def categorical_log_likelihood(
    logits: Float[Tensor, "*samples batch classes"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, "*samples batch"]:
    """Return the log probability of each sequence's label under each sample's softmax."""
    check_labels(labels, logits)
    log_probs = F.log_softmax(logits, -1)
    index = labels.expand(logits.shape[:-1]).unsqueeze(-1)
    return log_probs.gather(-1, index).squeeze(-1)
