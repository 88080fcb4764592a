"""The `config.json` of an experiment; importable without torch, for the command line."""

import json
from pathlib import Path

from probseq_apps.experiments.settings import ClassifySettings
from probseq_apps.training.runs import CONFIG

_EXPERIMENT = "classify"


def config_of(recipe: str, settings: ClassifySettings) -> dict[str, object]:
    """What an experiment's `config.json` holds."""
    return {"experiment": _EXPERIMENT, "recipe": recipe, "settings": settings.to_dict()}


def saved_command(folder: Path) -> tuple[str, ClassifySettings] | None:
    """Recipe and settings that the experiment in a folder was started with.

    Args:
        folder: any folder.

    Returns:
        None where the folder holds no such experiment.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    file = folder / CONFIG
    if not file.is_file():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict) or config.get("experiment") != _EXPERIMENT:
        return None
    return config["recipe"], ClassifySettings.from_dict(config["settings"])
