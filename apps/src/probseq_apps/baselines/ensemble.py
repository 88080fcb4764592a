"""Deep ensembles (Lakshminarayanan et al. 2017): the mean of several models' probabilities."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def mean_log_probs(members: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
    r"""Logarithm of the mean of the members' probabilities, without leaving the logarithms.

    Args:
        members: logarithms of each member's predictive probabilities.

    Raises:
        ValueError: there are no members.
    """
    if not members:
        raise ValueError("members must hold at least one model's predictions, got none")
    return torch.logsumexp(torch.stack(tuple(members)), 0) - math.log(len(members))
