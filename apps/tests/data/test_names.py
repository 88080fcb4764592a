import subprocess
import sys

import pytest

from probseq_apps.data.corruptions import _CORRUPTIONS
from probseq_apps.data.image_files import IMAGE_INFO
from probseq_apps.data.names import (
    CORRUPTION_NAMES,
    DATA_NAMES,
    DataError,
    data_kind,
    nearest_name,
    own_path,
)


def test_names_can_be_checked_without_loading_torch_or_numpy():
    code = (
        "import sys, probseq_apps.data; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_each_known_name_has_a_kind():
    kinds = {name: data_kind(name) for name in DATA_NAMES}
    assert {name for name, kind in kinds.items() if kind == "image"} == {"digits", *IMAGE_INFO}
    assert {name for name, kind in kinds.items() if kind == "text"} == {"cola", "imdb"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("cifar_10", "cifar10"),
        ("fashion_mnist", "fashion-mnist"),
        ("CoLA", "cola"),
        ("digit", "digits"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(typed, meant):
    with pytest.raises(DataError, match=f"did you mean '{meant}'"):
        data_kind(typed)


def test_a_name_like_no_other_gets_the_list_without_a_suggestion():
    assert nearest_name("xyzzy", DATA_NAMES) is None
    with pytest.raises(DataError, match="known: digits, mnist") as caught:
        data_kind("xyzzy")
    assert "did you mean" not in str(caught.value)


def test_own_data_are_named_by_a_prefix_and_a_path():
    assert data_kind("folder:/a/b") == "image"
    assert data_kind("csv:x.csv") == "text"
    assert str(own_path("folder:/a/b")) == "/a/b"
    assert own_path("digits") is None
    with pytest.raises(DataError, match="needs a path"):
        own_path("csv:")


def test_every_corruption_that_has_a_name_can_be_made():
    assert set(CORRUPTION_NAMES) == set(_CORRUPTIONS)
