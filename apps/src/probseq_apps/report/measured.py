"""What run folders hold: the metrics in their `report.json`, over the seeds.

Of generated images a method is a row of the thesis' tables, such as high-order videos, and a metric
a column with what is measured there, such as `4-frame/fid`. A Fréchet distance in other features
than Inception's is `4-frame/fd`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

from probseq_apps.engine.files import CONFIG

GENERATE, DIFFUSION, HVAE = "generate", "generate-diffusion", "generate-hvae"
FID, FD = "fid", "fd"
# Channels and sides in pixels of the thesis' images.
SIZES: Mapping[str, tuple[int, int]] = {"cifar10": (3, 32), "celeba": (3, 64), "mnist": (1, 28)}
# Rows of videos; those of one frame are in each of them.
_KINDS = ("first-order", "high-order", "matched", "blur")
_STEMS = ("plain", "layernorm")

Seeds = tuple[float | None, ...]
GENERATIONS = (GENERATE, DIFFUSION, HVAE)
REPORT = "report.json"
EXPERIMENTS = ("classify", "regress", "online", *GENERATIONS)
SECONDS_PER_EPOCH = "seconds-per-epoch"
ACCUMULATED_SECONDS = "accumulated-seconds"

# The published corruptions are preferred to those that the program makes.
_SHIFT = "{shift}"
_SHIFT_KINDS = ("cifar-c", "shift")


# Seeds and metrics by method, and what else is to be known of the data.
_Numbers = tuple[
    Mapping[str, tuple[int, ...]], Mapping[str, Mapping[str, Seeds]], Mapping[str, Any]
]


@dataclass(frozen=True)
class MeasuredRun:
    """An experiment's report."""

    folder: Path
    experiment: str  # its kind, as `report.json` names it
    recipe: str  # recipe that it was started from
    data: str  # name of the data set
    settings: Mapping[str, Any]
    facts: Mapping[str, Any]  # sizes of the data, as the report has them
    seeds: Mapping[str, tuple[int, ...]]  # seeds of each method by its name
    metrics: Mapping[str, Mapping[str, Seeds]]  # values over the seeds by method and metric
    written: float  # time of writing, to tell the newest

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
        """A metric of a method over the seeds."""
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
    """Read all reports in these folders, or one level below them."""
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
    """Read one report."""
    file = folder / REPORT
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        if report["experiment"] not in EXPERIMENTS:
            raise ValueError(f"{file} is of the experiment {report['experiment']!r}")
        kind = "generation" if report["experiment"] in GENERATIONS else report["experiment"]
        readers = {"online": _online_numbers, "generation": _generation_numbers}
        seeds, metrics, facts = readers.get(kind, _numbers)(report)
        return MeasuredRun(
            folder=folder,
            experiment=report["experiment"],
            recipe=report["recipe"],
            data=report["settings"]["data"],
            settings=report["settings"],
            facts=report["data"] | facts,
            seeds=seeds,
            metrics=metrics,
            written=file.stat().st_mtime,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a report of this version: {error!r}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error


def _numbers(report: Mapping[str, Any]) -> _Numbers:
    epochs = report["settings"]["training"]["epochs"]
    metrics: dict[str, dict[str, Seeds]] = {}
    for name, method in report["methods"].items():
        metrics[name] = {key: tuple(found["values"]) for key, found in method["metrics"].items()}
        seconds = method.get("train_seconds", [])
        # An ensemble's members are not its own trainings.
        if seconds and len(seconds) == len(next(iter(metrics[name].values()), ())):
            metrics[name][SECONDS_PER_EPOCH] = tuple(value / epochs for value in seconds)
    return {name: tuple(one["seeds"]) for name, one in report["methods"].items()}, metrics, {}


def _online_numbers(report: Mapping[str, Any]) -> _Numbers:
    methods = {name: method["seeds"] for name, method in report["methods"].items()}
    metrics = {
        name: {ACCUMULATED_SECONDS: tuple(float(sum(s["seconds"])) for s in seeds.values())}
        for name, seeds in methods.items()
    }
    return {name: tuple(map(int, seeds)) for name, seeds in methods.items()}, metrics, {}


def _generation_numbers(report: Mapping[str, Any]) -> _Numbers:
    rows, facts = generation_rows(report), generation_facts(report)
    seeds = tuple(dict.fromkeys(int(result["seed"]) for result in report["results"]))
    return dict.fromkeys(rows, seeds), rows, facts


def _mean(values: tuple[float | None, ...]) -> float | None:
    defined = [value for value in values if value is not None]
    return fmean(defined) if len(defined) == len(values) else None


def generation_rows(report: Mapping[str, Any]) -> dict[str, dict[str, Seeds]]:
    """Return rows of the tables that a report has numbers of: values over the seeds by metric."""
    readers = {GENERATE: _tokenizers, DIFFUSION: _diffusion, HVAE: _hvae}
    found = readers[report["experiment"]](_by_arm(report["results"]))
    return {name: metrics for name, metrics in found.items() if metrics}


def generation_facts(report: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What the numbers are of, for notes, each without repetitions and in order of appearance."""
    drawn: list[Mapping[str, Any]] = []
    named: list[Mapping[str, Any]] = []
    for result in report["results"]:
        made = result.get("generation") or {}
        if "reconstruction" in result:
            named.append(result["reconstruction"])
            drawn += made.values()
        else:
            named.append(made)
            drawn.append(made)
    sampling = [
        f"{found['sampler']} {found['sampling_steps']:,}" for found in drawn if "sampler" in found
    ]
    return {
        "features": list(dict.fromkeys(str(found["fd_name"]) for found in named)),
        "samples": list(dict.fromkeys(int(found["num_samples"]) for found in drawn)),
        "splits": list(dict.fromkeys(f["is_splits"] for f in drawn if f.get("is_splits"))),
        "sampling": list(dict.fromkeys(sampling)),
    }


def _by_arm(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    arms: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        # Tokenizers of one arm differ in their stem, too.
        name = f"{result['arm']}/{result['stem']}" if "stem" in result else str(result["arm"])
        arms.setdefault(name, []).append(result)
    return arms


def _tokenizers(
    arms: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Seeds]]:
    rows: dict[str, dict[str, Seeds]] = {}
    for name, results in arms.items():
        arm, _, stem = name.partition("/")
        # Controls of equal bits are no rows of the table.
        if stem not in _STEMS or arm != f"{results[0]['frames']}-frame":
            continue
        made = [result["reconstruction"] for result in results]
        row = rows.setdefault(f"reconstruction, {stem}", {})
        row |= _distance(arm, made, made)
        row[f"{arm}/psnr"] = tuple(found["psnr"] for found in made)
        for prior in results[0].get("generation") or {}:
            drawn = [result["generation"][prior] for result in results]
            rows.setdefault(f"{prior}, {stem}", {}).update(_distance(arm, drawn, made))
    return rows


def _diffusion(
    arms: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, Seeds]]:
    rows: dict[str, dict[str, Seeds]] = {kind: {} for kind in _KINDS}
    for name, results in arms.items():
        drawn = [result["generation"] for result in results]
        if results[0]["frames"] == 1:
            for row in rows.values():
                row |= _distance(name, drawn, drawn)
        else:
            length = f"{results[0]['frames']}-frame"
            rows[name.removeprefix(f"{length}-")] |= _distance(length, drawn, drawn)
    return rows


def _hvae(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Seeds]]:
    scores = {
        f"{name}/is": tuple(result["generation"]["is"] for result in results)
        for name, results in arms.items()
    }
    return {"hvae": {name: values for name, values in scores.items() if None not in values}}


def _distance(
    column: str, found: Sequence[Mapping[str, Any]], named: Sequence[Mapping[str, Any]]
) -> dict[str, Seeds]:
    """Fréchet distances under the name that their features have."""
    names = {entry["fd_name"] for entry in named}
    kind = FID if names == {"FID"} else FD
    return {f"{column}/{kind}": tuple(entry["fd"] for entry in found)}
