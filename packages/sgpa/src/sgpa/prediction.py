"""Predictions from S posterior samples in one batched pass."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts
from probseq.transformers import TransformerOutput
from sgpa.objective import LaplaceLikelihood

Model = Callable[..., TransformerOutput]


class RegressionPrediction(NamedTuple):
    """Predictive mean and variance, in the targets' units and their square.

    Attributes:
        mean: mean of the samples.
        variance: variance of the samples plus that of the likelihood, 2 b².
    """

    mean: Float[Tensor, " batch"]
    variance: Float[Tensor, " batch"]


@torch.no_grad()
def predict_regression(
    model: Model,
    likelihood: LaplaceLikelihood,
    *inputs: Tensor,
    num_samples: int = 10,
    generator: torch.Generator | None = None,
) -> RegressionPrediction:
    """Predictive mean and variance under a Laplace likelihood.

    Args:
        model: transformer with ``num_classes=1`` in evaluation mode.
        likelihood: its likelihood.
        inputs: images, or tokens and mask.
        num_samples: number of samples S, run as one batch of S times the size.
        generator: source of the draws.

    Raises:
        ValueError: ``num_samples`` is no whole number of at least 1.
    """
    check_counts(num_samples=num_samples)
    outputs = model(*inputs, num_samples=num_samples, generator=generator).logits[..., 0]
    noise = 2.0 * likelihood.scale.square()
    return RegressionPrediction(outputs.mean(0), outputs.var(0, correction=0) + noise)
