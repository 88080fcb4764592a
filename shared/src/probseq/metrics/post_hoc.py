"""Post-hoc methods for class predictions: temperature scaling and ensembles.

All functions take logarithms of predictive probabilities, so that nothing underflows between them.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probseq.checks import check_positive
from probseq.metrics._checks import check_finite, check_labels, check_same_shape

# A model that is right on the whole validation set has its best temperature at 0.
_SMALLEST, _LARGEST = 0.05, 20.0


def scale_log_probs(log_probs: Float[Tensor, "n c"], temperature: float) -> Float[Tensor, "n c"]:
    r"""Sharpen or flatten predictions: :math:`p_T \propto p^{1/T}` (Guo et al. 2017).

    For one softmax this is `softmax(logits / T)`. A mean over Monte Carlo samples is scaled as a
    whole, after the mean, so that scaling needs the predictions alone.

    Args:
        log_probs: logarithms of the predictive probabilities.
        temperature: T > 0; above 1 the predictions become less sure.

    Returns:
        Logarithms of the scaled probabilities.

    Raises:
        ValueError: a bad shape, NaN or infinity, or a temperature that is not positive.
    """
    check_positive(temperature=temperature)
    return torch.log_softmax(_check_rows("log_probs", log_probs) / temperature, -1)


def fit_temperature(log_probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    """Return the temperature of the smallest negative log-likelihood, within 0.05 and 20.

    It is found by L-BFGS on log T, in float64.

    Args:
        log_probs: logarithms of the predictive probabilities on validation data.
        labels: true classes, 0..C-1.

    Raises:
        ValueError: a bad shape, no data, NaN or infinity, or labels out of range.

    Example:
        >>> log_probs = torch.tensor([[0.9, 0.1]] * 10).log()  # surer than right
        >>> temperature = fit_temperature(log_probs, torch.tensor([0] * 7 + [1] * 3))
        >>> scale_log_probs(log_probs, temperature).exp()[0]
        tensor([0.7000, 0.3000])
    """
    log_probs = _check_rows("log_probs", log_probs).detach().double()
    labels = check_labels(labels, *log_probs.shape)
    log_temperature = log_probs.new_zeros(()).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [log_temperature], max_iter=100, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(log_probs / log_temperature.exp(), labels)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # pyright: ignore[reportArgumentType]  (returns a tensor, as documented)
    return min(max(float(log_temperature.detach().exp()), _SMALLEST), _LARGEST)


def held_out_nll(
    log_probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"], *, tempered: bool
) -> float:
    """Return the mean negative log-likelihood over two halves, every second row each.

    Args:
        log_probs: logarithms of the predictive probabilities.
        labels: true classes, 0..C-1.
        tempered: scale each half by the temperature that is best for the other: what temperature
            scaling is worth on data that did not choose it.

    Raises:
        ValueError: a bad shape, fewer than two rows, or labels out of range; with `tempered` also
            NaN or infinity.
    """
    if log_probs.ndim != 2 or len(log_probs) < 2:
        raise ValueError(
            f"log_probs must have shape (N, C), N at least 2, got {tuple(log_probs.shape)}"
        )
    labels = check_labels(labels, *log_probs.shape)
    losses: list[float] = []
    for half, other in ((0, 1), (1, 0)):
        scaled = log_probs[half::2]
        if tempered:
            scaled = scale_log_probs(scaled, fit_temperature(log_probs[other::2], labels[other::2]))
        losses.append(float(torch.nn.functional.nll_loss(scaled, labels[half::2])))
    return sum(losses) / 2


def mean_log_probs(members: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
    """Return the logarithm of the mean of the members' probabilities: a deep ensemble.

    Lakshminarayanan et al. 2017; never outside the logarithms.

    Args:
        members: logarithms of each member's predictive probabilities.

    Raises:
        ValueError: there are no members, bad or different shapes, NaN or infinity.
    """
    if not members:
        raise ValueError("members must hold at least one model's predictions, got none")
    first, *others = checked = [_check_rows("members", member) for member in members]
    for other in others:
        check_same_shape("members", other, "the first", first)
    return torch.logsumexp(torch.stack(checked), 0) - math.log(len(checked))


def _check_rows(name: str, log_probs: Tensor) -> Tensor:
    if log_probs.ndim != 2:
        raise ValueError(f"{name} must have shape (N, C), got {tuple(log_probs.shape)}")
    return check_finite(name, log_probs)
