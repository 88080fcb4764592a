"""Trackers of experiments beside `metrics.jsonl`, as accelerate calls them (`--log-to`)."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from probseq_apps.engine.files import flatten

TrackerName = Literal["tensorboard", "trackio", "mlflow", "wandb"]
chosen: TrackerName | None = None  # set by `run` for --log-to
_LIBRARY, _PROJECT = "accelerate", "probseq"


def check_tracker() -> None:
    """Raise if accelerate, or the chosen tracker's own package, is not installed."""
    if chosen is None:
        return
    try:
        available = import_module(f"{_LIBRARY}.tracking").get_available_trackers()
    except ImportError:
        available = ()
    if chosen not in map(str, available):
        raise ValueError(f"log_to={chosen} needs two packages: pip install accelerate {chosen}")


class Tracker:
    """Curves of one training, in the chosen tracker; nothing where none is chosen."""

    def __init__(self, folder: Path) -> None:
        self._tracker: Any = None
        if chosen is None:
            return
        name = "/".join(folder.absolute().parts[-3:])
        options = {
            "tensorboard": {"run_name": chosen, "logging_dir": folder},
            "mlflow": {"experiment_name": _PROJECT, "run_name": name},
        }
        import_module(_LIBRARY).PartialState(cpu=True)  # its loggers ask for it
        kind = import_module(f"{_LIBRARY}.tracking").LOGGER_TYPE_TO_CLASS[chosen]
        self._tracker = kind(**options.get(chosen, {"run_name": _PROJECT, "name": name}))
        self._tracker.main_process_only = False  # one process logs, and it is this one
        self._tracker.start()

    def log(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of a row of `metrics.jsonl`."""
        if self._tracker is not None:
            values = {key.replace(".", "/"): value for key, value in flatten(row)}
            numbers = {key: v for key, v in values.items() if isinstance(v, int | float)}
            self._tracker.log(numbers, step=numbers.pop("step"))

    def close(self) -> None:
        """End the tracker's run."""
        if self._tracker is not None:
            self._tracker.finish()
