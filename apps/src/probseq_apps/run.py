"""The driver of all experiments, and the folders that it works in."""

import re
import shlex
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from errno import EDQUOT, EFBIG, ENOSPC
from functools import partial
from pathlib import Path
from typing import Any

import torch

from probseq_apps.engine import distributed, log
from probseq_apps.engine.files import RunExistsError, prepare_run_dir, sole_use, writing
from probseq_apps.experiment import RESULTS, Data, Experiment, Job, RunFolder
from probseq_apps.options import Options
from probseq_apps.settings.common import saved_kind


def run(experiment: Experiment[Data], options: Options, *, recipe: str) -> Path:
    """Do an experiment's jobs, from where it stopped, and write its report.

    Everything that can be refused is refused before anything is written. Under torchrun every
    process does each job, and the main one writes.

    Args:
        experiment: what to do.
        options: files and running.
        recipe: name of the recipe that the settings came from, for the report.

    Returns:
        The experiment's folder.

    Raises:
        ValueError: data, settings and folder don't go together.
        OSError: a file cannot be read or written.
        RuntimeError: a job failed; the message names it.
        SystemExit: SIGTERM or SIGINT came, and the state is saved.
    """
    torch.set_num_threads(options.threads)
    log.quiet = options.quiet
    check_folder(options, kind=experiment.kind)
    data = experiment.load(options)
    distributed.join(torch.device("cpu"))  # unless the experiment has joined on its own device
    experiment.check(data)
    with open_folder(experiment, options, recipe=recipe) as at:
        if told := experiment.describe(data):
            log.say(f"{told} -> {at.path}")
        results = _do_jobs(experiment, data, at)
        if distributed.is_main():
            print(experiment.report(data, results, at))
        distributed.barrier()
    return at.path


def _do_jobs(
    experiment: Experiment[Data], data: Data, at: RunFolder
) -> dict[Job, dict[str, object]]:
    results: dict[Job, dict[str, object]] = {}
    jobs = experiment.jobs
    # Jobs that take long have bars of their own.
    with log.bar(total=len(jobs), unit=" runs", disable=None if experiment.brief else True) as bar:
        for number, job in enumerate(jobs, 1):
            bar.set_description_str(f"{job.row}, seed {job.seed}")
            if not experiment.brief:
                state = ": finished before" if at.has(job.name) else ""
                log.say(f"[{number}/{len(jobs)}] {job.name}{state}")
            results[job] = at.once(job.name, partial(experiment.run, job, data, at))
            bar.update()
    return results


def check_folder(options: Options, *, kind: str) -> None:
    """Raise if what should be resumed or deleted is no experiment of this kind."""
    folder = options.run_dir
    if folder is None or not (options.resume or options.overwrite) or not distributed.is_main():
        return
    found = saved_kind(folder)
    if options.resume and found != kind:
        held = "no experiment"
        if found is not None:
            held = f"an experiment of kind {found}, and none of kind {kind}"
        raise FileNotFoundError(
            f"{folder} holds {held} to resume: name "
            f"{'its' if found is None else 'another'} folder, or start without resume"
        )
    if found != kind and folder.is_dir() and any(folder.iterdir()):
        raise RunExistsError(
            f"{folder} holds files, but no experiment to overwrite: choose an empty or a new folder"
        )


@contextmanager
def open_folder(
    experiment: Experiment[Any], options: Options, *, recipe: str
) -> Generator[RunFolder]:
    """Open the folder of an experiment for this process alone: a new one, or one to go on with.

    After a signal the command is named that goes on, and the file that a full disk did not take.

    Raises:
        ConfigMismatchError: the experiment to resume has other settings.
        OSError: the folder is not empty, in use, or cannot be written to.
    """
    kind = experiment.kind
    name = re.sub(r"[^A-Za-z0-9]+", "-", experiment.data_name.rpartition("/")[2]).strip("-")
    default = Path("runs") / f"{kind}-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = distributed.broadcast(options.run_dir or default)
    with ExitStack() as stack:
        if distributed.is_main():
            prepare_run_dir(
                folder,
                {"experiment": kind, "recipe": recipe, **experiment.config},
                resume=options.resume,
                overwrite=options.overwrite,
                parts=(RESULTS, *experiment.parts),
            )
            stack.enter_context(sole_use(folder))
        distributed.barrier()
        try:
            yield RunFolder(folder, recipe)
        except OSError as error:
            if error.errno in (ENOSPC, EDQUOT, EFBIG):
                with writing(Path(error.filename or folder)):
                    raise
            raise
        except (SystemExit, KeyboardInterrupt):
            if distributed.is_main():
                command = resume_command(experiment.command, folder, options)
                print(f"stopped; go on with: {command}", file=sys.stderr)
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
