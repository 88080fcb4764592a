"""Models as folders: `config.json` beside `model.safetensors`, as diffusers lays them out.

Nothing is unpickled: a folder from a stranger holds numbers and plain settings.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import torch
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn

from probseq import files
from probseq.errors import require
from probseq.settings import Settings

# Not `typing.Self`, which the tests' shape checks cannot read in a decorated method.
Model = TypeVar("Model", bound="Pretrained")
S = TypeVar("S", bound=Settings)
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_FORMAT = files.Format("model", 3)
# Names under which torch.compile and DistributedDataParallel hold what they are around.
_WRAPPERS = ("_orig_mod", "module")


class Pretrained(nn.Module):
    """A model that is built of `Settings` and can be stored in a folder.

    Subclasses set `config_class` and keep the settings they were built of as `config`; those that
    are built of more override `to_settings` and `from_settings`.
    """

    config_class: ClassVar[type[Any]]
    config: Any

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self._weights()).device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next(self._weights()).dtype

    def _weights(self) -> Iterator[Tensor]:
        return chain(self.parameters(), self.buffers())

    def to_settings(self) -> dict[str, Any]:
        """Return what the model was built of, ready for JSON."""
        return self.config.to_dict()

    @classmethod
    def from_settings(cls: type[Model], settings: Mapping[str, Any]) -> Model:
        """Build a model, with weights of its own, of what `to_settings` returned."""
        return cls(restored(cls.config_class, settings))

    def save_pretrained(self, folder: Path | str) -> None:
        """Write `model.safetensors` and, with its hash, `config.json`.

        Parts may be compiled, parametrised, as by `weight_norm`, or in the `module` of a wrapper:
        the plain weights are stored. What was written is loaded once before the folder has it.
        """
        with torch.random.fork_rng(devices=[]):  # its weights are drawn, and thrown away
            plain = self.from_settings(self.to_settings())
        tensors = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in unwrapped_state_dict(self, plain.state_dict()).items()
        }
        head = {"class": type(self).__name__, "config": self.to_settings()}
        with files.replace_files(Path(folder), CONFIG) as aside:
            save_file(tensors, aside / WEIGHTS)
            fill_weights(plain, load_file(aside / WEIGHTS), folder)
            hashes = {WEIGHTS: files.sha256(aside / WEIGHTS)}
            files.write_json(aside / CONFIG, _FORMAT, {**head, "files": hashes})

    def push_to_hub(self, repo_id: str, *, private: bool | None = None) -> str:
        """Write the model's folder into a repository of the Hugging Face hub; return its address.

        It is made if it is not there. Who writes, and where, is as `hf auth login` says.
        """
        with TemporaryDirectory() as aside:
            self.save_pretrained(Path(aside) / "model")
            hub = _hub()
            name = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
            return str(hub.upload_folder(repo_id=name, folder_path=Path(aside) / "model"))

    @classmethod
    def from_pretrained(
        cls: type[Model], folder: Path | str, *, revision: str | None = None
    ) -> Model:
        """Build the model of a folder, or of a repository of the hub, in eval mode on the CPU.

        Hashes are checked after a download, too; the revision is the repository's.

        Raises:
            FileNotFoundError: a file is missing.
            DamagedFileError: a file was altered.
        """
        folder, head = read_head(folder, revision=revision)
        name = head["class"]
        if name != cls.__name__:
            raise ValueError(f"{folder} holds a {name}, not a {cls.__name__}")
        weights = (folder / WEIGHTS).read_bytes()
        if hashlib.sha256(weights).hexdigest() != head["files"][WEIGHTS]:
            raise files.DamagedFileError(
                f"{folder / WEIGHTS} is damaged, or belongs to another folder: it does not hold "
                "what was written"
            )
        try:
            model = cls.from_settings(head["config"])
        except (ValueError, TypeError, KeyError, ImportError) as error:
            raise ValueError(f"{folder / CONFIG} cannot be read: {error}") from error
        fill_weights(model, load(weights), folder / WEIGHTS)
        return model.eval()


def restored(kind: type[S], values: Mapping[str, Any]) -> S:
    """Return settings of a kind; a stored model names all of them."""
    names = {field.name for field in fields(kind)}
    if set(values) != names:
        raise ValueError(
            f"settings must be {sorted(names)}, got {sorted(values)}: they were written by another "
            "version"
        )
    return kind.from_dict(values)


def unwrapped_state_dict(module: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """Return tensors of a module by their names without wrappers around its parts.

    Parts may be compiled, parametrised, or in the `module` of a wrapper. The names are those of all
    tensors that it must have.
    """
    tensors: dict[str, Tensor] = {}
    for name in names:
        owner: Any = module
        for step in name.split("."):
            while isinstance(owner, nn.Module) and step not in _names_of(owner):
                owner = next((getattr(owner, w) for w in _WRAPPERS if w in _names_of(owner)), None)
            owner = getattr(owner, step, None)
        if not isinstance(owner, Tensor):
            raise ValueError(f"model must have the weights {name} to be stored, and has none")
        tensors[name] = owner
    plain = {_unwrapped(name) for name in tensors}
    for name in module.state_dict():
        if _unwrapped(name) not in plain and "parametrizations" not in name.split("."):
            raise ValueError(
                f"model must have the weights of its class alone to be stored, and has {name}: "
                "take off what was put around its parts"
            )
    return tensors


def _unwrapped(name: str) -> str:
    return ".".join(step for step in name.split(".") if step not in _WRAPPERS)


def _names_of(module: nn.Module) -> set[str]:
    parametrised = getattr(module, "parametrizations", ())
    tables = (module._parameters, module._buffers, module._modules)  # pyright: ignore[reportPrivateUsage]
    return {name for table in (*tables, parametrised) for name in table}


def fill_weights(model: nn.Module, tensors: dict[str, Tensor], source: object) -> None:
    """Give a model its weights, in their precision."""
    try:
        # In the precision they were stored in: copying would turn them to float32.
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name in tensors:
                tensor.data = tensor.data.to(tensors[name].dtype)
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise ValueError(
            f"{source} does not hold the weights that {CONFIG} tells of: {error}"
        ) from error


def _hub() -> Any:
    return require("huggingface_hub", extra="hub", distribution="probseq")


def local_folder(source: Path | str, patterns: Sequence[str], **options: Any) -> Path:
    """Return a folder, or one of the files of a repository of the hub; options are the hub's."""
    if Path(source).is_dir():
        return Path(source)
    try:
        path = _hub().snapshot_download(str(source), allow_patterns=list(patterns), **options)
    except (OSError, ValueError, ImportError) as error:
        raise FileNotFoundError(
            f"{source} is neither a folder nor a repository that can be read: {error}"
        ) from error
    return Path(path)


def read_head(source: Path | str, *, revision: str | None = None) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a model, after a download where there is none, and its `config.json`."""
    folder = local_folder(source, (CONFIG, WEIGHTS), revision=revision)
    return folder, files.read_json(folder / CONFIG, _FORMAT)


def fingerprint(model: nn.Module) -> str:
    """Return the hash of a model in 32 hexadecimal digits, the same on every device.

    A compiled model, or one in DDP, has the plain model's. Of a `Pretrained` model class and
    settings count too, since some, as the number of heads, change what it computes without a trace
    in the weights.
    """
    text, model = "", files.unwrap(model)
    if isinstance(model, Pretrained):
        settings = {"class": type(model).__name__, "config": model.to_settings()}
        text = json.dumps(settings, sort_keys=True)
    return files.hash_module(model, text.encode())[:32]
