"""What an uninterrupted run does, in this process: learning, selection, options, faults."""

import sys
import time

import pytest
import torch
from digits_run import at_step, same_bits

from probseq_apps.engine import fit as loop
from probseq_apps.engine import log
from probseq_apps.engine.checkpoints import load_latest_checkpoint
from probseq_apps.engine.files import read_finished
from probseq_apps.engine.fit import fit
from probseq_apps.engine.log import NonFiniteLossError, read_metrics
from probseq_apps.engine.trainer import LossParts, Step


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

    def recorded(model, batch, step):
        parts = inner(model, batch, step)
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
    from probseq_apps.engine.trainer import epoch_order

    (pixels, labels), validation = digits_run.digits(num_train=70)
    ours = digits_run.DigitsTask(noise=0.0, dropout=0.0)
    run(task=ours, data=((pixels, labels), validation), select="last", final_learning_rate=1e-3)
    hand = digits_run.DigitsTask(noise=0.0, dropout=0.0)
    optimizer = torch.optim.Adam(hand.model.parameters(), lr=1.0)
    for step in range(9):
        chosen = epoch_order(0, step // 3, 70)[32 * (step % 3) : 32 * (step % 3) + 32]
        batch = (pixels[chosen], labels[chosen])
        loss = hand.loss(hand.model, batch, Step(step, step // 3, step / 9, None)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hand.model.parameters(), 1.0)
        warm, cold = 1e-2 * (step + 1) / 3, 1e-2 - (1e-2 - 1e-3) * (step - 3) / 5
        optimizer.param_groups[0]["lr"] = warm if step < 3 else cold
        optimizer.step()
    torch.testing.assert_close(ours.model.state_dict(), hand.model.state_dict())


class Opponents(torch.nn.Module):
    """Two networks, one with gradients a million times as large as the other's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.small, self.large = torch.nn.Linear(64, 1), torch.nn.Linear(64, 1)

    @property
    def networks(self):
        return (self.small, self.large)

    def forward(self, pixels, labels):
        wanted = labels.float()[:, None]
        return (
            1e-3 * (self.small(pixels) - wanted).square().mean()
            + 1e3 * (self.large(pixels) - wanted).square().mean()
        )


class OpponentsTask:
    def __init__(self):
        self.model = Opponents()

    def loss(self, model, batch, step):
        return LossParts(model(batch[0].float() / 16, batch[1]), {})

    def score(self, model, batches):
        return 0.0


def test_networks_that_play_against_each_other_are_clipped_each_by_itself(run, digits_run):
    from probseq_apps.engine.trainer import epoch_order

    (pixels, labels), validation = digits_run.digits(num_train=70)
    ours = OpponentsTask()
    plain = {"warmup_epochs": 0, "final_learning_rate": 1e-2, "select": "last"}
    run(task=ours, data=((pixels, labels), validation), grad_clip=1e-3, **plain)
    hand = Opponents()
    optimizer = torch.optim.Adam(hand.parameters(), lr=1e-2)
    for step in range(9):
        chosen = epoch_order(0, step // 3, 70)[32 * (step % 3) : 32 * (step % 3) + 32]
        optimizer.zero_grad()
        hand(pixels[chosen].float() / 16, labels[chosen]).backward()
        for network in hand.networks:
            gradient = torch.cat([p.grad.flatten() for p in network.parameters()])
            for parameter in network.parameters():
                parameter.grad *= min(1.0, 1e-3 / (gradient.norm() + 1e-6))
        optimizer.step()
    torch.testing.assert_close(ours.model.state_dict(), hand.state_dict(), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("total", [3, 49, 503])
def test_the_loss_is_told_step_and_epoch_and_how_much_is_done(run, digits_run, total):
    task, steps = digits_run.DigitsTask(), []
    inner = task.loss

    def noted(model, batch, step):
        steps.append(step)
        return inner(model, batch, step)

    task.loss = noted
    run(task=task, epochs=0, warmup_epochs=0, steps=total, validate_every=100)
    assert [step.number for step in steps] == list(range(total))
    assert [step.epoch for step in steps] == [number // 7 for number in range(total)]
    assert [step.progress for step in steps] == [number / total for number in range(total)]


@pytest.mark.parametrize("left_out", ["score", "held_out"])
def test_held_out_data_and_score_go_together(digits_run, tmp_path, left_out):
    task, (train, held_out) = digits_run.DigitsTask(), digits_run.digits()
    given = {"score": task.score, "held_out": held_out} | {left_out: None}
    with pytest.raises(ValueError, match="held_out and score must be given together"):
        fit(task.model, train, digits_run.settings(), tmp_path / "run", loss=task.loss, **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (((torch.zeros(3), torch.zeros(4)), None), r"train must be tensors .* got \[3, 4\]"),
        (((torch.zeros(0),), None), r"train must be tensors .* got \[0\]"),
        (((), None), r"train must be tensors .* got \[\]"),
        (((torch.zeros(3),), (torch.zeros(2), torch.zeros(1))), "held_out must be tensors"),
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


def test_without_a_terminal_progress_is_a_line_a_minute(run, monkeypatch, capsys):
    with log.bar(total=300) as bar:
        for second in range(300):
            now = time.monotonic() + second
            with monkeypatch.context() as patch:
                patch.setattr(log.time, "monotonic", lambda now=now: now)
                bar.set_description_str(f"second {second}")
    shown = capsys.readouterr().err
    assert shown.count("\n") == 4
    assert "\r" not in shown
    run()
    assert capsys.readouterr().err == ""


def test_the_progress_bar_shows_epoch_parts_and_score(digits_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    task, config = digits_run.DigitsTask(), digits_run.settings(epochs=2)
    digits_run.train(task, digits_run.digits(), tmp_path, config, label="mle")
    shown = capsys.readouterr().err
    for word in ("mle epoch 2/2", "14/14", "cross_entropy=", "penalty=", "score="):
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
