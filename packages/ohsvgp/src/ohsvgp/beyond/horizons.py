"""Weights of a bank's models by how far ahead they forecast.

A slope that helps one step ahead may cost much at eight. So models are judged h = 2, 4, 8, … steps
ahead, too, by the densities of values in the forecasts of h steps before, one in max(1, h/4) steps,

    L_hk ← ρ L_hk + max(1, h/4)/2h log p_k(y_t | y_1 … y_{t−h}),
    log w_hk = h^{−3/4} log w_k + L_hk + const.

Errors h steps ahead overlap: hence 1/2h. Others have the weights of the nearest h. Not in the
papers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ohsvgp.beyond.state_space import Array, Belief, StateSpace

# Share of the scores that a value leaves, and the power of h of what one step ahead tells.
_KEEP, _POWER = 0.995, -0.75
# Forecasts h steps ahead that wait for their values at most; steps that stamps may be off.
_WAITING, _NEAR = 4, 0.25


class Horizons(NamedTuple):
    """Judgement of K models h = 2, 4, … 2^R steps ahead."""

    scores: Array  # L, (R, K)
    due: Array  # forecasts whose values have not come: r, time, K means, and K spreads, (n, 2 + 2K)

    def reaching(self, steps: int, models: int) -> "Horizons":
        """Return the same, up to so many steps ahead at least."""
        if steps.bit_length() - 1 <= len(self.scores):
            return self
        scores = np.zeros((steps.bit_length() - 1, models))
        scores[: len(self.scores)] = self.scores
        return Horizons(scores, self.due if len(self.scores) else np.zeros((0, 2 + 2 * models)))

    def after(
        self, space: StateSpace, belief: Belief, time: float, y: float, step: float
    ) -> "Horizons":
        """Return what follows from a value that the belief has learned, and from its forecasts."""
        if not len(self.scores):
            return self
        h, K = 2.0 ** np.arange(1, len(self.scores) + 1), len(belief.weights)
        every, near, scores, due = (
            np.maximum(h / _WAITING, 1.0),
            _NEAR * step,
            self.scores,
            self.due,
        )
        came, due = due[np.abs(due[:, 1] - time) <= near], due[due[:, 1] > time + near]
        r, scores = came[:, 0].astype(int), _KEEP * scores
        logs = space.score(belief, y, came[:, 2 : 2 + K], came[:, 2 + K :])
        np.add.at(scores, r, (0.5 * every / h)[r, None] * logs)
        latest = np.full(len(h), -np.inf)
        np.maximum.at(latest, due[:, 0].astype(int), due[:, 1])
        new = np.flatnonzero(time + step * h - latest >= step * every - near)
        mean, spread = space.models_ahead(belief, (step * h).tolist())
        rows = np.column_stack([new, time + step * h[new], mean[new], spread[new]])
        return Horizons(scores, np.concatenate([due, rows]))

    def forecast(
        self, space: StateSpace, belief: Belief, times: Sequence[float], step: float, since: float
    ) -> tuple[Array, Array]:
        """Return means and variances of values after some times, since the latest one came."""
        if not len(self.scores):
            return space.ahead(belief, times)
        h = 2.0 ** np.arange(len(self.scores) + 1)[:, None]
        logs = h**_POWER * belief.weights
        logs[1:] += self.scores
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        nearest = np.rint(np.log2(np.clip((np.array(times) + since) / step, 1.0, h[-1])))
        return space.ahead(belief, times, weights[nearest.astype(int)])


ONE_STEP = Horizons(np.zeros((0, 0)), np.zeros((0, 0)))
"""No judgement but that one step ahead."""
