"""Stamps that follow the calendar, and lines that are written in other ways."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from ohsvgp import Cosine, Gaussian, OnlineGP, forecast
from ohsvgp.integrations.live import LiveStream
from ohsvgp.stream.calendar import calendar_ahead
from ohsvgp.stream.clock import parse_stamp, stamps
from probseq.kernels import RBF


@pytest.mark.parametrize("rule", ["MS", "ME", "QS", "QE", "YS", "YE", "B"])
def test_stamps_ahead_are_those_of_pandas(rule: str) -> None:
    # Seven before and twenty ahead: over a leap year, short months, weekends.
    every = pd.date_range("2023-07-31 09:30", periods=27, freq=rule).as_unit("s")
    seconds = every.astype(np.int64).to_numpy()
    found = calendar_ahead(float(seconds[6]), np.diff(seconds[:7]).astype(float).tolist(), 20)
    assert found == seconds[7:].tolist()


def test_other_stamps_step_by_their_gaps() -> None:
    day = 86_400.0
    for gaps in ([day] * 9, [7 * day] * 9, [28 * day] * 9, [3600.0] * 9, [0.5, 0.5], [31 * day]):
        assert calendar_ahead(1_704_067_200.0, gaps, 3) is None


def test_models_and_streams_forecast_months() -> None:
    months = np.arange("1960-01", "1961-01", dtype="datetime64[M]").astype("datetime64[D]")
    gp = OnlineGP(RBF(1, lengthscale=90.0), Gaussian(0.1), Cosine(10))
    gp.update(months, np.arange(12.0) / 10)
    ahead = forecast(gp, 3).stamps.astype("datetime64[D]").astype(str)
    assert ahead.tolist() == ["1961-01-01", "1961-02-01", "1961-03-01"]
    assert forecast(gp, 1, step=2.0).stamps.astype("datetime64[D]").astype(str) == ["1960-12-03"]
    model = OnlineGP(RBF(1, lengthscale=90.0), Gaussian(0.1), Cosine(10))
    stream = LiveStream(model, warmup=12, horizon=2)
    answers = [stream.answer(f"{month},{k % 5}") for k, month in enumerate(months.astype(str))]
    assert answers[-1] is not None
    told = [forecast["t"] for forecast in answers[-1]["forecasts"]]
    assert told == ["1961-01-01T00:00:00", "1961-02-01T00:00:00"]


def nanoseconds(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("text", "value", "form"),
    [
        ("1949-01", nanoseconds(1949, 1, 1), "month"),
        ("2024-W02", nanoseconds(2024, 1, 8), "week"),
        ("2024W02", nanoseconds(2024, 1, 8), "week"),
        ("20240105", nanoseconds(2024, 1, 5), "date"),
        ("2024-01-05T12:30z", nanoseconds(2024, 1, 5, 12, 30), "date with zone"),
        ("2024-01-05 12:30 UTC", nanoseconds(2024, 1, 5, 12, 30), "date with zone"),
        ("2024-01-05t12:30+01:00", nanoseconds(2024, 1, 5, 11, 30), "date with zone"),
        ("20240105T1230", nanoseconds(2024, 1, 5, 12, 30), "date"),
    ],
)
def test_dates_of_iso_8601_are_read(text: str, value: int, form: str) -> None:
    assert parse_stamp(text) == (value, form)


@pytest.mark.parametrize(
    "text",
    ["2024-01-05;18", "2024-01-05|18:30", "2024-13", "2024-W54", "2024-01T12:00", "2024-01-05 1"],
)
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number or an ISO date"):
        parse_stamp(text)


def test_eight_digits_are_dates_only_where_all_are() -> None:
    assert stamps(["20240105", "20240106"], name="t")[1]
    numbers, calendar = stamps(["20240131", "20240132"], name="t")
    assert (numbers.tolist(), calendar) == ([20240131.0, 20240132.0], False)
    assert parse_stamp("20240132") == (20240132.0, "number")


def test_stamps_with_and_without_a_zone_are_refused_together() -> None:
    mixed = ["2024-01-01T00:00Z", "2024-01-01T01:00Z", "2024-01-01T02:00"]
    with pytest.raises(ValueError, match="position 0 and '2024-01-01T02:00' at position 2"):
        stamps(mixed, name="t")
    stream = LiveStream(OnlineGP(RBF(1), Gaussian(0.1), Cosine(5)))
    for stamp in mixed[:2]:
        assert "refused" not in (stream.answer(f"{stamp},1") or {})
    answer = stream.answer(f"{mixed[2]},1")
    assert answer is not None
    assert "a date with zone like those before" in answer["refused"]


def test_a_number_with_a_decimal_comma_is_no_hour() -> None:
    # A space separates the cells: read as 18:00 and 9 before.
    for lines in (["2024-01-01 18,9"], ["2024-01-01,18", "2024-02,9"]):
        stream = LiveStream(OnlineGP(RBF(1), Gaussian(0.1), Cosine(5)))
        *_, answer = [stream.answer(line) or {} for line in lines]
        assert "refused" in answer


def test_midnight_may_be_left_out() -> None:
    stream = LiveStream(OnlineGP(RBF(1), Gaussian(0.1), Cosine(5)))
    for stamp in ("2024-01-01", "2024-01-01 01:00:00", "2024-01-02"):
        assert "refused" not in (stream.answer(f"{stamp},1") or {})


def test_lines_of_semicolons_and_decimal_commas() -> None:
    def answer(line: str, **marks: str) -> dict[str, object]:
        model = OnlineGP(RBF(1), Gaussian(0.1), Cosine(5))
        return LiveStream(model, **marks).answer(line) or {}

    plain = answer("2024-01-01;18,9")
    assert "--separator ';' separates its cells" in str(plain["refused"])
    assert "--decimal , reads it so" in str(answer("0;18,9", separator=";")["refused"])
    found = answer("2024-01-01; 18,9", separator=";", decimal=",")
    assert (found["t"], found["y"]) == ("2024-01-01T00:00:00", 18.9)
    assert answer("0,5;1,25", separator=";", decimal=",")["t"] == 0.5
    assert "decimal mark" in str(answer("0;1.5", separator=";", decimal=",")["refused"])
    for marks in ({"separator": "."}, {"separator": ",", "decimal": ","}, {"decimal": ";"}):
        with pytest.raises(ValueError, match="must be"):
            answer("0,1", **marks)
