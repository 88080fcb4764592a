"""The folder of an experiment: when it may be written to, and what is kept in it."""

import re
import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import Any

from probseq_apps.engine import distributed
from probseq_apps.engine.files import (
    RunExistsError,
    prepare_run_dir,
    read_json,
    sole_use,
    write_json,
    writing,
)
from probseq_apps.options import Options
from probseq_apps.settings.common import saved_kind

RESULTS = "results"


class RunFolder:
    """What an experiment keeps: the results of its jobs, each made once.

    Under torchrun every process makes what is not there yet, and the main one writes.

    Args:
        path: of the folder.
        recipe: name of the recipe that the settings came from.
    """

    def __init__(self, path: Path, recipe: str) -> None:
        self.path, self.recipe = path, recipe

    def has(self, name: str) -> bool:
        """Whether results are there."""
        return _there(self.results_file(name))

    def results_file(self, name: str) -> Path:
        """Return the path of results."""
        return self.path / RESULTS / f"{name}.json"

    def once(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return results; make and store them where they are not there yet."""
        file = self.results_file(name)
        if not _there(file):
            found = make()
            if distributed.is_main():
                write_json(file, found)
            distributed.barrier()
        return distributed.broadcast(read_json(file) if distributed.is_main() else {})


def _there(file: Path) -> bool:
    """Whether a file is there for the main process; all of them go the same way."""
    return distributed.broadcast(distributed.is_main() and file.exists())


def default_folder(kind: str, data: str) -> Path:
    """Return `runs/KIND-DATA-TIME`, with the time in UTC."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", data.rpartition("/")[2]).strip("-")
    return Path("runs") / f"{kind}-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def check_folder(options: Options, *, kind: str) -> None:
    """Raise if what should be resumed or deleted is no experiment of this kind."""
    folder = options.run_dir
    if folder is None or not (options.resume or options.overwrite) or not distributed.is_main():
        return
    found = saved_kind(folder)
    if found == kind:
        return
    if options.resume and found is not None:
        raise FileNotFoundError(
            f"{folder} holds an experiment of kind {found}, and none of kind {kind} to resume: "
            "name another folder, or start without resume"
        )
    if options.resume:
        raise FileNotFoundError(
            f"{folder} holds no experiment to resume: name its folder, or start without resume"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise RunExistsError(
            f"{folder} holds files, but no experiment to overwrite: choose an empty or a new folder"
        )


@contextmanager
def open_folder(
    kind: str,
    recipe: str,
    config: Mapping[str, object],
    options: Options,
    *,
    command: str,
    data: str,
    parts: Sequence[str] = (),
) -> Generator[RunFolder]:
    """Open the folder of an experiment for this process alone: a new one, or one to go on with.

    Args:
        kind: of experiment.
        recipe: name of the recipe that the settings came from.
        config: what `config.json` holds beside these two: settings, as plain values.
        options: folder, and whether to resume or to overwrite.
        command: that goes on where a signal stopped the experiment.
        data: name of the data set, for the name of a new folder.
        parts: patterns of folders in it, which go when it is overwritten.

    Raises:
        ConfigMismatchError: the experiment to resume has other settings.
        OSError: the folder is not empty, in use, or cannot be written to.
    """
    folder = distributed.broadcast(options.run_dir or default_folder(kind, data))
    with ExitStack() as stack:
        if distributed.is_main():
            prepare_run_dir(
                folder,
                {"experiment": kind, "recipe": recipe, **config},
                resume=options.resume,
                overwrite=options.overwrite,
                parts=(RESULTS, *parts),
            )
            stack.enter_context(sole_use(folder))
        distributed.barrier()
        stack.enter_context(tell_how_to_resume(command, folder, options))
        yield RunFolder(folder, recipe)


@contextmanager
def tell_how_to_resume(command: str, folder: Path, options: Options) -> Generator[None]:
    """Name the command that goes on after a signal, and the file that a full disk did not take."""
    try:
        yield
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT, EFBIG):
            with writing(Path(error.filename or folder)):
                raise
        raise
    except (SystemExit, KeyboardInterrupt):
        if distributed.is_main():
            hint = resume_command(command, folder, options)
            print(f"stopped; go on with: {hint}", file=sys.stderr)
        raise


def resume_command(command: str, folder: Path, options: Options) -> str:
    """Return the command that goes on; a folder keeps the settings, but not where the data are."""
    words = ["probseq"]
    if (count := distributed.world_size()) > 1:
        words = [*f"torchrun --nproc-per-node {count} -m probseq_apps".split()]
    words += [*command.split(), "--run-dir", str(folder), "--resume"]
    if options.data_dir is not None:
        words += ["--data-dir", str(options.data_dir.resolve())]
    return shlex.join(words)
