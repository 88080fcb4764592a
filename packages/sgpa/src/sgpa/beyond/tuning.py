"""The scales of a trained model's deviations, fitted by gradients.

Not in the papers.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from probseq.batches import on_device, read_batches
from probseq.checks import check_counts, check_positive
from probseq.transformers.adapters import deviations
from probseq.transformers.drawing import log_probabilities
from probseq.transformers.fine_tuning import (
    descend,
    negative_log_likelihood,
    only_new_gradients,
)


def tune_deviation(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    learning_rate: float = 0.05,
    num_samples: int = 5,
    seed: int = 0,
) -> None:
    """Fit the scales of a model's deviations: σ of each head, and a lengthscale for each dimension.

    One step of Adam for each batch, on the negative logarithm of the samples' mean probability.
    These are few numbers: give held-out data, which may be shifted. Nothing else of the model
    changes.

    Args:
        model: classifier with deviations that are not zero, in evaluation mode.
        batches: see :func:`~probseq.batches.read_batches`; read once.
        learning_rate: of Adam.
        num_samples: samples S of a prediction.
        seed: of the draws.

    Raises:
        ValueError: the model has no deviation, an argument is out of range, or the loss is not
            finite.
    """
    scales = [p for process in deviations(model).values() for p in process.kernel.parameters()]
    check_positive(learning_rate=learning_rate)
    check_counts(num_samples=num_samples)
    optimizer = torch.optim.Adam(scales, learning_rate)
    with only_new_gradients(model, seed), torch.enable_grad():
        for scale in scales:
            scale.requires_grad_(True)
        for inputs, labels in read_batches(batches, model):
            log_probs = log_probabilities(model, on_device(inputs, model), num_samples)
            descend(negative_log_likelihood(log_probs, labels), optimizer)
