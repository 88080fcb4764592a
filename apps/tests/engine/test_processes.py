"""Runs in processes of their own: killed, terminated, and several at once."""

import os
import signal
import time

import pytest
import torch

from probseq_apps.engine.checkpoints import load_latest_checkpoint
from probseq_apps.engine.fit import load_run
from probseq_apps.engine.log import read_metrics


@pytest.fixture
def fit_here(digits_run):
    def start(path, *, deterministic=False, num_train=203):
        noise = 0.0 if deterministic else 0.1
        task = digits_run.DigitsTask(noise=noise, dropout=noise)
        digits_run.train(task, digits_run.digits(num_train), path, digits_run.settings())
        return task.model.state_dict()

    return start


def wait_for_checkpoint(run_dir, process):
    deadline = time.monotonic() + 60
    while not list(run_dir.glob("checkpoints/step-*")):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def exit_codes(*processes):
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)]
)
def test_a_run_cut_short_in_another_process_resumes_to_the_same_bits(
    launch, fit_here, tmp_path, signum, code
):
    [process] = launch(tmp_path / "cut", delay=0.2)
    wait_for_checkpoint(tmp_path / "cut", process)
    time.sleep(0.25)  # into the middle of the next epoch
    os.kill(process.pid, signum)
    assert exit_codes(process) == [code]
    step = load_latest_checkpoint(tmp_path / "cut" / "checkpoints").step
    assert step < 21
    resumed = fit_here(tmp_path / "cut")
    assert equal(resumed, fit_here(tmp_path / "whole"))


@pytest.mark.parametrize("num_train", [203, 65])
def test_two_ranks_end_with_the_weights_of_one_process(
    launch, fit_here, tmp_path, digits_run, num_train
):
    """Slices of unequal size (batches of 11), and for 65 a last batch of one example."""
    ranks = launch(tmp_path / "two", ranks=2, deterministic=True, num_train=num_train)
    assert exit_codes(*ranks) == [0, 0]
    one = fit_here(tmp_path / "one", deterministic=True, num_train=num_train)
    model = digits_run.SharedNormNet(0.0)
    load_run(model, tmp_path / "two")
    two = model.state_dict()
    for name in one.keys() - {"seen"}:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-4)
    for a, b in zip(*(read_metrics(tmp_path / name) for name in ("one", "two")), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["score"] == pytest.approx(b["score"])


def test_two_ranks_stop_together_and_resume_to_the_same_bits(launch, tmp_path):
    ranks = launch(tmp_path / "cut", delay=0.2, ranks=2)
    wait_for_checkpoint(tmp_path / "cut", ranks[0])
    ranks[1].terminate()
    assert exit_codes(*ranks) == [143, 143]
    step = load_latest_checkpoint(tmp_path / "cut" / "checkpoints").step
    assert step < 21
    for path in ("cut", "whole"):
        assert exit_codes(*launch(tmp_path / path, ranks=2)) == [0, 0]
    cut, whole = (load_latest_checkpoint(tmp_path / p / "checkpoints") for p in ("cut", "whole"))
    assert equal(cut.weights, whole.weights)
    noise = [random["loss"] for random in whole.state["random"]]
    assert not torch.equal(noise[0], noise[1])
