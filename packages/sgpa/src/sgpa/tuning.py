"""Deviations of a trained model, fitted by gradients: their scales, or all that is asked for.

Not in the papers.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probseq.checks import check_counts, check_labels, check_not_negative, check_positive
from probseq.transformers.adapters import deviations, penalty
from sgpa.calibrated import log_probabilities

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
    given: dict[str, Any] = {"learning_rate": learning_rate, "num_samples": num_samples}
    _descend(model, batches, scales, lambda nll: nll, seed=seed, **given)


def fine_tune(
    model: nn.Module,
    batches: Batches,
    parameters: Iterable[nn.Parameter],
    *,
    num_data: int,
    kl_scale: float = 1.0,
    learning_rate: float = 1e-3,
    num_samples: int = 1,
    seed: int = 0,
) -> None:
    """Train parameters of a model with deviations on its training data.

    One step of Adam for each batch, on the negative log-likelihood plus the KL divergence of the
    deviations over the number of training data: what is trained is the variational bound of an
    example. The model stays in the mode that it is in.

    Args:
        model: classifier with deviations.
        batches: of inputs and labels, as many as there shall be steps.
        parameters: what is trained; for example those of the deviations, of the last block and of
            the last layer.
        num_data: number N of training data.
        kl_scale: factor of the KL divergence; 1 is the bound.
        learning_rate: of Adam.
        num_samples: samples S of a prediction.
        seed: of the draws.

    Raises:
        ValueError: the model has no deviation, an argument is out of range, or the loss is not
            finite.
    """
    check_counts(num_data=num_data)
    check_not_negative(kl_scale=kl_scale)
    deviations(model)

    def loss(nll: Tensor) -> Tensor:
        # −log p + KL(q ‖ p) / N
        return nll + kl_scale * penalty(model) / num_data

    given: dict[str, Any] = {"learning_rate": learning_rate, "num_samples": num_samples}
    _descend(model, batches, list(parameters), loss, seed=seed, **given)


def _descend(
    model: nn.Module,
    batches: Batches,
    parameters: list[nn.Parameter],
    loss: Callable[[Tensor], Tensor],
    *,
    learning_rate: float,
    num_samples: int,
    seed: int,
) -> None:
    """Take a step of Adam for each batch; only the given parameters have gradients meanwhile."""
    check_positive(learning_rate=learning_rate)
    check_counts(num_samples=num_samples)
    optimizer = torch.optim.Adam(parameters, learning_rate)
    generator = torch.Generator(parameters[0].device).manual_seed(seed)
    with _only(model, parameters), torch.enable_grad():
        for inputs, labels in batches:
            found = log_probabilities(model, inputs, num_samples, generator)
            labels = labels.to(found.device)
            check_labels(labels, found)
            value = loss(F.nll_loss(found, labels))
            if not bool(value.isfinite()):
                raise ValueError(
                    f"the loss must stay finite, got {float(value.detach())}: train slower"
                )
            optimizer.zero_grad()
            value.backward()
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
