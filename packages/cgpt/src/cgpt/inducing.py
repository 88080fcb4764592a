"""Inducing inputs of the canonical process: free parameters, or mixtures of the tokens."""

import math

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn

from cgpt.base import INITIAL_VARIANCE
from probseq.checks import check_counts


class FreeInducingInputs(nn.Module):
    """Inducing inputs of each head that are parameters (the paper), the same for all sequences."""

    def __init__(self, num_heads: int, num_inducing: int, dim: int) -> None:
        super().__init__()
        check_counts(num_inducing=num_inducing)
        # The variance of the tokens, so as to lie among them.
        self.inputs = nn.Parameter(
            math.sqrt(INITIAL_VARIANCE) * torch.randn(num_heads, 1, num_inducing, dim)
        )

    def centre(self) -> Float[Tensor, "heads 1 dim"]:
        """Mean inducing input of each head, for an origin; a constant to gradients."""
        return self.inputs.detach().mean(-2)

    def forward(
        self,
        canonical: Float[Tensor, "heads batch tokens dim"],
        inverse_lengthscale: Float[Tensor, "heads 1 dim"],
        origin: Float[Tensor, "heads 1 dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "heads 1 inducing dim"]:
        """Return the inducing inputs over the lengthscale, minus ``origin``."""
        return self.inputs * inverse_lengthscale[:, None] - origin[:, None]


class MixedInducingInputs(nn.Module):
    r"""Inducing inputs that are learned mixtures of the sequence's tokens (the authors' code).

    Inducing input i of head h is :math:`b_{hi} + \sum_t a_{hit} x_t`, with a weight for each
    position: the sequence has a longest length, and permuting tokens changes the result. Padding
    has no weight.

    Differences from the authors' code: each head has its own weights; the tokens mixed are those
    projected to canonical inputs, the space that the inducing inputs live in; the offset is a
    vector and not one number, so that the inputs of a short sequence don't fall together.
    """

    def __init__(self, num_heads: int, num_inducing: int, dim: int, max_tokens: int) -> None:
        super().__init__()
        check_counts(num_inducing=num_inducing, max_tokens=max_tokens)
        # Half of the variance from the offset, half from the tokens.
        deviation = math.sqrt(INITIAL_VARIANCE / 2)
        self.offset = nn.Parameter(deviation * torch.randn(num_heads, 1, num_inducing, dim))
        weights = torch.randn(num_heads, num_inducing, max_tokens)
        self.weights = nn.Parameter(weights / math.sqrt(2 * max_tokens))

    def centre(self) -> Float[Tensor, "heads 1 dim"]:
        """Mean offset of each head, for an origin; a constant to gradients."""
        return self.offset.detach().mean(-2)

    def forward(
        self,
        canonical: Float[Tensor, "heads batch tokens dim"],
        inverse_lengthscale: Float[Tensor, "heads 1 dim"],
        origin: Float[Tensor, "heads 1 dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "heads batch inducing dim"]:
        """Mix the tokens of each sequence; both are over the lengthscale, minus ``origin``."""
        tokens, limit = canonical.shape[2], self.weights.shape[-1]
        if tokens > limit:
            raise ValueError(f"x must have at most max_tokens={limit} tokens, got {tokens}")
        # (b + Σ_t a_t x_t) / ℓ - origin, from tokens that have the origin taken off.
        origin = origin[:, None]
        inputs = canonical + origin
        if mask is not None:
            inputs = inputs.masked_fill(~mask[None, :, :, None], 0.0)
        mixture = einsum(self.weights[..., :tokens], inputs, "h m t, h b t d -> h b m d")
        return mixture + self.offset * inverse_lengthscale[:, None] - origin
