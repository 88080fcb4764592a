"""What a run does, in this process: learning, selection, interruption, faults."""

import json
import os
import signal
import sys
import threading

import pytest
import torch

from probseq_apps.training import loop
from probseq_apps.training.checkpoints import DamagedCheckpointWarning, load_latest_checkpoint
from probseq_apps.training.loop import fit, load_run
from probseq_apps.training.monitor import NonFiniteLossError
from probseq_apps.training.runs import (
    ConfigMismatchError,
    RunExistsError,
    read_finished,
    read_metrics,
)


@pytest.fixture
def run(digits_run, tmp_path):
    """Train the small task; returns it with its result."""

    def start(*, path="run", task=None, data=None, resume=False, metadata=None, **changes):
        task = task or digits_run.DigitsTask()
        train, validation = data or digits_run.digits()
        result = fit(
            task,
            train,
            validation,
            digits_run.settings(**changes),
            tmp_path / path,
            resume=resume,
            progress=False,
            metadata=metadata,
        )
        return task, result

    return start


def same_bits(a, b):
    left, right = a.model.state_dict(), b.model.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


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


def at_step(step, action):
    def hook(task, loss):
        return action(loss) if task.calls == step else loss

    return hook


def interrupt(signum):
    def send(loss):
        os.kill(os.getpid(), signum)
        return loss

    return send


def test_the_task_is_learned_and_the_log_tells_how(run, tmp_path):
    _, result = run(epochs=20)
    rows = read_metrics(tmp_path / "run")
    assert [row["epoch"] for row in rows] == list(range(1, 21))
    assert [row["step"] for row in rows] == [7 * e for e in range(1, 21)]
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert result.best_score == max(row["score"] for row in rows) > 0.8
    assert result.steps == 140
    assert result.best_step == next(r["step"] for r in rows if r["score"] == result.best_score)
    assert read_finished(tmp_path / "run")["best_score"] == result.best_score


def test_the_logged_loss_is_the_mean_over_examples_not_over_batches(run, digits_run, tmp_path):
    task = digits_run.DigitsTask(noise=0.0, dropout=0.0)
    train, validation = digits_run.digits(num_train=33)
    seen = []
    inner = task.loss

    def recorded(model, batch, **kwargs):
        parts = inner(model, batch, **kwargs)
        seen.append((len(batch[0]), parts.loss.item(), parts.parts["penalty"].item()))
        return parts

    task.loss = recorded
    run(task=task, data=(train, validation), epochs=2)
    assert [size for size, *_ in seen] == [32, 1, 32, 1]
    for row, pair in zip(read_metrics(tmp_path / "run"), (seen[:2], seen[2:]), strict=True):
        assert row["loss"] == pytest.approx(sum(n * loss for n, loss, _ in pair) / 33)
        assert row["parts"]["penalty"] == pytest.approx(sum(n * p for n, _, p in pair) / 33)


def test_training_equals_a_plain_loop_written_out(run, digits_run):
    """The same steps by hand: order, step sizes and clipping from their definitions."""
    from probseq_apps.training.schedule import epoch_order

    (pixels, labels), validation = digits_run.digits(num_train=70)
    ours = digits_run.DigitsTask(noise=0.0, dropout=0.0)
    run(task=ours, data=((pixels, labels), validation), select="last", final_learning_rate=1e-3)
    hand = digits_run.DigitsTask(noise=0.0, dropout=0.0)
    optimizer = torch.optim.Adam(hand.model.parameters(), lr=1.0)
    for step in range(9):
        chosen = epoch_order(0, step // 3, 70)[32 * (step % 3) : 32 * (step % 3) + 32]
        batch = (pixels[chosen], labels[chosen])
        loss = hand.loss(hand.model, batch, progress=step / 9, generator=None).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hand.model.parameters(), 1.0)
        warm, cold = 1e-2 * (step + 1) / 3, 1e-2 - (1e-2 - 1e-3) * (step - 3) / 5
        optimizer.param_groups[0]["lr"] = warm if step < 3 else cold
        optimizer.step()
    torch.testing.assert_close(ours.model.state_dict(), hand.model.state_dict())


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(run, digits_run):
    first, _ = run(path="a")
    torch.rand(17)  # what happened to the global generator before must not matter
    again, _ = run(path="b")
    other, _ = run(path="c", seed=1)
    assert same_bits(first, again)
    assert not same_bits(first, other)


def test_the_global_generator_is_left_as_it_was_found(run, digits_run):
    task = digits_run.DigitsTask()
    before = torch.get_rng_state()
    run(task=task, epochs=2)
    assert torch.equal(torch.get_rng_state(), before)


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
    resumed, result = run(path="cut", resume=True)
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
        resumed, _ = run(path="cut", resume=True)
    assert resumed.calls == 7
    assert same_bits(whole, resumed)


def test_a_finished_run_returns_at_once_with_the_selected_weights(run, digits_run, tmp_path):
    first, result = run()
    again, second = run(resume=True)
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
    resumed, result = run(task=scripted(), epochs=4, resume=True)
    assert result[:3] == (14, 0.9, 28)
    assert torch.equal(resumed.model.head.weight, task.copies[2])
    last, result = run(path="last", task=scripted(), epochs=4, select="last")
    assert result[:3] == (28, 0.9, 28)
    assert torch.equal(last.model.head.weight, last.copies[4])


def test_validation_comes_every_few_epochs_and_at_the_end_and_does_not_change_training(
    run, tmp_path
):
    rare, _ = run(path="rare", epochs=5, validate_every=2, select="last")
    often, _ = run(path="often", epochs=5, validate_every=1, select="last")
    scored = [row["score"] is not None for row in read_metrics(tmp_path / "rare")]
    assert scored == [False, True, False, True, True]
    assert same_bits(rare, often)


def test_checkpoints_come_every_few_epochs_and_at_the_end(run, tmp_path, monkeypatch):
    saved = []
    save = loop.save_checkpoint

    def recorded(root, checkpoint, config):
        saved.append(checkpoint.step)
        return save(root, checkpoint, config)

    monkeypatch.setattr(loop, "save_checkpoint", recorded)
    run(epochs=5, checkpoint_every=2)
    assert saved == [14, 28, 35]
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-000028", "step-000035"]


def test_training_without_validation_takes_the_last_weights(run, digits_run):
    train, _ = digits_run.digits()
    _, result = run(data=(train, None), select="last")
    assert result[:3] == (21, None, 21)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_step_and_parts_before_it_spoils_the_weights(
    run, digits_run, value
):
    task = digits_run.DigitsTask(hook=at_step(5, lambda loss: loss * value))
    pattern = r"not finite at step 5: loss=(nan|inf), cross_entropy=[\d.]+, penalty="
    with pytest.raises(NonFiniteLossError, match=pattern):
        run(task=task)
    assert all(p.isfinite().all() for p in task.model.parameters())


def test_a_validation_score_that_is_not_finite_is_refused(run, digits_run):
    task = digits_run.DigitsTask()
    task.score = lambda model, batches: float("nan")
    with pytest.raises(ValueError, match="finite number, got nan at step 7"):
        run(task=task)


def test_resuming_with_other_settings_or_metadata_lists_the_keys(run, tmp_path):
    run(metadata={"method": "mle"})
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(ConfigMismatchError, match=r"method: 'mle' in the run, 'sgpa' now.*seed: 0"):
        run(resume=True, metadata={"method": "sgpa"}, seed=4)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_resuming_with_other_data_is_refused(run, digits_run):
    with pytest.raises(SystemExit):
        run(task=digits_run.DigitsTask(hook=at_step(3, interrupt(signal.SIGTERM))))
    with pytest.raises(ValueError, match=r"training examples must be 203.*got 204"):
        run(data=digits_run.digits(num_train=204), resume=True)


def test_a_run_is_not_overwritten_unless_asked(run, digits_run, tmp_path):
    run()
    with pytest.raises(RunExistsError, match="already holds a run"):
        run()
    train, validation = digits_run.digits()
    task, config = digits_run.DigitsTask(), digits_run.settings(epochs=2)
    result = fit(task, train, validation, config, tmp_path / "run", overwrite=True, progress=False)
    assert result.steps == 14
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["epochs"] == 2


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (((torch.zeros(3), torch.zeros(4)), None), r"train must be tensors .* got \[3, 4\]"),
        (((torch.zeros(0),), None), r"train must be tensors .* got \[0\]"),
        (((), None), r"train must be tensors .* got \[\]"),
        (((torch.zeros(3),), (torch.zeros(2), torch.zeros(1))), "validation must be tensors"),
        (((torch.zeros(3),), None), "needs validation data"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_anything_is_written(run, tmp_path, data, match):
    with pytest.raises(ValueError, match=match):
        run(data=data)
    assert not (tmp_path / "run").exists()


def test_bf16_runs_keep_float32_parameters_and_differ_from_float32(run):
    half, _ = run(path="half", precision="bf16")
    full, _ = run(path="full")
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    assert not same_bits(half, full)
    torch.testing.assert_close(half.model.head.weight, full.model.head.weight, atol=0.1, rtol=0.1)


@pytest.mark.slow
def test_a_compiled_run_agrees_with_an_eager_one(run, digits_run, monkeypatch):
    # The eager backend: tracing, graph breaks and wrapped names are tested, no C++ compiler needed.
    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_model(model, backend="eager"))
    eager, _ = run(path="eager")
    compiled, _ = run(path="compiled", compile=True)
    torch.testing.assert_close(compiled.model.state_dict(), eager.model.state_dict())


def test_weight_decay_takes_adamw(run, tmp_path):
    plain, _ = run(path="plain", select="last")
    decayed, _ = run(path="decayed", select="last", weight_decay=1.0)
    assert decayed.model.head.weight.norm() < plain.model.head.weight.norm()
    state = load_latest_checkpoint(tmp_path / "decayed" / "checkpoints").state
    assert state["optimizer"]["param_groups"][0]["decoupled_weight_decay"] is True


def test_the_progress_bar_shows_epoch_parts_and_score(digits_run, tmp_path, capsys):
    train, validation = digits_run.digits()
    task, config = digits_run.DigitsTask(), digits_run.settings(epochs=2)
    fit(task, train, validation, config, tmp_path, progress=True)
    shown = capsys.readouterr().err
    for word in ("epoch 2/2", "14/14", "cross_entropy=", "penalty=", "score="):
        assert word in shown


def test_tensorboard_events_are_written_on_request(run, tmp_path):
    pytest.importorskip("tensorboard")
    run(tensorboard=True, epochs=2)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    rows = read_metrics(tmp_path / "run")
    assert [e.value for e in events.Scalars("loss")] == pytest.approx([r["loss"] for r in rows])
    assert [e.step for e in events.Scalars("parts.penalty")] == [7, 14]


def test_tensorboard_that_is_not_installed_names_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"probseq-apps\[tensorboard\]"):
        run(tensorboard=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_a_bad_loss_is_found_later_but_named_with_its_step(run, digits_run):
    task = digits_run.DigitsTask(hook=at_step(5, lambda loss: loss * float("nan")))
    with pytest.raises(NonFiniteLossError, match="not finite at step 5: loss=nan"):
        run(task=task, device="cuda")
    assert 5 < task.calls <= 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_resumed_run_on_cuda_ends_like_an_uninterrupted_one(run, digits_run):
    whole, _ = run(path="whole", device="cuda")
    task = digits_run.DigitsTask(hook=at_step(10, interrupt(signal.SIGTERM)))
    with pytest.raises(SystemExit):
        run(path="cut", task=task, device="cuda")
    resumed, _ = run(path="cut", device="cuda", resume=True)
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())
