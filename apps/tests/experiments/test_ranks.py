"""Trainings under torchrun: on after a kill to the same end."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("ranks_run.py")
KINDS = ("diffusion", "hvae", "run")


def launch(folder, *kinds, ranks=1, accumulate=1, **environment):
    """Run commands in a process, or in several."""
    command = [sys.executable]
    if ranks > 1:
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        command = [torchrun, "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(SCRIPT), str(folder), str(accumulate), *kinds]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def trace(folder, kind):
    return json.loads((folder / kind / "trace.json").read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_end_alike_and_one_that_is_killed_goes_on_to_the_same_end(kind, tmp_path):
    whole, halted = tmp_path / "whole", tmp_path / "halted"
    done = launch(whole, kind, ranks=2, accumulate=2)
    assert done.returncode == 0, done.stderr
    losses = trace(whole, kind)
    assert losses
    assert all(map(math.isfinite, losses))
    stopped = launch(halted, kind, ranks=2, accumulate=2, KILL_AT="7")
    assert stopped.returncode != 0
    assert not (halted / kind / "trace.json").exists()
    resumed = launch(halted, kind, ranks=2, accumulate=2)
    assert resumed.returncode == 0, resumed.stderr
    models = sorted((whole / kind).glob("*/*/pretrained/model.safetensors"))
    assert models
    for file in models:
        again = halted / kind / file.relative_to(whole / kind)
        assert again.read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_ranks_that_share_the_rows_of_an_online_vae_are_as_one_process(tmp_path):
    killed = {"KILL_AT": "6"}  # in the second task
    for name, ranks, environment in [
        ("one", 1, {}),
        ("two", 2, {}),
        ("killed", 2, killed),
        ("killed", 2, {}),
    ]:
        done = launch(tmp_path / name, "vae", ranks=ranks, **environment)
        assert (done.returncode == 0) == (not environment), done.stderr
    losses = trace(tmp_path / "one", "vae")
    assert trace(tmp_path / "two", "vae") == pytest.approx(losses, rel=1e-5)
    models = sorted((tmp_path / "two").glob("vae/models/*.safetensors"))
    assert len(models) == 2
    for file in models:
        tensors = load_file(file)
        again = load_file(tmp_path / "killed" / file.relative_to(tmp_path / "two"))
        assert tensors.keys() == again.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    resumed = trace(tmp_path / "killed", "vae")
    assert len(resumed) < len(losses)  # the first task was not learned again
