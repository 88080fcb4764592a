"""Weights of a bank's models by how far ahead they forecast.

A slope that helps one step ahead may cost much at eight. So models are judged h = 2, 4, 8, … steps
ahead, too, by the densities of values in forecasts of h steps before, one in max(1, h/4) steps:

    L_hk ← ρ L_hk + max(1, h/4)/2h log p_k(y_t | y_1 … y_{t−h}),    as errors h steps ahead overlap,
    log w_hk = h^{−3/4} log w_k + L_hk + const,    others having those of the nearest h.

Counts have w_k at all h: zeros tell little against models of vast variance. Not in the papers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ohsvgp.beyond.state_space import Array, Belief, StateSpace

# Share of scores that is left, power of h, forecasts of each h that wait, steps stamps may be off.
_KEEP, _POWER, _WAITING, _NEAR = 0.995, -0.75, 4, 0.25


class Horizons(NamedTuple):
    """Judgement of K models h = 2, 4, … 2^R steps ahead."""

    scores: Array  # L, (R, K)
    due: Array  # forecasts whose values have not come: r, time, K means, and K spreads, (n, 2 + 2K)

    @classmethod
    def begin(cls, steps: int, models: int) -> "Horizons":
        """Return what is judged up to some steps ahead, before there are values."""
        rungs = max(steps, 1).bit_length() - 1
        return cls(np.zeros((rungs, models)), np.zeros((0, 2 + 2 * models)))

    def after(self, space: StateSpace, now: Belief, at: float, y: float, step: float) -> "Horizons":
        """Return what follows from a value that the belief has learned, and from its forecasts."""
        if not len(self.scores):
            return self
        h, K, near = 2.0 ** np.arange(1, len(self.scores) + 1), len(now.weights), _NEAR * step
        every, due = np.maximum(h / _WAITING, 1.0), self.due
        came, due = due[np.abs(due[:, 1] - at) <= near], due[due[:, 1] > at + near]
        r, scores = came[:, 0].astype(int), _KEEP * self.scores
        logs = space.score(now, y, came[:, 2 : 2 + K], came[:, 2 + K :])
        np.add.at(scores, r, (0.5 * every / h)[r, None] * logs)
        latest = np.full(len(h), -np.inf)
        np.maximum.at(latest, due[:, 0].astype(int), due[:, 1])
        new = np.flatnonzero(at + step * h - latest >= step * every - near)
        mean, spread = space.models_ahead(now, (step * h).tolist())
        rows = np.column_stack([new, at + step * h[new], mean[new], spread[new]])
        return self._replace(scores=scores, due=np.concatenate([due, rows]))

    def forecast(
        self, space: StateSpace, belief: Belief, times: Sequence[float], step: float, since: float
    ) -> tuple[Array, Array]:
        """Return means and variances of values after some times, since the latest one came."""
        if not len(self.scores):
            return space.ahead(belief, times)
        h = 2.0 ** np.arange(len(self.scores) + 1)[:, None]
        logs = h**_POWER * belief.weights
        logs[1:] += self.scores
        logs -= np.logaddexp.reduce(logs, axis=1, keepdims=True)
        nearest = np.rint(np.log2(np.clip((np.array(times) + since) / step, 1.0, h[-1])))
        return space.ahead(belief._replace(weights=logs[nearest.astype(int)]), times)


NEXT_STEP = Horizons.begin(1, 0)  # no other judgement
