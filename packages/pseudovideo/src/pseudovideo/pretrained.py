"""Models as folders: `config.json` beside `model.safetensors`, as diffusers lays them out.

Nothing is unpickled: a folder from a stranger holds numbers and plain settings.
"""

import hashlib
import json
import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

# Not `typing.Self`, which the tests' shape checks cannot read in a decorated method.
Model = TypeVar("Model", bound="Pretrained")
CONFIG, WEIGHTS = "config.json", "model.safetensors"


class Pretrained(nn.Module):
    """A model that is built of one frozen dataclass and can be stored in a folder.

    Subclasses set `config_class` and keep the dataclass they were built of as `config`. Its values
    are numbers, strings, booleans, None and tuples of these: what JSON gives back unchanged.
    """

    config_class: ClassVar[type[Any]]
    config: Any

    def save_pretrained(self, folder: Path | str) -> None:
        """Write `config.json` and `model.safetensors`; each file appears whole or not at all.

        Two files cannot be replaced at one instant. So the weights carry the settings they belong
        to, and a folder in which a crash left new weights beside old settings is refused when it
        is read instead of giving another model.

        Args:
            folder: made if it is not there.

        Raises:
            ValueError: a setting would not come back from JSON as it is, or `folder` is a file.
        """
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"folder must be a directory, got the file {folder}")
        text = _settings(self)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in self.state_dict().items()
        }
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as aside:
            weights, config = Path(aside) / WEIGHTS, Path(aside) / CONFIG
            # One key alone: safetensors writes several in an order that changes from file to file.
            save_file(tensors, weights, metadata={"settings": text})
            config.write_text(json.dumps(json.loads(text), indent=2) + "\n", encoding="utf-8")
            os.replace(weights, folder / WEIGHTS)
            os.replace(config, folder / CONFIG)

    @classmethod
    def from_pretrained(cls: type[Model], folder: Path | str) -> Model:
        """Build the model that a folder holds, in eval mode on the CPU.

        Args:
            folder: what `save_pretrained` wrote.

        Raises:
            FileNotFoundError: a file is missing; the message names it.
            ValueError: the folder holds a model of another class or another version, or is
                damaged; the message says which.
        """
        folder = Path(folder)
        values = _read_settings(folder, cls.__name__)
        if values["class"] != cls.__name__:
            raise ValueError(f"{folder} holds a {values['class']}, not a {cls.__name__}")
        saved = values["config"]
        known = {field.name for field in fields(cls.config_class)}
        if saved.keys() != known:
            raise ValueError(
                f"{folder / CONFIG} must have the settings {sorted(known)}, got {sorted(saved)}: "
                "it was written by another version"
            )
        path = folder / WEIGHTS
        try:
            with safe_open(path, framework="pt") as file:
                belongs = (file.metadata() or {}).get("settings")
            tensors = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if belongs is None or json.loads(belongs) != values:
            raise ValueError(
                f"{path} belongs to other settings than {folder / CONFIG}: the folder was changed "
                "by hand, or a crash interrupted its writing; save the model again"
            )
        try:
            model = cls(cls.config_class(**{k: _from_json(v) for k, v in saved.items()}))
        except TypeError as error:
            raise ValueError(f"{folder / CONFIG} is damaged: {error}") from error
        try:
            # In the precision they were stored in: copying would turn them to float32.
            for name, tensor in model.state_dict(keep_vars=True).items():
                if name in tensors:
                    tensor.data = tensor.data.to(tensors[name].dtype)
            model.load_state_dict(tensors, strict=True)
        except RuntimeError as error:
            raise ValueError(
                f"{path} does not hold the weights that {CONFIG} tells of: {error}"
            ) from error
        return model.eval()


def saved_class(folder: Path | str) -> str:
    """Name of the class whose model a folder holds.

    Args:
        folder: what `save_pretrained` wrote.

    Raises:
        FileNotFoundError: a file is missing; the message names it.
        ValueError: `config.json` is damaged.
    """
    return _read_settings(Path(folder), "model")["class"]


def fingerprint(model: nn.Module) -> str:
    """Hash of a model: names, shapes and values of its tensors; the same on every device.

    For a `Pretrained` model its class and settings count too, since some of them, as the number of
    heads, change what it computes without a trace in the weights.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.sha256()
    if isinstance(model, Pretrained):
        digest.update(_settings(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        plain = tensor.detach().to("cpu").contiguous()
        digest.update(f"{name}:{tuple(plain.shape)}:{plain.dtype};".encode())
        # Hashed in place: the bytes of large models are not copied once more.
        digest.update(plain.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def _settings(model: Pretrained) -> str:
    """Class and settings as one line of JSON."""
    config = model.config
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    for name, value in values.items():
        try:
            back = _from_json(json.loads(json.dumps(value, allow_nan=False)))
        except (TypeError, ValueError):
            back = None
        if back != value:
            raise ValueError(
                f"{type(config).__name__}.{name} must be a number, string, boolean, None or a "
                f"tuple of these to be stored, got {value!r}"
            )
    return json.dumps({"class": type(model).__name__, "config": values}, sort_keys=True)


def _from_json(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(map(_from_json, value)) if isinstance(value, list) else value


def _read_settings(folder: Path, kind: str) -> dict[str, Any]:
    """`config.json` of a folder that must hold both files."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} must hold a saved {kind}, and has no file {name}")
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return {"class": str(values["class"]), "config": dict(values["config"])}
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{folder / CONFIG} is damaged: {error.msg} in line {error.lineno}"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / CONFIG} is damaged: it must be text that names class and config"
        ) from error
