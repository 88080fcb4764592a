"""Calibration error by histogram binning (thesis app. B.2.2, Guo et al. 2017).

Three definitions travel under the name ECE. Here it is: equal bins (lo, hi], over the whole set at
once, and either the top label alone (Guo et al.) or all N·C entries pooled (SGPA's tables). An
average over mini-batches is biased upwards and has no place here.

Deviation from the thesis: B.13 prints arg max; the maximum is meant.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probseq.checks import as_labels, as_probs, check_choice, check_counts

Mode = Literal["top", "classwise"]


class CalibrationBins(NamedTuple):
    """A histogram of confidence against accuracy with B bins; empty bins hold zeros.

    Bin b, of count[b] predictions, is (edges[b], edges[b+1]], and the first one also holds 0.
    """

    edges: Float[Tensor, " b+1"]  # from 0 to 1
    # Hides tuple.count, which a record of tensors has no use for.
    count: Int[Tensor, " b"]  # pyright: ignore[reportIncompatibleMethodOverride]
    confidence: Float[Tensor, " b"]  # mean predicted probability
    accuracy: Float[Tensor, " b"]  # share of predictions that came true


def calibration_bins(
    probs: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    num_bins: int = 15,
    mode: Mode = "top",
) -> CalibrationBins:
    """Sort predictions into ``num_bins`` equal bins of predicted probability.

    ``"top"`` bins the N largest probabilities, a hit being a correct class; ``"classwise"`` bins
    all N·C probabilities, a hit being an entry of the true class.
    """
    probs = as_probs(probs).detach()
    labels = as_labels(labels, *probs.shape)
    check_counts(num_bins=num_bins)
    check_choice("mode", mode, Mode)
    if mode == "top":
        confidence, predicted = probs.max(dim=1)
        hit = predicted == labels
    else:
        confidence = probs.flatten()
        hit = (labels[:, None] == torch.arange(probs.shape[1], device=probs.device)).flatten()

    # b/B rounded once, in the dtype of the probabilities: a float32 0.2 lies on the edge 3/15.
    steps = torch.arange(num_bins + 1, dtype=torch.float64, device=probs.device)
    edges = (steps / num_bins).to(probs.dtype)
    # bucketize gives edges[i-1] < p <= edges[i]; 0 gives i = 0; round-off above 1 gives i = B+1.
    index = (torch.bucketize(confidence, edges) - 1).clamp(0, num_bins - 1)

    confidence = confidence.double()
    count = torch.bincount(index, minlength=num_bins)
    hits = torch.bincount(index[hit], minlength=num_bins)
    # A masked sum for each bin: a weighted bincount is not deterministic on CUDA.
    mass = [torch.where(index == b, confidence, 0.0).sum() for b in range(num_bins)]
    nonempty = count.clamp_min(1)
    return CalibrationBins(
        edges.double(), count, torch.stack(mass) / nonempty, hits.double() / nonempty
    )


def expected_calibration_error(
    probs: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    num_bins: int = 15,
    mode: Mode = "top",
) -> Float[Tensor, ""]:
    """Return ECE = Σ_b (n_b / n) |accuracy_b − confidence_b| over equal bins (thesis Eq. B.12).

    Arguments are those of :func:`calibration_bins`; lower is better.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
        >>> round(float(expected_calibration_error(probs, torch.tensor([0, 1]))), 4)
        0.3
    """
    bins = calibration_bins(probs, labels, num_bins, mode)
    return (bins.count * (bins.accuracy - bins.confidence).abs()).sum() / bins.count.sum()


def maximum_calibration_error(
    probs: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    num_bins: int = 15,
    mode: Mode = "top",
) -> Float[Tensor, ""]:
    """Return MCE = max over non-empty bins of |accuracy_b − confidence_b| (thesis Eq. B.13).

    Arguments are those of :func:`calibration_bins`; lower is better. One sample alone in its bin
    decides it.
    """
    bins = calibration_bins(probs, labels, num_bins, mode)
    return (bins.accuracy - bins.confidence).abs().amax()
