"""How many files a reader walks through, from what a user writes to where it is computed."""

import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import FrameType

import pytest
import torch

from ohsvgp import OnlineGP
from ohsvgp.bases import Cosine
from ohsvgp.likelihoods import Gaussian
from probseq.kernels import RBF
from probseq_apps.cli import main


class Reached(BaseException):
    """Ends a run where it has come to the function."""


def files_before(file: str, function: str, run: Callable[[], object]) -> list[str]:
    """Return the files of ours that call each other until a function of a file is called."""
    walk: list[str] = []

    def profile(frame: FrameType | None, event: str, _: object) -> None:
        assert frame is not None
        code = frame.f_code
        if event != "call" or code.co_name != function:
            return
        if not code.co_filename.endswith(file):
            return
        while (frame := frame.f_back) is not None:
            name = frame.f_code.co_filename.partition("/src/")[2]
            if name and name not in walk[-1:]:
                walk.append(name)
        raise Reached

    sys.setprofile(profile)
    try:
        with pytest.raises(Reached):
            run()
    finally:
        sys.setprofile(None)
    return walk[::-1]


def test_a_new_value_passes_six_files_to_the_update() -> None:
    gp, t = OnlineGP(RBF(1), Gaussian(0.1), Cosine(20)), torch.arange(9.0)
    walk = files_before("ohsvgp/core.py", "carry_site", lambda: gp.update(t, t.sin()))
    assert walk[0] == "ohsvgp/online.py"
    assert len(set(walk)) <= 6


def test_a_method_passes_ten_files_from_the_command_line_to_its_layer(tmp_path) -> None:
    small = ["--method", "sgpa", "--seeds", "0", "--epochs", "1", "--train-size", "200", "--quiet"]
    command = ["classify", "--data", "digits", *small, "--run-dir", str(tmp_path)]
    walk = files_before("sgpa/attention.py", "__init__", lambda: main(command))
    assert walk[0] == "probseq_apps/cli.py"
    assert len(set(walk)) <= 10
    assert max(Counter(pairwise(walk)).values()) <= 2
