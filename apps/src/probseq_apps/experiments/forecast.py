"""`probseq forecast`: learn, forecast and judge readings of a file or a pipe line by line."""

import json
import math
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ohsvgp.integrations.live import Judge, LiveStream, write_page
from ohsvgp.integrations.live.state import HORIZON, saved_settings
from ohsvgp.stream.durations import parse_duration
from probseq.checks import parse_number
from probseq.files import named, sole_use
from probseq_apps.experiments.readings import Readings, open_readings
from probseq_apps.settings.forecast import STANDARD_INPUT, ForecastSettings

# Alerts and forecasts that the summary lists; answers that the page draws; seconds until it is
# written again.
_ALERTS, _FORECASTS, _ANSWERS, _PATIENCE = 8, 24, 2_000, 2.0
_JSON = json.JSONDecoder(parse_constant=lambda _: None)  # browsers know no NaN
_COLUMNS = ("line", "t", "y", "mean", "low", "high", "error", "alerts")


def forecast_command(settings: ForecastSettings) -> None:
    """Follow the readings to their end; write answers, summary and page."""
    piped, out, report = settings.file == STANDARD_INPUT, settings.out, settings.report
    judge = Judge(_ANSWERS)
    if not piped and (settings.file.is_dir() or not settings.file.exists()):
        raise ValueError(f"FILE must be a file that is there, got {settings.file}")
    if report and report.suffix != ".html":
        report.mkdir(parents=True, exist_ok=True)
        report = report / "report.html"
    table = out is not None and out.suffix == ".csv"
    if piped and sys.stdin.isatty():
        print("lines are read from here, to Ctrl-D; FILE names a file", file=sys.stderr, flush=True)
    # What is no UTF-8 is refused in the answer to its line; a mark before the first is passed over.
    if piped and isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding=settings.encoding, errors="replace")
    with (
        named(out or Path("standard output")),
        nullcontext() if settings.state is None else sole_use(settings.state),
        nullcontext(sys.stdin)
        if piped
        else settings.file.open(encoding=settings.encoding, errors="replace") as source,
    ):
        saved = (settings.state and saved_settings(settings.state)) or {}
        stored = {*saved.get("season", ()), saved.get("false_alarms", "").partition("/")[2]}
        lines = iter(source) if settings.state is None else filter(has_ended, source)
        readings = open_readings(settings, lines, piped)
        stream = open_stream(settings, readings, stored)
        title = readings.target if piped else f"{settings.file.name}, {readings.target}"
        if report:  # before anything is learned
            write_page(report, title, judge, ended=False)
        print("\n".join(readings.notes), file=sys.stderr, flush=True)
        mode, sink = "w" if settings.state is None else "a", sys.stdout if piped else None
        talk = sys.stderr if piped and out is None else sys.stdout
        whole, due, text = settings.replay or not piped, 0.0, ""
        with nullcontext(sink) if out is None else out.open(mode, encoding="utf-8") as file:
            if file and table and not file.tell():
                print(",".join(_COLUMNS), file=file)
            answers = stream.follow(readings.lines, every=settings.every, replay=whole)
            try:
                for text in answers:
                    answer = judge.observe(_JSON.decode(text))
                    if file:
                        print(as_row(answer) if table else text, file=file, flush=True)
                    if report and time.monotonic() > due:
                        write_page(report, title, judge, ended=False)
                        due = time.monotonic() + _PATIENCE
                    if season := answer.get("season"):
                        names = ", ".join(map(str, season["periods"])) or "none"
                        nats = season["nats"] and f": evidence {season['nats']} nats over none"
                        note = f"step {season['step']}, season {names}{nats or ''}"
                        print(note, file=sys.stderr, flush=True)
            finally:  # after Ctrl-C, too
                answers.close()  # which saves the state
                if settings.state:
                    print(
                        f"{settings.state} is saved to line {stream.state.lines}", file=sys.stderr
                    )
                if report:  # before what a pipe may not want to its end
                    write_page(report, title, judge, ended=True)
                print(summary(title, judge), file=talk)
        if stream.regimes is None and (settings.state is None or stream.state.calendar is None):
            wait = f"{settings.warmup} values come first (--warmup), at stamps that differ"
            reasons = filter(None, (json.loads(text or "{}").get("refused"), wait))
            raise ValueError(f"nothing was learned: {'; '.join(reasons)}")


def has_ended(line: str) -> bool:
    """Return whether a line has its newline; say of a last one that has none that it waits."""
    if not (ended := line.endswith("\n")):
        print("the last line waits for its newline, and is not learned", file=sys.stderr)
    return ended


def open_stream(settings: ForecastSettings, readings: Readings, stored: set[str]) -> LiveStream:
    """Return the stream, its lengths of time in the unit of the stamps, of dates in seconds."""

    def length(text: str, name: str) -> float:
        if readings.calendar and text not in stored:
            return parse_duration(text, name)
        with suppress(ValueError):
            return parse_number(text)
        raise ValueError(f"{name} must be a number where stamps are numbers, got {text!r}")

    words: dict[str, Any] = {"auto": "auto", "none": None}
    seasons = [length(text, "season") for text in settings.season if text not in words]
    share, _, per = settings.false_alarms.partition("/")
    steps = int(settings.horizon) if settings.horizon.isdecimal() else None
    return LiveStream(
        settings.state,
        likelihood=settings.likelihood,
        seasons=seasons or words[settings.season[0]],
        false_alarms=parse_number(share),
        per=length(per, "the time of false_alarms") if per else None,
        warmup=settings.warmup,
        horizon=HORIZON if steps is None else steps,
        ahead=length(settings.horizon, "horizon") if steps is None else None,
        step=None if settings.step is None else length(settings.step, "step"),
        reader=readings.reader,
    )


def as_row(answer: dict[str, Any]) -> str:
    """Return an answer, and what was forecast for it, as a row of CSV."""
    before = answer.get("before") or {}
    before = before if before.get("t") == answer.get("t") else {}
    row = before | answer | {"alerts": " ".join(answer.get("alerts", ["refused"]))}
    return ",".join("" if row.get(name) is None else str(row[name]) for name in _COLUMNS)


def summary(title: str, judge: Judge) -> str:
    """Return counts, errors beside naive ones, alerts, what to do, and the latest forecasts."""
    lines = [f"{title}: " + ", ".join(f"{n:,} {word}" for word, n in judge.counts.items())]
    names = ("values", "forecast", "last value", "season before", "inside 95 %")
    if judge.scores:  # medians: a sentinel is two errors of the last value, and one of a forecast
        lines.append("".join([f"{'median absolute error':21}", *(f"{name:>15}" for name in names)]))
    for steps, scores in sorted(judge.scores.items()):
        seasonal = [row for row in scores if not math.isnan(row[3])]
        whole = 2 * len(seasonal) < len(scores)
        inside, *errors = zip(*(scores if whole else seasonal), strict=True)
        medians = [f"{median(row):15.4g}" for row in errors]
        medians[2] = f"{'-':>15}" if whole else medians[2]
        lines.append(f"{steps:4} ahead{len(inside):26,}{''.join(medians)}{fmean(inside):15.1%}")
    lines += [f"{t} {word} {value:g}" for word, t, value in judge.alerts[:_ALERTS]]
    lines += [f"line {answer['line']}: {answer['refused']}" for answer in judge.refused]
    lines += ["--date-format, --decimal and --missing say how cells are read"] * bool(judge.refused)
    a, b = judge.range  # a value within b - a of it stands for itself
    far = (y for w, _, y in judge.alerts if w == "outlier" and not a - (b - a) <= y <= b + (b - a))
    for value, count in Counter(far).most_common(1):
        hint = f"{value:g} is an outlier {count} times: if it stands for none, --missing {value:g}"
        lines += [hint] * (count > 2)
    if 20 * judge.counts["late"] > judge.counts["lines"]:
        lines.append("late lines are not learned: --sort learns those of a file")
    values = [repr(answer["y"]).partition(".")[2] for answer in judge.answers if answer.get("y")]
    digits = min(max((len(text) for text in values if text != "0"), default=0) + 1, 6)
    lines += ["t,mean,low,high"] * bool(judge.forecasts)
    for row in judge.forecasts[:_FORECASTS]:
        numbers = (f"{row[name]:.{digits}f}" for name in ("mean", "low", "high"))
        lines.append(",".join([str(row["t"]), *numbers]))
    return "\n".join(lines)
