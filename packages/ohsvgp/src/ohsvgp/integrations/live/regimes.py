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

from ohsvgp.beyond.horizons import NEXT_STEP, Horizons
from ohsvgp.beyond.state_space import Array, Belief, Held, StateSpace

# Log odds of a new regime against an outlier, at its first line; for which it is taken, or dropped.
_NEW, _ACCEPT, _REJECT = math.log(0.1), 3.0, -7.0
# Lines after which the more probable hypothesis is taken; for which the former regime may return,
# and is compared at each line: the noise of a new one is so uncertain that nothing surprises it.
_UNDECIDED, _MEMORY, _SOON = 20, 500, 150
# Errors in deviations, and lines in a row with such, after which the noise may be smaller.
_NEAR, _CALM = 0.2, 3
# Of the threshold of alarms: steps of its logarithm, and bounds against a Gaussian's.
_RATE, _MIN_THRESHOLD, _MAX_THRESHOLD = 0.2, 0.8, 2.0

NEW, FORMER, QUIETER = "new", "former", "quieter"
"""Kinds of rivals: a new regime, the one before, and the same with another size of noise."""


class Regimes(NamedTuple):
    """Beliefs about a stream."""

    main: Belief
    ahead: Horizons = NEXT_STEP  # judgement of the models some steps ahead
    rival: Belief | None = None
    odds: float = 0.0  # logarithm of the rival's
    age: int = 0  # lines since it began
    start: Belief | None = None  # what was believed before its first value
    since: float = 0.0  # steps since then
    former: Belief | None = None  # of the regime before
    elapsed: float = 0.0  # steps since then
    reach: float = 1.0  # the threshold of alarms against a Gaussian's
    held: Held = Held()
    calm: int = 0  # lines in a row that came too near to their forecasts
    rival_is: str = NEW

    @property
    def leader(self) -> Belief:
        """The more probable hypothesis."""
        return self.main if self.rival is None or self.odds <= 0.0 else self.rival

    def split(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what JSON can hold, and arrays by name."""
        values = self._asdict()
        beliefs = {name: values.pop(name) for name in ("main", "ahead", "rival", "start", "former")}
        return values, {
            f"{name}.{field}": array
            for name, belief in beliefs.items()
            if belief is not None
            for field, array in belief._asdict().items()
        }

    @classmethod
    def join(cls, values: dict[str, Any], arrays: dict[str, Array]) -> "Regimes":
        """Return what was split."""
        fields: dict[str, Any] = {**values, "held": Held(*values["held"])}
        for name in {key.partition(".")[0] for key in arrays}:
            kind = Horizons if name == "ahead" else Belief
            fields[name] = kind(*(arrays[f"{name}.{field}"] for field in kind._fields))
        return cls(**fields)


class LineVerdict(NamedTuple):
    """Judgement of a line."""

    error: float  # standard normal where the forecast held
    alerts: list[str]
    outlier: bool
    restart: int | None  # lines since the first one of a regime that is accepted now
    returned: bool  # whether that is the former one


def advance(space: StateSpace, now: Regimes, steps: float) -> Regimes:
    """Return beliefs some steps later."""
    rival = now.rival and space.advance(now.rival, steps)
    main, since, elapsed = space.advance(now.main, steps), now.since + steps, now.elapsed + steps
    return now._replace(main=main, rival=rival, since=since, elapsed=elapsed)


def learn(
    space: StateSpace, now: Regimes, y: float, threshold: float
) -> tuple[Regimes, LineVerdict]:
    """Learn a value; errors beyond the threshold are alarms."""
    prediction, held = space.predict(now.leader), now.held.prior(y)
    error = space.standard_error(prediction, y)
    of_main = prediction if now.leader is now.main else None
    after, logs, chance, came = space.observe(now.main, y, held, of_main)
    log_main, surprising = _log_mixture(now.main, logs), chance > 0.5
    calm = now.calm + 1 if abs(error) < _NEAR and came < 0.5 else 0
    state = now._replace(main=after, held=now.held.after(y, came), calm=calm)
    if now.rival is not None:
        challenger, logs, chance, _ = space.observe(now.rival, y, held)
        odds = now.odds + _log_mixture(now.rival, logs) - log_main
        state = state._replace(rival=challenger, odds=odds, age=now.age + 1)
        surprising = surprising and chance > 0.5
    alarm = abs(error) > threshold * now.reach
    state, restart = _decide(state, came > 0.5)
    soon = now.former is not None and now.elapsed <= _SOON and came < 0.5
    if restart is None and (surprising or alarm or soon):
        state = _challenge(space, now, state, y, log_main, surprising, alarm)
        state, restart = _decide(state, came > 0.5)
    returned = restart is not None and state.rival_is == FORMER
    if state.rival is None and calm >= _CALM and space.counts is None:
        state = state._replace(rival=space.unsure(state.main), odds=_NEW, age=0, rival_is=QUIETER)
    alerts = ["new level"] if restart is not None else ["outlier"] if alarm else []
    # log reach ← log reach + rate (alarm − its probability).
    change = math.exp(_RATE * (alarm - math.erfc(threshold / math.sqrt(2.0))))
    reach = min(max(_MIN_THRESHOLD, state.reach * change), _MAX_THRESHOLD)
    former = state.former if state.elapsed <= _MEMORY else None
    state = state._replace(reach=reach, former=former)
    return state, LineVerdict(error, alerts, surprising, restart, returned)


def _decide(state: Regimes, held: bool) -> tuple[Regimes, int | None]:
    """Take or drop the rival; return the lines since it began if it is taken."""
    if state.rival is None:
        return state, None
    old = state.age >= _UNDECIDED
    # Held values tell no hypotheses apart: where a sensor stands still elsewhere for so long, the
    # prior odds do not either.
    even = _NEW - 1e-9 if held and state.rival_is == NEW else 0.0
    if state.odds > _ACCEPT or (old and state.odds > even):
        if state.rival_is == QUIETER:
            return state._replace(main=state.rival, rival=None), None
        ahead = state.ahead._replace(due=state.ahead.due[:0])  # others are from before it began
        state = state._replace(former=state.start, elapsed=state.since, ahead=ahead)
        return state._replace(main=state.rival, rival=None), state.age
    if state.odds < _REJECT or old:
        return state._replace(rival=None), None
    return state, None


def _challenge(
    space: StateSpace,
    before: Regimes,
    state: Regimes,
    y: float,
    log_main: float,
    new: bool,
    alarm: bool,
) -> Regimes:
    """Return beliefs whose rival begins at a value: the former regime, or a new one if it may."""
    begun = state._replace(age=0, start=before.main, since=0.0)
    if before.former is not None:
        former = space.advance(before.former, before.elapsed)
        again, logs, chance, _ = space.observe(former, y, before.held.prior(y))
        odds = _NEW + _log_mixture(former, logs) - log_main
        least = 0.5 * _NEW if state.rival is None or state.rival_is == QUIETER else state.odds
        if chance < 0.5 and (new or alarm or odds > least):
            return begun._replace(rival=again, odds=odds, rival_is=FORMER)
    if not new:
        return state
    return begun._replace(rival=space.restart(before.main, y), odds=_NEW, rival_is=NEW)


def _log_mixture(belief: Belief, logs: np.ndarray) -> float:
    """Return the log density of a value under all models together."""
    return float(np.logaddexp.reduce(belief.weights + logs))
