"""The `config.json` of an experiment; importable without torch, for the command line."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from probseq_apps.engine.files import CONFIG

T = TypeVar("T")


def config_values(experiment: str, recipe: str, settings: dict[str, object]) -> dict[str, object]:
    """What the `config.json` of an experiment of any kind holds."""
    return {"experiment": experiment, "recipe": recipe, "settings": settings}


def holds_experiment(folder: Path, experiment: str) -> bool:
    """Whether a folder holds an experiment of this kind.

    Raises:
        ValueError: the file is damaged.
    """
    return _read(folder, experiment) is not None


def held_experiment(folder: Path) -> str | None:
    """The kind of experiment that a folder holds; None where it holds none.

    Raises:
        ValueError: the file is damaged.
    """
    config = _config(folder)
    return None if config is None or "experiment" not in config else str(config["experiment"])


def saved_settings(
    folder: Path, experiment: str, build: Callable[[Mapping[str, Any]], T]
) -> tuple[str, T] | None:
    """Recipe and settings of the experiment in a folder.

    Args:
        folder: any folder.
        experiment: the kind of experiment.
        build: makes settings of plain values.

    Returns:
        None where the folder holds no experiment of this kind.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    config = _read(folder, experiment)
    if config is None:
        return None
    try:
        return str(config["recipe"]), build(config["settings"])
    # What wrong contents end in, from a missing key to a comparison of a string with a number.
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{folder / CONFIG} is damaged or from another version: {type(error).__name__}: {error}"
        ) from error


def _read(folder: Path, experiment: str) -> dict[str, Any] | None:
    config = _config(folder)
    return None if config is None or config.get("experiment") != experiment else config


def _config(folder: Path) -> dict[str, Any] | None:
    file = folder / CONFIG
    if not file.is_file():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error
    # Typed for what JSON objects are.
    return cast("dict[str, Any]", config) if isinstance(config, dict) else None
