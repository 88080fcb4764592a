"""Watch whether one-step-ahead predictions of a stream hold: errors, alarms, coverage, drift."""

import math
from fractions import Fraction
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.online import OnlineGP
from ohsvgp.stream.arrays import as_targets
from probseq.checks import check_finite

_LEVELS = (0.5, 0.9, 0.95)
# Of a two-sided CUSUM: quickest for shifts of one standard deviation.
_ALLOWANCE = 0.5
_THRESHOLD = 5.0


def standard_errors(gp: OnlineGP, t: Any, y: Any) -> Float[Tensor, "*b n"]:
    """Return the errors of a model's predictions, standard normal where these hold.

    z = Φ⁻¹((P(Y < y) + P(Y ≤ y))/2): (y − mean)/sd of a Gaussian; of counts and labels the middle
    of the step at y, which makes their errors a little smaller than standard.

    The model has not seen the targets, of shape (*b, n), and stays as it is.
    """
    return _scores_and_errors(gp, t, y)[1]


def _scores_and_errors(gp: OnlineGP, t: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Return log densities of targets, and their standard errors."""
    x, likelihood = gp.inputs(t), gp.likelihood
    targets = as_targets(y, x.shape[0], None, x)
    likelihood.check_targets(targets)
    with torch.no_grad():
        latent = gp.process.predict(gp.state, x)
        moments = (latent.mean, latent.variance)
        scores = likelihood.predictive_log_prob(*moments, targets)
        shares = likelihood.predictive_cdf(*moments, targets)
        if not likelihood.continuous:
            shares = 0.5 * (likelihood.predictive_cdf(*moments, targets - 1) + shares)
    # What lies beyond the reach of float64 is eight standard deviations away.
    tiny = torch.finfo(shares.dtype).eps / 2
    return scores, torch.special.ndtri(shares.clamp(tiny, 1 - tiny))


def alarm_threshold(errors: Any, rate: float) -> float:
    """Return the size of an error that a quiet stream exceeds with probability ``rate`` at most.

    Of n errors it is the ⌈(n + 1)(1 − rate)⌉-th smallest |error|, and infinite where that is
    beyond the n-th, n + 1 < 1/rate: no alarm is then as rare. If the n errors and a new one are
    exchangeable, whatever their distribution, P(|new error| > threshold) ≤ rate, and above
    rate − 1/(n + 1) where no two are equal (split conformal prediction: Vovk, Gammerman and Shafer
    2005; Lei et al. 2018, theorem 2.2). The probability is over histories, too: after a single one
    the share of alarms scatters about it by √(rate (1 − rate)/n). Not in the papers.

    Errors, of shape (n,), are of a quiet history, each from before its update, such as those of
    ``Monitor.errors``.

    Example:
        >>> from ohsvgp.beyond.monitor import alarm_threshold
        >>> alarm_threshold([0.5, -2.0, 1.0, 0.1], 0.4), alarm_threshold([0.5, -2.0], 0.1)
        (1.0, inf)
    """
    sizes = torch.as_tensor(errors, dtype=torch.float64).abs()
    if sizes.ndim != 1:
        raise ValueError(f"errors must have shape (n,), got {tuple(sizes.shape)}")
    check_finite(errors=sizes)
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate must be above 0 and below 1, got {rate}")
    # ⌈(n + 1)(1 − rate)⌉ = n + 1 − ⌊(n + 1) rate⌋, of the rate's decimals as they are written.
    rank = len(sizes) + 1 - math.floor((len(sizes) + 1) * Fraction(str(float(rate))))
    return float(sizes.sort().values[rank - 1]) if rank <= len(sizes) else math.inf


class Monitor:
    """Running coverage, mean log score and drift of predictions, each before its update.

    Not in the papers. Drift is detected by a two-sided CUSUM of the standard errors z (Page 1954),
    high ← max(0, high + z − ½), low ← max(0, low − z − ½), when either passes 5; both then start
    again. That is once in some 465 observations where there is no drift, and some 10 observations
    after errors have moved by a standard deviation.

    Attributes:
        errors: standard errors of the latest targets.
    """

    def __init__(self) -> None:
        names = ("count", "score", "high", "low", "drifts", *map(_name, _LEVELS))
        self._totals = dict.fromkeys(names, 0.0)
        self.errors: list[float] = []

    def observe(self, gp: OnlineGP, t: Any, y: Any) -> bool:
        """Compare predictions with the targets (n,) of the next update; return if they drift."""
        scores, errors = _scores_and_errors(gp, t, y)
        if scores.ndim != 1:
            raise ValueError(f"y must be one series of shape (n,), got {tuple(scores.shape)}")
        self.errors, drifts = errors.tolist(), self.drifts
        for error, score in zip(self.errors, scores.tolist(), strict=True):
            self._count(error, score)
        return self.drifts > drifts

    @property
    def coverage(self) -> dict[float, float]:
        """Return the share of targets in the intervals of 50, 90 and 95 %; NaN before the first."""
        return {level: self._mean(_name(level)) for level in _LEVELS}

    @property
    def score(self) -> float:
        """Return the mean log predictive density in nats; NaN before the first."""
        return self._mean("score")

    @property
    def drifts(self) -> int:
        """Return how often drift was detected."""
        return int(self._totals["drifts"])

    def state_dict(self) -> dict[str, float]:
        """Return all totals, as a flat dict of numbers that JSON can hold."""
        return dict(self._totals)

    def load_state_dict(self, numbers: dict[str, float]) -> None:
        """Take over what ``state_dict`` gave."""
        if set(numbers) != set(self._totals):
            raise ValueError(
                f"numbers must have names {sorted(self._totals)}, got {sorted(numbers)}"
            )
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError(f"numbers must be finite, got {numbers}")
        self._totals = {name: float(number) for name, number in numbers.items()}

    def _count(self, error: float, score: float) -> None:
        totals = self._totals
        totals["count"] += 1
        totals["score"] += score
        # Φ(z), and whether it lies in the middle interval of each level.
        share = 0.5 * (1.0 + math.erf(error / math.sqrt(2.0)))
        for level in _LEVELS:
            totals[_name(level)] += abs(2.0 * share - 1.0) <= level
        totals["high"] = max(0.0, totals["high"] + error - _ALLOWANCE)
        totals["low"] = max(0.0, totals["low"] - error - _ALLOWANCE)
        if max(totals["high"], totals["low"]) > _THRESHOLD:
            totals["high"] = totals["low"] = 0.0
            totals["drifts"] += 1

    def _mean(self, name: str) -> float:
        return self._totals[name] / self._totals["count"] if self._totals["count"] else math.nan


def _name(level: float) -> str:
    return f"inside_{level:g}"
