"""Trackers of experiments beside `metrics.jsonl`, as accelerate calls them (`--log-to`)."""

import warnings
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
        try:  # trackers raise errors of many types
            import_module(_LIBRARY).PartialState(cpu=True)  # its loggers ask for it
            kind = import_module(f"{_LIBRARY}.tracking").LOGGER_TYPE_TO_CLASS[chosen]
            tracker = kind(**options.get(chosen, {"run_name": _PROJECT, "name": name}))
            tracker.main_process_only = False  # one process logs, and it is this one
            tracker.start()
        except Exception as error:
            raise ValueError(f"log_to={chosen} cannot start: {error}") from error
        self._tracker = tracker

    def log(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of a row of `metrics.jsonl`."""
        values = {key.replace(".", "/"): value for key, value in flatten(row)}
        numbers = {key: v for key, v in values.items() if isinstance(v, int | float)}
        self._call("log", numbers, step=numbers.pop("step"))

    def close(self) -> None:
        """End the tracker's run."""
        self._call("finish")

    def _call(self, name: str, *args: Any, **options: Any) -> None:
        """Call a method; a tracker that fails is told, and left out from then on."""
        try:
            if self._tracker is not None:
                getattr(self._tracker, name)(*args, **options)
        except Exception as error:
            self._tracker = None
            warnings.warn(
                f"log_to={chosen} has failed and gets no more curves: {error}; "
                "metrics.jsonl has all of them",
                stacklevel=3,
            )
