"""What an uninterrupted run does, in this process: learning, selection, options, faults."""

import sys
import time
import types

import pytest
import torch
from digits_run import DigitsTask, at_step, digits, same_bits, settings

from probseq_apps.engine import fit as loop
from probseq_apps.engine import trackers, trainer
from probseq_apps.engine.checkpoints import load_latest_checkpoint
from probseq_apps.engine.files import read_finished
from probseq_apps.engine.fit import fit
from probseq_apps.engine.log import LossMonitor, NonFiniteLossError, read_metrics
from probseq_apps.engine.trainer import LossParts, TrainStep, epoch_order

# 17 steps in epochs of 7.
STEPS = {"epochs": 0, "warmup_epochs": 0, "steps": 17, "warmup_steps": 3}


def watched(task, note):
    """The task, with what its loss is given and gives noted."""
    inner = task.loss

    def loss(model, batch, step):
        losses = inner(model, batch, step)
        note(batch, losses, step)
        return losses

    task.loss = loss
    return task


def weights_of(task):
    return torch.cat([p.detach().double().flatten() for p in task.model.parameters()])


def test_the_task_is_learned_and_the_log_tells_how(run, tmp_path):
    _, result = run(epochs=20)
    rows = read_metrics(tmp_path / "run")
    assert [row["epoch"] for row in rows] == list(range(1, 21))
    assert [row["step"] for row in rows] == [7 * e for e in range(1, 21)]
    assert [row["learning_rate"] for row in rows[::19]] == pytest.approx([1e-2, 1e-5])
    assert 0 < rows[0]["seconds"] <= rows[-1]["seconds"] <= result.seconds
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert result.best_score == max(row["score"] for row in rows) > 0.8
    assert all(row["validation"] == {"accuracy": row["score"], "examples": 150} for row in rows)
    assert result.steps == 140
    assert result.best_step == next(r["step"] for r in rows if r["score"] == result.best_score)
    assert read_finished(tmp_path / "run")["best_score"] == result.best_score


@pytest.mark.parametrize(("patience", "steps"), [(0.0, 2), (600.0, 17)])
def test_the_time_of_a_training_is_told_by_its_first_steps_and_none_beyond_the_last(
    patience, steps, monkeypatch
):
    monkeypatch.setattr(trainer, "_MEASURED", patience)
    noted = []
    task = watched(DigitsTask(), lambda *_: time.sleep(0.02) or noted.append(1))
    (train, _), device = digits(), torch.device("cpu")
    estimate = trainer.training_seconds(task.model, train, settings(**STEPS), device, task.loss)
    assert len(noted) == steps
    assert estimate > 17 * 0.02


def test_a_tracker_has_the_rows_of_the_log_and_one_that_is_not_there_is_named(
    run, tmp_path, monkeypatch
):
    logged, made = [], []

    class Recorder:
        def __init__(self, **options):
            made.append(options)

        def log(self, numbers, step):
            logged.append({"step": step, **numbers})

        def start(self):
            logged.clear()

        def finish(self):
            logged.append("end")

    module = types.ModuleType("accelerate.tracking")
    module.LOGGER_TYPE_TO_CLASS = {"tensorboard": Recorder}
    module.get_available_trackers = lambda: ["tensorboard"]
    package = types.SimpleNamespace(PartialState=lambda cpu: None)
    monkeypatch.setitem(sys.modules, "accelerate", package)
    monkeypatch.setitem(sys.modules, "accelerate.tracking", module)
    monkeypatch.setattr(trackers, "chosen", "tensorboard")
    trackers.check_tracker()
    run(epochs=2)
    assert made == [{"run_name": "tensorboard", "logging_dir": tmp_path / "run"}]
    first, second, end = logged
    rows = read_metrics(tmp_path / "run")
    assert [each["validation/accuracy"] for each in (first, second)] == [r["score"] for r in rows]
    assert (second["step"], second["loss"], end) == (14, rows[1]["loss"], "end")
    monkeypatch.setattr(trackers, "chosen", "mlflow")
    with pytest.raises(ValueError, match="pip install accelerate mlflow"):
        trackers.check_tracker()

    # Trackers raise errors of types of their own.
    def fail(*_, **__):
        raise type("TrackerError", (Exception,), {})("no connection")

    monkeypatch.setattr(trackers, "chosen", "tensorboard")
    monkeypatch.setattr(Recorder, "log", fail)
    with pytest.warns(UserWarning, match="log_to=tensorboard has failed.*no connection"):
        run(epochs=3)
    monkeypatch.setattr(Recorder, "start", fail)
    with pytest.raises(ValueError, match="log_to=tensorboard cannot start: no connection"):
        run(epochs=4)


def train_by_hand(model, networks, loss, *, rate, clip):
    """Nine steps by definition: order, step sizes, and each network's gradient scaled to a norm."""
    (pixels, labels), _ = digits(num_train=70)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    for step in range(9):
        chosen = epoch_order(0, step // 3, 70)[32 * (step % 3) : 32 * (step % 3) + 32]
        optimizer.zero_grad()
        loss(model, (pixels[chosen], labels[chosen]), step).backward()
        for network in networks:
            gradient = torch.cat([p.grad.flatten() for p in network.parameters()])
            for parameter in network.parameters():
                parameter.grad *= min(1.0, clip / (gradient.norm() + 1e-6))
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.step()
    return model.state_dict()


def test_training_equals_a_plain_loop_written_out(run):
    ours, hand = (DigitsTask(noise=0.0, dropout=0.0) for _ in range(2))
    run(task=ours, data=digits(num_train=70), select="last", final_learning_rate=1e-3)
    expected = train_by_hand(
        hand.model,
        [hand.model],
        lambda model, batch, step: hand.loss(model, batch, TrainStep(step, 0, step / 9, None)).loss,
        rate=lambda n: 1e-2 * (n + 1) / 3 if n < 3 else 1e-2 - (1e-2 - 1e-3) * (n - 3) / 5,
        clip=1.0,
    )
    torch.testing.assert_close(ours.model.state_dict(), expected)


class Opponents(torch.nn.Module):
    """Two networks, one with gradients a million times as large as the other's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.networks = torch.nn.ModuleList(torch.nn.Linear(64, 1) for _ in range(2))

    def forward(self, pixels, labels):
        wanted, x = labels.float()[:, None], pixels.float() / 16
        pairs = zip((1e-3, 1e3), self.networks, strict=True)
        return sum(scale * (net(x) - wanted).square().mean() for scale, net in pairs)


def test_networks_that_play_against_each_other_are_clipped_each_by_itself(tmp_path):
    ours, hand = Opponents(), Opponents()
    plain = {"warmup_epochs": 0, "final_learning_rate": 1e-2, "select": "last"}
    config, (data, _) = settings(grad_clip=1e-3, **plain), digits(num_train=70)
    fit(ours, data, config, tmp_path, loss=lambda m, x, _: LossParts(m(*x), {}))
    expected = train_by_hand(
        hand, hand.networks, lambda m, x, _: m(*x), rate=lambda _: 1e-2, clip=1e-3
    )
    torch.testing.assert_close(ours.state_dict(), expected, rtol=1e-5, atol=1e-6)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(run):
    first, _ = run(path="a")
    torch.rand(17)  # what happened to the global generator before must not matter
    task = DigitsTask()
    before = torch.get_rng_state()
    again, _ = run(path="b", task=task)
    assert torch.equal(torch.get_rng_state(), before)
    other, _ = run(path="c", seed=1)
    assert same_bits(first, again)
    assert not same_bits(first, other)


def test_validation_comes_every_few_epochs_and_at_the_end_and_does_not_change_training(
    run, tmp_path
):
    rare, _ = run(path="rare", epochs=5, validate_every=2, select="last")
    often, result = run(path="often", epochs=5, validate_every=1, select="last")
    rows = [read_metrics(tmp_path / path) for path in ("rare", "often")]
    assert [row["score"] is not None for row in rows[0]] == [False, True, False, True, True]
    assert result[:3] == (35, rows[1][-1]["score"], 35)
    never, result = run(path="never", data=(digits()[0], None), epochs=5, select="last")
    assert result[:3] == (35, None, 35)
    assert same_bits(rare, often)
    assert same_bits(never, often)


@pytest.mark.parametrize(
    ("options", "seconds", "expected"),
    [
        ({"epochs": 5, "checkpoint_every": 2}, 0.0, [14, 28, 35]),
        # Five minutes are over after two steps; epochs of 7 steps end at 7 and 14, the run at 17.
        (STEPS, 150.0, [2, 4, 6, 7, 9, 11, 13, 14, 16, 17]),
        (STEPS | {"checkpoint_every": None}, 75.0, [4, 8, 12, 16, 17]),
    ],
)
def test_checkpoints_come_every_few_epochs_every_five_minutes_and_at_the_end(
    run, tmp_path, monkeypatch, options, seconds, expected
):
    now, saved, save = [0.0], [], loop.save_checkpoint

    def tick(task, loss):
        now[0] += seconds
        return loss

    def noted(root, checkpoint):
        saved.append(checkpoint.step)
        return save(root, checkpoint)

    monkeypatch.setattr(loop, "save_checkpoint", noted)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run(task=DigitsTask(hook=tick), **options)
    assert saved == expected
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [f"step-{step:06d}.safetensors" for step in expected[-2:]]


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_a_runs_average_is_that_of_its_weights_after_each_step(run, tmp_path, decay):
    seen = []
    task = DigitsTask()
    watched(task, lambda *_: seen.append(weights_of(task)))
    run(task=task, ema_decay=decay, select="last", **STEPS)
    end = load_latest_checkpoint(tmp_path / "run" / "checkpoints")
    names = [name for name, _ in task.model.named_parameters()]
    average = seen[0]
    for n, value in enumerate([*seen[1:], flat(end.weights, names)]):
        d = min(decay, (1 + n) / (10 + n))
        average = d * average + (1 - d) * value
    assert list(end.ema) == sorted(names)
    # Float32 sums of 17 terms.
    torch.testing.assert_close(flat(end.ema, names), average, atol=1e-6, rtol=1e-5)


def flat(tensors, names):
    return torch.cat([tensors[name].double().flatten() for name in names])


def test_validation_selection_and_loading_see_the_average_and_training_does_not(
    run, load_run, tmp_path
):
    scored, task = [], DigitsTask()
    inner = task.score
    task.score = lambda model, batches: scored.append(weights_of(task)) or inner(model, batches)
    averaged, _ = run(path="averaged", task=task, ema_decay=0.9, select="last", **STEPS)
    plain, _ = run(path="plain", select="last", **STEPS)
    end, same = (
        load_latest_checkpoint(tmp_path / p / "checkpoints") for p in ("averaged", "plain")
    )
    assert all(torch.equal(end.weights[name], same.weights[name]) for name in same.weights)
    assert torch.equal(weights_of(averaged), scored[-1])
    assert not torch.equal(weights_of(averaged), weights_of(plain))
    # Images counted in training are a buffer: the model's own number, not an average of numbers.
    assert int(averaged.model.seen) == int(plain.model.seen) > 0
    loaded = DigitsTask()
    load_run(loaded.model, tmp_path / "averaged")
    assert same_bits(loaded, averaged)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_losses_and_scores_that_are_not_finite_stop_before_they_spoil_anything(run, value):
    task = DigitsTask(hook=at_step(5, lambda loss: loss * value))
    pattern = r"not finite at step 5: loss=(nan|inf), cross_entropy=[\d.]+, penalty="
    with pytest.raises(NonFiniteLossError, match=pattern):
        run(task=task)
    assert all(p.isfinite().all() for p in task.model.parameters())
    task = DigitsTask()
    task.score = lambda model, batches: {"score": -value}
    with pytest.raises(ValueError, match=f"finite number, got {-value} at step 7"):
        run(path="score", task=task)


@pytest.mark.parametrize("total", [3, 49])
def test_the_loss_is_told_step_and_epoch_and_how_much_is_done(run, total):
    steps = []
    task = watched(DigitsTask(), lambda batch, losses, step: steps.append(step[:3]))
    run(task=task, epochs=0, warmup_epochs=0, steps=total, validate_every=100)
    assert steps == [(number, number // 7, number / total) for number in range(total)]


@pytest.mark.parametrize(
    ("train", "held_out", "match"),
    [
        ((torch.zeros(3), torch.zeros(4)), None, r"train must be tensors .* got \[3, 4\]"),
        ((), None, "train must be tensors"),
        ((torch.zeros(3),), (torch.zeros(2), torch.zeros(1)), "held_out must be tensors"),
        ((torch.zeros(3),), None, "needs validation data"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_anything_is_written(
    run, tmp_path, train, held_out, match
):
    with pytest.raises(ValueError, match=match):
        run(data=(train, held_out))
    task = DigitsTask()
    given = {"score": task.score} if held_out is None else {"held_out": held_out}
    with pytest.raises(ValueError, match="held_out and score must be given together"):
        fit(task.model, train, settings(), tmp_path / "run", loss=task.loss, **given)
    assert not (tmp_path / "run").exists()


def test_bf16_runs_keep_float32_parameters_and_differ_from_float32(run):
    half, _ = run(path="half", precision="bf16")
    full, _ = run(path="full")
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    assert not same_bits(half, full)
    torch.testing.assert_close(half.model.head.weight, full.model.head.weight, atol=0.1, rtol=0.1)


@pytest.mark.slow
def test_a_compiled_run_agrees_with_an_eager_one(run, monkeypatch):
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_a_bad_loss_is_found_later_but_named_with_its_step(run):
    task = DigitsTask(hook=at_step(5, lambda loss: loss * float("nan")))
    with pytest.raises(NonFiniteLossError, match="not finite at step 5: loss=nan"):
        run(task=task, device="cuda")
    assert 5 < task.calls <= 20


def add(monitor, *losses, size=1, start=1, **terms):
    terms = {name: torch.tensor(value) for name, value in terms.items()}
    return [
        monitor.add(step, torch.tensor(loss), terms, size=size)
        for step, loss in enumerate(losses, start)
    ]


def test_losses_are_looked_at_every_so_often_and_the_first_bad_step_is_named():
    monitor = LossMonitor(every=3)
    looked = add(monitor, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert looked == [False, False, True, False, False, True]
    assert monitor.latest == {"loss": 6.0}
    add(monitor, 1.0, float("inf"), start=7)
    with pytest.raises(NonFiniteLossError, match="not finite at step 8: loss=inf;"):
        add(monitor, float("nan"), start=9)


def test_means_weigh_each_step_by_its_examples_start_anew_and_go_on_in_the_middle():
    first, second = LossMonitor(every=2), LossMonitor(every=5)
    add(first, 1.0, size=10)
    add(first, 4.0, size=5)
    add(first, 7.0)
    second.load_state_dict(first.state_dict())
    assert first.take_means() == {"loss": pytest.approx((10 + 20 + 7) / 16)}
    add(second, 7.0, size=2)
    assert second.take_means() == {"loss": pytest.approx((10 + 20 + 7 + 14) / 18)}
    add(first, 2.0, size=3)
    assert first.take_means() == {"loss": 2.0}
