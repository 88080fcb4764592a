"""Answers of a stream judged, and drawn on a page."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ohsvgp.integrations.live import Judge, write_page


def answer(
    line: int, y: float | None, t: Any = None, ahead: list[float] | None = None, *alerts: str
) -> dict[str, Any]:
    """An answer at stamp ``line`` with forecasts of the next ones, and intervals of ± 1."""
    rows = [
        {"horizon": k, "t": line + float(k), "mean": mean, "low": mean - 1.0, "high": mean + 1.0}
        for k, mean in enumerate(ahead or [], 1)
    ]
    t = float(line) if t is None else t
    return {"line": line, "t": t, "y": y, "error": None, "alerts": [*alerts], "forecasts": rows}


def test_errors_are_those_of_forecasts_and_of_naive_ones_of_the_same_values() -> None:
    y = [0.0, 3.0, 1.0, 4.0, 2.0, 9.0, 3.0, 7.0]
    ahead = [[v + 0.5, v + 2.0] for v in y]  # one step, and two
    judge = Judge(8)
    for k, value in enumerate(y):
        season = {"season": {"periods": [2.0]}} if k == 0 else {}
        judge.observe(answer(k, value, None, ahead[k]) | season)
    for h in (1, 2):
        # Seasonal ones of the values that have one that lies a season (2) before.
        rows = [
            (
                float(abs(y[k] - ahead[k - h][h - 1]) <= 1.0),
                abs(y[k] - (y[k - h] + (0.5 if h == 1 else 2.0))),
                abs(y[k] - y[k - h]),
                abs(y[k] - y[k - 2]) if k >= 2 else math.nan,
            )
            for k in range(h, 8)
        ]
        assert [*judge.scores[h]] == [pytest.approx(row, nan_ok=True) for row in rows]
    assert judge.counts == {"lines": 8}


def test_a_seasonal_forecast_looks_whole_seasons_back_from_what_it_knows() -> None:
    judge = Judge(9)
    for k in range(30):  # the season of 3 is shorter than the horizon of 7: 3 seasons back
        season = {"season": {"periods": [3.0]}} if k == 0 else {}
        judge.observe(answer(k, float(k), None, [0.0] * 7) | season)
    assert {row[2:] for row in judge.scores[7] if not math.isnan(row[3])} == {(7.0, 9.0)}
    assert 9 <= len(judge.answers) < 18


def test_dates_without_a_season_are_compared_with_the_day_before() -> None:
    judge = Judge(99)
    for k in range(72):
        day, hour = divmod(k, 24)
        after = f"2024-02-{(k + 1) // 24 + 1:02d}T{(k + 1) % 24:02d}:00:00"
        values = answer(k, float(day), f"2024-02-{day + 1:02d}T{hour:02d}:00:00", [0.0])
        values["forecasts"][0]["t"] = after
        judge.observe(values)
    assert judge.period == 86_400.0
    rows = [row for row in judge.scores[1] if not math.isnan(row[3])]
    assert [sum(column) for column in zip(*rows, strict=True)] == [24.0, 24.0 + 48.0, 2.0, 48.0]
    assert len(rows) == 48


def test_lines_that_are_not_learned_are_not_judged() -> None:
    judge = Judge(20)
    rows = [
        answer(9, 5.0, None, [0.0]),  # nothing was forecast
        answer(10, 1.0, 10.2, [0.0]),  # the same stamp is one within a quarter of the step
        answer(11, 3.0, 9.9, [0.0], "late"),
        answer(12, None, 11.2, [0.0], "missing"),
        answer(13, 50.0, 900.0, [0.0], "clock"),  # waits
        answer(14, 0.5, 13.0, [0.0]),
        answer(15, 0.5, 2.0, [0.0], "clock"),  # the clock has gone back
        {"line": 16, "refused": "<b>"},
    ]
    inside = [judge.observe(row).get("inside") for row in rows]
    assert inside == [None, True, None, None, None, True, None, None]
    assert judge.counts == {"lines": 8, "refused": 1, "late": 1, "missing": 1, "clock": 2}
    assert judge.alerts == [("clock", 900.0, 50.0), ("clock", 2.0, 0.5)]


def test_a_page_holds_answers_that_no_text_can_leave(tmp_path: Path) -> None:
    judge, file = Judge(5), tmp_path / "page.html"
    for k in range(3):
        row = answer(k, 0.0, None, [0.0])
        row["forecasts"][0]["low"] = None  # no number in JSON
        judge.observe(row)
    judge.observe({"line": 4, "refused": "</script><b>"})
    write_page(file, "<i>, °C", judge, ended=False)
    text = file.read_text("utf-8")
    assert text.count("&lt;i&gt;, °C") == 2
    assert text.count("</script>") == 1
    line = next(line for line in text.splitlines() if line.startswith("const { answers"))
    stream = json.loads(line.partition(" = ")[2].rstrip(";"))
    assert [row["line"] for row in stream["answers"]] == [0, 1, 2, 4]
    assert (stream["forecasts"][0]["t"], stream["ended"]) == (3.0, False)
    assert abs(stream["written"] - file.stat().st_mtime) < 60.0
    assert not judge.scores
