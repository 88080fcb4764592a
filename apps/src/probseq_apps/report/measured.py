"""What run folders hold: the metrics in their `report.json`, over the seeds."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

from probseq_apps.engine.files import CONFIG
from probseq_apps.report.measured_generation import (
    DIFFUSION,
    FD,
    FID,
    GENERATE,
    HVAE,
    Seeds,
    generation_facts,
    generation_rows,
)

GENERATIONS = (GENERATE, DIFFUSION, HVAE)
REPORT = "report.json"
EXPERIMENTS = ("classify", "regress", "online", *GENERATIONS)
SECONDS_PER_EPOCH = "seconds-per-epoch"
ACCUMULATED_SECONDS = "accumulated-seconds"

# The published corruptions are preferred to those that the program makes.
_SHIFT = "{shift}"
_SHIFT_KINDS = ("cifar-c", "shift")


@dataclass(frozen=True)
class MeasuredRun:
    """An experiment's report.

    Attributes:
        folder: where it lies.
        experiment: its kind, as `report.json` names it.
        recipe: recipe that it was started from.
        data: name of the data set.
        settings: all settings, nested.
        facts: sizes of the data, as the report has them.
        seeds: seeds of each method by its name; an ensemble's are its members'.
        metrics: values over the seeds by method and metric.
        written: time of writing, to tell the newest.
    """

    folder: Path
    experiment: str
    recipe: str
    data: str
    settings: Mapping[str, Any]
    facts: Mapping[str, Any]
    seeds: Mapping[str, tuple[int, ...]]
    metrics: Mapping[str, Mapping[str, Seeds]]
    written: float

    def setting(self, path: str) -> object:
        """A setting by its path, as `training.epochs`; None where the run has none of this name."""
        value: Any = self.settings
        for part in path.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return None
            value = value[part]  # pyright: ignore[reportUnknownVariableType]
        return value  # pyright: ignore[reportUnknownVariableType]

    @property
    def augmented(self) -> bool:
        """Whether its training images were augmented."""
        return self.setting("training.augment") not in (None, "none")

    def values(self, method: str, metric: str) -> tuple[str, Seeds] | None:
        """A metric of a method over the seeds.

        Args:
            method: the method's name.
            metric: name of the metric; with `*`, the mean over all that match. Where the run has no
                FID, another Fréchet distance stands for it.

        Returns:
            The pattern that was found, `{shift}` being filled in, and the values; None if the run
            doesn't have it.
        """
        known = self.metrics.get(method, {})
        patterns = [metric]
        if _SHIFT in metric:
            patterns = [metric.replace(_SHIFT, kind) for kind in _SHIFT_KINDS]
        elif metric.endswith(f"/{FID}"):
            patterns.append(metric.removesuffix(FID) + FD)
        for pattern in patterns:
            found = [values for name, values in known.items() if fnmatchcase(name.lower(), pattern)]
            if found:
                return pattern, tuple(_mean(column) for column in zip(*found, strict=True))
        return None


def find_runs(folders: Iterable[Path]) -> tuple[list[MeasuredRun], list[str]]:
    """Read all reports in these folders, or one level below them.

    Args:
        folders: run folders, or folders that hold some.

    Returns:
        The runs, newest first, and a note on every report that could not be used.

    Raises:
        ValueError: a folder holds no report, nor does any folder in it.
    """
    runs: dict[Path, MeasuredRun] = {}
    notes: list[str] = []
    for folder in folders:
        files = (
            [folder / REPORT] if (folder / REPORT).is_file() else list(folder.glob(f"*/{REPORT}"))
        )
        if not files:
            raise ValueError(
                f"folder {folder} must hold a finished run ({REPORT}), and "
                f"{'holds one that is not finished' if _begun(folder) else 'holds none'}"
            )
        for file in sorted(files):
            try:
                runs[file.resolve()] = read_run(file.parent)
            except ValueError as error:
                notes.append(f"left out: {error}")
    return sorted(runs.values(), key=lambda run: run.written, reverse=True), notes


def _begun(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def read_run(folder: Path) -> MeasuredRun:
    """Read one report.

    Args:
        folder: a run folder with a `report.json`.

    Raises:
        ValueError: the file is damaged or of another kind of experiment.
    """
    file = folder / REPORT
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        if report["experiment"] not in EXPERIMENTS:
            raise ValueError(f"{file} is of the experiment {report['experiment']!r}")
        kind = "generation" if report["experiment"] in GENERATIONS else report["experiment"]
        read = {"online": _online_run, "generation": _generation_run}.get(kind, _run)
        return read(folder, report, file.stat().st_mtime)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a report of this version: {error!r}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error


def _run(folder: Path, report: Mapping[str, Any], written: float) -> MeasuredRun:
    epochs = report["settings"]["training"]["epochs"]
    metrics: dict[str, dict[str, Seeds]] = {}
    for name, method in report["methods"].items():
        metrics[name] = {key: tuple(found["values"]) for key, found in method["metrics"].items()}
        seconds = method.get("train_seconds", [])
        # An ensemble's members are not its own trainings.
        if seconds and len(seconds) == len(next(iter(metrics[name].values()), ())):
            metrics[name][SECONDS_PER_EPOCH] = tuple(value / epochs for value in seconds)
    return MeasuredRun(
        folder=folder,
        experiment=report["experiment"],
        recipe=report["recipe"],
        data=report["settings"]["data"],
        settings=report["settings"],
        facts=report["data"],
        seeds={name: tuple(method["seeds"]) for name, method in report["methods"].items()},
        metrics=metrics,
        written=written,
    )


def _online_run(folder: Path, report: Mapping[str, Any], written: float) -> MeasuredRun:
    methods = {name: method["seeds"] for name, method in report["methods"].items()}
    return MeasuredRun(
        folder=folder,
        experiment=report["experiment"],
        recipe=report["recipe"],
        data=report["settings"]["data"],
        settings=report["settings"],
        facts=report["data"],
        seeds={name: tuple(map(int, seeds)) for name, seeds in methods.items()},
        metrics={
            name: {ACCUMULATED_SECONDS: tuple(float(sum(s["seconds"])) for s in seeds.values())}
            for name, seeds in methods.items()
        },
        written=written,
    )


def _generation_run(folder: Path, report: Mapping[str, Any], written: float) -> MeasuredRun:
    rows = generation_rows(report)
    return MeasuredRun(
        folder=folder,
        experiment=report["experiment"],
        recipe=report["recipe"],
        data=report["settings"]["data"],
        settings=report["settings"],
        facts=report["data"] | generation_facts(report),
        seeds={name: row.seeds for name, row in rows.items()},
        metrics={name: row.metrics for name, row in rows.items()},
        written=written,
    )


def _mean(values: tuple[float | None, ...]) -> float | None:
    defined = [value for value in values if value is not None]
    return fmean(defined) if len(defined) == len(values) else None
