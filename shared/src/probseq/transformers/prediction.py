"""Predictive class probabilities from S Monte Carlo samples in one batched pass."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_choice, check_counts
from probseq.transformers.outputs import TransformerOutput

AverageName = Literal["probabilities", "logits"]


@torch.no_grad()
def predict_probabilities(
    model: Callable[..., TransformerOutput],
    *inputs: Tensor,
    num_samples: int = 10,
    generator: torch.Generator | None = None,
    average: AverageName = "probabilities",
) -> Float[Tensor, "batch classes"]:
    """Predictive class probabilities: the mean of the samples' softmax.

    Args:
        model: transformer in evaluation mode.
        inputs: what it is called with: images, or tokens and mask.
        num_samples: number of samples S, run as one batch of S times the size.
        generator: source of the draws.
        average: what is averaged over samples. ``"probabilities"`` is the Monte Carlo estimate of
            the predictive distribution; ``"logits"``, the softmax of the mean logit, is what the
            authors of KEP-SVGP report.

    Returns:
        Probabilities that sum to one.

    Raises:
        ValueError: ``num_samples`` is no whole number of at least 1, or ``average`` is unknown.
    """
    check_counts(num_samples=num_samples)
    check_choice("average", average, AverageName)
    logits = model(*inputs, num_samples=num_samples, generator=generator).logits
    if average == "logits":
        return logits.mean(0).softmax(-1)
    return logits.softmax(-1).mean(0)
