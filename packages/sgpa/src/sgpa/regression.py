"""Regression with a Laplace likelihood (thesis B.3.2): the likelihood, the model, predictions.

NaN and infinity in a tensor reach the result.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.checks import check_counts, check_floating, check_positive
from probseq.transformers.outputs import TransformerOutput


class LaplaceLikelihood(nn.Module):
    r"""Laplace likelihood with a learned scale: :math:`e^{-|y - f| / b} / 2b`.

    ``scale`` is the initial b, in the targets' units.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        check_positive(scale=scale)
        self.raw_scale = nn.Parameter(torch.tensor(math.log(scale)))

    @property
    def scale(self) -> Tensor:
        """The scale b, in the targets' units."""
        return self.raw_scale.exp()

    def log_prob(
        self, outputs: Float[Tensor, "*samples batch 1"], targets: Float[Tensor, " batch"]
    ) -> Float[Tensor, "*samples batch"]:
        """Return the log density of each target given each sample's output."""
        check_floating(outputs=outputs, targets=targets)
        if outputs.ndim < 2 or outputs.shape[-1] != 1:
            raise ValueError(
                f"outputs must have shape (..., batch, 1), got {tuple(outputs.shape)}: build the "
                "transformer with num_classes=1"
            )
        # (batch, 1) would broadcast to every pair of a target and an output.
        if targets.shape != outputs.shape[-2:-1]:
            raise ValueError(
                f"targets must have shape (batch,)={tuple(outputs.shape[-2:-1])}, "
                f"got {tuple(targets.shape)}"
            )
        # -|y - f| / b - log 2 - log b.
        error = (targets - outputs[..., 0]).abs()
        return -error / self.scale - math.log(2.0) - self.raw_scale


class RegressionModel(nn.Module):
    """A transformer of sequences of vectors with one output, and the likelihood of that."""

    def __init__(self, transformer: nn.Module, likelihood: LaplaceLikelihood) -> None:
        super().__init__()
        self.transformer, self.likelihood = transformer, likelihood

    def forward(
        self,
        tokens: Float[Tensor, "n t w"],
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Return the output, in units of the targets' standard deviation."""
        return self.transformer(tokens, generator=generator, num_samples=num_samples)


class RegressionPrediction(NamedTuple):
    """Predictive mean and variance, in the targets' units and their square."""

    mean: Float[Tensor, " batch"]  # of the samples
    variance: Float[Tensor, " batch"]  # of the samples, plus that of the likelihood, 2 b²


@torch.no_grad()
def predict_regression(
    model: Callable[..., TransformerOutput],
    likelihood: LaplaceLikelihood,
    *inputs: Tensor,
    num_samples: int = 10,
    generator: torch.Generator | None = None,
) -> RegressionPrediction:
    """Predict from S samples, run as one batch of S times the size.

    The transformer has ``num_classes=1`` and is in evaluation mode; inputs are images, or tokens
    and mask.
    """
    check_counts(num_samples=num_samples)
    outputs = model(*inputs, num_samples=num_samples, generator=generator).logits[..., 0]
    # Law of total variance: Var f + 2 b².
    noise = 2.0 * likelihood.scale.square()
    return RegressionPrediction(outputs.mean(0), outputs.var(0, correction=0) + noise)
