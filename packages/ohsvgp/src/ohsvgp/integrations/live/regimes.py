"""Regimes of a stream: two hypotheses about each line, of which later lines decide.

A value is regular, an outlier, or the first of a new regime. The stream goes on (`main`), or has
begun something new at some line (`rival`): another level or another size of noise, while slope and
seasons stay. The odds of the rival are those of Bayesian online changepoint detection (Adams and
MacKay 2007) with two run lengths,

    odds_t = odds_{t−1} p(y_t | y, rival)/p(y_t | y, main),

and whichever is the more probable forecasts. Not in the papers.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from ohsvgp.beyond.state_space import Array, Belief, StateSpace

# Log odds of a new regime against an outlier, at its first line; for which it is taken, or dropped.
_NEW, _ACCEPT, _REJECT = math.log(0.1), 3.0, -7.0
# Lines after which the more probable hypothesis is taken; for which the former regime may return.
_UNDECIDED, _MEMORY = 20, 500
# Of the threshold of alarms: steps of its logarithm, and bounds against a Gaussian's.
_RATE, _MIN_THRESHOLD, _MAX_THRESHOLD = 0.2, 0.8, 2.0


class Regimes(NamedTuple):
    """Beliefs about a stream."""

    main: Belief
    rival: Belief | None = None
    odds: float = 0.0  # logarithm of the rival's
    age: int = 0  # lines since it began
    former: Belief | None = None  # of the regime before
    elapsed: float = 0.0  # steps since then
    reach: float = 1.0  # the threshold of alarms against a Gaussian's

    @property
    def leader(self) -> Belief:
        """The more probable hypothesis."""
        return self.main if self.rival is None or self.odds <= 0.0 else self.rival

    def split(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what JSON can hold, and arrays by name."""
        values = self._asdict()
        beliefs = {name: values.pop(name) for name in ("main", "rival", "former")}
        return values, {
            f"{name}.{field}": array
            for name, belief in beliefs.items()
            if belief is not None
            for field, array in belief._asdict().items()
        }

    @classmethod
    def join(cls, values: dict[str, Any], arrays: dict[str, Array]) -> "Regimes":
        """Return what was split."""
        fields = dict(values)
        for name in {key.partition(".")[0] for key in arrays}:
            fields[name] = Belief(*(arrays[f"{name}.{field}"] for field in Belief._fields))
        return cls(**fields)


class LineVerdict(NamedTuple):
    """Judgement of a line."""

    error: float  # standard normal where the forecast held
    alerts: list[str]
    outlier: bool
    restart: int | None  # lines since the first one of a regime that is accepted now


def advance(space: StateSpace, now: Regimes, steps: float) -> Regimes:
    """Return beliefs some steps later."""
    rival = now.rival and space.advance(now.rival, steps)
    main, elapsed = space.advance(now.main, steps), now.elapsed + steps
    return now._replace(main=main, rival=rival, elapsed=elapsed)


def learn(
    space: StateSpace, now: Regimes, y: float, threshold: float
) -> tuple[Regimes, LineVerdict]:
    """Learn a value; errors beyond the threshold are alarms."""
    error = space.standard_error(space.predict(now.leader), y)
    after, logs, chance = space.observe(now.main, y)
    log_main, surprising = _log_mixture(now.main, logs), chance > 0.5
    state = now._replace(main=after)
    if now.rival is not None:
        challenger, logs, chance = space.observe(now.rival, y)
        odds = now.odds + _log_mixture(now.rival, logs) - log_main
        state = state._replace(rival=challenger, odds=odds, age=now.age + 1)
        surprising = surprising and chance > 0.5
    state, restart = _decide(state, now)
    if restart is None and surprising:
        state = _challenge(space, now, state, y, log_main)
        state, restart = _decide(state, now)
    alarm = abs(error) > threshold * now.reach
    alerts = ["new level"] if restart is not None else ["outlier"] if alarm else []
    # log reach ← log reach + rate (alarm − its probability).
    change = math.exp(_RATE * (alarm - math.erfc(threshold / math.sqrt(2.0))))
    reach = min(max(_MIN_THRESHOLD, state.reach * change), _MAX_THRESHOLD)
    former = state.former if state.elapsed <= _MEMORY else None
    state = state._replace(reach=reach, former=former)
    return state, LineVerdict(error, alerts, surprising, restart)


def _decide(state: Regimes, before: Regimes) -> tuple[Regimes, int | None]:
    """Take or drop the rival; return the lines since it began if it is taken."""
    if state.rival is None:
        return state, None
    old = state.age >= _UNDECIDED
    if state.odds > _ACCEPT or (old and state.odds > 0.0):
        state = state._replace(former=before.main, elapsed=0.0)
        return state._replace(main=state.rival, rival=None), state.age
    if state.odds < _REJECT or old:
        return state._replace(rival=None), None
    return state, None


def _challenge(
    space: StateSpace, before: Regimes, state: Regimes, y: float, log_main: float
) -> Regimes:
    """Return beliefs whose rival begins at a surprising value: the former regime, or a new one."""
    if before.former is not None:
        former = space.advance(before.former, before.elapsed)
        again, logs, chance = space.observe(former, y)
        if chance < 0.5:
            odds = _NEW + _log_mixture(former, logs) - log_main
            return state._replace(rival=again, odds=odds, age=0)
    return state._replace(rival=space.restart(before.main, y), odds=_NEW, age=0)


def _log_mixture(belief: Belief, logs: np.ndarray) -> float:
    """Return the log density of a value under all models together."""
    return float(np.logaddexp.reduce(belief.weights + logs))
