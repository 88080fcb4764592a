"""Runs that stop early, by a signal or with a damaged checkpoint, and go on."""

import os
import signal
import threading

import pytest
import torch
from digits_run import at_step, interrupt, same_bits

from probseq_apps.engine.checkpoints import DamagedCheckpointWarning, load_latest_checkpoint
from probseq_apps.engine.files import ConfigMismatchError, read_finished
from probseq_apps.engine.fit import load_run
from probseq_apps.engine.log import read_metrics


def same_end(tmp_path, a, b):
    """Two runs ended alike: weights, optimizer, generators, best weights."""
    left = load_latest_checkpoint(tmp_path / a / "checkpoints")
    right = load_latest_checkpoint(tmp_path / b / "checkpoints")
    flat = [torch.utils._pytree.tree_flatten(c)[0] for c in (left, right)]
    seconds = [c.state["seconds"] for c in (left, right)]
    assert len(flat[0]) == len(flat[1])
    for x, y in zip(*flat, strict=True):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, y)
        elif x not in seconds:
            assert x == y


@pytest.mark.parametrize("step", [1, 10, 14])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_exits_and_resuming_gives_the_same_bits(
    run, digits_run, tmp_path, step, signum, code
):
    whole, expected = run(path="whole")
    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    stopped = digits_run.DigitsTask(hook=at_step(step, interrupt(signum)))
    with pytest.raises(SystemExit) as left:
        run(path="cut", task=stopped)
    assert left.value.code == code
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert load_latest_checkpoint(tmp_path / "cut" / "checkpoints").step == step
    assert read_finished(tmp_path / "cut") is None
    resumed, result = run(path="cut")
    assert resumed.calls == 21 - step
    assert same_bits(whole, resumed)
    assert result[:3] == expected[:3]
    same_end(tmp_path, "whole", "cut")
    rows = [read_metrics(tmp_path / name) for name in ("whole", "cut")]
    for row in (*rows[0], *rows[1]):
        del row["seconds"]
    assert rows[0] == rows[1]


def test_a_signal_in_the_last_step_finishes_the_run_and_still_exits(run, digits_run, tmp_path):
    task = digits_run.DigitsTask(hook=at_step(21, interrupt(signal.SIGTERM)))
    with pytest.raises(SystemExit) as left:
        run(task=task)
    assert left.value.code == 143
    assert read_finished(tmp_path / "run")["steps"] == 21


def test_a_second_interrupt_is_immediate(run, digits_run, tmp_path):
    def twice(loss):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return loss

    with pytest.raises(KeyboardInterrupt):
        run(task=digits_run.DigitsTask(hook=at_step(3, twice)))
    assert load_latest_checkpoint(tmp_path / "run" / "checkpoints") is None


def test_outside_the_main_thread_training_works_without_handlers(run):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(epochs=2)))
    thread.start()
    thread.join(60)
    assert results[0][1].steps == 14


def test_a_damaged_newest_checkpoint_is_skipped_and_the_bits_are_the_same(run, tmp_path):
    whole, _ = run(path="whole")
    run(path="cut")
    damaged = tmp_path / "cut" / "checkpoints" / "step-000021" / "train_state.pt"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.warns(DamagedCheckpointWarning, match="step-000021"):
        resumed, _ = run(path="cut")
    assert resumed.calls == 7
    assert same_bits(whole, resumed)


def test_a_finished_run_returns_at_once_with_the_selected_weights(run, digits_run, tmp_path):
    first, result = run()
    again, second = run()
    assert again.calls == 0
    assert second[:3] == result[:3]
    assert same_bits(first, again)
    assert not again.model.training
    loaded = digits_run.SharedNormNet(0.1)
    assert load_run(loaded, tmp_path / "run")[:3] == result[:3]
    assert torch.equal(loaded.head.weight, first.model.head.weight)


def test_loading_an_unfinished_run_is_refused(run, digits_run, tmp_path):
    with pytest.raises(SystemExit):
        run(task=digits_run.DigitsTask(hook=at_step(9, interrupt(signal.SIGTERM))))
    with pytest.raises(FileNotFoundError, match="finished run"):
        load_run(digits_run.SharedNormNet(0.1), tmp_path / "run")


def test_the_best_weights_are_kept_over_worse_later_ones_and_over_a_resumption(run, digits_run):
    """Scores rise, fall, and fall again; the run is cut between."""

    def scripted(hook=None):
        task = digits_run.DigitsTask(hook=hook)
        copies = task.copies = {}

        def score(model, batches):
            epoch = int(model.seen) // 203
            copies[epoch] = model.head.weight.clone()
            return {1: 0.1, 2: 0.9, 3: 0.5, 4: 0.9}[epoch]

        task.score = score
        return task

    task = scripted(at_step(16, interrupt(signal.SIGTERM)))
    with pytest.raises(SystemExit):
        run(task=task, epochs=4)
    resumed, result = run(task=scripted(), epochs=4)
    assert result[:3] == (14, 0.9, 28)
    assert torch.equal(resumed.model.head.weight, task.copies[2])
    last, result = run(path="last", task=scripted(), epochs=4, select="last")
    assert result[:3] == (28, 0.9, 28)
    assert torch.equal(last.model.head.weight, last.copies[4])


def test_resuming_with_other_settings_or_metadata_lists_the_keys(run, tmp_path):
    run(metadata={"method": "mle"})
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(ConfigMismatchError, match=r"method: 'mle' in the run, 'sgpa' now.*seed: 0"):
        run(metadata={"method": "sgpa"}, seed=4)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_resuming_with_other_data_is_refused(run, digits_run):
    with pytest.raises(SystemExit):
        run(task=digits_run.DigitsTask(hook=at_step(3, interrupt(signal.SIGTERM))))
    with pytest.raises(ValueError, match=r"training examples must be 203.*got 204"):
        run(data=digits_run.digits(num_train=204))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_resumed_run_on_cuda_ends_like_an_uninterrupted_one(run, digits_run):
    whole, _ = run(path="whole", device="cuda")
    task = digits_run.DigitsTask(hook=at_step(10, interrupt(signal.SIGTERM)))
    with pytest.raises(SystemExit):
        run(path="cut", task=task, device="cuda")
    resumed, _ = run(path="cut", device="cuda")
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())
