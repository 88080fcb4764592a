"""The folder of an experiment: when it may be written to, and what is kept in it."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from probseq_apps.engine import distributed
from probseq_apps.engine.files import RunExistsError, prepare_run_dir, sole_use, write_atomic
from probseq_apps.experiments.saved import held_experiment, holds_experiment
from probseq_apps.options import Options

RESULTS = "results"


class RunFolder:
    """What an experiment keeps: results and files of its jobs.

    Args:
        path: of the folder.
        recipe: name of the recipe that the settings came from.
    """

    def __init__(self, path: Path, recipe: str) -> None:
        self.path, self.recipe = path, recipe

    def has(self, name: str) -> bool:
        """Whether results are there."""
        return self.results_file(name).exists()

    def once(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return results; make and store them where they are not there yet.

        Under torchrun every rank makes them, and the main one stores them and tells the others.
        """
        main = distributed.is_main()
        if not distributed.broadcast(main and self.has(name)):
            found = make()
            if main:
                file = self.results_file(name)
                file.parent.mkdir(exist_ok=True)
                write_atomic(file, json.dumps(found, allow_nan=False) + "\n")
        return distributed.broadcast(
            json.loads(self.results_file(name).read_text("utf-8")) if main else {}
        )

    def results_file(self, name: str) -> Path:
        """Return the path of results."""
        return self.path / RESULTS / f"{name}.json"


def default_folder(experiment: str, data: str) -> Path:
    """Return `runs/EXPERIMENT-DATA-TIME`, with the time in UTC."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", data.rpartition("/")[2]).strip("-")
    return Path("runs") / f"{experiment}-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def check_folder(folder: Path, options: Options, *, experiment: str) -> None:
    """Raise if what should be resumed or deleted is no experiment of this kind.

    Raises:
        FileNotFoundError: there is nothing to resume.
        RunExistsError: what would be overwritten belongs to somebody else.
        ValueError: the folder's configuration is damaged.
    """
    if not (options.resume or options.overwrite) or holds_experiment(folder, experiment):
        return
    if options.resume:
        kind = held_experiment(folder)
        if kind is not None:
            raise FileNotFoundError(
                f"{folder} holds an experiment of kind {kind}, and none of kind {experiment} to "
                "resume: name another folder, or start without resume"
            )
        raise FileNotFoundError(
            f"{folder} holds no experiment to resume: name its folder, or start without resume"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise RunExistsError(
            f"{folder} holds files, but no experiment to overwrite: choose an empty or a new folder"
        )


def prepare_folder(
    folder: Path,
    config: dict[str, object],
    options: Options,
    *,
    experiment: str,
    parts: Sequence[str],
) -> None:
    """Make an experiment's folder, or take up the one that is there.

    Args:
        folder: the experiment's folder.
        config: what its `config.json` holds.
        options: whether to resume or to overwrite.
        experiment: the kind of experiment.
        parts: patterns of folders in it, which go when it is overwritten.

    Raises:
        ValueError: the experiment to resume has other settings.
        OSError: the folder is not empty, or cannot be written to.
    """
    if options.overwrite and holds_experiment(folder, experiment):
        with sole_use(folder):  # nobody loses the files that he is working with
            for part in [part for pattern in parts for part in folder.glob(pattern)]:
                shutil.rmtree(part)
            (folder / "report.md").unlink(missing_ok=True)
    prepare_run_dir(folder, config, resume=options.resume, overwrite=options.overwrite)


@contextmanager
def open_folder(
    experiment: str,
    recipe: str,
    config: dict[str, object],
    options: Options,
    *,
    command: str,
    parts: Sequence[str],
    data: str,
) -> Generator[RunFolder]:
    """Open the folder of an experiment for this process alone: a new one, or one to go on with.

    Args:
        experiment: the kind of experiment.
        recipe: name of the recipe that the settings came from.
        config: what `config.json` holds beside these two: settings, as plain values.
        options: folder, and whether to resume or to overwrite.
        command: that goes on where a signal stopped the experiment.
        parts: patterns of folders in it, which go when it is overwritten.
        data: name of the data set, for the name of a new folder.

    Raises:
        ValueError: the experiment to resume has other settings.
        OSError: the folder is not empty, in use, or cannot be written to.
    """
    folder = distributed.broadcast(options.run_dir or default_folder(experiment, data))
    if not distributed.is_main():
        distributed.barrier()
        yield RunFolder(folder, recipe)
        return
    config = {"experiment": experiment, "recipe": recipe, **config}
    prepare_folder(folder, config, options, experiment=experiment, parts=(RESULTS, *parts))
    with sole_use(folder), tell_how_to_resume(command, folder, options):
        distributed.barrier()
        yield RunFolder(folder, recipe)


@contextmanager
def tell_how_to_resume(command: str, folder: Path, options: Options) -> Generator[None]:
    """Name the command that goes on, when a signal ends what this context manager holds.

    Args:
        command: its name on the command line.
        folder: of the experiment.
        options: that it was started with.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt):
        print(f"stopped; go on with: {resume_command(command, folder, options)}", file=sys.stderr)
        raise


def resume_command(command: str, folder: Path, options: Options) -> str:
    """Return the command that goes on; a folder keeps the settings, but not where the data are."""
    words = ["probseq", *command.split(), "--run-dir", str(folder), "--resume"]
    if options.data_dir is not None:
        words += ["--data-dir", str(options.data_dir.resolve())]
    return shlex.join(words)
