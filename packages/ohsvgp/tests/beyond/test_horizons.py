"""Weights by the steps ahead against sums of densities, one forecast at a time."""

import math

import numpy as np
import pytest
from scipy.stats import cauchy
from scipy.stats import t as student

from ohsvgp.beyond.horizons import Horizons
from ohsvgp.beyond.seasons import SeriesRow, candidates, filter_rows
from ohsvgp.beyond.state_space import OUTLIERS, StateSpace


def test_weights_are_discounted_densities_of_forecasts_of_some_steps_before() -> None:
    space, noise = StateSpace(candidates([], coarse=True), 1e-9), np.random.default_rng(0)
    y = np.cumsum(np.cumsum(0.2 * noise.normal(size=60))) + noise.normal(size=60)
    last, judged, beliefs = space.begin(0.0, 9.0, 1.0), Horizons.begin(11, 8), []
    for k, value in enumerate(y.tolist()):  # stamps of half a step
        last = space.observe(space.advance(last, 0.5), value)[0]
        judged = judged.after(space, last, 0.5 * k, value, 0.5)
        beliefs.append(last)
    rows = [SeriesRow(0.5 * k, value) for k, value in enumerate(y.tolist())]
    due = filter_rows(space, rows, Horizons.begin(11, 8), 0.5)[2].due
    np.testing.assert_allclose(due[:, :2], judged.due[:, :2])
    scores = np.zeros((3, 8))
    for k, now in enumerate(beliefs):
        scores *= 0.995
        scale = np.sqrt(now.total / now.draws)
        for r, (h, share) in enumerate([(2, 1 / 4), (4, 1 / 8), (8, 1 / 8)]):
            if k < h or (k - h) % max(1, h // 4):
                continue
            ahead = space.predict(space.advance(beliefs[k - h], 0.5 * h))
            chances, dof = np.exp(now.weights), np.maximum(now.draws, 3.0)
            center = chances @ ahead.mean
            each = ahead.spread * scale**2 * dof / (dof - 2.0) + (ahead.mean - center) ** 2
            broad = cauchy.pdf(y[k], center, 10.0 * math.sqrt(chances @ each))
            regular = student.pdf(y[k], now.draws, ahead.mean, scale * np.sqrt(ahead.spread))
            scores[r] += share * np.log((1 - OUTLIERS) * regular + OUTLIERS * broad)
    np.testing.assert_allclose(judged.scores, scores, rtol=1e-9)
    # The nearest of 7 steps is 8; one step ahead there are no scores.
    for steps, logs in ((7, 8**-0.75 * last.weights + scores[2]), (1, last.weights)):
        weights = np.exp(logs - np.logaddexp.reduce(logs))
        mean, _ = judged.forecast(space, last, [0.5 * steps], 0.5, 0.0)
        assert mean[0] == pytest.approx(weights @ space.models_ahead(last, [0.5 * steps])[0][0])
