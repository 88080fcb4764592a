"""The evidence lower bound (thesis Eq. 3.18) and its likelihoods.

NaN and infinity in a tensor reach the result.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from probseq.checks import (
    check_floating,
    check_labels,
    check_not_negative,
    check_positive,
    check_terms,
)
from probseq.transformers.outputs import TransformerOutput


class NegativeELBO(NamedTuple):
    """The loss and its parts, in nats a sequence.

    Attributes:
        loss: ``nll + kl_scale * kl``.
        nll: expected negative log likelihood, estimated from the samples at hand.
        kl: KL divergence of all layers, not scaled.
    """

    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    kl: Float[Tensor, ""]


def negative_elbo(
    log_likelihood: Float[Tensor, "*samples batch"],
    penalty: Float[Tensor, ""],
    *,
    kl_scale: float = 1.0,
) -> NegativeELBO:
    """Combine the samples' log likelihoods and the layers' KL divergence (3.18).

    Args:
        log_likelihood: log p(y | F^L) of each sequence, for each sample.
        penalty: sum of the layers' KL divergences, from the transformer's output.
        kl_scale: weight of the KL divergence, see :func:`kl_annealing`; 1 is the ELBO.

    Raises:
        ValueError: ``kl_scale`` is negative or not finite, or see
            :func:`~probseq.checks.check_terms`.
    """
    check_terms(log_likelihood, penalty)
    check_not_negative(kl_scale=kl_scale)
    nll = -log_likelihood.mean()
    return NegativeELBO(nll + kl_scale * penalty, nll, penalty)


def categorical_log_likelihood(
    logits: Float[Tensor, "*samples batch classes"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, "*samples batch"]:
    """Log probability of each label under each sample's softmax.

    Args:
        logits: ``(batch, classes)`` or ``(S, batch, classes)``.
        labels: class of each sequence.

    Raises:
        ValueError: see :func:`~probseq.checks.check_labels`.
    """
    check_labels(labels, logits)
    log_probs = F.log_softmax(logits, -1)
    index = labels.expand(logits.shape[:-1]).unsqueeze(-1)
    return log_probs.gather(-1, index).squeeze(-1)


def kl_annealing(progress: float, fraction: float) -> float:
    """Weight of the KL divergence: linear from 0 to 1 over the first ``fraction`` of training.

    At the authors' initialisation the KL of one CIFAR-10 layer is about 5e4 nats against a
    cross-entropy of 2.3: unannealed, the layers fall back to their prior before they learn
    anything.

    Args:
        progress: share of the training steps done, 0 to 1.
        fraction: share over which the weight grows; 0 switches annealing off.

    Raises:
        ValueError: ``progress`` or ``fraction`` is outside 0 to 1.
    """
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"progress must be from 0 to 1, got {progress}")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must be from 0 to 1, got {fraction}")
    return 1.0 if progress >= fraction else progress / fraction


class LaplaceLikelihood(nn.Module):
    r"""Laplace likelihood with a learned scale (thesis B.3.2): :math:`e^{-|y - f| / b} / 2b`.

    Args:
        scale: initial b, in the targets' units.

    Raises:
        ValueError: ``scale`` is not positive and finite.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        check_positive(scale=scale)
        self.raw_scale = nn.Parameter(torch.tensor(math.log(scale)))

    @property
    def scale(self) -> Tensor:
        """The scale b, in the targets' units."""
        return self.raw_scale.exp()

    def log_prob(
        self, outputs: Float[Tensor, "*samples batch 1"], targets: Float[Tensor, " batch"]
    ) -> Float[Tensor, "*samples batch"]:
        """Log density of each target given each sample's output.

        Args:
            outputs: the transformer's logits with ``num_classes=1``.
            targets: one number a sequence.

        Raises:
            ValueError: ``outputs`` or ``targets`` is not one number a sequence, or of no floating
                dtype.
        """
        check_floating(outputs=outputs, targets=targets)
        if outputs.ndim < 2 or outputs.shape[-1] != 1:
            raise ValueError(
                f"outputs must have shape (..., batch, 1), got {tuple(outputs.shape)}: build the "
                "transformer with num_classes=1"
            )
        # (batch, 1) would broadcast to every pair of a target and an output.
        if targets.shape != outputs.shape[-2:-1]:
            raise ValueError(
                f"targets must have shape (batch,)={tuple(outputs.shape[-2:-1])}, "
                f"got {tuple(targets.shape)}"
            )
        error = (targets - outputs[..., 0]).abs()
        return -error / self.scale - math.log(2.0) - self.raw_scale


class RegressionModel(nn.Module):
    """A transformer and the likelihood of its output, trained as one (thesis B.3.2).

    Args:
        transformer: of sequences of vectors, with one output.
        likelihood: of standardised targets.
    """

    def __init__(self, transformer: nn.Module, likelihood: LaplaceLikelihood) -> None:
        super().__init__()
        self.transformer, self.likelihood = transformer, likelihood

    def forward(
        self,
        tokens: Float[Tensor, "n t w"],
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Return the output, in units of the targets' standard deviation."""
        return self.transformer(tokens, generator=generator, num_samples=num_samples)
