"""Inception score (Salimans et al. 2016) of class probabilities."""

from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import as_probs, check_counts


class InceptionScore(NamedTuple):
    """An inception score and what it takes to read it."""

    mean: float  # over the splits; 1..K for K classes
    # Standard deviation over the splits (the sum is divided by their number, not one less)
    std: float
    splits: int  # number of splits of the samples
    num_samples: int  # N, all samples together


def inception_score(probabilities: Float[Tensor, "n k"], *, splits: int = 10) -> InceptionScore:
    r"""Return the exponential of the mean KL(p(y|x) ‖ p(y)), on each of several splits.

    A part is a run of neighbouring rows, ⌊iN/splits⌋ up to ⌊(i+1)N/splits⌋, ten in papers: shuffle
    samples that are sorted. The score is that of mutual information between image and class, and
    p(y) is the mean over the part itself: with n samples in a part it cannot exceed min(K, n), and
    it is biased downwards, for certain classes by a factor of about exp(−(K − 1)/2n). Compare
    scores of equal N and equal splits alone, which is why both are part of the result.

    Example:
        >>> inception_score(torch.eye(4), splits=1).mean
        4.0
    """
    probabilities = as_probs(probabilities.detach(), "probabilities").double()
    count = len(probabilities)
    if not 1 <= splits <= count:
        raise ValueError(
            f"splits must be 1..{count}, the number of samples, got {splits}: "
            "take fewer splits or more samples"
        )
    check_counts(splits=splits)
    # Σ_y p log p − Σ_y p log q, averaged over a part, is H(q) − mean H(p): q is the mean of p.
    bounds = [split * count // splits for split in range(splits + 1)]
    entropy = torch.special.entr(probabilities).sum(dim=1)
    scores = torch.stack(
        [
            torch.special.entr(probabilities[low:high].mean(dim=0)).sum() - entropy[low:high].mean()
            for low, high in pairwise(bounds)
        ]
    ).exp()
    return InceptionScore(float(scores.mean()), float(scores.std(correction=0)), splits, count)
