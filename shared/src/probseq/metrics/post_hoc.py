"""Post-hoc methods for class predictions: temperature scaling and ensembles.

All functions take logarithms of predictive probabilities, so that nothing underflows between them.
"""

import math
import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probseq.checks import as_finite, as_floating, as_labels, check_positive, check_same_shape
from probseq.errors import BoundWarning

# A model that is right on the whole validation set has its best temperature at 0.
_SMALLEST, _LARGEST = 0.05, 20.0


def scale_log_probs(log_probs: Float[Tensor, "n c"], temperature: float) -> Float[Tensor, "n c"]:
    r"""Sharpen or flatten predictions: :math:`p_T \propto p^{1/T}` (Guo et al. 2017).

    For one softmax this is `softmax(logits / T)`. A mean over Monte Carlo samples is scaled as a
    whole, after the mean, so that scaling needs the predictions alone.

    Args:
        log_probs: logarithms of the predictive probabilities.
        temperature: T > 0; above 1 the predictions become less sure.
    """
    check_positive(temperature=temperature)
    return torch.log_softmax(_check_rows("log_probs", log_probs) / temperature, -1)


def fit_temperature(log_probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    """Return the temperature of the smallest negative log-likelihood, within 0.05 and 20.

    It is found by Newton's steps in 1/T, in float64. One of these bounds comes with a warning.

    Args:
        log_probs: logarithms of the predictive probabilities on validation data.
        labels: true classes, 0..C-1.

    Example:
        >>> log_probs = torch.tensor([[0.9, 0.1]] * 10).log()  # surer than right
        >>> temperature = fit_temperature(log_probs, torch.tensor([0] * 7 + [1] * 3))
        >>> scale_log_probs(log_probs, temperature).exp()[0]
        tensor([0.7000, 0.3000])
    """
    temperature = search_temperature(log_probs, labels)
    warn_at_bound(temperature)
    return temperature


def is_bound(temperature: float) -> bool:
    """Return whether a temperature is the lowest or the highest that :func:`fit_temperature` gives.

    Predictions are then all right or worth nothing, or labels are not theirs.
    """
    return temperature in (_SMALLEST, _LARGEST)


def warn_at_bound(temperature: float) -> None:
    """Warn if a temperature is a bound of the search."""
    if is_bound(temperature):
        warnings.warn(
            f"the temperature {temperature:g} is a bound of the search, {_SMALLEST} to "
            f"{_LARGEST:g}: predictions that are all right, or labels that are not theirs",
            BoundWarning,
            stacklevel=3,
        )


def search_temperature(log_probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    """Return what :func:`fit_temperature` does, without a warning."""
    log_probs = _check_rows("log_probs", log_probs).detach().double()
    labels = as_labels(labels, *log_probs.shape)
    right = log_probs.gather(-1, labels[:, None])[:, 0]

    def derivatives(inverse: float) -> tuple[float, float]:
        # Of the loss in 1/T, in which it is convex: E_p[l] − l_y and var_p[l].
        probs = (inverse * log_probs).softmax(-1)
        mean = (probs * log_probs).sum(-1)
        variance = (probs * (log_probs - mean[:, None]).square()).sum(-1)
        return float((mean - right).mean()), float(variance.mean())

    if bool((log_probs == log_probs[:, :1]).all()):
        return 1.0  # any temperature is the same
    low, high, inverse = 1.0 / _LARGEST, 1.0 / _SMALLEST, 1.0
    if derivatives(low)[0] >= 0.0:
        return _LARGEST
    if derivatives(high)[0] <= 0.0:
        return _SMALLEST
    for _ in range(100):
        slope, curvature = derivatives(inverse)
        low, high = (low, inverse) if slope > 0.0 else (inverse, high)
        newton = inverse - slope / curvature if curvature > 0.0 else 0.0
        before, inverse = inverse, newton if low <= newton <= high else math.sqrt(low * high)
        if abs(inverse - before) <= 1e-12 * before:
            break
    return 1.0 / inverse


def held_out_nll(
    log_probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"], *, tempered: bool
) -> float:
    """Return the mean negative log-likelihood over two halves, every second row each.

    Args:
        log_probs: logarithms of the predictive probabilities.
        labels: true classes, 0..C-1.
        tempered: scale each half by the temperature that is best for the other: what temperature
            scaling is worth on data that did not choose it.
    """
    log_probs = as_floating("log_probs", log_probs)
    if log_probs.ndim != 2 or len(log_probs) < 2:
        raise ValueError(
            f"log_probs must have shape (N, C), N at least 2, got {tuple(log_probs.shape)}"
        )
    labels = as_labels(labels, *log_probs.shape)
    losses: list[float] = []
    for half, other in ((0, 1), (1, 0)):
        scaled = log_probs[half::2]
        if tempered:
            scaled = scale_log_probs(
                scaled, search_temperature(log_probs[other::2], labels[other::2])
            )
        losses.append(float(torch.nn.functional.nll_loss(scaled, labels[half::2])))
    return sum(losses) / 2


def mean_log_probs(members: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
    """Return the logarithm of the mean of the members' probabilities: a deep ensemble.

    Lakshminarayanan et al. 2017; never outside the logarithms.

    Args:
        members: logarithms of each member's predictive probabilities.
    """
    if not members:
        raise ValueError("members must hold at least one model's predictions, got none")
    first, *others = checked = [_check_rows("members", member) for member in members]
    for other in others:
        check_same_shape(first=first, members=other)
    return torch.logsumexp(torch.stack(checked), 0) - math.log(len(checked))


def _check_rows(name: str, log_probs: Tensor) -> Tensor:
    log_probs = as_floating(name, log_probs)
    if log_probs.ndim != 2:
        raise ValueError(f"{name} must have shape (N, C), got {tuple(log_probs.shape)}")
    return as_finite(name, log_probs)
