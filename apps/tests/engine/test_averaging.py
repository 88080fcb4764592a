"""The moving average of the weights in a run, and over a resumption."""

import signal
import time

import pytest
import torch
from digits_run import at_step, interrupt, same_bits

from probseq_apps.engine import fit as loop
from probseq_apps.engine.checkpoints import load_latest_checkpoint
from probseq_apps.engine.fit import load_run

STEPS = {"epochs": 0, "warmup_epochs": 0, "steps": 17, "warmup_steps": 3}


def by_hand(values, decay):
    """The recursion on plain numbers: the first value is where the average begins."""
    average = values[0]
    for n, value in enumerate(values[1:]):
        d = min(decay, (1 + n) / (10 + n))
        average = d * average + (1 - d) * value
    return average


def weights_of(task):
    return torch.cat([p.detach().double().flatten() for p in task.model.parameters()])


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_a_runs_average_is_that_of_its_weights_after_each_step(run, digits_run, tmp_path, decay):
    seen = []

    def note(task, loss):
        seen.append(weights_of(task))
        return loss

    run(task=digits_run.DigitsTask(hook=note), ema_decay=decay, select="last", **STEPS)
    checkpoint = load_latest_checkpoint(tmp_path / "run" / "checkpoints")
    task = digits_run.DigitsTask()
    task.model.load_state_dict(
        {
            name: checkpoint.weights[name.replace("layers.4", "layers.1")]
            for name in task.model.state_dict()
        }
    )
    expected = by_hand([*seen, weights_of(task)], decay)
    names = [name for name, _ in task.model.named_parameters()]
    assert list(checkpoint.ema) == sorted(names)
    found = torch.cat([checkpoint.ema[name].double().flatten() for name in names])
    # Float32 sums of 17 terms.
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_validation_selection_and_loading_see_the_average_and_training_does_not(
    run, digits_run, tmp_path
):
    scored = []

    def watched():
        task = digits_run.DigitsTask()
        inner = task.score

        def score(model, batches):
            scored.append(weights_of(task))
            return inner(model, batches)

        task.score = score
        return task

    averaged, _ = run(path="averaged", task=watched(), ema_decay=0.9, select="last", **STEPS)
    plain, _ = run(path="plain", select="last", **STEPS)
    end = load_latest_checkpoint(tmp_path / "averaged" / "checkpoints")
    same = load_latest_checkpoint(tmp_path / "plain" / "checkpoints")
    assert all(torch.equal(end.weights[name], same.weights[name]) for name in same.weights)
    assert torch.equal(weights_of(averaged), scored[-1])
    assert not torch.equal(weights_of(averaged), weights_of(plain))
    # Images counted in training are a buffer: the model's own number, not an average of numbers.
    assert int(averaged.model.seen) == int(plain.model.seen) > 0
    loaded = digits_run.DigitsTask()
    load_run(loaded.model, tmp_path / "averaged")
    assert same_bits(loaded, averaged)


def test_the_best_average_is_kept_as_it_was_scored(run, digits_run, tmp_path):
    task = digits_run.DigitsTask()
    copies, scores = [], iter((0.1, 0.9, 0.5))

    def score(model, batches):
        copies.append(weights_of(task))
        return next(scores)

    task.score = score
    _, result = run(task=task, ema_decay=0.9, **STEPS)
    assert result[:3] == (14, 0.9, 17)
    assert torch.equal(weights_of(task), copies[1])
    loaded = digits_run.DigitsTask()
    load_run(loaded.model, tmp_path / "run")
    assert same_bits(loaded, task)


@pytest.mark.parametrize("select", ["best", "last"])
def test_a_run_cut_in_mid_epoch_ends_with_the_same_bits_average_included(
    run, digits_run, tmp_path, select
):
    options = {"ema_decay": 0.95, "select": select, **STEPS}
    whole, expected = run(path="whole", **options)
    task = digits_run.DigitsTask(hook=at_step(10, interrupt(signal.SIGTERM)))
    with pytest.raises(SystemExit):
        run(path="cut", task=task, **options)
    assert load_latest_checkpoint(tmp_path / "cut" / "checkpoints").step == 10
    resumed, result = run(path="cut", **options)
    assert result[:3] == expected[:3]
    assert result.steps == 17
    assert same_bits(whole, resumed)
    left, right = (load_latest_checkpoint(tmp_path / p / "checkpoints") for p in ("whole", "cut"))
    for a, b in ((left.weights, right.weights), (left.ema, right.ema)):
        assert all(torch.equal(a[name], b[name]) for name in a)
    again, _ = run(path="cut", **options)
    assert again.calls == 0
    assert same_bits(whole, again)


def test_a_checkpoint_is_due_when_five_minutes_have_passed_in_mid_epoch(
    run, digits_run, monkeypatch
):
    """The clock jumps by 200 seconds a step; epochs of 7 steps end at 7 and 14, the run at 17."""
    now = [0.0]
    saved = []
    inner = loop.save_checkpoint

    def tick(task, loss):
        now[0] += 200.0
        return loss

    def noted(root, checkpoint, config, **options):
        saved.append(checkpoint.step)
        return inner(root, checkpoint, config, **options)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(loop, "save_checkpoint", noted)
    run(task=digits_run.DigitsTask(hook=tick), **STEPS)
    assert saved == [2, 4, 6, 7, 9, 11, 13, 14, 16, 17]
