"""Checkpoints of a run: files `step-000123.safetensors` in the one store of `probseq.files`.

Of the step in its name a checkpoint has the tensors `model/NAME`, those of the best validation so
far, `best/NAME`, where the run selects by it, those of a moving average, `ema/NAME`, where it keeps
one, and `state`: optimizer, generators and running sums, as torch writes them.
"""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probseq.files import DamagedFileError, Format, read_tensors, write_tensors

_FORMAT = Format("checkpoint", 3)
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


def save_checkpoint(root: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into a folder, and only then delete superfluous ones."""
    target, state = root / f"step-{checkpoint.step:06d}.safetensors", io.BytesIO()
    torch.save(checkpoint.state, state)
    groups = {"model": checkpoint.weights, "best": checkpoint.best, "ema": checkpoint.ema}
    tensors = {f"{group}/{k}": v for group, of in groups.items() for k, v in (of or {}).items()}
    tensors["state"] = torch.frombuffer(state.getbuffer(), dtype=torch.uint8)
    write_tensors(target, _FORMAT, {"step": checkpoint.step}, tensors)
    # Later steps are damaged ones that were skipped: they don't count.
    files = _files(root)
    for step in [step for step in sorted(files) if step <= checkpoint.step][:-_NUM_CHECKPOINTS]:
        files[step].unlink()
    return target


def load_latest_checkpoint(root: Path) -> Checkpoint | None:
    """Read the newest complete checkpoint, on the CPU; name and skip damaged ones."""
    for step, file in sorted(_files(root).items(), reverse=True):
        try:
            return _read(file, step)
        except (DamagedFileError, OSError) as error:
            text = f"a checkpoint is skipped: {error}"
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


def _files(root: Path) -> dict[int, Path]:
    numbers = ((path.stem.removeprefix("step-"), path) for path in root.glob("step-*.safetensors"))
    return {int(number): path for number, path in numbers if number.isdecimal()}


def _read(file: Path, step: int) -> Checkpoint:
    head, tensors = read_tensors(file, _FORMAT)
    if head["step"] != step:
        raise DamagedFileError(f"{file} is of step {head['step']!r}")
    state = io.BytesIO(tensors.pop("state").numpy().tobytes())
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, name = name.partition("/")
        groups.setdefault(group, {})[name] = tensor
    try:
        values = torch.load(state, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # it holds a function, which would be run
        reason = str(error).partition("\n")[0]
        raise DamagedFileError(f"the state in {file} cannot be read: {reason}") from error
    return Checkpoint(step, groups["model"], groups.get("best"), values, groups.get("ema"))
