"""Progress of a model in its tasks: its predictions, and a file to go on from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ohsvgp.tasks import Task, measure_tasks
from ohsvgp.vae.model import OnlineSVGPVAE
from probseq.files import Format, read_tensors, write_tensors
from probseq.metrics import rmse

# Entries that are not of the model.
_EXTRA = "extra."
_FORMAT = Format("progress of an online VAE", 3)


def evaluate_vae(
    model: OnlineSVGPVAE, tasks: Sequence[Task], num_samples: int, generator: torch.Generator
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return NLPD and RMSE per value on the test steps of each task, and on all of them."""
    t, y = (torch.cat([task[index] for task in tasks]) for index in (2, 3))
    mean = model.predict(t, num_samples=num_samples, generator=generator).mean
    density = model.log_prob(t, y, num_samples=num_samples, generator=generator)
    return measure_tasks(
        tasks, lambda rows: {"nlpd": -density[rows].mean(), "rmse": rmse(mean[rows], y[rows])}
    )


def save_progress(
    path: Path,
    model: OnlineSVGPVAE,
    records: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Tensor],
) -> None:
    """Write a model, what was measured so far, and further tensors."""
    tensors = dict(model.state_dict()) | {f"{_EXTRA}{name}": x for name, x in extra.items()}
    write_tensors(path, _FORMAT, {"records": list(records)}, tensors)


def load_progress(
    path: Path, model: OnlineSVGPVAE
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Take over what `save_progress` wrote: records and further tensors; none without a file."""
    if not path.exists():
        return [], {}
    head, tensors = read_tensors(path, _FORMAT)
    extra = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_EXTRA)}
    model.load_state_dict(tensors)
    model.eval()
    return head["records"], {name.removeprefix(_EXTRA): tensor for name, tensor in extra.items()}
