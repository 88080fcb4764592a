"""How well a GP-VAE predicts the tasks learned so far."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ohsvgp.vae import OnlineSVGPVAE
from probseq.metrics import rmse
from probseq_apps.experiments.online_evaluation import Results
from probseq_apps.experiments.online_vae_tasks import ChannelTask

METRICS = ("nlpd", "rmse")


class Measured(NamedTuple):
    """What is measured after a task.

    Attributes:
        each: metrics on the test steps of each task so far.
        over: metrics on all of them together.
    """

    each: list[dict[str, float]]
    over: dict[str, float]


def measure(
    model: OnlineSVGPVAE,
    tasks: Sequence[ChannelTask],
    *,
    num_samples: int,
    generator: torch.Generator,
) -> Measured:
    """RMSE and NLPD per value: means over time steps and channels.

    Args:
        model: has learned the tasks.
        tasks: so far.
        num_samples: draws of the latents.
        generator: of the draws.
    """
    t = torch.cat([task.test_t for task in tasks])
    y = torch.cat([task.test_y for task in tasks])
    mean = model.predict(t, num_samples=num_samples, generator=generator).mean
    density = model.log_prob(t, y, num_samples=num_samples, generator=generator)

    def metrics(part: slice) -> dict[str, float]:
        return {"nlpd": -float(density[part].mean()), "rmse": float(rmse(mean[part], y[part]))}

    ends = torch.tensor([0, *(len(task.test_t) for task in tasks)]).cumsum(0).tolist()
    parts = [slice(start, stop) for start, stop in pairwise(ends)]
    return Measured([metrics(part) for part in parts], metrics(slice(None)))


def first_frames(
    model: OnlineSVGPVAE,
    tasks: Sequence[ChannelTask],
    *,
    num_samples: int,
    generator: torch.Generator,
) -> Tensor:
    """Predicted mean of the middle test step of each task.

    Args:
        model: predicts.
        tasks: so far.
        num_samples: draws of the latents.
        generator: of the draws.
    """
    t = torch.stack([task.test_t[shown(task)] for task in tasks])
    return model.predict(t, num_samples=num_samples, generator=generator).mean


def shown(task: ChannelTask) -> int:
    """Position of the test step of a task that pictures show."""
    return len(task.test_t) // 2


def results_of(records: Sequence[Mapping[str, Any]], num_tasks: int) -> dict[str, Any]:
    """A run in the form of `report.json`.

    Args:
        records: of each task, "each", "over", "seconds" and "lost".
        num_tasks: K.
    """
    results = Results(METRICS, num_tasks)
    for record in records:
        results.add(record["each"], record["over"], seconds=record["seconds"], lost=record["lost"])
    return results.to_dict()
