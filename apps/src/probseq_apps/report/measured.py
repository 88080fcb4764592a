"""The measured numbers of run folders, from their `report.json`, over the seeds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from probseq.summary import summarise
from probseq_apps.engine.files import CONFIG, read_json

Seeds = tuple[float | None, ...]
GENERATIONS = ("generate", "generate-diffusion", "generate-hvae")
EXPERIMENTS = ("classify", "regress", "online", *GENERATIONS)
REPORT = "report.json"
SECONDS_PER_EPOCH = "seconds-per-epoch"
ACCUMULATED_SECONDS = "accumulated-seconds"
# The published corruptions are preferred to those that the program makes.
_SHIFTS = ("cifar-c", "shift")


@dataclass(frozen=True)
class MeasuredRun:
    """An experiment's report."""

    folder: Path
    experiment: str  # its kind, as `report.json` names it
    recipe: str  # recipe that it was started from
    settings: Mapping[str, Any]
    numbers: Mapping[str, Seeds]  # values over the seeds, by METHOD/METRIC or VARIANT/METRIC

    def values(self, metric: str) -> tuple[str, Seeds] | None:
        """Return a pattern that matches metrics, and their mean for each seed."""
        patterns = [metric.replace("{shift}", kind) for kind in _SHIFTS]
        # A Fréchet distance in other features than Inception's.
        patterns += [f"{metric.removesuffix('/fid')}/fd"] * metric.endswith("/fid")
        for pattern in patterns:
            matches = [v for name, v in self.numbers.items() if fnmatchcase(name.lower(), pattern)]
            if matches:
                return pattern, tuple(summarise(seed).mean for seed in zip(*matches, strict=True))
        return None


def find_runs(folders: Iterable[Path]) -> tuple[list[MeasuredRun], list[str]]:
    """Read all reports in these folders, or one level below them; newest first, and notes."""
    runs: dict[Path, MeasuredRun] = {}
    notes: list[str] = []
    for folder in folders:
        report = folder / REPORT
        files = [report] if report.is_file() else sorted(folder.glob(f"*/{REPORT}"))
        if not files:
            begun = (folder / CONFIG).is_file()
            raise ValueError(
                f"folder {folder} must hold a finished run ({REPORT}), and "
                f"{'holds one that is not finished' if begun else 'holds none'}"
            )
        for file in files:
            try:
                runs[file.resolve()] = read_run(file.parent)
            except ValueError as error:
                notes.append(f"left out: {error}")
    newest = sorted(runs, key=lambda file: file.stat().st_mtime, reverse=True)
    return [runs[file] for file in newest], notes


def read_run(folder: Path) -> MeasuredRun:
    """Read one report."""
    file = folder / REPORT
    try:
        report = read_json(file)
        kind = report["experiment"]
        if kind not in EXPERIMENTS:
            raise ValueError(f"{file} is of the experiment {kind!r}")
        generated = kind in GENERATIONS
        numbers = _generation_numbers(report["results"]) if generated else _numbers(report)
        return MeasuredRun(folder, kind, report["recipe"], report["settings"], numbers)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a report of this version: {error!r}") from error


def _numbers(report: Mapping[str, Any]) -> dict[str, Seeds]:
    numbers: dict[str, Seeds] = {}
    for name, method in report["methods"].items():
        if report["experiment"] == "online":
            ran = (str(seed) for seed in report["settings"]["seeds"])
            seeds = [_online_numbers(method["seeds"][seed]) for seed in ran]
            metrics = {key: tuple(seed[key] for seed in seeds) for key in seeds[0]}
        else:
            metrics = {key: tuple(values["values"]) for key, values in method["metrics"].items()}
            seconds, epochs = method["train_seconds"], report["settings"]["training"]["epochs"]
            # An ensemble's members are not its own trainings.
            if len(seconds) == len(next(iter(metrics.values()))):
                metrics[SECONDS_PER_EPOCH] = tuple(value / epochs for value in seconds)
        numbers |= {f"{name}/{metric}": values for metric, values in metrics.items()}
    return numbers


def _online_numbers(seed: Mapping[str, Any]) -> dict[str, float | None]:
    """Return metrics after the last task, and the mean loss of the tasks before since learned."""
    metrics: dict[str, float | None] = {k: losses[-1] for k, losses in seed["over_tasks"].items()}
    metric, sign = ("rmse", 1.0) if "rmse" in metrics else ("accuracy", -1.0)
    matrix = seed["matrix"][metric]
    lost = [sign * (matrix[-1][task] - matrix[task][task]) for task in range(len(matrix) - 1)]
    metrics["forgetting"] = sum(lost) / len(lost) if lost else None
    return metrics | {ACCUMULATED_SECONDS: float(sum(seed["seconds"]))}


def _generation_numbers(results: Iterable[Mapping[str, Any]]) -> dict[str, Seeds]:
    """Return numbers such as `4-frame-blur/fid` or `8-frame/masked, plain/fid`."""
    numbers: dict[str, list[float | None]] = {}
    for result in results:
        if "reconstruction" in result:
            named, stem = result["reconstruction"], result["stem"]
            kinds = {"reconstruction": named} | (result.get("generation") or {})
            made = {f"{result['variant']}/{kind}, {stem}": entry for kind, entry in kinds.items()}
        else:
            named = result["generation"]
            made = {result["variant"]: named}
        distance = "fid" if named["fd_name"] == "FID" else "fd"
        for name, entry in made.items():
            for metric, key in ((distance, "fd"), ("is", "is"), ("psnr", "psnr")):
                numbers.setdefault(f"{name}/{metric}", []).append(entry.get(key))
    return {name: tuple(seeds) for name, seeds in numbers.items() if None not in seeds}
