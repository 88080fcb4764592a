"""The driver of all experiments."""

from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from probseq_apps.engine import distributed
from probseq_apps.experiment import Data, Experiment, Job
from probseq_apps.folder import RunFolder, check_folder, open_folder
from probseq_apps.options import Options


def run(experiment: Experiment[Data], options: Options, *, recipe: str) -> Path:
    """Do an experiment's jobs, from where it stopped, and write its report.

    Everything that can be refused is refused before anything is written. Under torchrun every rank
    runs the jobs, and the main one writes.

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
    main = distributed.is_main()
    if options.run_dir is not None and main:
        check_folder(options.run_dir, options, experiment=experiment.kind)
    data = experiment.load(options)
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
        if main and (told := experiment.describe(data)):
            print(f"{told} -> {at.path}", flush=True)
        results = _do_jobs(experiment, data, at)
        if main:
            print(experiment.report(data, results, at))
    return at.path


def _do_jobs(
    experiment: Experiment[Data], data: Data, at: RunFolder
) -> dict[Job, dict[str, object]]:
    results: dict[Job, dict[str, object]] = {}
    jobs = experiment.jobs
    # The bar of brief jobs is wiped at its end, and has no place in a file: None hides it there.
    hidden = None if experiment.brief else True
    with tqdm(jobs, unit=" runs", leave=False, disable=hidden) as bar:
        for number, job in enumerate(bar, 1):
            bar.set_description_str(f"{job.row}, seed {job.seed}")
            if not experiment.brief and distributed.is_main():
                state = ": finished before" if at.has(job.name) else ""
                print(f"[{number}/{len(jobs)}] {job.name}{state}", flush=True)
            results[job] = at.once(job.name, partial(experiment.run, job, data, at))
    return results
