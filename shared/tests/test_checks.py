"""Checks of arguments: what is let through, and that errors name the argument."""

import inspect
import itertools
import math
import re
from typing import Literal

import pytest
import torch

from probseq.checks import (
    broadcastable,
    check_choice,
    check_counts,
    check_floating,
    check_integers,
    check_labels,
    check_not_negative,
    check_positive,
    check_rates,
    check_real,
    check_same_shape,
    check_shape,
    check_sizes,
    check_whole,
    parse_number,
)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (check_counts, (1, 7), (0, -1, 1.0, math.nan, "1", None, True)),
        (check_positive, (1e-300, 3, 1e300), (0, -1.0, math.inf, math.nan, "1", None, [1.0])),
        (check_not_negative, (0, 0.0, 3, 1e300), (-1e-300, math.inf, math.nan)),
        (check_rates, (0, 0.0, 0.999), (-0.1, 1.0, math.nan, math.inf)),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(check, good, bad):
    # Unwrapped, because the shape checks of the tests would refuse first.
    check = inspect.unwrap(check)
    for value in good:
        check(first=good[0], second=value)
    for value in bad:
        with pytest.raises(ValueError, match=f"second must be .* got {re.escape(repr(value))}"):
            check(first=good[0], second=value)


def test_an_unknown_name_is_refused_with_the_known_ones():
    check_choice("mode", "a", Literal["a", "b"])
    with pytest.raises(ValueError, match=r"mode must be one of \('a', 'b'\), got 'c'"):
        check_choice("mode", "c", Literal["a", "b"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.int64])
def test_dtypes_without_a_cholesky_factor_are_refused_by_name(dtype):
    check_real(x=torch.zeros(2), z=torch.zeros(3))
    with pytest.raises(ValueError, match=f"z must be float32 or float64, got {dtype}"):
        check_real(x=torch.zeros(2), z=torch.zeros(2, dtype=dtype))


def test_tensors_of_two_dtypes_are_refused_with_both():
    with pytest.raises(ValueError, match=r"z must be torch.float32 as x is"):
        check_real(x=torch.zeros(2), z=torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(1, -1), (2.0,), (math.nan,), [2]])
def test_what_is_no_shape_is_refused_by_name(shape):
    check_shape(empty=(), zero=(0, 2))
    with pytest.raises(ValueError, match="batch must be a tuple of whole numbers"):
        inspect.unwrap(check_shape)(batch=shape)


@pytest.mark.parametrize(
    ("labels", "logits", "message"),
    [
        (torch.tensor([0, 3]), torch.zeros(2, 3), "labels must be from 0 to 2, got 0 to 3"),
        (torch.tensor([-1, 0]), torch.zeros(4, 2, 3), "labels must be from 0 to 2, got -1 to 0"),
        (torch.tensor([0, 1, 2]), torch.zeros(2, 3), r"labels must be int64 .*=\(2,\), got"),
        (torch.tensor([0.0, 1.0]), torch.zeros(2, 3), "labels must be int64 .* got torch.float32"),
        (torch.tensor(0), torch.zeros(3), r"logits must have shape .* got \(3,\)"),
        (torch.tensor([0, 1]), torch.zeros(2, 0), r"logits must have shape .* got \(2, 0\)"),
    ],
)
def test_labels_that_do_not_belong_to_logits_are_refused_by_name(labels, logits, message):
    with pytest.raises(ValueError, match=message):
        check_labels(labels, logits)


def test_labels_in_range_are_let_through():
    check_labels(torch.tensor([0, 2]), torch.zeros(2, 3))
    check_labels(torch.tensor([0, 2]), torch.zeros(4, 2, 3))
    check_labels(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))


def test_what_is_no_whole_number_is_refused_by_name():
    check_whole(seed=-3, epoch=0)
    for value in (0.5, math.nan, math.inf, 1.0):
        with pytest.raises(ValueError, match=f"epoch must be a whole number, got {value}"):
            check_whole(seed=1, epoch=value)


def test_dtypes_that_are_not_floating_are_refused_by_name():
    check_floating(x=torch.zeros(2), z=torch.zeros(2, dtype=torch.bfloat16))
    for dtype in (torch.bool, torch.int64, torch.complex64):
        with pytest.raises(ValueError, match=f"z must be of a floating dtype, got {dtype}"):
            check_floating(x=torch.zeros(2), z=torch.zeros(2, dtype=dtype))


def test_integers_out_of_range_are_refused_by_name():
    check_integers(1, 3, t=torch.tensor([1, 3]), s=torch.zeros(0, dtype=torch.int64))
    for entries in ([0, 2], [2, 4]):
        with pytest.raises(ValueError, match=f"t must be from 1 to 3, got {entries[0]} to"):
            check_integers(1, 3, t=torch.tensor(entries))
    for dtype in (torch.int32, torch.uint8, torch.bool, torch.float32):
        with pytest.raises(ValueError, match=f"t must be int64, got {dtype}"):
            check_integers(0, 3, t=torch.ones(2, dtype=dtype))


def test_shapes_that_differ_are_refused_by_name():
    check_same_shape(x=torch.zeros(2, 3), y=torch.zeros(2, 3), z=torch.zeros(2, 3))
    message = r"z must have the shape of x, \(2, 3\), got \(2, 1\)"
    with pytest.raises(ValueError, match=message):
        check_same_shape(x=torch.zeros(2, 3), y=torch.zeros(2, 3), z=torch.zeros(2, 1))


def test_sizes_of_axes_are_whole_numbers_or_letters_for_any():
    check_sizes("x", torch.zeros(5, 3), "b", 3)
    for shape in ((5, 4), (3,), (2, 5, 3)):
        with pytest.raises(ValueError, match=r"x must have shape \(b, 3\), got"):
            check_sizes("x", torch.zeros(shape), "b", 3)


def test_shapes_broadcast_as_torch_says():
    shapes = [s for n in range(4) for s in itertools.product((0, 1, 2, 3), repeat=n)][::3]
    for trio in itertools.product(shapes[:12], shapes[::2], shapes[1::4]):
        try:
            torch.broadcast_shapes(*trio)
        except RuntimeError:
            assert not broadcastable(*trio), trio
        else:
            assert broadcastable(*trio), trio


@pytest.mark.parametrize(
    ("text", "message"), [("two", "must be a number, got 'two'"), ("inf", "must be finite, got")]
)
def test_texts_that_are_no_finite_number_are_refused(text, message):
    assert parse_number(" -2.5e1") == -25.0
    with pytest.raises(ValueError, match=message):
        parse_number(text)
