"""Proper scores and hit rates of class probabilities.

Every function takes the whole evaluation set at once: a mean of batch means is wrong as soon as the
last batch is smaller. Sums run in float64, and the scalar returned is float64.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probseq.checks import as_labels, as_probs


def nll(probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    r"""Return the negative log-likelihood −(1/N) Σ_n log p̄(y_n), in nats (thesis app. B.2.1).

    p̄ is the predictive distribution: the mean over Monte Carlo samples of the softmax. A
    probability of zero counts as the smallest normal number of its dtype, so that one hopeless
    sample costs 87 nats in float32, not infinity.

    Example:
        >>> probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
        >>> round(float(nll(probs, torch.tensor([0, 1]))), 4)
        0.4904
    """
    probs = as_probs(probs)
    labels = as_labels(labels, *probs.shape)
    chosen = probs.gather(1, labels[:, None])[:, 0]
    return -chosen.clamp_min(torch.finfo(probs.dtype).tiny).double().log().mean()


def accuracy(probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return the share of samples whose most probable class, of equal ones the first, is right."""
    probs = as_probs(probs)
    labels = as_labels(labels, *probs.shape)
    return (probs.argmax(dim=1) == labels).double().mean()


def brier(probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return the Brier score (1/N) Σ_n Σ_c (p_nc − 1[y_n = c])², summed over classes: 0..2."""
    probs = as_probs(probs)
    labels = as_labels(labels, *probs.shape)
    probs = probs.double()
    # Σ_c (p_c − 1[y = c])² = Σ_c p_c² + (1 − p_y)² − p_y²: no one-hot matrix.
    chosen = probs.gather(1, labels[:, None])[:, 0]
    return (probs.square().sum(dim=1) + 1.0 - 2.0 * chosen).mean()


def matthews_correlation(
    probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]
) -> Float[Tensor, ""]:
    r"""Return the Matthews correlation of predicted and true classes, from one confusion matrix.

    With K the confusion matrix, t its row sums (true), p its column sums (predicted), s the number
    of samples and h = tr K the hits (Gorodkin 2004): MCC = (h s − t·p) / sqrt((s² − p·p)(s² −
    t·t)), in −1..1; 0 where one class holds all predictions or all labels. Ties of probabilities go
    to the first class.
    """
    probs = as_probs(probs)
    labels = as_labels(labels, *probs.shape)
    classes = probs.shape[1]
    cells = torch.bincount(labels * classes + probs.argmax(dim=1), minlength=classes**2)
    confusion = cells.view(classes, classes)
    true, predicted = confusion.sum(dim=1), confusion.sum(dim=0)
    samples, hits = confusion.sum(), confusion.diagonal().sum()
    # Sums of products: CUDA has no dot product of integers.
    covariance = (hits * samples - (true * predicted).sum()).double()
    spread = (samples**2 - predicted.square().sum()).double()
    spread = spread * (samples**2 - true.square().sum()).double()
    # A spread of zero comes with a covariance of zero; 0/1 is the convention of scikit-learn.
    return covariance / torch.where(spread > 0, spread, 1.0).sqrt()
