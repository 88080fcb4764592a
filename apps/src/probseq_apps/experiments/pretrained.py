"""Models that people have: of transformers, timm and torchvision, from local files alone."""

import ast
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probseq.errors import require
from probseq.files import sha256
from probseq.images import match_images, normalize
from probseq_apps.data.images import ImageData
from probseq_apps.data.names import DataError, reading
from probseq_apps.data.sets import ClassData
from probseq_apps.data.texts import TextData
from probseq_apps.data.tokenizers import SubwordTokenizer, trim_padding

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_TOKENIZER = "tokenizer.json"


class Pretrained(NamedTuple):
    """A classifier in evaluation mode."""

    model: nn.Module  # the classifier
    prepare: Callable[[Tensor], Any]  # makes a raw batch what it takes

    @property
    def has_head(self) -> bool:
        """Return whether its head came with it; that of a plain encoder is new and untrained."""
        return not isinstance(self.model, _Encoder)


def weights_hash(name: str) -> str:
    """Return the SHA-256 of a model's weights; raise if there are none."""
    _, file = _parse(name)
    if file.is_dir():
        names = ("model.safetensors", "pytorch_model.bin")
        file = next((file / each for each in names if (file / each).is_file()), file / names[0])
    if not file.is_file():
        raise DataError(f"model {name!r} has no weights: {file} is not there")
    return sha256(file)


def tokenizer_of(name: str) -> Path:
    """Return the tokenizer of a folder of transformers."""
    path = Path(name).expanduser() / _TOKENIZER
    if not path.is_file():
        raise DataError(f"model {name!r} must be a folder with {_TOKENIZER} for texts")
    return path


def open_model(
    name: str, arguments: tuple[str, ...], data: ClassData, *, bundled_scale: bool
) -> Pretrained:
    """Read a model; `bundled_scale` takes the mean and deviation that come with it.

    Raises:
        DataError: the files cannot be read, or do not fit the data.
        MissingExtraError: its library is not installed.
    """
    kind, file = _parse(name)
    config: Mapping[str, Any] = {}
    if not kind:
        with reading(file / "config.json", "the configuration of a model"):
            config = json.loads((file / "config.json").read_text(encoding="utf-8"))
        kind = "timm" if "architecture" in config else "transformers"
    library = _library(kind)
    options: dict[str, Any] = {}
    for item in arguments:
        key, _, value = item.partition("=")
        options[key] = _literal(value)
    model: Any
    with reading(name, f"a model of {kind}"):
        if kind == "transformers":
            task = "Image" if isinstance(data, ImageData) else "Sequence"
            model = _of_transformers(library, task, file, data.num_classes)
        elif config:
            model = library.create_model(f"local-dir:{file}", pretrained=True)
        else:
            make = library.create_model if kind == "timm" else library.models.get_model
            plain = name.partition(":")[2].partition("+")[0]
            model = make(plain, num_classes=data.num_classes, **options)
            model.load_state_dict(_state(file))
    if not isinstance(data, ImageData):
        # The tokenizer is that of the folder, see `tokenizer_of`.
        assert isinstance(data, TextData)
        assert isinstance(data.vocab, SubwordTokenizer)
        numbers = data.vocab.original_numbers(model.config.pad_token_id or 0)
        return Pretrained(model.eval(), _Texts(torch.tensor(numbers)))
    scale: dict[str, Any] = {"mean": data.mean, "std": data.std}
    if bundled_scale:
        scale = _scale(kind, library, model, file)
    size = scale.pop("size", None) or data.image_size
    channels = len(scale["mean"])
    return Pretrained(model.eval(), _Images(channels=channels, image_size=size, **scale))


def _of_transformers(library: Any, task: str, folder: Path, num_classes: int) -> Any:
    """Return a classifier of a folder, or its encoder under a new head where it has none."""
    auto = getattr(library, f"AutoModelFor{task}Classification")
    read: Any = {"local_files_only": True}
    model, info = auto.from_pretrained(folder, **read, output_loading_info=True)
    missing, encoder = set(info["missing_keys"]), f"{model.base_model_prefix}."
    if not missing:
        return model
    # Heads of transformers may begin with a pooler, which plain encoders do not need.
    absent = sorted(k for k in missing if k.startswith(encoder) and ".pooler." not in k)
    if absent:
        raise DataError(
            f"{folder} lacks weights of {type(model).__name__}: {', '.join(absent[:3])}"
        )
    return _Encoder(library.AutoModel.from_pretrained(folder, **read), num_classes)


class _Encoder(nn.Module):
    """The mean of an encoder's outputs over tokens or places, under a new linear head."""

    def __init__(self, encoder: Any, num_classes: int) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        width = getattr(encoder.config, "hidden_size", None) or encoder.config.hidden_sizes[-1]
        self.head = nn.Linear(width, num_classes)

    def forward(self, *images: Tensor, **tokens: Tensor) -> Tensor:
        hidden = self.encoder(*images, **tokens).last_hidden_state
        if hidden.ndim == 4:  # of convolutions: (B, C, H, W)
            hidden = hidden.flatten(2).mT
        mask = tokens.get("attention_mask")
        mask = hidden.new_ones(hidden.shape[:2]) if mask is None else mask
        return self.head((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def _literal(text: str) -> Any:
    """Return the value that a text is in JSON or in Python, as .2 and True are; else the text."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


class _Images(NamedTuple):
    """Gives images the model's size and scale."""

    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        fitted = match_images(images, channels=self.channels, image_size=self.image_size)
        return normalize(fitted, self.mean, self.std)


class _Texts(NamedTuple):
    """Gives tokens the tokenizer's own numbers, and a mask."""

    numbers: Tensor  # the tokenizer's, of each of ours, 0 being padding

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        tokens = trim_padding(tokens)
        numbers = self.numbers.to(tokens.device)[tokens]
        return {"input_ids": numbers, "attention_mask": (tokens != 0).long()}


def _parse(name: str) -> tuple[str, Path]:
    """Return the library, "" for a folder, and the file."""
    kind, _, rest = name.partition(":")
    if kind not in ("timm", "torchvision"):
        return "", Path(name).expanduser()
    _, plus, file = rest.partition("+")
    if not plus:
        raise DataError(f"model {name!r} must be as {kind}:NAME+FILE")
    return kind, Path(file).expanduser()


def _library(kind: str) -> Any:
    if kind == "timm":
        return require("timm", extra="pretrained", distribution="probseq-apps")
    if kind == "transformers":
        library = require("transformers", extra="pretrained", distribution="probseq-apps")
        library.logging.set_verbosity_error()  # what a folder lacks is told by us
        library.logging.disable_progress_bar()
        return library
    import torchvision

    return torchvision


def _state(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    return torch.load(file, map_location="cpu", weights_only=True)


def _scale(kind: str, library: Any, model: nn.Module, folder: Path) -> dict[str, Any]:
    """Return mean, deviation and size of the images that a model was trained with."""
    if kind == "timm":
        config = library.data.resolve_model_data_config(model)
        scale = {key: tuple(config[key]) for key in ("mean", "std")}
        patches = getattr(model, "patch_embed", None)
        size = getattr(patches, "img_size", None) or config["input_size"][1:]
        return {**scale, "size": int(size[0])}
    if kind == "torchvision":
        return {**_IMAGENET, "size": getattr(model, "image_size", None)}
    images: Any = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
    if (file := folder / "preprocessor_config.json").is_file():
        images |= json.loads(file.read_text(encoding="utf-8"))
    size = getattr(model.config, "image_size", None)
    return {
        "mean": tuple(images["image_mean"]),
        "std": tuple(images["image_std"]),
        "size": size[0] if isinstance(size, list) else size,
    }
