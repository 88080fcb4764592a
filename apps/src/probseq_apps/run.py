"""The driver of all workflows, and the folders that it works in."""

import os
import re
import shlex
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from probseq.files import hash_tensors, sha256, sole_use
from probseq_apps.data.names import user_path
from probseq_apps.engine import distributed, files, log, trackers
from probseq_apps.engine.files import DATA_HASH, RunExistsError, may_hold_run, prepare_run_dir
from probseq_apps.executors import LostJobError, Work, check_executor, do_in_parallel, stamp_of
from probseq_apps.experiment import RESULTS, Data, Job, RunFolder, S, Workflow
from probseq_apps.options import Options
from probseq_apps.settings.common import saved_kind


def run(workflow: Workflow[S, Data], settings: S, options: Options, *, recipe: str) -> Path:
    """Do a workflow's jobs, from where it stopped, and write its report.

    Everything that can be refused is refused before anything is written. Under torchrun every
    process does each job, and the main one writes. A `RuntimeError` names a job that failed;
    `SystemExit` follows SIGTERM or SIGINT, after the state is saved.
    """
    torch.set_num_threads(options.threads)
    log.quiet, trackers.chosen = options.quiet, options.log_to
    trackers.check_tracker()
    if workflow.single_process and (count := distributed.world_size()) > 1:
        raise ValueError(
            f"{workflow.command} runs in one process, and torchrun started {count}: "
            f"{workflow.single_process}"
        )
    check_folder(options, kind=workflow.kind)
    check_executor(options)
    data = workflow.load(settings, options)
    distributed.join(torch.device("cpu"))  # unless `load` has joined on the device of the settings
    workflow.check(settings, data)
    with open_folder(workflow, settings, data, options, recipe=recipe) as at:
        if description := workflow.describe(settings, data):
            log.say(f"{description} -> {at.path}")
        results = _do_jobs(workflow, settings, data, at, options)
        report = partial(workflow.report, settings, data, results, at)
        if (text := distributed.main_alone(report)) is not None:
            print(text)
    return at.path


def _do_jobs(
    workflow: Workflow[S, Data], settings: S, data: Data, at: RunFolder, options: Options
) -> dict[Job, dict[str, object]]:
    # Each worker imports and loads what this process has by now.
    results, loading = dict[Job, dict[str, object]](), time.perf_counter() - log.started
    jobs = workflow.jobs(settings)
    if not jobs:
        return {}
    missing = [job for job in jobs if not at.has(job.name)]
    local = options.executor == "local"
    count = min(options.workers or (_default_workers() if local else len(missing)), len(missing))
    if missing and local and (seconds := workflow.seconds(settings, data)):
        total = sum(seconds[job] for job in missing) / count + (loading if count > 1 else 0.0)
        minutes = log.in_minutes(total)
        log.say(f"about {minutes} of {workflow.timed}")
    if len(missing) < len(jobs):
        log.say(f"{len(jobs) - len(missing)} of {len(jobs)} jobs are finished")
    parallel = count > 1 and not workflow.brief and distributed.world_size() == 1
    parallel |= bool(missing) and not local
    with log.jobs_bar(len(jobs), len(jobs) - len(missing)) as bar:
        if parallel:
            bar.set_description_str(f"jobs, {count} at a time")
            workflow.prepare(settings, data, at)
            work = Work(workflow, settings, options, at, Path.cwd(), stamp_of(at))
            do_in_parallel(work, missing, count, bar.update)
        for job in jobs:
            if job in missing and not parallel:
                bar.start(f"{job.row}, seed {job.seed}")
            results[job] = at.once(job.name, partial(workflow.run, settings, data, job, at))
            if job in missing and not parallel:
                bar.update()
    return results


def _default_workers() -> int:
    """Return how many jobs suit this machine: those on a GPU come one after the other."""
    # Those that this process may use, where the system tells.
    limited = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if limited else os.cpu_count() or 1
    return 1 if torch.cuda.is_available() else min(4, max(1, cores // torch.get_num_threads()))


def check_folder(options: Options, *, kind: str) -> None:
    """Raise if what should be resumed or deleted is no experiment of this kind."""
    folder = options.run_dir
    if folder is None or not (options.resume or options.overwrite) or not distributed.is_main():
        return
    saved = saved_kind(folder)
    if options.resume and saved != kind:
        contents = "no experiment"
        if saved is not None:
            contents = f"an experiment of kind {saved}, and none of kind {kind}"
        raise FileNotFoundError(
            f"{folder} holds {contents} to resume: name "
            f"{'its' if saved is None else 'another'} folder, or start without resume"
        )
    if saved != kind and folder.is_dir() and any(folder.iterdir()):
        raise RunExistsError(
            f"{folder} holds files, but no experiment to overwrite: choose an empty or a new folder"
        )


@contextmanager
def open_folder(
    workflow: Workflow[S, Data], settings: S, data: Data, options: Options, *, recipe: str
) -> Generator[RunFolder]:
    """Open the folder of a run for this process alone: a new one, or one to go on with.

    After a signal the command is named that goes on, and the file that a full disk did not take.
    """
    kind, data_name = workflow.kind, workflow.data_name(settings, data)
    name = re.sub(r"[^A-Za-z0-9]+", "-", data_name.rpartition("/")[2]).strip("-")
    default = Path("runs") / f"{kind}-{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = options.run_dir or (_new_folder(default) if distributed.is_main() else default)
    folder = distributed.broadcast(folder)
    with ExitStack() as stack:
        if distributed.is_main():
            config = {"experiment": kind, "recipe": recipe, **workflow.config(settings, data)}
            if digest := data_hash(data_name, data):
                config[DATA_HASH] = digest
            if may_hold_run(folder):  # before it is read: nobody loses the files he works with
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(sole_use(folder))
            prepare_run_dir(
                folder,
                config,
                resume=options.resume,
                overwrite=options.overwrite,
                patterns=(RESULTS, *workflow.folders),
                longer=workflow.longer,
            )
        distributed.barrier()
        try:
            yield RunFolder(folder, recipe)
        except OSError as error:
            if error.errno in files.FULL_DISK:
                error.filename = error.filename or str(folder)
            raise
        except (SystemExit, KeyboardInterrupt, LostJobError):
            if distributed.is_main():
                command = resume_command(workflow.command, folder, options)
                print(f"stopped; go on with: {command}", file=sys.stderr)
            raise


def _new_folder(path: Path) -> Path:
    """Make a folder of a name, or with a number behind where several runs start at once."""
    for name in (path.name, *(f"{path.name}-{number}" for number in range(2, 100))):
        with suppress(FileExistsError):
            path.with_name(name).mkdir(parents=True)
            return path.with_name(name)
    return path


def data_hash(name: str, data: object) -> str:
    """Return the hash of data of one's own, which may change under a run; "" of standard sets."""
    path, images = user_path(name), getattr(data, "data", data)
    if path is None or path.is_file():
        return sha256(path) if path else ""
    tensors, groups = dict[str, torch.Tensor](), [getattr(images, "labels", None) or (), images]
    for number, group in enumerate(groups):
        for split in ("train", "validation", "test"):
            rows = getattr(group, split, ())
            whole = {"": rows} if isinstance(rows, torch.Tensor) else vars(rows) if rows else {}
            tensors |= {f"{number}/{split}/{name}": tensor for name, tensor in whole.items()}
    if not tensors:  # what draws from a model that is stored
        return ""
    return hash_tensors(tensors, repr(getattr(images, "class_names", ())).encode())


def resume_command(command: str, folder: Path, options: Options) -> str:
    """Return the command that goes on; a folder keeps the settings, but not where the data are."""
    count = distributed.world_size()
    start = f"torchrun --nproc-per-node {count} -m probseq_apps" if count > 1 else "probseq"
    words = [*start.split(), *command.split(), "--run-dir", str(folder), "--resume"]
    if options.data_dir is not None:
        words += ["--data-dir", str(options.data_dir.resolve())]
    return shlex.join(words)
