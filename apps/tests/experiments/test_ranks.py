"""Trainings under torchrun, whole models and shards: as one process, and on after a kill."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from probseq_apps.experiments.stages import Samples, load_drawn

SCRIPT = Path(__file__).with_name("ranks_run.py")
KINDS = ("diffusion", "hvae", "run")
SEVERAL = pytest.mark.parametrize("several", ["two", "shards"])


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


def leaves(values, path=""):
    """Yield all values of nested results, by their paths."""
    if isinstance(values, dict | list):
        for name, value in values.items() if isinstance(values, dict) else enumerate(values):
            yield from leaves(value, f"{path}/{name}")
    else:
        yield path, values


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same runs by one process, by one in pieces, by two, and by two with models in shards."""
    folder = tmp_path_factory.mktemp("ranks")
    done = [
        launch(folder / "one", *KINDS),
        launch(folder / "pieces", "diffusion", "hvae", accumulate=3),
        launch(folder / "two", *KINDS, ranks=2, accumulate=2),
        launch(folder / "shards", *KINDS, ranks=2, accumulate=2, SHARD="1"),
    ]
    for process in done:
        assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.slow
@SEVERAL
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_have_the_losses_of_one(runs, kind, several):
    losses = trace(runs / "one", kind)
    assert losses
    assert trace(runs / several, kind) == pytest.approx(losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_has_about_half_of_adams_state_in_shards(runs, kind):
    folders = {
        each: json.loads((runs / each / kind / "state.json").read_text("utf-8"))
        for each in ("two", "shards")
    }
    assert folders["two"]["here"] == folders["two"]["all"] == folders["shards"]["all"]
    assert 0.49 < folders["shards"]["here"] / folders["shards"]["all"] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diffusion", "hvae"])
def test_a_batch_in_pieces_has_the_losses_of_the_whole(runs, kind):
    assert trace(runs / "pieces", kind) == pytest.approx(trace(runs / "one", kind), rel=1e-5)


@pytest.mark.slow
@SEVERAL
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_draw_and_measure_what_one_does(runs, kind, several, timeless):
    files = sorted((runs / "one" / kind / "results").glob("*.json"))
    assert files
    for file in files:
        other = runs / several / kind / "results" / file.name
        one, two = (dict(leaves(timeless(json.loads(f.read_text())))) for f in (file, other))
        numbers = {path: value for path, value in one.items() if isinstance(value, float)}
        assert numbers
        assert {path: two[path] for path in numbers} == pytest.approx(numbers, rel=1e-3, abs=1e-5)


@pytest.mark.slow
@SEVERAL
@pytest.mark.parametrize("kind", ["diffusion", "hvae", "run"])
def test_two_ranks_draw_the_samples_of_one(runs, kind, several):
    files = sorted((runs / "one" / kind / "samples").glob("*.npz"))
    assert files
    for file in files:
        other = runs / several / kind / "samples" / file.name
        one, two = (load_drawn(Samples, path) for path in (file, other))
        for name in ("images", "videos"):
            gap = getattr(one, name).int() - getattr(two, name).int()
            assert gap.abs().max() <= 1  # of 255; what is learned is the same up to rounding


@pytest.mark.slow
@SEVERAL
def test_a_run_one_of_whose_ranks_is_killed_goes_on_to_the_same_end(runs, several, tmp_path):
    shards = {"SHARD": "1"} if several == "shards" else {}
    stopped = launch(tmp_path, "run", ranks=2, accumulate=2, KILL_AT="7", **shards)
    assert stopped.returncode != 0
    assert not (tmp_path / "run" / "trace.json").exists()
    resumed = launch(tmp_path, "run", ranks=2, accumulate=2, **shards)
    assert resumed.returncode == 0, resumed.stderr
    models = sorted((runs / several / "run").glob("*/*/pretrained/model.safetensors"))
    assert len(models) > 4
    for file in models:
        again = tmp_path / "run" / file.relative_to(runs / several / "run")
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
