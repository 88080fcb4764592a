"""Columns of a table as series."""

import numpy as np
import pytest

from probseq_apps.data.columns import StampColumn, check_squares


def test_numbers_stay_and_dates_are_seconds_and_mixtures_are_refused() -> None:
    numbers, dates = StampColumn("t"), StampColumn("day")
    assert [numbers.parse(cell) for cell in ("3.5", "-1")] == [3.5, -1.0]
    assert dates.parse("1970-01-02") == 86_400.0
    assert StampColumn("hour").parse("1970-01-01T01:00+01:00") == 0.0
    with pytest.raises(ValueError, match="got '1970-01-02', a date, and '7', a number"):
        dates.parse("7")
    with pytest.raises(ValueError, match="got 'soon'"):
        numbers.parse("soon")


def test_stamps_with_and_without_a_zone_are_refused_together() -> None:
    column = StampColumn("day")
    column.parse("2024-01-01T00:00Z")
    column.parse("2024-01-01T01:00Z")
    with pytest.raises(ValueError, match=r"a date with zone, and '2024-01-01T02:00', a date$"):
        column.parse("2024-01-01T02:00")
    with pytest.raises(ValueError, match="got '2024-01-01T00:00Z', a date with zone, and"):
        column.parse("2024-01-02")


def test_rows_are_sorted_by_time_and_dates_counted_from_the_first() -> None:
    column = StampColumn("day")
    times = [column.parse(f"2024-01-0{day}") for day in (3, 1, 2)]
    for unit, length in (("days", 1.0), ("hours", 24.0)):
        time, label, values, notes = column.in_order(times, np.array([30.0, 10.0, 20.0]), unit)
        assert time.tolist() == [0.0, length, 2 * length]
        assert label == f"{unit} since the first stamp"
        assert (values.tolist(), notes) == ([10.0, 20.0, 30.0], ("rows are sorted by time",))
    plain = StampColumn("t")
    time, label, _, notes = plain.in_order([plain.parse("5"), plain.parse("6")], np.ones(2), "days")
    assert (time.tolist(), label, notes) == ([5.0, 6.0], "t", ())


def test_numbers_whose_squares_overflow_or_vanish_are_refused_by_name() -> None:
    check_squares(np.array([1.0, 1e150]), "y")
    check_squares(np.full(3, 1e-170), "y")
    with pytest.raises(ValueError, match=r"y holds numbers up to 1e\+200 in size"):
        check_squares(np.array([1.0, 1e200]), "y")
    with pytest.raises(ValueError, match="y holds numbers that differ by 1e-170 at most"):
        check_squares(np.array([0.0, 1e-170]), "y")
