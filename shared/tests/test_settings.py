"""Settings: what types and bounds refuse, and that JSON gives back what it was given."""

import json
import math
from dataclasses import FrozenInstanceError, replace
from typing import Annotated, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probseq.settings import Bound, Count, Index, NotNegative, Positive, Rate, Settings, Share

Even = Annotated[Count, Bound("even", lambda value: value % 2 == 0)]


class Group(Settings):
    """A group of settings.

    Attributes:
        depth: number of layers.
        rate: of dropout.
    """

    depth: Count = 2
    rate: Rate = 0.1


class Everything(Settings):
    """A setting of every kind."""

    count: Count
    index: Index = 0
    even: Even = 2
    positive: Positive = 1.0
    not_negative: NotNegative = 0.0
    share: Share = 1.0
    number: float = -1.0
    flag: bool = False
    word: str = ""
    choice: Literal["a", "b"] = "a"
    one: Literal[1, 8] = 1
    maybe: Count | None = None
    several: tuple[Count, ...] = ()
    layers: Literal["last", "all"] | tuple[Index, ...] = "last"
    group: Group = Group()


class Inherits(Group):
    """A group with a rule of its own."""

    width: Count = 4

    def check(self) -> None:
        super().check()
        if self.width % self.depth:
            raise ValueError(f"depth must divide width={self.width}, got {self.depth}")


@pytest.mark.parametrize(
    ("name", "good", "bad", "words"),
    [
        ("count", (1, np.int64(7)), (0, 1.0, True, "1", None), "a whole number of at least 1"),
        ("index", (0, 3), (-1, 0.0, False), "a whole number of at least 0"),
        ("even", (2, 4), (0, 3), "a whole number of at least 1 and even"),
        ("positive", (1e-300, 3, np.float32(2)), (0, -1.0, math.inf, True), "positive and finite"),
        ("not_negative", (0, 0.0), (-1e-9, math.inf), "finite and not negative"),
        ("share", (0, 1.0), (-0.1, 1.1, "0.5"), r"in \[0, 1\]"),
        ("number", (-3, 1e300), (math.inf, 10**400, True, None), "a finite number"),
        ("flag", (True, False), (0, 1, "False", None), "True or False"),
        ("word", ("", "x"), (1, None), "a string"),
        ("choice", ("a", "b"), ("c", "A", ""), r"one of \('a', 'b'\)"),
        ("one", (1, 8), (True, 1.0, 2), r"one of \(1, 8\)"),
        ("maybe", (None, 1), (0, False), "a whole number of at least 1 or None"),
        ("several", ((), (1, 2), [3]), ((0,), 1, "12"), "a list, each entry a whole number"),
        ("layers", ("all", (0, 1), []), ("first", (-1,)), r"one of \('last', 'all'\) or a list"),
        ("group", (Group(), {"depth": 3}), (None, Everything(count=1)), "settings by their names"),
    ],
)
def test_values_are_taken_or_refused_by_name(name, good, bad, words):
    for value in good:
        Everything(**{"count": 1, name: value})
    for value in (*bad, *({math.nan} if isinstance(good[0], float) else ())):
        with pytest.raises(ValueError, match=f"{name} must be {words}.*, got "):
            Everything(**{"count": 1, name: value})


def test_values_have_the_form_that_their_annotations_ask_for():
    made = Everything(count=np.int64(2), share=1, several=[1, 2], group={"rate": 0})
    assert made == Everything(count=2, share=1.0, several=(1, 2), group=Group(rate=0.0))
    kinds = (type(made.count), type(made.share), type(made.several), type(made.group.rate))
    assert kinds == (int, float, tuple, float)
    hash(made)


def test_settings_are_given_by_keyword_and_stay_as_they_are():
    group = Group()
    with pytest.raises(TypeError):
        Group(3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="count"):
        Everything()  # pyright: ignore[reportCallIssue]
    with pytest.raises(FrozenInstanceError):
        group.depth = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="depth must be"):
        replace(group, depth=0)
    assert replace(group, depth=5) == Group(depth=5)


def test_a_subclass_has_the_settings_and_the_rules_of_its_base():
    assert Inherits(depth=2).to_dict() == {"depth": 2, "rate": 0.1, "width": 4}
    with pytest.raises(ValueError, match="depth must be a whole number of at least 1, got 0"):
        Inherits(depth=0)
    with pytest.raises(ValueError, match="depth must divide width=4, got 3"):
        Inherits(depth=3)


@settings(deadline=None)
@given(
    st.builds(
        Everything,
        count=st.integers(1),
        index=st.integers(0),
        even=st.integers(1).map(lambda n: 2 * n),
        positive=st.floats(0, exclude_min=True, allow_infinity=False),
        number=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-10, 10),
        flag=st.booleans(),
        word=st.text(),
        maybe=st.none() | st.integers(1),
        several=st.lists(st.integers(1)),
        layers=st.just("all") | st.lists(st.integers(0)),
        group=st.builds(Group, depth=st.integers(1)),
    )
)
def test_json_gives_back_what_it_was_given(made):
    text = json.dumps(made.to_dict(), allow_nan=False)
    again = Everything.from_dict(json.loads(text))
    assert again == made
    assert json.dumps(again.to_dict()) == text
    assert not again.differs_from(made)


def test_unknown_and_missing_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="unknown setting 'deph': did you mean 'depth'"):
        Group.from_dict({"deph": 3})
    with pytest.raises(ValueError, match="unknown setting 'zzz': known are depth, rate"):
        Group.from_dict({"zzz": 3})
    with pytest.raises(ValueError, match="unknown setting 'rat': did you mean 'rate'"):
        Everything.from_dict({"count": 1, "group": {"rat": 0.5}})
    with pytest.raises(ValueError, match=r"count must be given, got \['index'\]"):
        Everything.from_dict({"index": 3})


def test_differences_have_dotted_names_and_both_values():
    mine = Everything(count=1, group=Group(depth=3))
    assert mine.differs_from(mine) == {}
    other = Everything(count=2, group=Group(rate=0.5))
    assert mine.differs_from(other) == {
        "count": (1, 2),
        "group.depth": (3, 2),
        "group.rate": (0.1, 0.5),
    }
