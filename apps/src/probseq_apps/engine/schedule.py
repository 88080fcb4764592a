"""Where a run is at a given step: pure functions, so that resuming needs only the step."""

import hashlib
import math

import torch
from jaxtyping import Int64
from torch import Tensor

from probseq_apps.engine.config import TrainConfig


def derive_seed(seed: int, purpose: str, index: int = 0) -> int:
    """Seed of one of the run's random streams: different for each purpose, index and run seed."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:6], "little")


def epoch_order(seed: int, epoch: int, num_examples: int) -> Int64[Tensor, " n"]:
    """Order in which an epoch visits the examples: a permutation drawn on the CPU.

    It depends on the seed and the epoch alone, so epoch and offset are the sampler's whole state.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(num_examples, generator=generator)


def steps_per_epoch(config: TrainConfig, num_examples: int) -> int:
    """Optimizer steps per pass over the data; the last one may have a smaller batch."""
    return -(-num_examples // config.batch_size)


def total_steps(config: TrainConfig, steps_per_epoch: int) -> int:
    """Optimizer steps of a whole run."""
    return config.epochs * steps_per_epoch if config.steps is None else config.steps


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Step size of the optimizer step number `step`, counted from 0.

    Warm-up: η·(step+1)/W for the first W steps. Then with u from 0 to 1 over the remaining steps,
    linear η + u(η_end − η), cosine η_end + ½(1 + cos πu)(η − η_end).
    """
    peak, final = config.learning_rate, config.final_learning_rate
    warmup = config.warmup_epochs * steps_per_epoch + config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    last = total_steps(config, steps_per_epoch) - 1
    done = (step - warmup) / max(1, last - warmup)
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            return peak + done * (final - peak)
        case "cosine":
            return final + 0.5 * (1.0 + math.cos(math.pi * done)) * (peak - final)
