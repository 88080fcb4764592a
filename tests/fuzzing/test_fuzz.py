"""The fuzz suite: what it lets pass, what it finds, and that it makes the same calls every time."""

import math
import types
import warnings
from dataclasses import dataclass
from functools import wraps

import pytest
import torch
from hypothesis import strategies as st

from fuzzing.arguments import COUNTS, SCALES, show, tensors
from fuzzing.fuzz import Target, fuzz, uncovered, undocumented
from probseq.errors import CholeskyError, JitterWarning

X = tensors("n d", dtype=torch.float64)


@dataclass
class Law:
    mean: torch.Tensor
    variance: torch.Tensor


def checked(x):
    """Return x, if it is what it should be."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float64 or not x.isfinite().all():
        raise ValueError("x must be finite and float64")
    return x


def test_results_that_are_finite_and_refusals_by_name_are_allowed():
    report = fuzz(Target(checked, {"x": X}), calls=100)
    assert not report.findings
    assert report.calls == 100
    assert report.outcomes["success"] > 20
    assert report.outcomes["ValueError"] > 5


def nameless(x):
    try:
        return checked(x)
    except ValueError:
        raise ValueError("something is wrong") from None


def lookup(x):
    return checked(x)[0, 3] if isinstance(x, torch.Tensor) else x


def silent(x):
    return float(x.sum()) if isinstance(x, torch.Tensor) and x.dtype == torch.float64 else 0.0


def undefined(x):
    return (checked(x) - 1e6).sqrt()


def negative(x):
    return Law(checked(x), -checked(x).square() - 1)


def hopeless(x):
    raise ValueError("x is never right")


def overconfident(x):
    checked(x)
    raise CholeskyError("the matrix is indefinite")


@pytest.mark.parametrize(
    ("function", "summary"),
    [
        (nameless, "ValueError that names no argument at"),
        (lookup, "IndexError at"),
        (silent, "NaN or infinity passes silently through silent"),
        (undefined, "not finite, from finite arguments: undefined"),
        (negative, "negative variance from negative"),
        (hopeless, "hopeless refuses whatever it is given"),
        (overconfident, "CholeskyError that names no argument at"),
    ],
)
def test_other_outcomes_are_found_with_a_call_that_shows_them(function, summary):
    report = fuzz(Target(function, {"x": X}), calls=60)
    found = [finding for finding in report.findings.values() if summary in finding.summary]
    assert len(found) == 1
    assert found[0].count >= 1
    assert found[0].example.startswith(function.__name__)


def test_warnings_of_others_are_found_and_our_own_are_not():
    def warning(category):
        def function(x):
            warnings.warn("digits are dropped", category, stacklevel=2)

        return fuzz(Target(function, {"x": X}), calls=5)

    assert not warning(JitterWarning).findings
    (found,) = warning(UserWarning).findings.values()
    assert "UserWarning" in found.summary
    assert "digits are dropped" in found.summary


def test_results_of_very_large_arguments_may_overflow():
    def scaled(scale):
        if not isinstance(scale, float) or not math.isfinite(scale):
            raise TypeError("scale must be a finite float")
        return torch.tensor(scale, dtype=torch.float32).square()

    report = fuzz(Target(scaled, {"scale": SCALES}), calls=60)
    assert not report.findings
    assert report.outcomes["overflow"] >= 1


def documented(x):
    """Return x, whose NaN reach the result."""
    return silent(x)


def test_what_is_documented_may_not_be_finite():
    target = Target(documented, {"x": X}, non_finite="NaN reach the result")
    assert not fuzz(target, calls=60).findings
    assert not undocumented([target])
    assert undocumented([Target(documented, {"x": X}, non_finite="may be NaN")]) == ["documented"]


def test_the_same_calls_are_made_every_time():
    seen = []

    def watched(x, count):
        seen[-1].append((show(x), show(count)))
        return 0.0

    for _ in range(2):
        seen.append([])
        fuzz(Target(watched, {"x": X, "count": COUNTS}), calls=30)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 15


@pytest.mark.parametrize("value", [torch.eye(2), 1, 0.5, "rbf", (1, 2)], ids=show)
def test_hostile_values_leave_the_good_one_as_it_is(value):
    before = show(value)
    found = set()

    def collect(replaced):
        found.add(show(replaced))
        return 0.0

    fuzz(Target(collect, {"replaced": st.just(value)}), calls=60)
    assert len(found) >= 4
    assert show(value) == before


class Public:
    def __init__(self, x):
        self.x = x

    def method(self, x):
        return x

    def other(self):
        return self.x


def function(x):
    return x


@wraps(function)
def wrapped(x):
    return function(x)


def test_public_names_without_a_target_or_a_reason_are_listed():
    module = types.ModuleType("module")
    module.__dict__.update(Public=Public, function=function, __all__=["Public", "function"])
    targets = [Target(Public, {"x": X}), Target(Public.method, {"x": X})]
    assert uncovered([module], targets, {}) == ["Public.other", "function"]
    targets.append(Target(wrapped, {"x": X}))
    assert not uncovered([module], targets, {"*.other": "takes nothing"})
    with pytest.raises(ValueError, match=r"got \['\*\.method'\]"):
        uncovered([module], targets, {"*.method": "takes nothing", "*.other": "takes nothing"})
