"""Progress of a model in its tasks: its predictions, and a file to go on from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from ohsvgp.tasks import Task, measure_tasks
from ohsvgp.vae.model import OnlineSVGPVAE
from probseq.metrics import rmse

# Entries that are not of the model.
_EXTRA = "extra."


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


def pack_progress(
    model: OnlineSVGPVAE, records: Sequence[Mapping[str, Any]], extra: Mapping[str, Tensor]
) -> bytes:
    """Return the content of a file: a model, what was measured so far, and further tensors."""
    tensors = dict(model.state_dict()) | {f"{_EXTRA}{name}": x for name, x in extra.items()}
    content = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return save(content, metadata={"records": json.dumps(list(records), allow_nan=False)})


def load_progress(
    path: Path, model: OnlineSVGPVAE
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Take over what `pack_progress` held: records and further tensors; none without a file.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.exists():
        return [], {}
    try:
        tensors = load_file(path)
        with safe_open(path, framework="pt") as file:
            records = json.loads(file.metadata()["records"])
        extra = {n: tensors.pop(n) for n in list(tensors) if n.startswith(_EXTRA)}
        model.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}; delete it to repeat the run") from error
    model.eval()
    return records, {name.removeprefix(_EXTRA): tensor for name, tensor in extra.items()}
