"""The training loop: epochs, validation, checkpoints, and an end that can be resumed."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import nn

from probseq.files import sha256
from probseq_apps.engine import distributed, files
from probseq_apps.engine.checkpoints import load_latest_checkpoint, save_checkpoint
from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.log import MetricsLog, bar
from probseq_apps.engine.signals import StopRequest, handling
from probseq_apps.engine.trainer import Batch, Loss, Score, Trainer, fork_random

_CHECKPOINT_SECONDS = 300.0  # a checkpoint at least this often: what a killed run may lose


class FitResult(NamedTuple):
    """The outcome of a run."""

    best_step: int  # of the selected weights
    best_score: float | None  # their validation score; None without validation data
    steps: int  # optimizer steps of the run
    seconds: float  # spent training, over all resumptions


def fit(
    model: nn.Module,
    train: Batch,
    config: TrainConfig,
    folder: Path,
    *,
    loss: Loss,
    score: Score | None = None,
    held_out: Batch | None = None,
    label: str = "",
    metadata: Mapping[str, object] | None = None,
) -> FitResult:
    """Train a model; afterwards it holds the selected weights, in eval mode.

    A run goes on from the newest complete checkpoint of its folder; a finished one returns at once,
    unless it has more steps now than before. On the CPU a resumed run ends with the same bits as
    one that was never interrupted. SIGTERM and SIGINT save at the next step and exit with 143 or
    130. The global random generators are left as they were found. Under torchrun every rank calls
    this with the same arguments.

    Data are tensors of equal first dimension, one example a row; they go to the device whole. Of
    the metrics of `score`, given exactly if `held_out` is, the first selects the best weights, all
    are logged. The label stands in the progress bar; metadata are further JSON values that define
    the run, and are compared on resume.
    """
    if (held_out is None) != (score is None):
        raise ValueError("held_out and score must be given together: one of them is not")
    for name, tensors in (("train", train), ("held_out", train if score is None else held_out)):
        lengths = [len(tensor) for tensor in tensors or ()] or [0]
        if not 0 < min(lengths) == max(lengths):
            raise ValueError(f"{name} must be tensors with equally many rows, got {lengths}")
    if config.select == "best" and held_out is None:
        raise ValueError("select='best' needs validation data: give them, or use select='last'")
    device = distributed.resolve_device(config.device)
    distributed.join(device)
    settings = {**(metadata or {}), "train": config.to_dict()}
    checkpoint = None
    if distributed.is_main():
        names = [name for name, _ in files.flatten(settings) if name.endswith(("steps", "epochs"))]
        lengths = dict.fromkeys(names, (files.FINISHED,))
        files.prepare_run_dir(folder, settings, resume=True, longer=lengths)
        checkpoint = load_latest_checkpoint(folder / files.CHECKPOINTS)
    checkpoint, stop = distributed.broadcast(checkpoint), StopRequest()
    with fork_random(device), handling(stop, signal.SIGTERM, signal.SIGINT):
        trainer = Trainer(model, train, config, device, loss)
        if checkpoint is not None:
            trainer.restore(checkpoint)
        if trainer.step < trainer.total_steps:
            validate = None
            if held_out is not None and score is not None:
                validate = partial(trainer.validate, tuple(t.to(device) for t in held_out), score)
            _train(trainer, validate, config, folder, stop, label)
        result = FitResult(*trainer.select(), trainer.step, trainer.seconds)
        if distributed.is_main() and files.read_finished(folder) is None:
            rows = {files.METRICS: {"sha256": sha256(folder / files.METRICS)}}
            files.write_json(folder / files.FINISHED, result._asdict() | rows)
        _leave_if(max(distributed.gather(stop.signum)))
    return result


def _train(
    trainer: Trainer,
    validate: Callable[[], Mapping[str, float]] | None,
    config: TrainConfig,
    folder: Path,
    stop: StopRequest,
    label: str,
) -> None:
    """Train from where the trainer stands to the last step; leave early when asked to stop."""
    total, steps_per_epoch = trainer.total_steps, trainer.steps_per_epoch
    log = MetricsLog(folder, step=trainer.step) if distributed.is_main() else None
    with (
        nullcontext() if log is None else closing(log),
        bar(total=total, initial=trainer.step, unit="step", leave=True) as progress_bar,
    ):
        saved = time.monotonic()
        while trainer.step < total:
            epoch = trainer.step // steps_per_epoch + 1
            losses_checked = trainer.train_step()
            last = trainer.step == total
            epoch_over = last or trainer.step % steps_per_epoch == 0
            if epoch_over:
                means = trainer.monitor.take_means()
                validation_due = last or epoch % config.validate_every == 0
                metrics = validate() if validate is not None and validation_due else {}
                row = {
                    "step": trainer.step,
                    "epoch": epoch,
                    "loss": means.pop("loss"),
                    "parts": means,
                    "learning_rate": trainer.learning_rate,
                    "score": trainer.last_score if metrics else None,
                    "validation": dict(metrics),
                    "seconds": round(trainer.seconds, 3),
                }
                if log is not None:
                    log.write(row)
            text = f"{label} epoch {epoch}/{-(-total // steps_per_epoch)}".lstrip()
            progress_bar.set_description(text, refresh=False)
            # What matters most goes first: a narrow terminal cuts the rest off.
            score = {} if trainer.last_score is None else {"score": trainer.last_score}
            progress_bar.set_postfix({**score, **trainer.monitor.latest}, refresh=False)
            progress_bar.update()
            signum, checkpoint_due = stop.signum, time.monotonic() - saved >= _CHECKPOINT_SECONDS
            # Several ranks decide together, at steps where they exchange data anyway; a single
            # process can stop after any step.
            if distributed.world_size() > 1:
                exchange = losses_checked or epoch_over
                states = distributed.gather((signum, checkpoint_due)) if exchange else [(0, False)]
                signum, checkpoint_due = map(max, zip(*states, strict=True))
            every = config.checkpoint_every
            checkpoint_due |= last or bool(every and epoch_over and epoch % every == 0)
            if signum or checkpoint_due:
                snapshot = trainer.snapshot()
                if log is not None:
                    save_checkpoint(folder / files.CHECKPOINTS, snapshot)
                saved = time.monotonic()
            if not last:
                _leave_if(signum)


def _leave_if(signum: int) -> None:
    if signum:
        # The main rank may still be writing, and torchrun ends all ranks when one has left.
        distributed.barrier()
        raise SystemExit(128 + signum)
