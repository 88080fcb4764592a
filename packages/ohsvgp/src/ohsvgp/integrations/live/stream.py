"""A stream of lines that is learned, forecast, and survives being killed.

A line is ``t,y``: a number or an ISO date, and a number, or nothing (NA, NaN, null) where the value
is missing. A line that cannot be understood is refused in its answer, and does not stop the stream;
nothing changes before its answer is there.

The first lines wait, and give the step and the seasons; then each line is learned by itself. What a
line is, regular, an outlier or the first of something new, is decided in ``regimes``. A stamp too
far ahead waits until the next line confirms it; a late line is told and not learned; the clock has
gone back where several in a row go on from one to the next.

The state is written after the update and before its answer is given: no answer is ever lost.
After a crash the stream goes on with the lines that were not absorbed, or from its beginning, those
absorbed skipped; answers are then those of an uninterrupted run to the last bit.

Not in the papers.
"""

import json
import math
from collections.abc import Generator, Iterable, Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median_low
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from ohsvgp.beyond import seasons as kinds
from ohsvgp.beyond.horizons import Horizons
from ohsvgp.beyond.seasons import SeriesRow, candidates, choose_seasons, filter_rows, next_length
from ohsvgp.beyond.state_space import Array, StateSpace
from ohsvgp.integrations.live.intervals import DEVIATIONS, judge_intervals
from ohsvgp.integrations.live.lines import Line, LineReader
from ohsvgp.integrations.live.regimes import Regimes, advance, learn
from ohsvgp.integrations.live.state import FALSE_ALARMS, FORMAT, HORIZON, WARMUP, read_state
from ohsvgp.integrations.live.stream_state import StreamState, as_json
from ohsvgp.stream.calendar import calendar_ahead
from ohsvgp.stream.durations import duration_text
from ohsvgp.stream.spacing import GAPS
from probseq.checks import check_choice, check_counts, check_positive
from probseq.files import InUseError, pack_arrays, sole_use, unpack_arrays, write_atomic

# Steps ahead beyond which a stamp waits for the next, and that are forecast at most; late lines
# that turn the clock back.
_FAR, _FARTHEST, _LATE = 30.0, 10_000, 5
# Values from a new level until seasons are compared again, and of one that ends as an outlier does;
# characters told of a refused line.
_SOON, _SHORT, _LONGEST = 30, 100, 400
# Values of a Gaussian that differ by less are equal.
_ROUND_OFF = 1e-12

Likelihood = Literal["gaussian", "poisson", "negative-binomial"]


class RefusedError(ValueError):
    """A line cannot be learned with the stream's settings."""


class LiveStream:
    """A stream of lines, kept in a file.

    Args:
        file: of the state; taken up if it is there, else made. None keeps the state in memory.
        likelihood: of real values, or of counts: "poisson" or "negative-binomial".
        seasons: periods, in the unit of the stamps, of dates in seconds; "auto" compares those that
            the data suggest, by evidence; none without.
        false_alarms: share of quiet lines that are told as outliers, or with ``per`` how many in
            that time, in the unit of the stamps, of dates in seconds.
        warmup: lines that wait at the beginning.
        horizon: stamps to forecast after each line, and to weigh models by; or, with ``ahead``, as
            many as there are in that time.
        step: between them, as the periods; if None, as in ``ohsvgp.forecast``.
        reader: of stamp and value in a line; ``t,y`` if None.

    Raises:
        OSError: the file cannot be read or written, or another stream has written it since.

    Example:
        >>> from ohsvgp.integrations.live import LiveStream
        >>> stream = LiveStream(warmup=3)
        >>> answers = [stream.answer(line) for line in ["0,1.0", "0.5,1.2", "1,0.9", "1.5,"]]
        >>> [len(answer["forecasts"]) for answer in answers], answers[-1]["alerts"][0]
        ([0, 0, 1, 1], 'missing')
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        likelihood: Likelihood = "gaussian",
        seasons: Literal["auto"] | Sequence[float] | np.ndarray | None = "auto",
        false_alarms: float = FALSE_ALARMS,
        per: float | None = None,
        warmup: int = WARMUP,
        horizon: int = HORIZON,
        ahead: float | None = None,
        step: float | None = None,
        reader: LineReader | None = None,
    ) -> None:
        self._reader = reader or LineReader()
        check_counts(warmup=warmup, horizon=horizon)
        check_choice("likelihood", likelihood, Likelihood)
        if horizon > _FARTHEST:
            raise ValueError(f"horizon must be at most {_FARTHEST:,} steps, got {horizon:,}")
        if not 0.0 < false_alarms < (1.0 if per is None else float("inf")):
            raise ValueError(f"false_alarms must be above 0 and below 1, got {false_alarms}")
        periods, lengths = kinds.fixed_periods(seasons), {"step": step, "per": per, "ahead": ahead}
        check_positive(**{name: x for name, x in lengths.items() if x is not None})
        self.file, self.state, self.regimes = file, StreamState(), None
        self.warmup, self.horizon, self.ahead, self.step = warmup, horizon, ahead, step
        self.counts = None if likelihood == "gaussian" else likelihood
        self.periods, self.auto = periods or [], periods is None
        self.false_alarms, self.per = false_alarms, per
        self._space: StateSpace | None = None
        self._alerts, self._error, self._changed = list[str](), None, False  # of a line
        self.settings = {
            "likelihood": likelihood,
            "season": ["auto"] if periods is None else [f"{p:g}" for p in periods] or ["none"],
            "false_alarms": f"{false_alarms:g}" + ("" if per is None else f"/{per:g}"),
            "warmup": warmup,
        }
        self._saved = None if file is None else read_state(file)  # what is in the file
        if self._saved is not None:
            self._restore(self._saved, str(file))
        self.save()  # a file that cannot be written is refused before anything is learned

    def follow(
        self, lines: Iterable[str], *, every: int = 1, replay: bool = False
    ) -> Generator[str]:
        """Read lines to their end; yield what ``answer`` returns of each, as JSON in one line.

        The state is saved after ``every`` lines, at their end, and where an exception or whoever
        reads the answers stops. With ``replay`` they begin at the stream's first one: those that
        the state has absorbed are skipped, but the last answer, which a crash may have swallowed,
        comes again.

        Raises:
            OSError: the state cannot be written, or another stream has.
        """
        skip = self.state.lines if replay else 0
        if skip and self.state.answer:
            yield self.state.answer
        unsaved = number = 0
        try:
            for number, line in enumerate(lines, 1):
                if number <= skip:
                    continue
                unsaved += 1
                answer = self.answer(line)
                if unsaved == every:
                    self.save()
                    unsaved = 0
                if answer:
                    yield self.state.answer
        finally:
            if unsaved:
                self.save()
        if number < skip:
            raise ValueError(f"the state has {skip} lines, got {number}: pass others by a pipe")

    def answer(self, line: str) -> dict[str, Any] | None:
        """Learn a line and forecast.

        Returns:
            None if there is nothing in it; else values that JSON can hold: ``line``, its number;
            ``t``; ``y``, None if it is missing; ``error``, its standardised error, None if there
            was no forecast; ``alerts``: of "missing", "outlier", "new level" (the stream has begun
            something new), "late" (not learned) and "clock" (the stamp is too far
            ahead and waits for the next, or the clock has gone back); and ``forecasts`` with
            ``horizon``, ``t``, ``mean``, ``low`` and ``high`` each, ends of the interval of 95 %:
            none before the first lines are learned. Where seasons are chosen, ``season``: the
            ``step``, their ``periods``, and the ``nats`` of evidence over none. Or ``line`` and
            ``refused``, why it was not learned.
        """
        # What a line changes is changed in a draft, until its answer is there.
        draft, passed, text = copy(self), copy(self.state), line.strip()
        passed.lines += 1
        draft.state, draft._alerts, draft._error, draft._changed = copy(passed), [], None, False
        content = text and not text.startswith("#")
        answer = {"line": passed.lines} | draft._answer(text) if content else None
        if answer is None or "refused" in answer:
            draft.state, draft.regimes, draft._space = passed, self.regimes, self._space
        if answer is not None:
            draft.state.answer = json.dumps(answer)
        # No signal comes between the three.
        self.state, self.regimes, self._space = draft.state, draft.regimes, draft._space
        return answer

    def _answer(self, text: str) -> dict[str, Any]:
        """Learn a line, or refuse it; return what answers it but its number."""
        try:
            line = self._reader.read(text)
            self._check(line)
        except ValueError as error:
            return {"refused": str(error)[:_LONGEST]}
        try:
            return self._learn(line)
        except OverflowError:
            return {"refused": "forecasts must lie before the year 10000"}
        except RefusedError as error:
            return {"refused": str(error)}

    def threshold(self, step: float) -> float:
        """Return the deviations that a value may be off, where stamps come in a step."""
        share = self.false_alarms * (1.0 if self.per is None else step / self.per)
        if share >= 1.0:
            raise RefusedError(f"false_alarms must be fewer than lines, got {share:.3g} for each")
        return -float(ndtri(0.5 * share))

    def predict(self, stamps: Sequence[str]) -> list[tuple[float, float]]:
        """Return means and deviations of values at stamps from the latest on.

        None are there before the first lines are learned.
        """
        state, space = self.state, self._space
        if self.regimes is None or space is None or state.last is None:
            return []
        read = [self._reader.stamp(stamp) for stamp in stamps]
        if any(stamp.form != state.form for stamp in read):
            raise ValueError(f"stamps must each be a {state.form} like those before, got {stamps}")
        ahead = [max(0.0, (stamp.time - state.last) / (state.unit or 1.0)) for stamp in read]
        now = self.regimes
        mean, variance = now.ahead.forecast(space, now.leader, ahead, *self._spacing())
        return list(zip(mean.tolist(), np.sqrt(variance).tolist(), strict=True))

    def save(self) -> None:
        """Write the state, all or nothing; nothing without a file."""
        if self.file is None:
            return
        content = self.to_bytes()
        try:
            self.file.parent.stat()  # a lock would make the folder
            with sole_use(self.file, "save"):
                if read_state(self.file) not in (None, self._saved, content):
                    raise InUseError(0, "another stream has written it: name another file")
                write_atomic(self.file, content)
        except OSError as error:
            reason = error.strerror or error
            raise type(error)(f"{self.file} cannot be written: {reason}") from error
        self._saved = content

    def to_bytes(self) -> bytes:
        """Return the bytes of the state file, for an engine that keeps states by itself."""
        head, arrays = {"model": self.settings, "position": vars(self.state)}, dict[str, Array]()
        if self.regimes is not None:
            head["regimes"], arrays = self.regimes.split()
        return pack_arrays(FORMAT, head, arrays)

    def load_bytes(self, state: bytes) -> None:
        """Take over what ``to_bytes`` gave, and forget all else; answers go on to the last bit."""
        self._restore(state, "state")

    def _restore(self, content: bytes, source: str) -> None:
        head, arrays = unpack_arrays(content, FORMAT, source)
        saved, now = head["model"], self.settings
        if saved != now:
            changed = [
                f"{k} {saved.get(k)} instead of {now[k]}" for k in now if saved.get(k) != now[k]
            ]
            raise ValueError(
                f"{source} is the state of another model ({', '.join(changed)}): leave these out, "
                "or name another file"
            )
        try:
            self.state = StreamState(**head["position"])
            self.regimes = Regimes.join(head["regimes"], arrays) if arrays else None
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{source} is damaged: {error}") from error
        bank = candidates(self.state.periods)
        self._space = StateSpace(bank, self.state.floor, self.counts) if arrays else None

    def _check(self, line: Line) -> None:
        """Refuse a line that is none of this stream."""
        text, form, value = line.text, line.stamp.form, line.value
        state, calendar = self.state, form != "number"
        if state.calendar not in (None, calendar):
            words = "numbers" if calendar else "dates"
            raise ValueError(f"stamps must be {words} like those before, got {text!r}")
        if state.form not in (None, form):
            raise ValueError(f"stamps must each be a {state.form} like those before, got {text!r}")
        if self.counts and value is not None and (value < 0 or value % 1):
            raise ValueError(f"y must be a count 0, 1, 2, … for {self.counts}, got {value}")
        state.digits = max(state.digits, line.digits)
        state.calendar, state.form, state.zone = calendar, form, line.stamp.zone

    def _learn(self, line: Line) -> dict[str, Any]:
        """Learn a line, and return what answers it but its number."""
        state, stamp, value = self.state, line.time, line.value
        if value is None:
            self._alerts.append("missing")
        if self.regimes is None:
            self._wait(stamp, value)
        else:
            self._follow(stamp, value)
        answer: dict[str, Any] = {"t": as_json(stamp, state.form, state.zone), "y": value}
        answer |= {"error": self._error, "alerts": self._alerts, "forecasts": self._forecasts()}
        if self._changed:
            periods, nats = [*map(self._period, state.periods)], round(state.nats, 1)
            answer["season"] = {"step": self._period(1.0), "periods": periods, "nats": nats}
        return answer

    def _wait(self, stamp: float, value: float | None) -> None:
        """Keep one of the first lines, and learn them at once when they are enough."""
        state, warmup = self.state, self.warmup
        state.observe(stamp)
        if value is None or [stamp, value] in state.first_lines:
            return  # a line that was delivered twice is one
        state.first_lines = [*state.first_lines, [stamp, value]][-max(kinds.LATEST, warmup) :]
        lines = sorted(state.first_lines, key=lambda row: row[0])
        gaps = [b[0] - a[0] for a, b in pairwise(lines) if b[0] > a[0]]
        unit = median_low(gaps) if gaps else self.step
        if len(lines) < warmup or unit is None:
            return
        self.threshold(unit)  # refused before anything is learned
        if (self.ahead or 0.0) > _FARTHEST * (self.step or unit):
            raise RefusedError(f"horizon must be at most {_FARTHEST:,} steps")
        # Stamps that are far from all others are those of a wrong clock.
        pairs = enumerate(pairwise(lines), 1)
        starts = [k for k, (a, b) in pairs if b[0] - a[0] > _FAR * unit]
        ends = pairwise([0, *starts, len(lines)])
        longest = max((lines[a:b] for a, b in ends), key=len)
        lines = longest if len(longest) >= 0.75 * len(lines) else lines
        first, state.last = lines[0][0], lines[-1][0]
        state.unit, state.first_lines, state.gaps = unit, [], gaps[-GAPS:]
        state.time = (state.last - first) / unit
        state.rows = [[(t - first) / unit, y, kinds.REGULAR] for t, y in lines]
        state.learned, state.check_at = len(lines), len(lines)
        for k in range(1, len(lines)):
            self._resolve([y for _, y in lines[max(k - 2, 0) : k + 1]])
        self._compare_seasons()

    def _follow(self, stamp: float, value: float | None) -> None:
        """Place a stamp in time, and learn its value."""
        state, unit = self.state, self.state.unit or 1.0
        far = _FAR * max(unit, state.step or 0.0)
        if state.waiting is not None:
            at, before = state.waiting
            state.waiting = None
            if at is not None and 0.0 <= stamp - at <= max(far, at - (state.last or 0.0)):
                self._step(at, before)
        if stamp - (state.last or 0.0) > far:
            state.waiting = [stamp, value]
            self._alerts.append("clock")
            return
        if stamp >= (state.last or 0.0):
            state.late = []
            self._step(stamp, value)
            return
        time = state.time + (stamp - (state.last or 0.0)) / unit
        again = any(abs(at - time) < 1e-6 and y == value for at, y, _ in state.rows)
        if value is not None and not again:  # a line that comes again tells of no clock
            state.late = [*([] if stamp < max(state.late, default=stamp) else state.late), stamp]
        if len(state.late) >= _LATE and state.late[0] < state.late[-1]:
            self._alerts.append("clock")
            steps = len(state.late) * (state.step or unit) / unit
            state.late, state.pending, state.last = [], [], stamp
            self._step(stamp, value, steps)
            return
        self._alerts.append("late")

    def _step(self, stamp: float, value: float | None, steps: float | None = None) -> None:
        """Go on to a stamp, and learn its value."""
        state, space, last = self.state, self._space, self.state.last or 0.0
        if self.regimes is None or space is None:
            return
        steps = (stamp - last) / (state.unit or 1.0) if steps is None else steps
        state.time += steps
        state.observe(stamp)
        self.regimes = advance(space, self.regimes, steps)
        if value is None or (steps == 0.0 and state.rows and state.rows[-1][1] == value):
            return
        self._resolve([*(row[1] for row in state.rows[-2:]), value])
        space.floor, space.width = state.floor, state.width
        self.regimes, verdict = learn(space, self.regimes, value, self.threshold(state.unit or 1.0))
        now = self.regimes
        if len(now.ahead.scores):
            judged = now.ahead.after(space, now.leader, state.time, value, self._spacing()[0])
            self.regimes = now._replace(ahead=judged)
        self._error = verdict.error
        self._alerts += verdict.alerts
        distances = [distance for distance in (self.step, state.step) if distance]
        judge_intervals(state, stamp, value, 0.25 * min(distances, default=0.0))
        kind = kinds.OUTLIER if verdict.outlier else kinds.REGULAR
        state.rows = [*state.rows, [state.time, value, kind]][-kinds.LATEST :]
        if kinds.OUTLIER not in (row[2] for row in state.rows[-2:]):
            state.width = kinds.common_divisor(state.width, value - state.rows[-2:][0][1], value)
        if verdict.restart is not None and verdict.restart < len(state.rows):
            rows, back = state.rows, len(state.rows) - 1 - verdict.restart
            latest = range(max(back - _SHORT, 0), back)
            begun = max((k for k in latest if rows[k][2] == kinds.RESTART), default=back)
            # What the former regime has ended soon is an outlier in retrospect.
            short = verdict.returned and begun < back
            between = [[*row[:2], kinds.OUTLIER] if short else row for row in rows[begun:back]]
            first = [*rows[back][:2], kinds.REGULAR if short else kinds.RESTART]
            later = [[*row[:2], kinds.REGULAR] for row in rows[back + 1 :]]
            state.rows = [*rows[:begun], *between, first, *later]
            state.check_at = min(state.check_at, state.learned + _SOON)
        state.learned += 1
        if state.learned >= state.check_at and self.regimes.rival is None:
            self._compare_seasons()

    def _resolve(self, values: Sequence[float]) -> None:
        """Take up the differences of the last values: of rounded ones they are multiples of a step.

        Second differences are small where a trend's first ones are not.
        """
        state, size = self.state, max(map(abs, values))
        first = [b - a for a, b in pairwise(values)]
        sizes = [abs(step) for step in (*first, *(b - a for a, b in pairwise(first)))]
        sizes = [step for step in sizes if step > _ROUND_OFF * size]
        if sizes:
            state.resolution = min(*sizes, state.resolution or math.inf)

    def _compare_seasons(self) -> None:
        """Choose seasons, and begin with them where they are others than before."""
        state = self.state
        rows = [SeriesRow(time, value, int(kind)) for time, value, kind in state.rows]
        restarts = [k for k, row in enumerate(rows) if row.kind == kinds.RESTART]
        since = len(rows) - restarts[-1] if restarts else state.learned
        periods, nats, unit = tuple(state.periods), 0.0, state.unit or 1.0
        step, wait = unit if state.calendar else None, min(since // 2, 2 * kinds.LATEST)
        if len(rows) < kinds.LATEST:
            length = rows[-1].time - rows[restarts[-1] if restarts else 0].time
            wait = min(wait, next_length(length, step) - length)
        state.check_at = state.learned + max(math.ceil(wait), 1)
        if self.auto:
            now = periods
            periods, nats = choose_seasons(rows, step, state.floor, self.counts, now)
            # Seasons may begin with the latest regime: nothing before then tells of them.
            if restarts and since > _SOON:
                latest = rows[restarts[-1] :]
                other, more = choose_seasons(latest, step, state.floor, self.counts, now)
                if more > nats:
                    periods, nats, rows = other, more, latest
        elif self.regimes is None:
            periods = tuple(period / unit for period in self.periods)
            if min(periods, default=2.0) < 2.0:
                raise RefusedError(
                    f"seasons must be at least two steps of {self._period(1.0)}, "
                    f"got {self._period(min(periods))}"
                )
        near = len(periods) == len(state.periods) and all(
            abs(a - b) < 0.02 * b for a, b in zip(periods, state.periods, strict=True)
        )
        if near and self.regimes is not None:
            return
        state.periods, state.nats, self._changed = [*periods], nats, True
        self._space = StateSpace(candidates(periods), state.floor, self.counts)
        begun = Regimes(filter_rows(self._space, rows)[0])
        state.width = self._space.width
        now = self.regimes or begun
        self.regimes = begun._replace(reach=now.reach, held=now.held)

    def _forecasts(self) -> list[dict[str, Any]]:
        """Return forecasts, none before stamps have a distance."""
        state, horizon, ahead = self.state, self.horizon, self.ahead
        if self.regimes is None or self._space is None or state.last is None:
            return []
        distance = self.step or state.step or state.unit or 1.0
        if ahead is not None:
            horizon = min(max(1, round(ahead / distance)), _FARTHEST)
        calendar, stamps = bool(state.calendar), None
        if calendar and self.step is None:
            stamps = calendar_ahead(state.last, state.gaps, horizon, state.zone)
        if stamps is None:
            stamps = [state.last + distance * (k + 1) for k in range(horizon)]
        steps = [(stamp - state.last) / (state.unit or 1.0) for stamp in stamps]
        now, step, since = self.regimes, *self._spacing()
        judged = Horizons.begin(1 if self.counts else round(steps[-1] / step), len(now.main.draws))
        if len(judged.scores) > len(now.ahead.scores):  # of new models, or farther than before
            rows = [SeriesRow(time, value, int(kind)) for time, value, kind in state.rows]
            judged = filter_rows(self._space, rows, judged, step)[2]
            self.regimes = now = now._replace(ahead=judged)
        mean, variance = now.ahead.forecast(self._space, now.leader, steps, step, since)
        reach = [*state.reach, *[1.0] * (horizon - len(state.reach))]
        state.reach = reach
        low, high = self._space.interval(mean, variance, DEVIATIONS * np.array(reach[:horizon]))
        rows = zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
        answers, pending = list[dict[str, Any]](), list[list[float]]()
        for k, (stamp, (center, *ends)) in enumerate(zip(stamps, rows, strict=True), 1):
            numbers = {"mean": center, "low": ends[0], "high": ends[1]}
            answers.append({"horizon": k, "t": as_json(stamp, state.form, state.zone)} | numbers)
            pending.append([k - 1.0, steps[k - 1] / step, stamp, *ends])
        if state.waiting is None and "late" not in self._alerts:
            state.pending = [*state.pending, *pending]
        return answers

    def _spacing(self) -> tuple[float, float]:
        """Return the distance of the latest stamps, and the time without values, in model steps."""
        state, step, unit = self.state, self.state.step or 1.0, self.state.unit or 1.0
        near = [gap for gap in state.gaps if abs(gap - step) < 0.1 * step]  # months differ
        return fmean(near or [unit]) / unit, state.time - state.rows[-1][0]

    def _period(self, steps: float) -> float | str:
        """Return a period in stamps, of dates with its unit."""
        length = steps * (self.state.unit or 1.0)
        return duration_text(length) if self.state.calendar else float(f"{length:.6g}")
