"""Post-hoc methods for class predictions: temperature scaling and ensembles.

All functions take logarithms of predictive probabilities, so that nothing underflows between them.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from scipy import optimize
from torch import Tensor

from probseq.checks import as_finite, as_labels, check_positive, check_same_shape

# A model that is right on the whole validation set has its best temperature at 0.
_SMALLEST, _LARGEST = 0.05, 20.0


def scale_log_probs(log_probs: Float[Tensor, "n c"], temperature: float) -> Float[Tensor, "n c"]:
    r"""Sharpen or flatten predictions: :math:`p_T \propto p^{1/T}` (Guo et al. 2017).

    For one softmax this is `softmax(logits / T)`. A mean over Monte Carlo samples is scaled as a
    whole, after the mean, so that scaling needs the predictions alone.

    Above T = 1 the predictions become less sure.
    """
    check_positive(temperature=temperature)
    # (1/T) log p, less the logarithm of Σ_c p_c^{1/T}
    return torch.log_softmax(_check_rows("log_probs", log_probs) / temperature, -1)


def is_bound(temperature: float) -> bool:
    """Return whether a temperature is a bound of the search of :func:`search_temperature`.

    Predictions are then all right or worth nothing, or labels are not theirs.
    """
    return temperature in (_SMALLEST, _LARGEST)


def search_temperature(log_probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> float:
    """Return the temperature of the smallest negative log-likelihood, within 0.05 and 20.

    The rows are validation data; where all temperatures are the same, it is 1.

    Example:
        >>> log_probs = torch.tensor([[0.9, 0.1]] * 10).log()  # surer than right
        >>> temperature = search_temperature(log_probs, torch.tensor([0] * 7 + [1] * 3))
        >>> scale_log_probs(log_probs, temperature).exp()[0]
        tensor([0.7000, 0.3000])
    """
    log_probs = _check_rows("log_probs", log_probs).detach().double()
    labels = as_labels(labels, *log_probs.shape)
    right = log_probs.gather(-1, labels[:, None])[:, 0]

    def slope(inverse: float) -> float:
        # Of the loss in 1/T, in which it is convex: the mean of E_p[l] − l_y.
        probs = (inverse * log_probs).softmax(-1)
        return float(((probs * log_probs).sum(-1) - right).mean())

    if bool((log_probs == log_probs[:, :1]).all()):
        return 1.0
    low, high = 1.0 / _LARGEST, 1.0 / _SMALLEST
    if slope(low) >= 0.0:
        return _LARGEST
    if slope(high) <= 0.0:
        return _SMALLEST
    return 1.0 / optimize.root_scalar(slope, bracket=(low, high), xtol=1e-12).root


def mean_log_probs(members: Sequence[Float[Tensor, "n c"]]) -> Float[Tensor, "n c"]:
    """Return the logarithm of the mean of the members' probabilities: a deep ensemble.

    Lakshminarayanan et al. 2017; never outside the logarithms.
    """
    if not members:
        raise ValueError("members must hold at least one model's predictions, got none")
    first, *others = checked = [_check_rows("members", member) for member in members]
    for other in others:
        check_same_shape(first=first, members=other)
    # log (1/M) Σ_m p_m
    return torch.logsumexp(torch.stack(checked), 0) - math.log(len(checked))


def _check_rows(name: str, log_probs: Tensor) -> Tensor:
    log_probs = as_finite(name, log_probs)
    if log_probs.ndim != 2:
        raise ValueError(f"{name} must have shape (N, C), got {tuple(log_probs.shape)}")
    return log_probs
