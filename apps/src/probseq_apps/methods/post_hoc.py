"""What is done with the class predictions of a method's runs: temperature scaling and ensembles."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.metrics import energy_score, fit_temperature, mean_log_probs, scale_log_probs
from probseq_apps.settings.methods import Row


class Predictions(NamedTuple):
    """What a model says about a test set; all that metrics and post-hoc methods need.

    Attributes:
        log_probs: logarithm of the mean over samples of the softmax.
        energy: −logsumexp of the logits, mean over samples.
        labels: true classes; those of another data set for out-of-distribution inputs.
    """

    log_probs: Float[Tensor, "n c"]
    energy: Float[Tensor, " n"]
    labels: Int64[Tensor, " n"]


def class_predictions(logits: Float[Tensor, "s n c"]) -> tuple[Tensor, Tensor]:
    """Return `log_probs` and `energy` of Monte Carlo samples."""
    logits = logits.float()
    samples, classes = len(logits), logits.shape[-1]
    log_probs = torch.logsumexp(logits.log_softmax(-1), 0) - math.log(samples)
    energy = energy_score(logits.reshape(-1, classes)).unflatten(0, (samples, -1)).mean(0)
    return log_probs, energy


Sets = Mapping[str, Predictions]


def apply_post_hoc(
    row: Row, runs: Sequence[Sets]
) -> tuple[list[dict[str, Predictions]], list[float]]:
    """Return a row's predictions, an entry a seed or one for an ensemble, and its temperatures.

    Temperature scaling leaves the energies alone, which it would only shift and scale. An
    ensemble's energy is the mean of its members'.
    """
    predictions = [dict(sets) for sets in runs]
    temperatures: list[float] = []
    if "ts" in row.additions:
        temperatures = [_fit(sets) for sets in predictions]
        predictions = [
            {n: p._replace(log_probs=scale_log_probs(p.log_probs, t)) for n, p in sets.items()}
            for sets, t in zip(predictions, temperatures, strict=True)
        ]
    if "ensemble" in row.additions:
        predictions = [
            {
                name: Predictions(
                    mean_log_probs([sets[name].log_probs for sets in predictions]),
                    torch.stack([sets[name].energy for sets in predictions]).mean(0),
                    first.labels,
                )
                for name, first in predictions[0].items()
            }
        ]
    return predictions, temperatures


def _fit(sets: Sets) -> float:
    if "validation" not in sets:
        raise ValueError("temperature scaling needs validation data, and this data set has none")
    return fit_temperature(sets["validation"].log_probs, sets["validation"].labels)
