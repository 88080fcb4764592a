"""Files of predictions: named groups of plain arrays."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from probseq_apps.engine.files import load_arrays


def save_groups(path: Path, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write tensors as arrays named `GROUP/FIELD`, all or nothing."""
    save_arrays(
        path,
        {
            f"{name}/{field}": value
            for name, group in groups.items()
            for field, value in group.items()
        },
    )


def save_arrays(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as plain arrays by name, all or nothing; the folder is made."""
    arrays = {name: value.numpy() for name, value in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}")
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load_groups(path: Path) -> dict[str, dict[str, Tensor]]:
    """Read what `save_groups` wrote; a group's name may have slashes, a field's has none."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, array in load_arrays(path).items():
        name, _, field = key.rpartition("/")
        groups.setdefault(name, {})[field] = torch.from_numpy(array)
    return groups
