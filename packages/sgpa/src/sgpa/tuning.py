"""The scales of a trained model's deviations, fitted by gradients.

Not in the papers.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.checks import check_counts, check_labels, check_positive
from probseq.transformers.adapters import deviations, log_probabilities

Batches = Iterable[tuple[Any, Tensor]]


def tune_deviation(
    model: nn.Module,
    batches: Batches,
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
        batches: of inputs and labels.
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
    generator = torch.Generator(scales[0].device).manual_seed(seed)
    with _only(model, scales), torch.enable_grad():
        for inputs, labels in batches:
            log_probs = log_probabilities(model, inputs, num_samples, generator)
            labels = labels.to(log_probs.device)
            check_labels(labels, log_probs)
            loss = F.nll_loss(log_probs, labels)
            if not bool(loss.isfinite()):
                raise ValueError(
                    f"the loss must stay finite, got {float(loss.detach())}: train slower"
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@contextmanager
def _only(model: nn.Module, parameters: list[nn.Parameter]) -> Generator[None]:
    """Let only some parameters of a model have gradients, and all that had some in the end."""
    had = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        model.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, before in had.items():
            parameter.requires_grad_(before)
            parameter.grad = None
