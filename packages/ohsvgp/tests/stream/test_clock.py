"""What users hand over: stamps, targets, masks; and what is refused."""

import datetime as dt
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ohsvgp.stream.arrays import as_mask, as_points, as_targets
from ohsvgp.stream.clock import Clock, nanoseconds, sorted_times, stamps, start_clock

LIKE = torch.zeros(1, dtype=torch.float64)
DAYS = ["2020-02-27", "2020-02-29", "2020-03-01"]


@pytest.mark.parametrize(
    "t",
    [
        [0, 1, 3],
        (0.0, 1.0, 3.0),
        np.array([0, 1, 3], dtype=np.int32),
        np.array([0, 1, 3], dtype=np.float32),
        torch.tensor([0, 1, 3]),
        torch.tensor([0.0, 1.0, 3.0], requires_grad=True),
        pd.Series([0, 1, 3], index=[7, 8, 9]),
        pd.Index([0.0, 1.0, 3.0]),
    ],
)
def test_numbers_come_in_any_array(t: Any) -> None:
    values, calendar = stamps(t, name="t")
    assert not calendar
    assert values.tolist() == [0.0, 1.0, 3.0]
    assert values.dtype == np.float64


@pytest.mark.parametrize(
    "t",
    [
        np.array(DAYS, dtype="datetime64[D]"),
        np.array(DAYS, dtype="datetime64[ns]"),
        pd.to_datetime(DAYS),
        pd.Series(pd.to_datetime(DAYS), index=[5, 1, 1]),
        [pd.Timestamp(day) for day in DAYS],
        [dt.datetime.fromisoformat(day) for day in DAYS],
        [dt.date.fromisoformat(day) for day in DAYS],
        [np.datetime64(day) for day in DAYS],
        DAYS,
        np.array(DAYS),
        pd.Series(DAYS, dtype=object),
        pd.Series(DAYS, dtype="string"),
        pd.PeriodIndex(DAYS, freq="D"),
        ["2020-02-27T00:00", "2020-02-29 00:00:00", "20200301T000000"],
        ["2020-02-27T01:00+01:00", "2020-02-28T19:00-05:00", "2020-03-01T00:00Z"],
        pd.to_datetime(DAYS).tz_localize("UTC").tz_convert("Asia/Tokyo"),
        [dt.datetime.fromisoformat(f"{day}T01:00+01:00") for day in DAYS],
    ],
)
def test_calendar_stamps_come_in_any_array_and_count_in_the_given_unit(t: Any) -> None:
    clock = start_clock(t, "h")
    assert clock.internal(t).tolist() == [0.0, 48.0, 72.0]
    assert clock.user(48.0) == np.datetime64("2020-02-29", "ns")


def test_text_of_stamps_keeps_their_nanoseconds() -> None:
    t = np.datetime64("2026-01-01T00:00:00.123456789", "ns") + np.array([0, 1, 1000])
    for text in (t.astype(str), [str(stamp) for stamp in t], list(pd.to_datetime(t))):
        values, calendar = stamps(text, name="t")
        assert calendar
        assert values.tolist() == t.astype(np.int64).tolist()
    # Fewer digits are tenths, hundredths, …, before 1970 too.
    values, _ = stamps(["1969-12-31T23:59:59.9999999", "1970-01-01T00:00:00.1"], name="t")
    assert values.tolist() == [-100, 100_000_000]


CENTURIES = np.arange("1678-01-01", "2262-04-01", dtype="datetime64[D]")[::97]


@pytest.mark.parametrize("origin", [0, len(CENTURIES) // 2, len(CENTURIES) - 1])
@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "m", "h", "D", "W"])
def test_five_centuries_fit_into_every_unit(unit: str, origin: int) -> None:
    clock = start_clock(CENTURIES[origin : origin + 1], unit)
    lengths = clock.internal(CENTURIES)
    # In exact fractions, rounded once.
    days = (CENTURIES - CENTURIES[origin]).astype(int).tolist()
    exact = [float(Fraction(day * nanoseconds("D"), nanoseconds(unit))) for day in days]
    assert lengths.tolist() == exact
    assert bool((lengths.diff() >= 0).all())
    back = [clock.user(length) for length in lengths.tolist()]
    # float64 keeps 53 bits of up to 65.
    error = np.array(back).astype("datetime64[ns]") - CENTURIES.astype("datetime64[ns]")
    assert np.abs(error.astype(np.int64)).max() <= 2**11


@settings(deadline=None)
@given(st.integers(-(2**62), 2**62), st.integers(0, 2**53), st.booleans())
def test_nanoseconds_near_the_origin_survive(origin: int, distance: int, back: bool) -> None:
    clock = Clock(origin, nanoseconds("ns"))
    stamp = np.int64(origin - distance if back else origin + distance).view("datetime64[ns]")
    there = clock.internal(stamp)
    assert float(there[0]) == (-distance if back else distance)
    assert clock.user(float(there[0])) == stamp


def test_a_time_beyond_the_calendar_of_nanoseconds_is_told_in_seconds() -> None:
    clock = start_clock(np.array(["1700-01-01"], dtype="datetime64[D]"), "D")
    far = np.datetime64("2300-01-01T00:00:00")
    assert clock.user(float((far - np.datetime64("1700-01-01")) / np.timedelta64(1, "D"))) == far


def test_numbers_whose_distance_from_the_start_overflows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"t must lie at a finite distance from t0=-1e\+308, got"):
        Clock(-1e308).internal([0.0, 1e308])


@pytest.mark.parametrize(
    ("t", "message"),
    [
        ([0.0, np.nan], "t must be finite, got nan at position 1"),
        ([np.inf, 0.0], "t must be finite, got inf at position 0"),
        (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), "got NaT at position 1"),
        ([pd.Timestamp("2020-01-01"), pd.NaT], "got NaT at position 1"),
        (["2020-01-01", "a"], "finite numbers or ISO dates such as 2021-02-28, got 'a'"),
        (["1.0", "nan"], "got 'nan' at position 1"),
        (pd.Series(["2020-01-01", None]), "at position 1"),
        (["2020-01-01", "3.5"], "t must hold numbers or calendar stamps, got both"),
        (["2500-01-01"], "between the years 1678 and 2262, got 2500"),
        ([b"2020-01-01"], "t must hold numbers or calendar stamps, got dtype |S10"),
        ([None, 1.0, object()], "t must hold numbers or calendar stamps, got dtype object"),
        (torch.tensor([0.0, 1j]), "t must hold numbers or calendar stamps, got dtype complex64"),
        (np.array([1, 2], dtype="timedelta64[s]"), "got dtype timedelta64[s]"),
        ([[0.0], [1.0, 2.0]], "t must be an array: "),
        (np.zeros((3, 1)), r"t must have shape (n,), got (3, 1)"),
        (np.array(["1610"], dtype="datetime64[Y]"), "between the years 1678 and 2262, got 1610"),
        (np.array([10**12], dtype="datetime64[Y]"), "between the years 1678 and 2262, got 1000"),
        (np.array(["2262-04-11T23:47:16.9"], dtype="datetime64[ms]"), "1678 and 2262, got 2262"),
        ([dt.date(2500, 1, 1)], "between the years 1678 and 2262, got 2500"),
    ],
)
def test_stamps_that_are_none_are_refused(t: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        stamps(t, name="t")


def test_numbers_and_calendar_stamps_do_not_mix() -> None:
    with pytest.raises(ValueError, match="t must hold numbers like the stamps before"):
        start_clock([0.0], "D").internal(pd.to_datetime(DAYS))
    with pytest.raises(ValueError, match="t_end must hold calendar stamps like the stamps before"):
        start_clock(pd.to_datetime(DAYS), "D").internal(3.0, name="t_end")


def test_units_of_time_are_those_of_a_fixed_length() -> None:
    assert nanoseconds("D") == 24 * nanoseconds("h") == 86_400 * 10**9
    for unit in ("Y", "M", "day", "fortnight"):
        with pytest.raises(ValueError, match=f"time_unit must be a numpy code .*{unit}"):
            nanoseconds(unit)
    with pytest.raises(ValueError, match="time_unit must be a nanosecond or longer, got 'ps'"):
        nanoseconds("ps")


def test_stamps_that_go_back_are_named() -> None:
    sorted_times(Clock(0.0), [0.0, 1.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="before its predecessor at position 2"):
        sorted_times(Clock(0.0), [0.0, 1.0, 0.5, 2.0])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.0, 1.0], "y must have shape (..., 3) for 3 inputs, got (2,)"),
        (np.zeros((3, 2)), "y must have shape (..., 3) for 3 inputs, got (3, 2)"),
        ([0.0, np.nan, np.inf], "y must be finite, got 2 NaN or infinite values"),
        (["a", "b", "c"], "y must be an array of real numbers, got dtype <U1"),
        ([0.0, 1.0, 1j], "y must be an array of real numbers, got dtype complex128"),
        (np.array([0, 1, 1j], object), "y must be an array of real numbers, got dtype object"),
        (torch.ones(3) * 1j, "y must be an array of real numbers, got dtype torch.complex64"),
        (np.ones(3, "datetime64[D]"), "y must be an array of real numbers, got dtype datetime64"),
    ],
)
def test_targets_that_are_none_are_refused(y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        as_targets(y, 3, None, LIKE)


def test_targets_are_ordered_and_hidden_ones_become_zero() -> None:
    order = torch.tensor([2, 0, 1])
    mask = torch.tensor([True, False, True])
    # The mask is in the order already; the targets are not.
    targets = as_targets([[np.nan, 5.0, 3.0], [4.0, 5.0, 6.0]], 3, mask, LIKE, order)
    assert targets.tolist() == [[3.0, 0.0, 5.0], [6.0, 0.0, 5.0]]


@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray])
def test_data_are_read_into_one_order_at_aligned_addresses(kind: Any) -> None:
    """Products of the same numbers at other addresses or strides may round in other ways."""
    for skipped in range(1, 8):
        rows = kind(np.arange(40.0).reshape(20, 2)[skipped:])
        for found in (
            Clock(0.0).internal(rows[:, 0]),
            Clock(0, 1).internal(np.asarray(rows[:, 0]).astype("datetime64[ns]")),
            as_targets(rows[:, 1], len(rows), None, LIKE),
            as_points(rows[:, 1:], 1, LIKE),
        ):
            assert found.data_ptr() % 64 == 0
            assert found.stride()[0] == 1


def test_missing_targets_are_masked_only_when_asked() -> None:
    y = [[1.0, np.nan], [2.0, 3.0]]
    assert as_mask(None, y, "raise", LIKE) is None
    assert as_mask(None, [1.0, 2.0], "drop", LIKE) is None
    mask = as_mask(None, y, "drop", LIKE)
    assert mask is not None
    assert mask.tolist() == [[True, False], [True, True]]


def test_masked_arrays_are_refused_where_they_hide_something() -> None:
    y = np.ma.masked_invalid([1.0, np.nan])
    with pytest.raises(ValueError, match=r"y must have no masked values, got 1: .* mask=~y\.mask"):
        as_targets(y, 2, None, LIKE)
    assert as_targets(y[:1], 1, None, LIKE).tolist() == [1.0]


@pytest.mark.parametrize(
    ("mask", "missing", "message"),
    [
        ([1.0, 0.0], "raise", "mask must be boolean"),
        (torch.ones(2) * 1j, "raise", "mask must be boolean, True at points that count, got comp"),
        (["a", "b"], "raise", "mask must be boolean"),
        ([[True], [True, False]], "raise", "mask must be an array: "),
        ([True], "raise", "mask must have y's shape (3, 2), got (1,)"),
        ([[True, False]] * 2, "raise", "mask must have y's shape (3, 2), got (2, 2)"),
        (np.ones((1, 3, 2), bool), "raise", "mask must have y's shape (3, 2), got (1, 3, 2)"),
        ([True, False], "drop", 'mask and missing="drop" exclude each other'),
        (None, "ignore", 'missing must be "raise" or "drop"'),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask: Any, missing: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        as_mask(mask, np.zeros((3, 2)), missing, LIKE)
