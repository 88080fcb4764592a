"""The driver of all experiments."""

from functools import partial
from pathlib import Path

import torch

from probseq_apps.engine import distributed, log
from probseq_apps.experiment import Data, Experiment, Job
from probseq_apps.folder import RunFolder, check_folder, open_folder
from probseq_apps.options import Options


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
    with open_folder(
        experiment.kind,
        recipe,
        experiment.config,
        options,
        command=experiment.command,
        parts=experiment.parts,
        data=experiment.data_name,
    ) as at:
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
