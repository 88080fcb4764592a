"""Checkpoints that a crash cannot tear: written aside, listed in a manifest, renamed into place.

A checkpoint is a folder `step-000123` that counts only when its `manifest.json` names the size and
hash of each file and they agree:

    model.safetensors   weights after that step
    best.safetensors    weights of the best validation so far, if the run selects by validation
    ema.safetensors     moving average of the parameters, if the run keeps one
    train_state.pt      optimizer, generators, running sums: everything else that resuming needs
    config.json         the run's configuration
    manifest.json       written last
"""

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from probseq_apps.engine.files import sha256, sync

_MODEL, _BEST, _EMA = "model.safetensors", "best.safetensors", "ema.safetensors"
_STATE = "train_state.pt"
_CONFIG, _MANIFEST = "config.json", "manifest.json"
_TEMPORARY = ".tmp-"


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint is incomplete or altered; the message names it, and it is skipped."""


class Checkpoint(NamedTuple):
    """All that a run needs to go on.

    Attributes:
        step: optimizer steps done.
        weights: the model's tensors, each once, by name.
        best: the tensors of the best validation so far, if there are any.
        state: optimizer, generators and running sums: tensors and plain values only.
        ema: the moving average of the parameters, if there is one.
    """

    step: int
    weights: dict[str, Tensor]
    best: dict[str, Tensor] | None
    state: dict[str, Any]
    ema: dict[str, Tensor] | None = None


def save_checkpoint(
    root: Path, checkpoint: Checkpoint, config: Mapping[str, object], *, keep: int = 2
) -> Path:
    """Write a checkpoint, and only then delete the ones that it makes superfluous.

    Args:
        root: folder of the run's checkpoints; made if it is not there.
        checkpoint: what to store; tensors may lie on any device.
        config: the run's configuration, to store beside the weights.
        keep: how many checkpoints stay, the new one included.

    Returns:
        The checkpoint's folder.

    Raises:
        OSError: a file cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"step-{checkpoint.step:06d}"
    temporary = root / f"{_TEMPORARY}{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        _write_files(temporary, checkpoint, config)
        if target.exists():
            # A damaged checkpoint of the same step: a folder cannot be renamed onto another.
            aside = root / f"{_TEMPORARY}old-{target.name}"
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)
            temporary.rename(target)
            shutil.rmtree(aside)
        else:
            temporary.rename(target)
        sync(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    # Later steps are damaged ones that were skipped: they don't count among the kept.
    done = [step for step in sorted(_folders(root)) if step <= checkpoint.step]
    for step in done[:-keep]:
        shutil.rmtree(_folders(root)[step])
    return target


def load_latest_checkpoint(root: Path) -> Checkpoint | None:
    """Read the newest complete checkpoint; name and skip damaged ones.

    Args:
        root: folder of the run's checkpoints.

    Returns:
        The checkpoint with its tensors on the CPU, or None where there is no complete one.
    """
    folders = _folders(root)
    for step in sorted(folders, reverse=True):
        folder = folders[step]
        damage = _find_damage(folder)
        if damage is not None:
            warnings.warn(
                f"checkpoint {folder} is damaged and skipped: {damage}",
                DamagedCheckpointWarning,
                stacklevel=2,
            )
            continue
        best, ema = folder / _BEST, folder / _EMA
        return Checkpoint(
            step=step,
            weights=load_file(folder / _MODEL),
            best=load_file(best) if best.exists() else None,
            state=torch.load(folder / _STATE, map_location="cpu", weights_only=True),
            ema=load_file(ema) if ema.exists() else None,
        )
    return None


def clean_leftovers(root: Path) -> None:
    """Delete what writers that were killed left behind; complete checkpoints are not touched."""
    for path in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path)


def _folders(root: Path) -> dict[int, Path]:
    """Checkpoint folders by step, complete or not."""
    numbers = ((path.name.removeprefix("step-"), path) for path in root.glob("step-*"))
    return {int(number): path for number, path in numbers if number.isdecimal()}


def _write_files(folder: Path, checkpoint: Checkpoint, config: Mapping[str, object]) -> None:
    _save_tensors(checkpoint.weights, folder / _MODEL)
    if checkpoint.best is not None:
        _save_tensors(checkpoint.best, folder / _BEST)
    if checkpoint.ema is not None:
        _save_tensors(checkpoint.ema, folder / _EMA)
    torch.save(checkpoint.state, folder / _STATE)
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    files: dict[str, dict[str, object]] = {}
    for path in sorted(folder.iterdir()):
        sync(path)
        files[path.name] = {"sha256": sha256(path), "size": path.stat().st_size}
    manifest = {
        "step": checkpoint.step,
        "files": files,
        "versions": {"torch": torch.__version__, "probseq-apps": version("probseq-apps")},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    sync(folder / _MANIFEST)
    sync(folder)


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    on_cpu = {name: tensor.to("cpu") for name, tensor in tensors.items()}
    try:
        save_file(on_cpu, path, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, for one, which is no OSError to safetensors
        raise OSError(f"{path} cannot be written: {error}") from error


def _find_damage(folder: Path) -> str | None:
    """Compare a checkpoint with its manifest; None if all is well, else what is wrong."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{_MANIFEST} cannot be read ({error})"
    return next(_differences(folder, manifest), None)


def _differences(folder: Path, manifest: object) -> Iterator[str]:
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not {_MODEL, _STATE, _CONFIG} <= files.keys():
        yield f"{_MANIFEST} does not list the files"
        return
    for name, entry in files.items():
        path = folder / str(name)
        if not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != entry.get("size"):
            yield f"{name} has {path.stat().st_size} bytes instead of {entry.get('size')}"
        elif sha256(path) != entry.get("sha256"):
            yield f"{name} does not have the content that was written"


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Map each name in the state to the first name of the same tensor.

    A module used at two places (one LayerNorm for all layers) has its tensors in the state under
    two names; safetensors refuses to store one memory twice.
    """
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names[name] = first.setdefault(id(tensor), name)
    return names


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copy parameters and buffers, each once, on the device where they are."""
    state = model.state_dict()
    return {
        name: state[name].detach().clone(memory_format=torch.contiguous_format)
        for name in dict.fromkeys(_canonical_names(model).values())
    }


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Set all parameters and buffers of a model.

    Args:
        model: the model to change.
        weights: what `copy_weights` gave for a model of the same shape.

    Raises:
        ValueError: a name is missing, unknown, or its tensor has another shape.
    """
    names = _canonical_names(model)
    wanted, given = set(names.values()), set(weights)
    if wanted != given:
        raise ValueError(
            "weights must name the tensors of this model; "
            f"missing {sorted(wanted - given)}, unknown {sorted(given - wanted)}: "
            "build the model with the settings it was trained with"
        )
    state = model.state_dict()
    for name, tensor in weights.items():
        if tensor.shape != state[name].shape:
            raise ValueError(
                f"weights for {name} must have shape {tuple(state[name].shape)}, "
                f"got {tuple(tensor.shape)}: "
                "build the model with the settings it was trained with"
            )
    model.load_state_dict({name: weights[first] for name, first in names.items()}, strict=True)
