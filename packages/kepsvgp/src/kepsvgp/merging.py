r"""From scores and inducing variables to the merged outputs of the two processes (Eqs. 18, 19).

.. math:: F^e = E\Lambda^{-1}U, \quad F^r = R\Lambda^{-1}U, \quad O = (F^e + F^r) W
    \quad\text{or}\quad O = W_1 [F^e; F^r] W_2

W_1 works on tokens and U on scores, so they commute: W_1 goes first, on E and R, and what is added
is multiplied by U once.
"""

import math
from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from kepsvgp.names import BranchesName

# (scores, 0 or 1: which of the two processes) to scores
TokenMixing = Callable[[Tensor, int], Tensor]


class Concatenation(nn.Module):
    """The halves of W_1, N×2N, of all heads: for sequences of up to N tokens.

    A shorter sequence takes the corner of W_1 that belongs to its tokens.
    """

    def __init__(self, max_tokens: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(2 * max_tokens)
        self.weight = nn.Parameter(torch.empty(2, max_tokens, max_tokens).uniform_(-bound, bound))

    def forward(
        self, scores: Float[Tensor, "batch heads rank tokens"], branch: int
    ) -> Float[Tensor, "batch heads rank tokens"]:
        """Mix the tokens of one process; scores are zero at padding."""
        tokens = scores.shape[-1]
        return scores @ self.weight[branch, :tokens, :tokens].mT


class LowRankConcatenation(nn.Module):
    r"""W_1 = A Bᵀ with A in R^{N×s} and B in R^{2N×s}, linear in the number of tokens."""

    def __init__(self, max_tokens: int, rank: int) -> None:
        super().__init__()
        # Entries of A Bᵀ have the variance that those of a full W_1 have.
        bound = math.sqrt(1.5 / max_tokens)
        left = torch.empty(max_tokens, rank).uniform_(-1.0, 1.0) / math.sqrt(rank)
        self.left = nn.Parameter(left)
        self.right = nn.Parameter(torch.empty(2, max_tokens, rank).uniform_(-bound, bound))

    def forward(
        self, scores: Float[Tensor, "batch heads rank tokens"], branch: int
    ) -> Float[Tensor, "batch heads rank tokens"]:
        """Mix the tokens of one process, as :class:`Concatenation` does."""
        tokens = scores.shape[-1]
        return scores @ self.right[branch, :tokens] @ self.left[:tokens].mT


def merged_processes(
    scores: Float[Tensor, "batch two heads rank tokens"],
    inducing: tuple[Float[Tensor, "samples batch heads channels rank"], ...],
    branches: BranchesName,
    mixing: TokenMixing | None,
) -> Float[Tensor, "folded tokens features"]:
    r"""Merge the two processes, given their inducing variables, ``(S * batch, tokens, heads * s)``.

    Heads lie side by side, samples are folded into the batch.

    Args:
        scores: E and R, zero at padding.
        inducing: :math:`\Lambda^{-1}U`, one for both processes, or one each.
        branches: the scores of the first and of the second process: the paper's pair or, as in
            Table 5, the same twice.
        mixing: the halves of W_1; ``None`` for addition.
    """
    # E and R, or the halves of W_1 times them.
    branch_scores = [scores[:, "er".index(name)] for name in branches]
    if mixing is not None:
        branch_scores = [mixing(each, branch) for branch, each in enumerate(branch_scores)]
    # (E + R) Λ⁻¹U, or E Λ⁻¹U + R Λ⁻¹U'.
    if len(inducing) == 1:
        merged = _times(inducing[0], branch_scores[0] + branch_scores[1])
    else:
        merged = _times(inducing[0], branch_scores[0]) + _times(inducing[1], branch_scores[1])
    samples = inducing[0].shape[0]
    return rearrange(merged, "b h (n d) t -> (n b) t (h d)", n=samples)


def _times(inducing: Tensor, scores: Tensor) -> Tensor:
    """Values of all samples from one product: ``(batch, heads, S * channels, tokens)``."""
    return rearrange(inducing, "n b h d i -> b h (n d) i") @ scores
