"""What is done with the class predictions of a method's runs: temperature scaling and ensembles."""

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
    energy = energy_score(logits.flatten(0, 1)).unflatten(0, (len(logits), -1)).mean(0)
    return mean_log_probs(list(logits.log_softmax(-1))), energy


Sets = Mapping[str, Predictions]


def apply_post_hoc(row: Row, runs: Sequence[Sets]) -> tuple[list[Sets], list[float]]:
    """Return a row's predictions, an entry a seed or one for an ensemble, and its temperatures.

    Temperature scaling leaves the energies alone, which it would only shift and scale. An
    ensemble's energy is the mean of its members'.
    """
    temperatures: list[float] = []
    if "ts" in row.additions:
        known = [sets["validation"] for sets in runs]
        temperatures = [fit_temperature(found.log_probs, found.labels) for found in known]
        runs = [
            {n: p._replace(log_probs=scale_log_probs(p.log_probs, t)) for n, p in sets.items()}
            for sets, t in zip(runs, temperatures, strict=True)
        ]
    if "ensemble" in row.additions:
        members = {name: [sets[name] for sets in runs] for name in runs[0]}
        together = {
            name: Predictions(
                mean_log_probs([found.log_probs for found in each]),
                torch.stack([found.energy for found in each]).mean(0),
                each[0].labels,
            )
            for name, each in members.items()
        }
        runs = [together]
    return list(runs), temperatures
