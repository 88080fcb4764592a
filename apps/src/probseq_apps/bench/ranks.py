"""Training steps that several processes share: what `torchrun` gives on one machine."""

import os
import socket
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

from probseq_apps.bench import CPU, Row
from probseq_apps.engine import distributed
from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.trainer import Batch, LossParts, Step, Trainer
from pseudovideo.diffusion.image import ImageDiffusion
from pseudovideo.diffusion.objective import DiffusionObjective
from pseudovideo.spec import ImageDiffusionConfig, channel_multipliers_for

# Images of a step, and their width; steps, of which the first doesn't count.
_BATCH, _SIDE, _STEPS = 16, 16, 6


def rank_rows(base_channels: int) -> list[Row]:
    """Return the rows of an image model's training step in one process, and in two."""
    sizes: Any = {"image_size": _SIDE, "attention_sizes": (_SIDE // 2, _SIDE // 4)}
    multipliers = channel_multipliers_for(_SIDE)
    config = ImageDiffusionConfig(
        base_channels=base_channels, channel_multipliers=multipliers, **sizes
    )
    one, two = (_BATCH / seconds_of_ranks(config, ranks) for ranks in (1, 2))
    of = f"UNet {base_channels}, batch of {_BATCH}x3x{_SIDE}x{_SIDE}"
    return [
        Row(f"{of}: images trained on in 1 process, wall time", one, "/s"),
        Row("  in 2, by gloo", two, "/s"),
        Row("  against 1", two / one),
    ]


def seconds_of_ranks(config: ImageDiffusionConfig, ranks: int) -> float:
    """Return the median wall time of a step in so many processes of one thread."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ProcessPoolExecutor(ranks, get_context("spawn")) as pool:
        started = [pool.submit(_seconds, config, rank, ranks, port) for rank in range(ranks)]
        return max(process.result() for process in started)


def _seconds(config: ImageDiffusionConfig, rank: int, ranks: int, port: int) -> float:
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{ranks}"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    torch.set_num_threads(1)
    distributed.join(CPU)
    objective = DiffusionObjective(ImageDiffusion(config))
    images = torch.zeros(_BATCH, 1, config.channels, config.image_size, config.image_size)

    def loss(model: DiffusionObjective, batch: Batch, step: Step) -> LossParts:
        return LossParts.of(model(*batch, generator=step.generator))

    training = TrainConfig(batch_size=_BATCH, steps=_STEPS, learning_rate=1e-4, device="cpu")
    trainer = Trainer(objective, (images,), training, CPU, loss)
    seconds: list[float] = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        trainer.train_step()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])
