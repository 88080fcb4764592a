"""Models as folders: `config.json` beside `model.safetensors`, as diffusers lays them out.

Nothing is unpickled: a folder from a stranger holds numbers and plain settings.
"""

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class Pretrained(nn.Module):
    """A model that is built of one frozen dataclass and can be stored in a folder.

    Subclasses set `config_class` and keep the dataclass they were built of as `config`.
    """

    config_class: ClassVar[type[Any]]
    config: Any

    def save_pretrained(self, folder: Path | str) -> None:
        """Write `config.json` and `model.safetensors`; each file appears whole or not at all.

        Args:
            folder: made if it is not there.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in self.state_dict().items()
        }
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as aside:
            weights, config = Path(aside) / WEIGHTS, Path(aside) / CONFIG
            save_file(tensors, weights, metadata={"format": "pt"})
            values = {"class": type(self).__name__, "config": asdict(self.config)}
            config.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
            os.replace(weights, folder / WEIGHTS)
            os.replace(config, folder / CONFIG)

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> Self:
        """Build the model that a folder holds, in eval mode on the CPU.

        Args:
            folder: what `save_pretrained` wrote.

        Raises:
            FileNotFoundError: a file is missing; the message names it.
            ValueError: the folder holds a model of another class or another version.
        """
        folder = Path(folder)
        for name in (CONFIG, WEIGHTS):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} must hold a saved {cls.__name__}, and has no file {name}"
                )
        try:
            values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            saved_class, saved = values["class"], dict(values["config"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / CONFIG} is damaged: {error}") from error
        if saved_class != cls.__name__:
            raise ValueError(f"{folder} holds a {saved_class}, not a {cls.__name__}")
        known = {field.name for field in fields(cls.config_class)}
        if saved.keys() != known:
            raise ValueError(
                f"{folder / CONFIG} must have the settings {sorted(known)}, got {sorted(saved)}: "
                "it was written by another version"
            )
        plain = {k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()}
        model = cls(cls.config_class(**plain))
        try:
            model.load_state_dict(load_file(folder / WEIGHTS), strict=True)
        except (RuntimeError, SafetensorError) as error:
            raise ValueError(
                f"{folder / WEIGHTS} does not hold the weights that {CONFIG} tells of: {error}"
            ) from error
        return model.eval()


def fingerprint(model: nn.Module) -> str:
    """Hash of a model's tensors, names and shapes included; the same on every device.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        plain = tensor.detach().to("cpu").contiguous()
        digest.update(f"{name}:{tuple(plain.shape)}:{plain.dtype};".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]
