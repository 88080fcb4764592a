r"""The objective of the kernel SVD (Eq. 11)."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def ksvd_objective(
    scores: Float[Tensor, "batch two heads rank tokens"],
    weight: Float[Tensor, "two heads size rank"],
    singular_values: Float[Tensor, "heads rank"],
    num_rows: Int[Tensor, " batch"] | int,
) -> Float[Tensor, "batch heads"]:
    r"""Objective of the kernel SVD, which vanishes at the singular vectors (Chen et al. 2023).

    .. math:: J = \tfrac12 \sum_i e_i^\top \Lambda^{-1} e_i + \tfrac12 \sum_j r_j^\top \Lambda^{-1}
        r_j - \mathrm{Tr}(W_e^\top W_r)

    At :math:`W_e = \Phi_k^\top H_r`, :math:`W_r = \Phi_q^\top H_e` all three terms are Tr Λ. J = 0
    is necessary for the singular vectors and not sufficient: zero weights and any scaling of the
    solution have it too.

    Args:
        scores: e and r of each token, zero at padding.
        weight: W_e and W_r.
        singular_values: diagonal of Λ.
        num_rows: rows of f(X) that each sequence has; the other rows of the weights belong to no
            feature of its kernel and stay out of the trace.

    Returns:
        J of each sequence and head. The authors average tokens, heads and sequences before they
        square; (11) as printed sums the tokens of each sequence, as this does.
    """
    # ½ Σ eᵀ Λ⁻¹ e + ½ Σ rᵀ Λ⁻¹ r.
    power = scores.square().sum(-1)
    variance = 0.5 * (power.sum(1) / singular_values).sum(-1)
    # Rows of W_e and W_r, whose products add up to Tr(W_eᵀ W_r).
    overlap = (weight[0] * weight[1]).sum(-1)
    if isinstance(num_rows, int):
        return variance - overlap[:, :num_rows].sum(-1)
    return variance - F.pad(overlap.cumsum(-1), (1, 0))[:, num_rows].mT


def ksvd_loss(objective: Float[Tensor, "batch heads"]) -> Float[Tensor, ""]:
    """Loss of the kernel SVD (11): the objective squared, averaged over sequences and heads."""
    return objective.square().mean()
