"""Tokenizers and priors that are killed or stopped end with the bits of those that are not."""

import os
import signal
import time

import pytest
import torch
from generate_runs import KINDS, make_objective, train

from probseq_apps.engine.checkpoints import load_latest_checkpoint
from probseq_apps.engine.log import read_metrics


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of each kind that nobody interrupts."""
    folders = {}
    for kind in KINDS:
        folders[kind] = tmp_path_factory.mktemp(kind)
        train(kind, folders[kind])
    return folders


def last(folder):
    return load_latest_checkpoint(folder / "checkpoints")


def assert_same_end(left, right):
    """Weights, average, optimizer, generators, sums and metrics, bit for bit."""
    for part in ("weights", "ema"):
        a, b = getattr(last(left), part), getattr(last(right), part)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    flat = []
    for folder in (left, right):
        state = last(folder).state
        del state["seconds"]
        flat.append(torch.utils._pytree.tree_leaves(state))
    assert len(flat[0]) == len(flat[1])
    for a, b in zip(*flat, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    rows = [read_metrics(folder) for folder in (left, right)]
    for row in (*rows[0], *rows[1]):
        del row["seconds"]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_resumes_to_the_same_bits(whole, launch, tmp_path, kind):
    [process] = launch(kind, tmp_path / "cut", delay=0.1)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("cut/checkpoints/step-*")):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.25)  # into the middle of the next epoch
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert last(tmp_path / "cut").step < 18
    train(kind, tmp_path / "cut")
    assert_same_end(whole[kind], tmp_path / "cut")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [3, 12])
def test_a_run_stopped_in_mid_epoch_resumes_to_the_same_bits(whole, tmp_path, kind, step):
    """Before and after the game with the discriminator begins."""

    def stop(now):
        if now == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as left:
        train(kind, tmp_path / "cut", before_step=stop)
    assert left.value.code == 143
    assert last(tmp_path / "cut").step == step
    train(kind, tmp_path / "cut")
    assert_same_end(whole[kind], tmp_path / "cut")


def test_the_tokenizers_run_has_everything_that_could_be_lost(whole, tmp_path):
    """GAN, gradient penalty, a codebook that moves and codes that are revived."""
    rows = read_metrics(whole["tokenizer"])
    assert rows[0]["parts"]["discriminator"] == 0
    assert rows[-1]["parts"]["discriminator"] > 0
    assert rows[-1]["parts"]["adaptive_weight"] > 0
    assert rows[-1]["parts"]["r1"] > 0
    # A codebook that is never revived, all else alike, is another one in the end.
    train("tokenizer", tmp_path / "run", model=make_objective(revive_below=0.0))
    name = "tokenizer.quantizer.codebook"
    moved = last(tmp_path / "run").weights[name] != last(whole["tokenizer"]).weights[name]
    assert moved.any()


def test_two_processes_train_a_tokenizer_and_agree(launch, tmp_path):
    """Before the game begins the discriminator has no gradient of its own."""
    ranks = launch("tokenizer", tmp_path / "two", ranks=2)
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    rows = read_metrics(tmp_path / "two")
    assert rows[-1]["step"] == 18
    assert rows[-1]["parts"]["discriminator"] > 0
