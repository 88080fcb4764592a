"""Forecasts of a stream judged by the values that came, beside naive ones.

Absolute errors of three forecasts of a value that are made at the same line: the stream's, the
value of that line, and the latest one then that lies whole seasons before. Not in the papers.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from functools import lru_cache
from typing import Any

from ohsvgp.stream.durations import DAY, YEAR, parse_duration
from ohsvgp.stream.stamps import parse_stamp

# Values that naive forecasts look back on; scores; share of a step in which stamps are the same;
# refused lines that are told.
_STORED, _SCORES, _SAME, _REFUSED = 200_000, 50_000, 0.25, 3


class Judge:
    """Counts and errors of the answers of a ``LiveStream``.

    Attributes:
        answers: the latest ones, as many as asked for or more, each with what was forecast for it,
            whether it held, and counts so far.
        forecasts: the latest.
        refused: the first three answers that refuse a line.
        counts: of lines, of those refused, and of each word of alerts.
        alerts: word, stamp and value of each alert that is neither "missing" nor "late".
        range: of the values that were forecast and had no alert.
        scores: by horizon, of the first and the last: of each of the latest 50,000 values, whether
            it lay in its interval (1 or 0), and absolute errors of the forecast, of the last value
            and of the seasonal naive forecast (NaN where there is none).
        period: of the seasonal naive forecasts, in stamps: the first season of the stream; of dates
            without one the day, the week or the year, whichever is longer than a step.
    """

    def __init__(self, latest: int) -> None:
        self.answers, self.forecasts = list[dict[str, Any]](), list[dict[str, Any]]()
        self._latest, self.refused = latest, list[dict[str, Any]]()
        self.counts, self.alerts = Counter[str](), list[tuple[str, Any, Any]]()
        self.range, self._held = (math.inf, -math.inf), Counter[bool]()
        self.scores = defaultdict[int, deque[tuple[float, ...]]](lambda: deque(maxlen=_SCORES))
        self.period: float | None = None
        # By horizon: stamp, mean, low, high, last value, seasonal naive forecast (NaN for none)
        self._pending = dict[int, list[tuple[float, ...]]]()
        self._times, self._values, self._step = list[float](), list[float](), 0.0

    def observe(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Judge an answer; return it as ``answers`` have it."""
        self.counts.update(["lines", *answer.get("alerts", ["refused"])])
        judged = answer if "refused" in answer else self._judge(answer)
        self.refused += [answer] * ("refused" in answer and len(self.refused) < _REFUSED)
        self.answers.append(judged)
        if len(self.answers) >= 2 * self._latest:
            del self.answers[: self._latest]
        return judged

    def _judge(self, answer: dict[str, Any]) -> dict[str, Any]:
        stamp, value, words = as_seconds(answer["t"]), answer["y"], answer["alerts"]
        self.alerts += [(w, answer["t"], value) for w in words if w not in ("missing", "late")]
        if periods := answer.get("season", {}).get("periods"):
            first = periods[0]
            self.period = parse_duration(first, "season") if isinstance(first, str) else first
        before, self.forecasts = (self.forecasts or [None])[0], answer["forecasts"]
        last, inside = self._times[-1] if self._times else -math.inf, None
        if "clock" in words and stamp < last:  # the clock has gone back
            self._pending, self._times, self._values = {}, [], []
        elif stamp >= last and "clock" not in words:
            inside = self._score(stamp, value)
        if stamp < last if "clock" in words else stamp >= last:  # others wait, or are late
            self._expect(stamp, value, answer["forecasts"])
        self._held.update([] if inside is None else [inside])
        if value is not None and answer["error"] is not None and not words:
            self.range = min(self.range[0], value), max(self.range[1], value)
        counts = {word: count for word, count in self.counts.items() if word != "lines"}
        sums = {"judged": self._held.total(), "covered": self._held[True], "counts": counts}
        line = {name: answer[name] for name in answer if name != "forecasts"}
        return line | {"before": before, "inside": inside} | sums

    def _score(self, stamp: float, value: float | None) -> bool | None:
        """Judge the forecasts of a stamp; return whether that of the line before held."""
        tolerance, inside = _SAME * self._step, None
        for horizon, rows in self._pending.items():
            due = [row for row in rows if row[0] <= stamp + tolerance]
            self._pending[horizon] = rows[len(due) :]
            for at, mean, low, high, *naive in due:
                if value is not None and stamp - at <= tolerance:
                    inside = low <= value <= high if horizon == 1 else inside
                    errors = [abs(value - forecast) for forecast in (mean, *naive)]
                    self.scores[horizon].append((float(low <= value <= high), *errors))
        return inside

    def _expect(self, stamp: float, value: float | None, forecasts: list[dict[str, Any]]) -> None:
        """Remember a value, and what is forecast after it."""
        if value is not None:
            self._times.append(stamp)
            self._values.append(value)
            if len(self._times) > 2 * _STORED:
                del self._times[:_STORED], self._values[:_STORED]
        if not forecasts or not self._times:
            return
        self._step = max(as_seconds(forecasts[0]["t"]) - stamp, 0.0) or self._step
        if self.period is None and isinstance(forecasts[0]["t"], str):
            self.period = next((p for p in (DAY, 7 * DAY) if self._step < 0.9 * p), YEAR)
        for row in {1: forecasts[0], len(forecasts): forecasts[-1]}.values():
            if None in row.values():  # no numbers in JSON
                continue
            at, rows = as_seconds(row["t"]), self._pending.setdefault(row["horizon"], [])
            if rows and at - rows[-1][0] < _SAME * self._step:
                rows.pop()  # of a stamp that came twice
            naive = self._values[-1], self._seasonal(at, stamp)
            rows.append((at, row["mean"], row["low"], row["high"], *naive))

    def _seasonal(self, at: float, stamp: float) -> float:
        """Return the latest value some seasons before a stamp, NaN where none was there."""
        if self.period is None:
            return math.nan
        tolerance = _SAME * self._step
        seasons = max(1, math.ceil((at - stamp - tolerance) / self.period))
        before = at - seasons * self.period
        k = bisect_left(self._times, before - tolerance)
        same = k < len(self._times) and abs(self._times[k] - before) <= tolerance
        return self._values[k] if same else math.nan


@lru_cache(maxsize=1024)  # stamps come again when they are forecast
def as_seconds(stamp: float | str) -> float:
    """Return a stamp of an answer as a number: of a date, seconds since 1970."""
    return parse_stamp(stamp).time if isinstance(stamp, str) else stamp
