r"""Base of correlated attention, full and sparse: what both learn of the canonical process."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cgpt.names import CanonicalPrior, RegulariserName
from probseq.checks import check_choice
from probseq.transformers.attention import MultiHeadAttention

# Variance per dimension that a projection of normalised tokens has at nn.Linear's initialisation,
# whose weights have the variance 1 / (3 dim).
INITIAL_VARIANCE = 1 / 3


class CorrelatedAttention(MultiHeadAttention):
    r"""Hyperparameters of each head, and a start from kernel attention.

    The kernel is :math:`\exp(-\tfrac12 \sum_j (x_j - x_j')^2 / \ell_j^2)`. The paper's has no
    lengthscales, and at the usual initialisation of the projections :math:`E|q - k|^2` is two
    thirds of the head width, 20 for heads of width 32: attention would start at e⁻¹⁰, with no
    output and no gradient. Ours starts at :math:`E|q - k|^2 / \ell^2 = 1`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float,
        *,
        regulariser: RegulariserName,
        canonical_prior: CanonicalPrior,
        sample_in_training: bool,
    ) -> None:
        super().__init__(dim, num_heads, dropout)
        check_choice("regulariser", regulariser, RegulariserName)
        check_choice("canonical_prior", canonical_prior, CanonicalPrior)
        self.regulariser: RegulariserName = regulariser
        self.canonical_prior: CanonicalPrior = canonical_prior
        self.sample_in_training = sample_in_training
        width = dim // num_heads
        log_lengthscale = 0.5 * math.log(2 * INITIAL_VARIANCE * width)
        self.raw_lengthscale = nn.Parameter(torch.full((num_heads, 1, width), log_lengthscale))
        self.raw_query_scale = nn.Parameter(torch.zeros(num_heads))
        self.raw_key_scale = nn.Parameter(torch.zeros(num_heads))

    @property
    def lengthscale(self) -> Float[Tensor, "heads 1 width"]:
        """ℓ, one per head and dimension."""
        return self.raw_lengthscale.exp()

    @property
    def query_scale(self) -> Float[Tensor, " heads"]:
        """σ_q, the prior standard deviation of z_q."""
        return self.raw_query_scale.exp()

    @property
    def key_scale(self) -> Float[Tensor, " heads"]:
        """σ_k, the prior standard deviation of z_k."""
        return self.raw_key_scale.exp()

    @staticmethod
    def convert_kernel(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what correlated attention takes of asymmetric kernel attention with RBF kernels.

        These are projections, lengthscales, and half of the logarithm of the variance for each of
        the two scales.
        """
        if "to_k.weight" not in weights:
            raise ValueError("kernel attention must be asymmetric, got one without to_k")
        converted = dict(weights)
        half = 0.5 * converted.pop("kernel.raw_outputscale")
        return converted | {
            "to_q.weight": converted.pop("to_qk.weight"),
            "raw_lengthscale": converted.pop("kernel.raw_lengthscale"),
            "raw_query_scale": half,
            "raw_key_scale": half,
        }
