"""One optimizer step and everything that a checkpoint must hold of a run."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from probseq_apps.engine import distributed
from probseq_apps.engine.checkpoints import Checkpoint, copy_weights, load_weights
from probseq_apps.engine.config import TrainConfig, derive_seed
from probseq_apps.engine.log import LossMonitor
from pseudovideo.averaging import WeightAverage

Batch: TypeAlias = tuple[Tensor, ...]


class LossParts(NamedTuple):
    """The loss of one batch and the terms that it is made of."""

    loss: Float[Tensor, ""]  # what is minimised: a mean over the batch's examples, with gradient
    terms: Mapping[str, Tensor]  # scalars for the log; the same names at each step

    @classmethod
    def of(cls, terms: Mapping[str, Tensor]) -> "LossParts":
        """Split off the term named `loss`."""
        return cls(terms["loss"], {name: term for name, term in terms.items() if name != "loss"})


class TrainStep(NamedTuple):
    """The place in the training at which a loss is computed."""

    number: int  # optimizer steps done
    epoch: int  # passes over the data done
    progress: float  # steps done divided by all steps, for annealing
    generator: torch.Generator  # source of noise on the batch's device; part of each checkpoint


# The loss of a model on one batch: one tensor for each tensor of the training data, on the model's
# device. Under torchrun or `compile` the model comes wrapped and must be called, once.
Loss: TypeAlias = Callable[[Any, Batch, TrainStep], LossParts]

# What is measured of a model on all held-out data, in eval mode, without gradients and with the
# same global seed each time; the first is its score, the higher the better, the others are for the
# log. Batches are of unequal sizes: count over all of them.
Score: TypeAlias = Callable[[Any, Iterable[Batch]], Mapping[str, float]]

# Steps between two checks of the losses on a CUDA device: each check waits for the device.
_CHECK_EVERY_CUDA = 20
_MEASURED = 0.3  # seconds of steps that tell how long a training takes


class Trainer:
    """Model, optimizer, random streams and best weights of one run.

    Seeds the global random generators, and moves model and data to the device. `step` counts the
    optimizer steps done; it determines epoch, place in the epoch and step size. A model of several
    networks that play against each other has them in `networks`: each has a gradient to clip.
    """

    def __init__(
        self, model: nn.Module, train: Batch, config: TrainConfig, device: torch.device, loss: Loss
    ) -> None:
        self._loss, self._config, self.device = loss, config, device
        self._train = tuple(tensor.to(device) for tensor in train)
        self.steps_per_epoch = config.steps_per_epoch(len(train[0]))
        self.total_steps = config.total_steps(self.steps_per_epoch)
        self._model = self._wrapped = model.to(device)  # they share their tensors
        self._parallel: nn.parallel.DistributedDataParallel | None = None
        networks: Sequence[nn.Module] = getattr(model, "networks", [model])
        if distributed.world_size() > 1:
            devices = [device] if device.type == "cuda" else None
            # Of several networks some may pause.
            unused = len(networks) > 1
            self._parallel = nn.parallel.DistributedDataParallel(
                model, device_ids=devices, find_unused_parameters=unused
            )
            self._wrapped = self._parallel
        if config.compile:
            self._wrapped = torch.compile(self._wrapped)
        self._clipped = [[p for p in n.parameters() if p.requires_grad] for n in networks]
        optimizer = torch.optim.AdamW if config.weight_decay > 0 else torch.optim.Adam
        self._optimizer = optimizer(
            [p for p in self._model.parameters() if p.requires_grad],
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            # A step over small weights is mostly the overhead of its many operations.
            fused=device.type in ("cpu", "cuda"),
        )
        decay = config.ema_decay
        self._average = None if decay is None else WeightAverage(self._model, decay)
        rank = distributed.rank()
        torch.manual_seed(derive_seed(config.seed, "global", rank))
        self._generator = torch.Generator(device)
        self._generator.manual_seed(derive_seed(config.seed, "loss", rank))
        self.monitor = LossMonitor(_CHECK_EVERY_CUDA if device.type == "cuda" else 1)
        self.step = self.best_step = 0
        self.best_score = self.last_score = cast("float | None", None)
        self._best: dict[str, Tensor] | None = None
        self._order: tuple[int, Tensor] | None = None
        self._seconds_before, self._started = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time spent training, over all resumptions."""
        return self._seconds_before + time.perf_counter() - self._started

    @property
    def learning_rate(self) -> float:
        """Step size of the last optimizer step."""
        return self._optimizer.param_groups[0]["lr"]

    def train_step(self) -> bool:
        """Do one optimizer step; return whether the losses were checked, see `LossMonitor`."""
        self._model.train()
        self._optimizer.zero_grad(set_to_none=True)
        losses_checked = self._accumulate_gradients()
        if self._config.grad_clip is not None:
            for parameters in self._clipped:
                nn.utils.clip_grad_norm_(parameters, self._config.grad_clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.step_size(self.step, self.steps_per_epoch)
        self._optimizer.step()
        if self._average is not None:
            self._average.update(self.step)
        self.step += 1
        return losses_checked

    def validate(self, held_out: Batch, score_of: Score) -> Mapping[str, float]:
        """Measure the weights on held-out data and remember them if they are the best yet.

        Where there is a moving average of them, it is what is scored and remembered. The main rank
        scores. Random numbers drawn here are the same each time and don't touch the training's.
        """
        metrics: Mapping[str, float] = {}
        with nullcontext() if self._average is None else self._average.applied():
            if distributed.is_main():
                self._model.eval()
                with fork_random(self.device), torch.no_grad(), self._precision():
                    torch.manual_seed(derive_seed(self._config.seed, "validation"))
                    batches = (tensor.split(self._config.batch_size) for tensor in held_out)
                    metrics = score_of(self._model, zip(*batches, strict=True))
            metrics = distributed.broadcast(metrics)
            self.last_score = score = next(iter(metrics.values()))
            if not math.isfinite(score):
                raise ValueError(
                    f"score must be a finite number, got {score} at step {self.step}: "
                    "look at the validation data and at the loss"
                )
            if self.best_score is None or score > self.best_score:
                self.best_step, self.best_score = self.step, score
                if self._config.select == "best":
                    self._best = copy_weights(self._model)
        return metrics

    def select(self) -> tuple[int, float | None]:
        """Put the selected weights into the model, in eval mode; return their step and score."""
        if self._best is not None:
            load_weights(self._model, self._best)
        elif self._average is not None:
            self._average.apply()
        self._model.eval()
        if self._config.select == "best":
            return self.best_step, self.best_score
        return self.step, self.last_score

    def snapshot(self) -> Checkpoint:
        """Return everything that resuming needs; every rank must call it."""
        random = {
            "cpu": torch.get_rng_state(),
            "loss": self._generator.get_state(),
            "cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }
        state = {
            "device": self.device.type,
            "sampler": {
                "seed": self._config.seed,
                "epoch": self.step // self.steps_per_epoch,
                "offset": self.step % self.steps_per_epoch * self._config.batch_size,
                "num_examples": len(self._train[0]),
            },
            "optimizer": self._optimizer.state_dict(),
            "random": distributed.gather(random),
            "monitor": self.monitor.state_dict(),
            "best_step": self.best_step,
            "best_score": self.best_score,
            "last_score": self.last_score,
            "seconds": self.seconds,
        }
        ema = None if self._average is None else self._average.state_dict()
        return Checkpoint(self.step, copy_weights(self._model), self._best, state, ema)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on where `snapshot` was taken; raise if data, device, processes or model differ."""
        state = checkpoint.state
        load_weights(self._model, checkpoint.weights)
        self._best = checkpoint.best
        if self._average is not None:
            # The settings were compared: a checkpoint has averages where they are asked for.
            self._average.load_state_dict(checkpoint.ema or {})
        self.step = checkpoint.step
        self.best_step, self.best_score = state["best_step"], state["best_score"]
        self.last_score = state["last_score"]
        self._seconds_before, self._started = state["seconds"], time.perf_counter()
        if self.step == self.total_steps:
            return  # nothing is left to train, so the rest doesn't matter, nor does the device
        examples, processes = state["sampler"]["num_examples"], len(state["random"])
        for quantity, stored, current in (
            ("the kind of device", state["device"], self.device.type),
            ("the number of processes", processes, distributed.world_size()),
            ("the number of training examples", examples, len(self._train[0])),
        ):
            if stored != current:
                raise ValueError(
                    f"{quantity} must be {stored}, as in the run to resume, got {current}: "
                    "resume it as it was started"
                )
        self._optimizer.load_state_dict(state["optimizer"])
        self.monitor.load_state_dict(state["monitor"])
        random: dict[str, Any] = state["random"][distributed.rank()]
        torch.set_rng_state(random["cpu"])
        self._generator.set_state(random["loss"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)

    def _accumulate_gradients(self) -> bool:
        """Add up the gradients of the next batch's pieces; return whether losses were checked."""
        chosen, pieces = self._next_batch()
        epoch, progress = self.step // self.steps_per_epoch, self.step / self.total_steps
        step = TrainStep(self.step, epoch, progress, self._generator)
        ranks = distributed.world_size()
        loss, terms = torch.zeros(()), dict[str, Tensor]()
        for number, rows in enumerate(pieces, 1):
            share = len(rows) / len(chosen)
            # Every rank must take part in every exchange: the first example stands in.
            taken = rows if share else chosen[:1]
            batch = tuple(tensor.index_select(0, taken) for tensor in self._train)
            # Gradients are exchanged once, after the last piece.
            waiting = self._parallel if number < len(pieces) else None
            with nullcontext() if waiting is None else waiting.no_sync():
                with self._precision():
                    losses = self._loss(self._wrapped, batch, step)
                # The ranks' gradients are averaged: times their number, they add up by share.
                (losses.loss * (share * ranks)).backward()
            loss = loss + share * losses.loss.detach().float()
            for name, value in losses.terms.items():
                terms[name] = terms.get(name, 0.0) + share * value.detach().float()
        return self.monitor.add(self.step + 1, loss, terms, size=len(chosen))

    def _next_batch(self) -> tuple[Int64[Tensor, " size"], tuple[Tensor, ...]]:
        """Return the examples of the next batch, and this rank's pieces, maybe empty."""
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = epoch_order(self._config.seed, epoch, len(self._train[0]))
            self._order = (epoch, order.to(self.device))
        start = position * self._config.batch_size
        chosen = self._order[1][start : start + self._config.batch_size]
        ranks, rank = distributed.world_size(), distributed.rank()
        count = min(self._config.accumulate, max(1, len(chosen) // ranks))
        return chosen, chosen.tensor_split(ranks)[rank].tensor_split(count)

    def _precision(self) -> AbstractContextManager[object]:
        half = self._config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext()


def epoch_order(seed: int, epoch: int, num_examples: int) -> Int64[Tensor, " n"]:
    """Return the order in which an epoch visits the examples: a permutation drawn on the CPU.

    It depends on the seed and the epoch alone, so epoch and offset are the sampler's whole state.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(num_examples, generator=generator)


def fork_random(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which the global generators may be seeded; they come back at its end."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def training_seconds(
    model: nn.Module, train: Batch, config: TrainConfig, device: torch.device, loss: Loss
) -> float:
    """Return how long a training will take without its validations, by some steps."""
    with fork_random(device):
        trainer = Trainer(model, train, config, device, loss)
        trainer.train_step()
        trainer.monitor.flush()
        start, seconds = time.perf_counter(), 0.0
        # Never beyond the last step, behind which no learning rate is defined, but for a second one
        while trainer.step < 2 or (seconds < _MEASURED and trainer.step < trainer.total_steps):
            trainer.train_step()
            trainer.monitor.flush()
            # By the main rank's clock, or one of several ranks would take a step alone, for ever
            seconds = distributed.broadcast(time.perf_counter() - start)
        return trainer.total_steps * seconds / (trainer.step - 1)
