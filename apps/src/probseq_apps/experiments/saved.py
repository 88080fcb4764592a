"""The `config.json` of an experiment; importable without torch, for the command line."""

import json
from pathlib import Path
from typing import Any

from probseq_apps.experiments.settings import ClassifySettings
from probseq_apps.training.runs import CONFIG

CLASSIFY = "classify"


def config_of(recipe: str, settings: ClassifySettings) -> dict[str, object]:
    """What a `classify` experiment's `config.json` holds."""
    return config_values(CLASSIFY, recipe, settings.to_dict())


def saved_command(folder: Path) -> tuple[str, ClassifySettings] | None:
    """Recipe and settings that the `classify` experiment in a folder was started with.

    Args:
        folder: any folder.

    Returns:
        None where the folder holds no such experiment.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    saved = read_saved(folder, CLASSIFY)
    return None if saved is None else (saved[0], ClassifySettings.from_dict(saved[1]))


def config_values(experiment: str, recipe: str, settings: dict[str, object]) -> dict[str, object]:
    """What the `config.json` of an experiment of any kind holds."""
    return {"experiment": experiment, "recipe": recipe, "settings": settings}


def read_saved(folder: Path, experiment: str) -> tuple[str, dict[str, Any]] | None:
    """Recipe and settings, as plain values, of the experiment in a folder.

    Args:
        folder: any folder.
        experiment: the kind of experiment.

    Returns:
        None where the folder holds no experiment of this kind.

    Raises:
        ValueError: the file is damaged.
    """
    file = folder / CONFIG
    if not file.is_file():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict) or config.get("experiment") != experiment:
        return None
    return config["recipe"], config["settings"]
