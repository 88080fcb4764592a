"""Trainings under torchrun: on after a kill to the same end."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("ranks_run.py")
KINDS = ("diffusion", "hvae", "run")


def launch(folder, kind, **environment):
    """Run a command in two processes."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = [torchrun, "--standalone", "--nproc-per-node", "2", str(SCRIPT), str(folder), kind]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def trace(folder, kind):
    return json.loads((folder / kind / "trace.json").read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_end_alike_and_one_that_is_killed_goes_on_to_the_same_end(kind, tmp_path):
    whole, halted = tmp_path / "whole", tmp_path / "halted"
    done = launch(whole, kind)
    assert done.returncode == 0, done.stderr
    losses = trace(whole, kind)
    assert losses
    assert all(map(math.isfinite, losses))
    stopped = launch(halted, kind, KILL_AT="7")
    assert stopped.returncode != 0
    assert not (halted / kind / "trace.json").exists()
    resumed = launch(halted, kind)
    assert resumed.returncode == 0, resumed.stderr
    models = sorted((whole / kind).glob("*/*/pretrained/model.safetensors"))
    assert models
    for file in models:
        again = halted / kind / file.relative_to(whole / kind)
        assert again.read_bytes() == file.read_bytes()
