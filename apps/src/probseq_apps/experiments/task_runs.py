"""Folders of experiments over tasks: one file of results for each method and seed."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probseq_apps.experiments.saved import holds_experiment
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.training.files import write_atomic
from probseq_apps.training.runs import prepare_run_dir, sole_use

RESULTS = "results"


def results_file(folder: Path, method: str, seed: int) -> Path:
    """What a run measured; it is there once the run is finished."""
    return folder / RESULTS / f"{method}-seed{seed}.json"


def write_results(folder: Path, method: str, seed: int, found: Mapping[str, Any]) -> None:
    """Store what a run measured, which makes it a finished one."""
    file = results_file(folder, method, seed)
    write_atomic(file, json.dumps(found, allow_nan=False) + "\n")


def read_results(
    folder: Path, methods: Sequence[str], seeds: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """What all runs measured, by method and seed.

    Args:
        folder: the experiment's folder.
        methods: all of them.
        seeds: all of them.
    """
    return {
        method: {
            str(seed): json.loads(results_file(folder, method, seed).read_text("utf-8"))
            for seed in seeds
        }
        for method in methods
    }


def prepare_folder(
    folder: Path,
    config: dict[str, object],
    options: RunOptions,
    *,
    experiment: str,
    parts: Sequence[str],
) -> None:
    """Make the experiment's folder, or take up the one that is there.

    Args:
        folder: the experiment's folder.
        config: what its `config.json` holds.
        options: whether to resume or to overwrite.
        experiment: the kind of experiment.
        parts: folders of results in it, which go when it is overwritten.

    Raises:
        ValueError: the folder holds something else, or other settings.
    """
    if options.overwrite and holds_experiment(folder, experiment):
        with sole_use(folder):
            for name in parts:
                shutil.rmtree(folder / name, ignore_errors=True)
            (folder / "report.md").unlink(missing_ok=True)
    prepare_run_dir(folder, config, resume=options.resume, overwrite=options.overwrite)


def make_parts(folder: Path, parts: Sequence[str]) -> None:
    """Make the folders of results."""
    for name in parts:
        (folder / name).mkdir(exist_ok=True)


def counted(methods: Sequence[str], seeds: Sequence[int]) -> str:
    """How many methods and seeds are compared, in words."""
    parts = (("method", len(methods)), ("seed", len(seeds)))
    return ", ".join(f"{number} {name}{'' if number == 1 else 's'}" for name, number in parts)
