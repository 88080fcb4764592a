"""The rows of a report: each method's predictions, after what it does to those of its runs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from probseq_apps.baselines.ensemble import mean_log_probs
from probseq_apps.baselines.temperature import fit_temperature, scale_log_probs
from probseq_apps.experiments.methods import Method
from probseq_apps.experiments.prediction import Predictions

Sets = Mapping[str, Predictions]


class Row(NamedTuple):
    """A method's predictions: one entry per seed, or a single one for an ensemble.

    Attributes:
        predictions: by set, for each entry.
        temperatures: the fitted temperature of each seed; empty without temperature scaling.
    """

    predictions: list[dict[str, Predictions]]
    temperatures: list[float]


def make_row(method: Method, runs: Sequence[Sets]) -> Row:
    """Apply a method's post-hoc steps to the predictions of its base method's runs.

    Temperature scaling leaves the energies alone, which it would only shift and scale. An
    ensemble's energy is the mean of its members'.

    Args:
        method: what to do.
        runs: predictions of each seed's run.

    Raises:
        ValueError: temperature scaling without validation data.
    """
    predictions = [dict(sets) for sets in runs]
    temperatures: list[float] = []
    if method.temperature:
        temperatures = [_fit(sets) for sets in predictions]
        predictions = [
            _scaled(sets, temperature)
            for sets, temperature in zip(predictions, temperatures, strict=True)
        ]
    if method.ensemble:
        predictions = [_combined(predictions)]
    return Row(predictions, temperatures)


def _fit(sets: Sets) -> float:
    if "validation" not in sets:
        raise ValueError("temperature scaling needs validation data, and this data set has none")
    return fit_temperature(sets["validation"].log_probs, sets["validation"].labels)


def _scaled(sets: Sets, temperature: float) -> dict[str, Predictions]:
    return {
        name: found._replace(log_probs=scale_log_probs(found.log_probs, temperature))
        for name, found in sets.items()
    }


def _combined(members: Sequence[Sets]) -> dict[str, Predictions]:
    return {
        name: Predictions(
            mean_log_probs([sets[name].log_probs for sets in members]),
            torch.stack([sets[name].energy for sets in members]).mean(0),
            first.labels,
        )
        for name, first in members[0].items()
    }
