"""Training and reading the models of `generate diffusion` and `generate hvae`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

from probseq_apps.engine.config import TrainConfig
from probseq_apps.engine.files import CONFIG, read_finished
from probseq_apps.engine.fit import fit
from probseq_apps.engine.trainer import Batch, Loss
from probseq_apps.experiments.diffusion_groups import UNetSettings
from probseq_apps.experiments.generate_tokenizer import PRETRAINED
from pseudovideo.diffusion.unet import UNetConfig, channel_multipliers_for
from pseudovideo.pretrained import Pretrained

Model = TypeVar("Model", bound=Pretrained)


class Trained(NamedTuple):
    """How a model's training ended.

    Attributes:
        steps: optimizer steps.
        seconds: that they took.
    """

    steps: int
    seconds: float


@runtime_checkable
class Sized(Protocol):
    """Square images of one size, or what is made for such."""

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        ...

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        ...


def fit_model(
    folder: Path,
    make: Callable[[], tuple[nn.Module, Pretrained]],
    train: Batch,
    config: TrainConfig,
    *,
    loss: Loss,
    identity: Mapping[str, object],
    label: str,
) -> None:
    """Train a model, from where it stopped, and store it in `pretrained/`.

    Under bf16 the weights of convolutions lie with their channels last, where these are fastest.

    Args:
        folder: of its run.
        make: gives what is trained, and the new model in it.
        train: what is learned from.
        config: of the training.
        loss: what is minimised.
        identity: what defines the run beside `config`.
        label: what the progress bar calls the run.

    Raises:
        NonFiniteLossError: the loss became NaN or infinite.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    if read_finished(folder) is not None and (folder / PRETRAINED / "config.json").is_file():
        return
    trained, model = make()
    if config.precision == "bf16":
        channels_last(trained)
    fit(trained, train, config, folder, loss=loss, label=label, metadata=identity)
    model.save_pretrained(folder / PRETRAINED)


def open_model(
    folder: Path,
    load: Callable[[Path], Model],
    described: Callable[[UNetConfig], tuple[type[Pretrained], UNetConfig]],
    *,
    image_size: int | None,
    device: torch.device,
) -> tuple[Model, Trained]:
    """Read a trained model.

    Args:
        folder: in `models/` of an experiment.
        load: reads what `pretrained/` holds.
        described: class and sizes that the settings of the folder make of images like the model's.
        image_size: side that the settings bring images to; None for one that the data decide.
        device: where the model is wanted.

    Raises:
        FileNotFoundError: its training isn't finished.
        ValueError: its files are damaged, or `pretrained/` is of another model.
    """
    finished = read_finished(folder)
    if finished is None:
        raise FileNotFoundError(
            f"model must be a trained one, and the training in {folder} is not finished: resume it"
        )
    model = load(folder / PRETRAINED)
    kind, config = described(model.config)
    wanted: dict[str, Any] = {"class": kind.__name__, **asdict(config)}
    _check_described(folder, model, wanted | ({"image_size": image_size} if image_size else {}))
    return model.to(device), Trained(finished["steps"], finished["seconds"])


def _check_described(folder: Path, model: Pretrained, wanted: Mapping[str, Any]) -> None:
    """Refuse a model that belongs into another folder; seeds leave no trace in it.

    Raises:
        ValueError: the first difference.
    """
    found: dict[str, Any] = {"class": type(model).__name__, **asdict(model.config)}
    # The class comes first: models of others may lack the settings that follow.
    for name, value in wanted.items():
        if found[name] != value:
            raise ValueError(
                f"{folder / PRETRAINED} must hold the model that {folder / CONFIG} tells of, with "
                f"{name}={value}, and holds another one with {name}={found[name]}: copy its own "
                "there, or train it anew"
            )


def told_steps(steps: int) -> str:
    """How long a training is, in words."""
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def channels_last(module: nn.Module) -> None:
    """Lay the weights of 2-D convolutions with their channels last."""
    # Typed for tensors alone, in torch's own words.
    module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def unet_config(settings: UNetSettings, images: Sized) -> UNetConfig:
    """Sizes of a UNet for images.

    Args:
        settings: all but the images' sizes.
        images: a data set, or the sizes of a model of such images.

    Raises:
        ValueError: the UNet cannot have the images' size, or its settings don't go together.
    """
    sizes = {"image_size": images.image_size, "channels": images.channels}
    values: dict[str, Any] = {**asdict(settings), **sizes}
    if settings.channel_multipliers is None:
        values["channel_multipliers"] = channel_multipliers_for(images.image_size)
    return UNetConfig(**values)
