"""Checkpoints that a crash cannot tear: written aside, listed in a manifest, renamed into place.

A checkpoint is a folder `step-000123` that counts only when its `manifest.json` tells of this step,
and of the hash of each file:

    model.safetensors   weights after that step
    best.safetensors    weights of the best validation so far, if the run selects by validation
    ema.safetensors     moving average of the parameters, if the run keeps one
    train_state.pt      optimizer, generators, running sums: everything else that resuming needs
    config.json         the run's configuration
    manifest.json       written last
"""

import io
import json
import pickle
import shutil
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save_file
from torch import Tensor, nn

from probseq.files import MANIFEST, DamagedFileError, Format, read_folder, write_folder
from probseq_apps.engine.files import CONFIG, writing

_MODEL, _BEST, _EMA = "model.safetensors", "best.safetensors", "ema.safetensors"
_STATE = "train_state.pt"
_FORMAT = Format("checkpoint", 2)
_NUM_CHECKPOINTS = 2  # checkpoints of a run


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint is incomplete or altered; the message names it, and it is skipped."""


class Checkpoint(NamedTuple):
    """All that a run needs to go on."""

    step: int  # optimizer steps done
    weights: dict[str, Tensor]  # the model's, each once, by name
    best: dict[str, Tensor] | None  # those of the best validation so far
    state: dict[str, Any]  # optimizer, generators and running sums: tensors and plain values only
    ema: dict[str, Tensor] | None = None  # the moving average of the parameters


def save_checkpoint(root: Path, checkpoint: Checkpoint, config: Mapping[str, object]) -> Path:
    """Write a checkpoint into a folder of the root, and only then delete superfluous ones."""
    target = root / f"step-{checkpoint.step:06d}"
    tensors = {_MODEL: checkpoint.weights, _BEST: checkpoint.best, _EMA: checkpoint.ema}
    versions = {"torch": torch.__version__, "probseq-apps": version("probseq-apps")}
    head = {"step": checkpoint.step, "versions": versions}
    # A full disk is an error of its own to torch.
    with writing(target, RuntimeError), write_folder(target, _FORMAT, head) as aside:
        for name, group in tensors.items():
            if group is not None:
                on_cpu = {key: tensor.to("cpu") for key, tensor in group.items()}
                save_file(on_cpu, aside / name, metadata={"format": "pt"})
        torch.save(checkpoint.state, aside / _STATE)
        (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # Later steps are damaged ones that were skipped: they don't count.
    folders = _folders(root)
    for step in [step for step in sorted(folders) if step <= checkpoint.step][:-_NUM_CHECKPOINTS]:
        shutil.rmtree(folders[step])
    return target


def load_latest_checkpoint(root: Path) -> Checkpoint | None:
    """Read the newest complete checkpoint, on the CPU; name and skip damaged ones."""
    for step, folder in sorted(_folders(root).items(), reverse=True):
        try:
            return _read(folder, step)
        except (DamagedFileError, OSError) as error:
            text = f"checkpoint {folder} is damaged and skipped: {error}"
            warnings.warn(text, DamagedCheckpointWarning, stacklevel=2)
    return None


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copy parameters and buffers, each once, on the device where they are."""
    state = model.state_dict()
    return {
        name: state[name].detach().clone(memory_format=torch.contiguous_format)
        for name in dict.fromkeys(_first_names(model).values())
    }


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Set parameters and buffers of a model to what `copy_weights` gave for one of its shape."""
    names, state = _first_names(model), model.state_dict()
    expected = {name: tuple(state[name].shape) for name in names.values()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            raise ValueError(
                f"weights for {name} must have shape {expected.get(name, '(no such weights)')}, "
                f"got {shapes.get(name, 'none')}: build the model with the settings it was trained "
                "with"
            )
    model.load_state_dict({name: weights[first] for name, first in names.items()}, strict=True)


def _first_names(model: nn.Module) -> dict[str, str]:
    # A module used at two places (one LayerNorm for all layers) has its tensors in the state under
    # two names; safetensors refuses to store one memory twice.
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}


def _folders(root: Path) -> dict[int, Path]:
    numbers = ((path.name.removeprefix("step-"), path) for path in root.glob("step-*"))
    return {int(number): path for number, path in numbers if number.isdecimal()}


def _read(folder: Path, step: int) -> Checkpoint:
    saved = read_folder(folder, _FORMAT)
    if saved.head.get("step") != step:
        raise DamagedFileError(f"{folder / MANIFEST} is of step {saved.head.get('step')!r}")
    saved.check(CONFIG)
    state = io.BytesIO(saved.read(_STATE))
    names = [name for name in (_MODEL, _BEST, _EMA) if name == _MODEL or name in saved.files]
    # Their order is another each time, and sums over them would be too.
    tensors = {name: dict(sorted(load(saved.read(name)).items())) for name in names}
    try:
        values = torch.load(state, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # it holds a function, which would be run
        reason = str(error).partition("\n")[0]
        raise DamagedFileError(f"{folder / _STATE} cannot be read: {reason}") from error
    return Checkpoint(step, tensors[_MODEL], tensors.get(_BEST), values, tensors.get(_EMA))
