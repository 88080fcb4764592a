"""Stamps that follow the calendar, and lines that are written in other ways."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from ohsvgp import Cosine, Gaussian, OnlineGP, forecast
from ohsvgp.integrations.live import Judge, LineReader, LiveStream
from ohsvgp.stream.calendar import calendar_ahead
from ohsvgp.stream.clock import Clock, stamps
from ohsvgp.stream.durations import parse_duration
from ohsvgp.stream.stamps import parse_stamp, stamp_text
from probseq.kernels import RBF


@pytest.mark.parametrize("rule", ["MS", "ME", "QS", "QE", "YS", "YE", "B", "D", "h", "15min"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "America/New_York"])
def test_stamps_ahead_are_those_of_pandas(rule: str, zone: str | None) -> None:
    # Seven before and sixty ahead: over leap years, short months, weekends, changes of clocks.
    every = pd.date_range("2023-02-28 09:30", periods=67, freq=rule, tz=zone).as_unit("ns")
    gp = OnlineGP(RBF(1, lengthscale=1e5), Gaussian(0.1), Cosine(3))
    gp.update(every[:7], np.arange(7.0))
    again = OnlineGP(RBF(1, lengthscale=1e5), Gaussian(0.1), Cosine(3))
    again.load_state_dict(gp.state_dict())
    assert forecast(again, 60).stamps.tolist() == every[7:].astype(np.int64).tolist()


@pytest.mark.parametrize("freq", ["h", "5min", "7s", "100ms", "250us"])
def test_whole_units_stay_whole(freq: str) -> None:
    every = pd.date_range("1999-12-31 23:07", periods=2_024, freq=freq).as_unit("ns")
    gp = OnlineGP(RBF(1, lengthscale=90.0), Gaussian(0.1), Cosine(3))
    gp.update(every[:2_000], np.zeros(2_000))
    assert forecast(gp, 24).stamps.tolist() == every[2_000:].astype(np.int64).tolist()


def test_forecasts_go_on_at_the_end_of_the_time_that_nanoseconds_count() -> None:
    days = np.arange("2262-04-01", "2262-04-14", dtype="datetime64[D]")
    gp = OnlineGP(RBF(1, lengthscale=90.0), Gaussian(0.1), Cosine(3))
    gp.update(days[:10], np.zeros(10))
    assert (forecast(gp, 3).stamps == days[10:]).all()


@pytest.mark.parametrize("missing", ["2024-05-01", "2024-05-06"])
def test_business_days_go_on_after_a_holiday(missing: str) -> None:
    every = pd.bdate_range("2024-04-24", "2024-05-20").to_numpy()
    seconds = every[every != np.datetime64(missing)].astype("datetime64[s]").astype(np.int64)
    found = calendar_ahead(float(seconds[9]), np.diff(seconds[:10]).astype(float).tolist(), 8)
    assert found == seconds[10:].tolist()


def test_other_stamps_step_by_their_gaps() -> None:
    day = 86_400.0
    for gaps in ([day] * 9, [7 * day] * 9, [28 * day] * 9, [3600.0] * 9, [0.5, 0.5], [31 * day]):
        assert calendar_ahead(1_704_067_200.0, gaps, 3) is None


def test_streams_forecast_months_in_the_zone_of_the_latest_line() -> None:
    months = pd.date_range("2023-06", periods=14, freq="MS", tz="Europe/Berlin")
    live = LiveStream(warmup=12, horizon=2)
    answers = [live.answer(f"{month.isoformat()},{k % 5}") or {} for k, month in enumerate(months)]
    ahead = [forecast["t"] for forecast in answers[11]["forecasts"]]
    expected = [month.isoformat() for month in months[12:]]
    assert [answers[5]["t"], *ahead] == ["2023-11-01T00:00:00+01:00", *expected]


@pytest.mark.parametrize("mark", ["Q", "-Q"])
def test_streams_of_quarters_answer_in_quarters(mark: str) -> None:
    quarters = pd.period_range("1949Q2", periods=24, freq="Q")
    texts = [str(quarter).replace("Q", mark) for quarter in quarters]
    for text, quarter in zip(texts, quarters, strict=True):
        stamp = parse_stamp(text)
        assert stamp.value == quarter.to_timestamp().as_unit("ns").value
        assert stamp_text(stamp.time, stamp.zone, stamp.form) == text
    live, judge = LiveStream(warmup=12, ahead=parse_duration("quarter", "")), Judge(20)
    answers = [live.answer(f"{text},{k % 4}") or {} for k, text in enumerate(texts)]
    assert [answer["t"] for answer in answers] == texts
    assert [answer["forecasts"][0]["t"] for answer in answers[11:-1]] == texts[12:]
    inside = [judge.observe(answer)["inside"] for answer in answers]
    assert None not in inside[12:]
    assert "refused" in (live.answer(f"1955{'-Q' if mark == 'Q' else 'Q'}2,1") or {})
    # Between quarters a stamp is a date.
    live = LiveStream(warmup=12, step=86_400.0)
    answers = [live.answer(f"{text},1") or {} for text in texts]
    assert answers[-1]["forecasts"][0]["t"] == "1955-01-02T00:00:00"


def nanoseconds(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("text", "value", "form"),
    [
        ("1949-01", nanoseconds(1949, 1, 1), "month"),
        ("1949q3", nanoseconds(1949, 7, 1), "quarter Q1"),
        ("Q3 1949", nanoseconds(1949, 7, 1), "quarter Q1"),
        ("1949/Q3", nanoseconds(1949, 7, 1), "quarter Q1"),
        ("2024-W02", nanoseconds(2024, 1, 8), "week"),
        ("2024W02", nanoseconds(2024, 1, 8), "week"),
        ("20240105", nanoseconds(2024, 1, 5), "date"),
        ("2024-01-05T12:30z", nanoseconds(2024, 1, 5, 12, 30), "date with zone"),
        ("2024-01-05 12:30 UTC", nanoseconds(2024, 1, 5, 12, 30), "date with zone"),
        ("2024-01-05t12:30+01:00", nanoseconds(2024, 1, 5, 11, 30), "date with zone"),
        ("20240105T1230", nanoseconds(2024, 1, 5, 12, 30), "date"),
        ("202412", nanoseconds(2024, 12, 1), "month"),
        ("2024-12-31T24:00:00", nanoseconds(2025, 1, 1), "date"),
        ("2016-12-31T23:59:60Z", nanoseconds(2017, 1, 1), "date with zone"),
        ("2024-01-05 12:30,5", nanoseconds(2024, 1, 5, 12, 30, 30), "date"),
        ("2024-01-05T12.25", nanoseconds(2024, 1, 5, 12, 15), "date"),
    ],
)
def test_dates_of_iso_8601_are_read(text: str, value: int, form: str) -> None:
    assert parse_stamp(text)[:2] == (value, form)


NO_DATES = "2024-01-05;18|2024-13|2024-W54|2024Q5|Q1|2024-01T12:00|2024-01-05T24:01|2024-01-05 1"


@pytest.mark.parametrize("text", NO_DATES.split("|"))
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number or an ISO date"):
        parse_stamp(text)


@pytest.mark.parametrize("kind", [str, int])
def test_digits_are_dates_only_where_all_are(kind: type) -> None:
    for texts, dates in (
        (["20240105", "20240106"], ["2024-01-05", "2024-01-06"]),
        (["202411", "202412"], ["2024-11-01", "2024-12-01"]),
    ):
        values, calendar = stamps([kind(text) for text in texts], name="t")
        assert calendar
        assert values.tolist() == pd.to_datetime(dates).as_unit("ns").astype(np.int64).tolist()
    for texts in (["20240131", "20240132"], ["202412", "202413"]):
        numbers, calendar = stamps([kind(text) for text in texts], name="t")
        assert (numbers.tolist(), calendar) == ([float(text) for text in texts], False)
    assert Clock(0.0).internal([20_240_105]).tolist() == [20_240_105.0]  # numbers stay numbers


def test_stamps_with_and_without_a_zone_are_refused_together() -> None:
    mixed = ["2024-01-01T00:00Z", "2024-01-01T01:00Z", "2024-01-01T02:00"]
    with pytest.raises(ValueError, match="position 0 and '2024-01-01T02:00' at position 2"):
        stamps(mixed, name="t")


@pytest.mark.parametrize(
    "lines",
    [
        ["2024-01-01T00:00Z,1", "2024-01-01T01:00Z,1", "2024-01-01T02:00,1"],
        # A space separates the cells: read as 18:00 and 9 before.
        ["2024-01-01 18,9"],
        ["2024-01-01,18", "2024-01-01 01:00:00,2", "2024-01-02,1", "2024-02,9"],
    ],
)
def test_the_last_of_these_lines_is_no_stamp_like_those_before(lines: list[str]) -> None:
    live = LiveStream()
    refused = ["refused" in (live.answer(line) or {}) for line in lines]
    assert refused == [*[False] * (len(lines) - 1), True]


def test_lines_of_semicolons_and_decimal_commas() -> None:
    def answer(line: str, **marks: str) -> dict[str, object]:
        return LiveStream(reader=LineReader(**marks)).answer(line) or {}

    assert "'2024-01-01;18'" in str(answer("2024-01-01;18,9")["refused"])
    assert "must have stamp and value" in str(answer("0,18,9", separator=";")["refused"])
    found = answer("2024-01-01; 18,9", separator=";", decimal=",")
    assert (found["t"], found["y"]) == ("2024-01-01T00:00:00", 18.9)
    assert answer("0,5;1,25", separator=";", decimal=",")["t"] == 0.5
    assert "decimal mark" in str(answer("0;1.5", separator=";", decimal=",")["refused"])
    for marks in ({"separator": "."}, {"separator": ",", "decimal": ","}, {"decimal": ";"}):
        with pytest.raises(ValueError, match="must be"):
            answer("0,1", **marks)
