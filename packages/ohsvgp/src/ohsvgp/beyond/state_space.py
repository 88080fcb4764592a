"""Exact filter of sums of state-space components, for many hyperparameters at once.

    y_t = level_t + swing_t + Σ_j season_jt + ε_t,  ε_t ~ N(0, v),

a level that walks and has a slope that fades, a swing about it (Matérn-1/2), and oscillators whose
amplitudes and phases walk. Each is the solution of a linear stochastic differential equation, so
steps of any length are exact. Variances are in units of v, whose inverse is gamma distributed, and
forgotten: predictions are Student's t (West and Harrison 1997, sections 4.5 and 10.8).

Oscillators are held in axes that turn with them: what turns is the row by which a value weighs
them. A step of a bank of K models with D states takes O(K D²), in float64. Not in the papers.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaln, gammaln, nbdtrik, ndtr, ndtri

Array = NDArray[np.float64]

# Share of what is known of the noise's variance, and of the models' weights, that a line leaves.
_KEEP_VARIANCE, _KEEP_WEIGHTS = 0.98, 0.99
# Probability that a line is an outlier, and the scale of the Cauchy density of one, in deviations.
OUTLIERS, _BREADTH = 0.005, 10.0
# Deviations beyond which no value is regular: float64 cannot add their squares to those of others.
_FARTHEST = 1e8
# Rate of fading up to which a slope goes on.
_LASTING = 1e-3
# Draws of the noise that are left where it may have changed, and the share of the models' weights
# that all have alike then.
_FEW, _SHARED = 1.0, 0.1
# Values that may be held, and the share of a line in how often they are.
_LATEST, _RATE_HELD = 24, 0.02
# Transitions that are stored, and times ahead.
_STORED, _STORED_AHEAD = 64, 4
# Of counts: the least mean, as a share of the noise's variance.
_LEAST_MEAN = 0.02


class Candidates(NamedTuple):
    """Hyperparameters of K models, each (K,); variances in units of the noise's, a unit of time."""

    level: Array  # variance of the level's steps
    slope: Array  # of the slope's
    fading: Array  # rate at which the slope fades
    swing: Array  # variance of the swing
    rate: Array  # one over its lengthscale
    season: Array  # variance of the steps of seasons' first harmonics
    damping: Array  # rate at which the oscillators fade
    frequencies: Array  # of the oscillators, in radians a unit of time, (K, J); 0 for none
    shares: Array  # of their variances in those of first harmonics, (K, J)


class Belief(NamedTuple):
    """Posteriors of K models: state ~ N(mean, v cov), and n draws of v whose sum is `total`."""

    mean: Array  # (K, D)
    cov: Array  # (K, D, D)
    draws: Array  # n, (K,)
    total: Array  # (K,)
    weights: Array  # logarithms of the models' weights, which sum to one, (K,)
    row: Array  # what a value weighs states by, (K, D)

    @property
    def noise(self) -> Array:
        """Estimates of v, (K,)."""
        return self.total / self.draws


class Held(NamedTuple):
    """Values at which a sensor may stand still, and how often it does."""

    latest: Sequence[float] = ()
    share: float = 0.05  # of lines

    def prior(self, y: float) -> float:
        """Return the probability that a value is held, by its count among the latest ones."""
        return self.share * self.latest.count(y) / max(len(self.latest), 1)

    def after(self, y: float, held: float) -> "Held":
        """Return what follows from a value that is held with a probability."""
        share = self.share + _RATE_HELD * (held - self.share)
        return Held([*self.latest, y][-_LATEST:], min(max(share, 1e-3), 0.5))


class Step(NamedTuple):
    """Effect of a time: the level takes up some slope, then states fade and noise is added."""

    slope: Array  # that the level takes up, (K,)
    keep: Array  # share of each state that is left, (K, D)
    turn: NDArray[np.complex128]  # of rows, e^{iωt}, (K, J)
    added: Array  # to a value's variance, (K,)
    fade: Array  # share of each covariance that is left, (K, D, D)
    noise: Array  # variances that states gain, (K, D)
    both: Array  # covariance that level and slope gain, (K,)


class Prediction(NamedTuple):
    """Distribution of a value: of each model (K,), and moments of their mixture."""

    mean: Array
    spread: Array  # variance in units of v
    gain: Array  # covariance of states and value, (K, D)
    center: float
    variance: float


class StateSpace:
    """A bank of models.

    The noise's variance is at least ``floor``, such as that of rounding. Of counts, "poisson" or
    "negative-binomial", variances are in units of the mean, and the prediction is the negative
    binomial with mean and variance of the Gaussian one. Values are rounded to ``width``; where it
    is 0, to what the floor says.
    """

    def __init__(self, candidates: Candidates, floor: float, counts: str | None = None) -> None:
        self.candidates, self.floor, self.counts, self.width = candidates, floor, counts, 0.0
        self.row = np.array([1.0, 0.0, 1.0, *[1.0, 0.0] * candidates.frequencies.shape[1]])
        self._steps = dict[float, Step]()  # by time
        self._aheads = dict[tuple[float, ...], Sequence[Any]]()  # by times

    def begin(self, value: float, variance: float, noise: float) -> Belief:
        """Return the prior of a series that has about this value, variance, and noise."""
        c, noise = self.candidates, max(noise, self.floor)
        spread = min(max(variance / noise, 1.0), 1e8)
        K = len(c.level)
        diagonal = np.zeros((K, len(self.row)))
        diagonal[:, 0] = spread
        lasting = np.where(c.slope > 0, 0.25, 0.0)
        diagonal[:, 1] = np.where(c.fading > _LASTING, c.slope / (2 * c.fading), lasting)
        diagonal[:, 2] = c.swing
        diagonal[:, 3:] = np.repeat(spread * c.shares, 2, axis=1)
        mean = np.tile(value * np.eye(1, len(self.row)), (K, 1))
        cov = diagonal[:, :, None] * np.eye(len(self.row))
        weights, row = np.full(K, -math.log(K)), np.tile(self.row, (K, 1))
        return Belief(mean, cov, np.ones(K), np.full(K, noise), weights, row)

    def step(self, dt: float) -> Step:
        """Return the effect of a time."""
        time = float(f"{min(dt, 1e15):.12g}")
        if time not in self._steps:
            if len(self._steps) >= _STORED:
                self._steps.clear()
            self._steps[time] = self._step(time)
        return self._steps[time]

    def _step(self, dt: float) -> Step:
        c = self.candidates
        # dlevel = slope dt + √level dW, dslope = −κ slope dt + √slope dW'.
        kappa = np.maximum(c.fading, _LASTING)
        left = -np.expm1(-kappa * dt)  # 1 − e^{−κ dt}
        twice = -np.expm1(-2 * kappa * dt)
        level = c.level * dt + c.slope / kappa**2 * (dt - 2 * left / kappa + twice / (2 * kappa))
        both = c.slope / kappa**2 * (left - 0.5 * twice)
        slope = c.slope * twice / (2 * kappa)
        # Matérn-1/2: stationary of variance swing.
        swing = c.swing * -np.expm1(-2 * c.rate * dt)
        # Oscillators fade at a rate γ; their noise is the same in all directions.
        wide = 2 * np.maximum(c.damping, 1e-9)
        waves = (c.season * -np.expm1(-wide * dt) / wide)[:, None] * c.shares
        noise = np.column_stack([level, slope, swing, np.repeat(waves, 2, axis=1)])
        rates = [0.0 * kappa, kappa, c.rate, *[c.damping] * (len(self.row) - 3)]
        keep, turn = np.exp(-dt * np.stack(rates, axis=1)), np.exp(1j * dt * c.frequencies)
        fade, added = keep[:, :, None] * keep[:, None, :], noise @ self.row
        return Step(left / kappa, keep, turn, added, fade, noise, both)

    def advance(self, belief: Belief, dt: float) -> Belief:
        """Return the belief a time later; variances of counts are those at their mean."""
        if dt == 0.0:
            return belief
        slope, keep, turn, _, fade, noise, both = self.step(dt)
        weight = self._weight(belief)
        mean, cov = belief.mean * keep, belief.cov * fade
        mean[:, 0] += slope * belief.mean[:, 1]
        # Cov(level + s slope, x) = Cov(level, x) + s Cov(slope, x), in row and column alike.
        more = slope[:, None] * keep * belief.cov[:, 1]
        more[:, 1] += weight * both
        cov[:, 0] += more
        cov[:, :, 0] += more
        cov[:, 0, 0] += slope * slope * belief.cov[:, 1, 1]
        np.einsum("kii->ki", cov)[...] += weight[:, None] * noise
        return belief._replace(mean=mean, cov=cov, row=_turned(belief.row, turn))

    def predict(self, belief: Belief) -> Prediction:
        """Return the distribution of a value now."""
        mean, gain = _products(belief.mean, belief.row), _products(belief.cov, belief.row)
        spread = _products(gain, belief.row) + self._weight(belief)
        center, variance = self._mixture(belief, mean, spread)
        return Prediction(mean, spread, gain, float(center), float(variance))

    def ahead(self, belief: Belief, times: Sequence[float]) -> tuple[Array, Array]:
        """Return means and variances of values after H times; weights may be of each, (H, K)."""
        return self._mixture(belief, *self.models_ahead(belief, times))

    def models_ahead(self, belief: Belief, times: Sequence[float]) -> tuple[Array, Array]:
        """Return each model's means and spreads of values after some times, (H, K)."""
        slopes, keep, turn, added = self._ahead(tuple(float(f"{dt:.12g}") for dt in times))
        rows = keep * _turned(belief.row[:, None], turn)  # (K, H, D)
        rows[:, :, 1] = slopes
        mean = (rows @ belief.mean[..., None])[..., 0]  # (K, H)
        spread = ((rows @ belief.cov) * rows).sum(2) + self._weight(belief)[:, None] * (1.0 + added)
        return mean.T, spread.T

    def _ahead(self, times: tuple[float, ...]) -> Sequence[Any]:
        """Return slopes, shares and turns after H times, (K, H, ...), and Q's share, (K, H)."""
        if times not in self._aheads:
            if len(self._aheads) >= _STORED_AHEAD:
                self._aheads.clear()
            columns = zip(*(self.step(dt)[:4] for dt in times), strict=True)
            self._aheads[times] = tuple(np.stack(column, axis=1) for column in columns)
        return self._aheads[times]

    def observe(
        self, belief: Belief, y: float, held: float = 0.0, prediction: Prediction | None = None
    ) -> tuple[Belief, Array, float, float]:
        """Return what follows from a value: posterior, and log densities; two probabilities.

        p(y | f) = (1 − ε) N(y; f, v) + ε C(y), with a Cauchy density that knows nothing of f. The
        posterior is a mixture of what was before and of the Kalman filter's, and has its moments.

        A sensor stands still at a value it had before with the probability ``held``: that tells of
        the states, and is no draw of v. ``prediction`` is what ``predict`` gives, if it is known.

        Returns:
            Posterior, log densities (K,), and the probabilities that it is an outlier, and is held.
        """
        prediction = prediction or self.predict(belief)
        error = y - prediction.mean
        log_regular, log_sum = self._regular(belief, y, prediction)
        regular = np.exp(log_regular - log_sum)  # π, (K,)
        held, logs = held if self.counts is None else 0.0, log_sum
        if held > 0.0:
            # By chance a value that is rounded to Δ comes again with p(y) Δ; that it is held is as
            # probable under all models.
            width = self.width or math.sqrt(12.0 * self.floor)
            logs = np.logaddexp(math.log1p(-held) + log_sum, math.log(held / width))
            log_density = float(np.logaddexp.reduce(belief.weights + log_sum))
            chance = min(1.0, width * math.exp(log_density))
            held = held / (held + (1.0 - held) * chance)
        gain, step = prediction.gain, error / prediction.spread
        mean = belief.mean + (regular * step)[:, None] * gain
        both = regular * (1.0 - regular) / np.maximum(belief.noise, self.floor)
        change = both * step * step - regular / prediction.spread
        cov = np.einsum("ki,kj->kij", gain, gain)  # symmetric to the last bit
        cov *= change[:, None, None]
        cov += belief.cov
        # What is forgotten of v is so by regular lines only.
        draw = regular * (1.0 - held)
        if self.counts == "negative-binomial":
            # Var((y − m)²/m) = 2v² + v (6v² − 6v + 1)/m: few counts tell little of v.
            v = belief.noise
            draw = draw / (1.0 + (3.0 * v - 3.0 + 0.5 / v) / self._weight(belief))
        draws = belief.draws + draw * (1.0 - (1.0 - _KEEP_VARIANCE) * belief.draws)
        square = error * error / prediction.spread
        total = belief.total + draw * (square - (1.0 - _KEEP_VARIANCE) * belief.total)
        total = np.maximum(total, draws * (self.floor if self.counts is None else 1.0))
        total = draws if self.counts == "poisson" else total
        weights = _KEEP_WEIGHTS * belief.weights + log_sum
        weights -= np.logaddexp.reduce(weights)
        outlier = 1.0 - float(np.exp(belief.weights) @ regular)
        if self.counts is not None:
            # As that of a gamma posterior, whose rate depends on no value: else gains would rise
            # where values are low, and means with them. Seasons are about that mean.
            now, before = (np.maximum(m[:, 0] + m[:, 2], _LEAST_MEAN) for m in (mean, belief.mean))
            cov *= (now / before)[:, None, None]
        return Belief(mean, cov, draws, total, weights, belief.row), logs, outlier, held

    def score(self, belief: Belief, y: float, mean: Array, spread: Array) -> Array:
        """Return log densities of a value in forecasts by means and spreads, all (n, K)."""
        moments = (each[:, None] for each in self._mixture(belief, mean, spread))
        return self._regular(belief, y, Prediction(mean, spread, mean, *moments))[1]

    def restart(self, belief: Belief, y: float) -> Belief:
        """Return the posterior after the first value of a new level, of which nothing was known.

        The level is y less all else. Little is known of the noise, too.
        """
        others = belief.row - np.eye(1, len(self.row))
        mean, cov = belief.mean.copy(), belief.cov.copy()
        reach = _products(cov, others)
        reach[:, 0] = 0.0
        mean[:, 0] = y - _products(mean, others)
        cov[:, 0, :] = cov[:, :, 0] = -reach
        new = self.unsure(belief)._replace(mean=mean, cov=cov)
        cov[:, 0, 0] = self._weight(new) + _products(reach, others)
        return new

    def unsure(self, belief: Belief) -> Belief:
        """Return a belief that knows little of the noise, and of which model holds."""
        draws, K = np.minimum(belief.draws, _FEW), len(belief.weights)
        # w ← (1 − α) w + α/K: what long calm has ruled out may hold again.
        weights = np.logaddexp(math.log1p(-_SHARED) + belief.weights, math.log(_SHARED / K))
        return belief._replace(draws=draws, total=draws * belief.noise, weights=weights)

    def interval(self, mean: Array, variance: Array, z: Array | float) -> tuple[Array, Array]:
        """Return the ends that z deviations below and above have of a Gaussian; of counts theirs.

        Those are the least whole numbers of at least the probability.
        """
        if self.counts is None:
            reach = z * np.sqrt(variance)
            return mean - reach, mean + reach
        r = _size(mean, variance)
        low, high = (nbdtrik(ndtr(sign * z), r, r / (r + mean)) for sign in (-1.0, 1.0))
        high = np.ceil(np.fmax(high, 0.0))
        return np.ceil(np.clip(low, 0.0, high)), high

    def standard_error(self, prediction: Prediction, y: float) -> float:
        """Return the error of a value, standard normal where the prediction holds."""
        mean, variance = prediction.center, prediction.variance
        if self.counts is None:
            return (y - mean) / math.sqrt(variance)
        # The middle of the step that the distribution function has at a count.
        r = _size(mean, variance)
        below = betainc(r, y, r / (r + mean)) if y > 0 else 0.0
        share = 0.5 * (below + betainc(r, y + 1, r / (r + mean)))
        return float(ndtri(np.clip(share, 1e-16, 1 - 1e-16)))

    def _weight(self, belief: Belief) -> Array:
        """Return the unit of variances, (K,): of counts it is their mean."""
        if self.counts is None:
            return np.ones(len(belief.mean))
        return np.maximum(_products(belief.mean, belief.row), _LEAST_MEAN)

    def _mixture(self, belief: Belief, mean: Array, spread: Array) -> tuple[Any, Any]:
        """Return mean and variance of the models' Student's t together, of (K,) or of (H, K)."""
        chances = np.exp(belief.weights)
        mean = mean if self.counts is None else np.maximum(mean, _LEAST_MEAN)
        center = mean @ chances if chances.ndim == 1 else (mean * chances).sum(1)
        # n/(n − 2), for the few degrees of freedom of a beginning that of three.
        dof = np.maximum(belief.draws, 3.0)
        variance = spread * belief.noise * dof / (dof - 2.0) + (mean - center[..., None]) ** 2
        variance = variance @ chances if chances.ndim == 1 else (variance * chances).sum(1)
        return center, variance if self.counts is None else np.maximum(variance, center)

    def _regular(self, belief: Belief, y: float, prediction: Prediction) -> tuple[Array, Array]:
        """Return log densities of a regular value, Student's or those of counts, and of any."""
        n, mean, spread = belief.draws, prediction.mean, prediction.spread
        square = (y - mean) ** 2 / (belief.noise * spread)  # of deviations
        if self.counts is None:
            tail = (n + 1) * np.log1p(square / n)
            logs = -betaln(0.5 * n, 0.5) - 0.5 * (np.log(belief.total * spread) + tail)
        else:
            logs = _count_log_density(y, np.maximum(mean, _LEAST_MEAN), belief.noise * spread)
        log_regular = np.where(square > _FARTHEST**2, -np.inf, math.log1p(-OUTLIERS) + logs)
        broad = _BREADTH**2 * prediction.variance
        distance = (y - prediction.center) ** 2 / broad
        log_broad = math.log(OUTLIERS / math.pi) - 0.5 * np.log(broad) - np.log1p(distance)
        return log_regular, np.logaddexp(log_regular, log_broad)


def _products(values: Array, row: Array) -> Array:
    """Return what models' vectors, or symmetric matrices, give with their rows."""
    return np.einsum("ki...,ki->k...", values, row)


def _turned(row: Array, turn: NDArray[np.complex128]) -> Array:
    """Return rows after a turn: those of oscillators, cos φ and sin φ, are e^{iφ}."""
    later = np.empty((*turn.shape[:-1], row.shape[-1]))
    later[..., :3] = row[..., :3]
    later[..., 3:] = (row[..., 3:].view(np.complex128) * turn).view(np.float64)
    return later


def _count_log_density(y: float, mean: Array, variance: Array) -> Array:
    """Return log probabilities of a count."""
    r = _size(mean, variance)
    ways = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
    return ways + r * np.log(r / (r + mean)) + y * np.log(mean / (r + mean))


def _size(mean: Any, variance: Any) -> Any:
    """Return r of the negative binomial, mean²/(variance − mean); the Poisson's is large."""
    return mean * mean / np.maximum(variance - mean, 1e-6 * mean)
