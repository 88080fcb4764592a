"""Runs that stop early, by a signal or with a damaged checkpoint, and go on."""

import os
import signal
import threading
import time

import pytest
import torch
from digits_run import DigitsTask, SharedNormNet, at_step, digits, fit_here, interrupt, same_bits

from probseq_apps.engine.checkpoints import DamagedCheckpointWarning, load_latest_checkpoint
from probseq_apps.engine.files import ConfigMismatchError, read_finished
from probseq_apps.engine.log import read_metrics

# 17 steps in epochs of 7, the last cut short, with a moving average.
AVERAGED = {"epochs": 0, "warmup_epochs": 0, "steps": 17, "warmup_steps": 3, "ema_decay": 0.95}


def checkpoint(folder):
    return load_latest_checkpoint(folder / "checkpoints")


def same_end(*folders):
    """Runs ended alike: weights, optimizer, generators, best weights, averages, and the log."""
    left, right = (torch.utils._pytree.tree_flatten(checkpoint(folder))[0] for folder in folders)
    seconds = [checkpoint(folder).state["seconds"] for folder in folders]
    assert len(left) == len(right)
    for x, y in zip(left, right, strict=True):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, y)
        elif x not in seconds:
            assert x == y
    rows = [read_metrics(folder) for folder in folders]
    for row in (*rows[0], *rows[1]):
        del row["seconds"]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("step", "signum", "code", "options"),
    [
        (1, signal.SIGTERM, 143, {}),
        (14, signal.SIGINT, 130, {}),
        (10, signal.SIGINT, 130, {**AVERAGED, "select": "best"}),
        (10, signal.SIGTERM, 143, {**AVERAGED, "select": "last"}),
    ],
)
def test_a_signal_saves_and_exits_and_resuming_gives_the_same_bits(
    run, tmp_path, step, signum, code, options
):
    whole, expected = run(path="whole", **options)
    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(SystemExit) as left:
        run(path="cut", task=DigitsTask(hook=at_step(step, interrupt(signum))), **options)
    assert left.value.code == code
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert checkpoint(tmp_path / "cut").step == step
    assert read_finished(tmp_path / "cut") is None
    resumed, result = run(path="cut", **options)
    assert resumed.calls == expected.steps - step
    assert same_bits(whole, resumed)
    assert result[:3] == expected[:3]
    same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_signal_in_the_last_step_finishes_and_a_second_interrupt_is_immediate(run, tmp_path):
    def stopped(step, *signums):
        with pytest.raises((SystemExit, KeyboardInterrupt)) as left:
            run(path=f"{step}", task=DigitsTask(hook=at_step(step, interrupt(*signums))))
        return getattr(left.value, "code", None), checkpoint(tmp_path / f"{step}")

    code, last = stopped(21, signal.SIGTERM)
    assert (code, last.step, read_finished(tmp_path / "21")["steps"]) == (143, 21, 21)
    assert stopped(3, signal.SIGINT, signal.SIGINT) == (None, None)
    # An interrupt after a termination is not a second one.
    assert stopped(4, signal.SIGTERM, signal.SIGINT)[0] == 143


def test_outside_the_main_thread_training_works_without_handlers(run):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(epochs=2)))
    thread.start()
    thread.join()
    assert results[0][1].steps == 14


def test_a_damaged_newest_checkpoint_is_skipped_and_the_bits_are_the_same(run, tmp_path):
    whole, _ = run(path="whole")
    run(path="cut")
    damaged = tmp_path / "cut" / "checkpoints" / "step-000021.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.warns(DamagedCheckpointWarning, match="step-000021"):
        resumed, _ = run(path="cut")
    assert resumed.calls == 7
    assert same_bits(whole, resumed)


@pytest.mark.parametrize("options", [{}, {**AVERAGED, "select": "last"}])
def test_a_finished_run_returns_at_once_with_the_selected_weights(run, load_run, tmp_path, options):
    first, result = run(**options)
    again, second = run(**options)
    assert again.calls == 0
    assert second[:3] == result[:3]
    assert same_bits(first, again)
    assert not again.model.training
    loaded = DigitsTask()
    load_run(loaded.model, tmp_path / "run")
    assert same_bits(first, loaded)


@pytest.mark.parametrize("average", [{}, {"ema_decay": 0.9}])
def test_the_best_weights_are_kept_over_worse_later_ones_and_over_a_resumption(
    run, load_run, tmp_path, average
):
    """Scores rise, fall, and come back; the run is cut between."""

    def scripted(hook=None):
        task = DigitsTask(hook=hook)
        copies = task.copies = {}

        def score(model, batches):
            epoch = int(model.seen) // 203
            copies[epoch] = model.head.weight.clone()
            return {"score": {1: 0.1, 2: 0.9, 3: 0.5, 4: 0.9}[epoch]}

        task.score = score
        return task

    task = scripted(at_step(16, interrupt(signal.SIGTERM)))
    with pytest.raises(SystemExit):
        run(task=task, epochs=4, **average)
    resumed, result = run(task=scripted(), epochs=4, **average)
    assert result[:3] == (14, 0.9, 28)
    assert torch.equal(resumed.model.head.weight, task.copies[2])
    loaded = SharedNormNet(0.1)
    load_run(loaded, tmp_path / "run")
    assert torch.equal(loaded.head.weight, task.copies[2])
    last, result = run(path="last", task=scripted(), epochs=4, select="last", **average)
    assert result[:3] == (28, 0.9, 28)
    assert torch.equal(last.model.head.weight, last.copies[4])


def test_an_unfinished_run_goes_on_with_its_settings_and_data_alone(run, tmp_path):
    with pytest.raises(SystemExit):
        run(task=DigitsTask(hook=at_step(9, interrupt(signal.SIGTERM))), metadata={"method": "mle"})
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(ConfigMismatchError, match=r"method: 'mle' in the run, 'sgpa' now.*seed: 0"):
        run(metadata={"method": "sgpa"}, seed=4)
    with pytest.raises(ValueError, match=r"training examples must be 203.*got 204"):
        run(data=digits(num_train=204), metadata={"method": "mle"})
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_resumed_run_on_cuda_ends_like_an_uninterrupted_one(run):
    whole, _ = run(path="whole", device="cuda")
    task = DigitsTask(hook=at_step(10, interrupt(signal.SIGTERM)))
    with pytest.raises(SystemExit):
        run(path="cut", task=task, device="cuda")
    resumed, _ = run(path="cut", device="cuda")
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())


def wait_for_checkpoint(run_dir, process):
    while not list(run_dir.glob("checkpoints/step-*")):
        assert process.is_alive()
        time.sleep(0.02)


def exit_codes(processes):
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_run_cut_short_in_another_process_resumes_to_the_same_bits(
    launch, tmp_path, signum, code
):
    [process] = launch(tmp_path / "cut", delay=0.2)
    wait_for_checkpoint(tmp_path / "cut", process)
    time.sleep(0.25)  # into the middle of the next epoch
    os.kill(process.pid, signum)
    assert exit_codes([process]) == [code]
    assert checkpoint(tmp_path / "cut").step < 21
    assert equal(fit_here(tmp_path / "cut"), fit_here(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("num_train", [203, 65])
def test_two_ranks_end_with_the_weights_of_one_process(launch, load_run, tmp_path, num_train):
    """Slices of unequal size (batches of 11), and for 65 a last batch of one example."""
    ranks = launch(tmp_path / "two", ranks=2, deterministic=True, num_train=num_train)
    assert exit_codes(ranks) == [0, 0]
    one = fit_here(tmp_path / "one", deterministic=True, num_train=num_train)
    model = SharedNormNet(0.0)
    load_run(model, tmp_path / "two")
    two = model.state_dict()
    for name in one.keys() - {"seen"}:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-4)
    for a, b in zip(*(read_metrics(tmp_path / name) for name in ("one", "two")), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["score"] == pytest.approx(b["score"])
    noise = [random["loss"] for random in checkpoint(tmp_path / "two").state["random"]]
    assert not torch.equal(*noise)


@pytest.mark.slow
def test_two_ranks_stop_together_and_resume_to_the_same_bits(launch, tmp_path):
    ranks = launch(tmp_path / "cut", delay=0.2, ranks=2)
    wait_for_checkpoint(tmp_path / "cut", ranks[0])
    ranks[1].terminate()
    assert exit_codes(ranks) == [143, 143]
    assert checkpoint(tmp_path / "cut").step < 21
    for path in ("cut", "whole"):
        assert exit_codes(launch(tmp_path / path, ranks=2)) == [0, 0]
    cut, whole = (checkpoint(tmp_path / path) for path in ("cut", "whole"))
    assert equal(cut.weights, whole.weights)
