"""What users hand over: stamps, targets, masks; and what is refused."""

import datetime as dt
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ohsvgp.inputs import (
    Clock,
    as_mask,
    as_points,
    as_targets,
    check_sorted,
    nanoseconds,
    stamps,
    start_clock,
)

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
    ],
)
def test_calendar_stamps_come_in_any_array_and_count_in_the_given_unit(t: Any) -> None:
    clock = start_clock(t, "h")
    assert clock.internal(t).tolist() == [0.0, 48.0, 72.0]
    assert clock.user(48.0) == np.datetime64("2020-02-29", "ns")


def test_one_stamp_is_an_array_of_one() -> None:
    for single in (2.5, np.float64(2.5), torch.tensor(2.5)):
        assert stamps(single, name="t")[0].tolist() == [2.5]
    for day in (pd.Timestamp(DAYS[0]), dt.date(2020, 2, 27), np.datetime64(DAYS[0])):
        clock = start_clock(day, "D")
        assert clock.internal(pd.Timestamp(DAYS[1])).tolist() == [2.0]


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_a_clock_turns_back_what_it_turned(origin: float, length: float) -> None:
    clock = Clock(origin)
    there = clock.internal(clock.user(length))
    assert abs(float(there[0]) - length) <= 1e-9


def test_calendar_stamps_keep_their_precision_far_from_1970() -> None:
    t = np.datetime64("2026-01-01T00:00:00", "ns") + np.arange(3)
    assert start_clock(t, "ns").internal(t).tolist() == [0.0, 1.0, 2.0]


def test_the_first_stamp_starts_the_clock_or_the_earliest_when_sorting() -> None:
    assert start_clock([3.0, 1.0, 2.0], "D").origin == 3.0
    assert start_clock([3.0, 1.0, 2.0], "D", sort=True).origin == 1.0


@pytest.mark.parametrize(
    ("t", "message"),
    [
        ([0.0, np.nan], "t must be finite, got nan at position 1"),
        ([np.inf, 0.0], "t must be finite, got inf at position 0"),
        (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), "got NaT at position 1"),
        ([pd.Timestamp("2020-01-01"), pd.NaT], "got NaT at position 1"),
        (["a", "b"], "t must hold numbers or datetime64 stamps"),
        ([None, 1.0, object()], "t must hold numbers or datetime64 stamps"),
        (np.zeros((3, 1)), r"t must have shape (n,), got (3, 1)"),
        (pd.date_range("2020", periods=2, tz="UTC"), "t must hold stamps without a time zone"),
        (np.array(["1610"], dtype="datetime64[Y]"), "between the years 1678 and 2262, got 1610"),
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


def test_a_clock_needs_a_stamp() -> None:
    with pytest.raises(ValueError, match="t must hold at least one stamp"):
        start_clock([], "D")


def test_units_of_time_are_those_of_a_fixed_length() -> None:
    assert nanoseconds("D") == 24 * nanoseconds("h") == 86_400 * 10**9
    for unit in ("Y", "M", "day", "fortnight"):
        with pytest.raises(ValueError, match=f"time_unit must be a numpy code .*{unit}"):
            nanoseconds(unit)
    with pytest.raises(ValueError, match="time_unit must be a nanosecond or longer, got 'ps'"):
        nanoseconds("ps")


def test_stamps_that_go_back_are_named() -> None:
    check_sorted(torch.tensor([0.0, 1.0, 1.0, 2.0]))
    with pytest.raises(ValueError, match="before its predecessor at position 2"):
        check_sorted(torch.tensor([0.0, 1.0, 0.5, 2.0]))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), "x must have shape (n, 2), got (3,)"),
        (np.zeros((3, 3)), "x must have shape (n, 2), got (3, 3)"),
        (np.zeros((1, 3, 2)), "x must have shape (n, 2), got (1, 3, 2)"),
        ([[0.0, np.nan]], "x must be finite, got 1 NaN or infinite"),
        ([["a", "b"]], "x must be an array of numbers"),
    ],
)
def test_points_that_are_none_are_refused(x: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        as_points(x, 2, LIKE)


def test_points_come_as_frames_too() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3.5, 4.5]})
    assert as_points(frame, 2, LIKE).tolist() == [[1.0, 3.5], [2.0, 4.5]]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.0, 1.0], "y must have shape (..., 3) for 3 inputs, got (2,)"),
        (np.zeros((3, 2)), "y must have shape (..., 3) for 3 inputs, got (3, 2)"),
        ([0.0, np.nan, np.inf], "y must be finite, got 2 NaN or infinite values"),
        (["a", "b", "c"], "y must be an array of numbers"),
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


def test_missing_targets_are_masked_only_when_asked() -> None:
    y = [[1.0, np.nan], [2.0, 3.0]]
    assert as_mask(None, y, "raise", LIKE) is None
    assert as_mask(None, [1.0, 2.0], "drop", LIKE) is None
    mask = as_mask(None, y, "drop", LIKE)
    assert mask is not None
    assert mask.tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize("mask", [[True, False], [[True, False]], [[True, False]] * 3])
def test_masks_may_leave_out_the_series(mask: Any) -> None:
    chosen = as_mask(mask, np.zeros((3, 2)), "raise", LIKE)
    assert chosen is not None
    assert torch.equal(chosen.expand(3, 2), torch.tensor([[True, False]] * 3))


@pytest.mark.parametrize(
    ("mask", "missing", "message"),
    [
        ([1.0, 0.0], "raise", "mask must be boolean"),
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
