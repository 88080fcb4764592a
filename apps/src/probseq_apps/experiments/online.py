"""`probseq online`: learn a stream task by task, and measure what is remembered."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from probseq_apps.data.online_files import download_online
from probseq_apps.experiments.folders import check_folder, default_folder
from probseq_apps.experiments.online_evaluation import Curves, Results, evaluate, metric_names
from probseq_apps.experiments.online_methods import Priors, build_learner, make_likelihood
from probseq_apps.experiments.online_report import make_report
from probseq_apps.experiments.online_settings import ONLINE, OnlineSettings, online_config
from probseq_apps.experiments.online_tasks import Stream, Task, load_stream
from probseq_apps.experiments.settings import RunOptions
from probseq_apps.experiments.stored import save_arrays
from probseq_apps.experiments.task_runs import (
    RESULTS,
    counted,
    make_parts,
    prepare_folder,
    read_results,
    results_file,
    write_results,
)
from probseq_apps.training.runs import sole_use
from probseq_apps.training.schedule import derive_seed

PREDICTIONS = "predictions"
_PARTS = (RESULTS, PREDICTIONS)
_WARM_POINTS = 20


def online(settings: OnlineSettings, options: RunOptions, *, recipe: str) -> Path:
    """Run the comparison and write its report.

    Everything that can be refused is refused before anything is written.

    Args:
        settings: what to compare.
        options: files and running.
        recipe: name of the recipe that the settings came from, for the report.

    Returns:
        The experiment's folder.

    Raises:
        ValueError: data, settings and folder don't go together.
        OSError: a file cannot be read or written.
        RuntimeError: a method failed; the message names it.
    """
    torch.set_num_threads(options.threads)
    if options.run_dir is not None:
        check_folder(options.run_dir, options, experiment=ONLINE)
    if options.download:
        if options.data_dir is None:
            raise ValueError("download needs data_dir: name the folder for the files")
        download_online(settings.data, options.data_dir)
    streams = {seed: load_stream(settings, options.data_dir, seed=seed) for seed in settings.seeds}
    for stream in streams.values():
        _check_targets(settings, stream)
    folder = options.run_dir or default_folder(ONLINE, settings.data)
    config = online_config(recipe, settings)
    prepare_folder(folder, config, options, experiment=ONLINE, parts=_PARTS)
    with sole_use(folder):
        stream = streams[settings.seeds[0]]
        _announce(settings, stream, folder)
        _run_all(settings, streams, folder)
        runs = read_results(folder, settings.method, settings.seeds)
        print(make_report(folder, settings, stream, runs, recipe=recipe).write(folder))
    return folder


def run_method(
    method: str, stream: Stream, settings: OnlineSettings, priors: Priors, *, seed: int
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Let a method learn a stream task by task.

    Args:
        method: its name.
        stream: data and split.
        settings: of the comparison.
        priors: hyperparameters to start from.
        seed: of the method's own draws.

    Returns:
        What was measured, and the predictions for plots.

    Raises:
        RuntimeError: the method failed; the message names the task.
    """
    likelihood = settings.model.likelihood
    names = metric_names(likelihood)
    results, curves = Results(names, len(stream.tasks)), Curves(stream, likelihood)
    generator = torch.Generator().manual_seed(derive_seed(seed, "samples of counts"))
    number = 1
    try:
        learner = build_learner(method, stream, settings, priors, seed=seed)
        for number, task in enumerate(stream.tasks, 1):
            start = time.perf_counter()
            lost = learner.learn(task.x, task.y)
            seconds = time.perf_counter() - start
            each, over = evaluate(learner, stream.tasks[:number], names, generator=generator)
            results.add(each, over, seconds=seconds, lost=lost)
            curves.add(learner)
    except (ValueError, ArithmeticError, RuntimeError) as error:
        raise RuntimeError(f"{method}, seed {seed}, task {number}: {error}") from error
    return results.to_dict(), curves.arrays()


def _check_targets(settings: OnlineSettings, stream: Stream) -> None:
    likelihood = make_likelihood(settings.model)
    try:
        for task in stream.tasks:
            likelihood.check_targets(torch.cat([task.y, task.test_y]))
    except ValueError as error:
        raise ValueError(
            f"likelihood {settings.model.likelihood} does not suit {stream.target_label!r} of data "
            f"set {stream.name!r}: {error}"
        ) from error


def _run_all(settings: OnlineSettings, streams: dict[int, Stream], folder: Path) -> None:
    make_parts(folder, _PARTS)
    jobs = [
        (seed, method)
        for seed in settings.seeds
        for method in settings.method
        if not results_file(folder, method, seed).exists()
    ]
    for method in dict.fromkeys(method for _, method in jobs):
        _warm_up(method, streams[settings.seeds[0]], settings)
    priors: dict[int, Priors] = {}
    with tqdm(jobs, unit=" runs", leave=False, disable=None) as bar:
        for seed, method in bar:
            bar.set_description_str(f"{method}, seed {seed}")
            stream = streams[seed]
            own = priors.setdefault(seed, Priors(stream, settings.model, seed=seed))
            found, arrays = run_method(method, stream, settings, own, seed=seed)
            save_arrays(folder / PREDICTIONS / f"{method}-seed{seed}.npz", arrays)
            write_results(folder, method, seed, found)


def _warm_up(method: str, stream: Stream, settings: OnlineSettings) -> None:
    """Pay for what comes once only: late imports, first Adam steps, tables that are kept.

    Otherwise the first seed's first tasks would be as much slower. The inducing variables are as
    many as in the run, since some tables depend on their number.

    Args:
        method: its name.
        stream: whose first two tasks are cut to a few points.
        settings: of the comparison.
    """
    once = replace(settings.model, learn_steps=2, fit_steps=1)
    if once.hyperparameters == "first":  # they are found before the clock runs
        once = replace(once, hyperparameters="fixed")
    parts = [
        Task(task.x[:_WARM_POINTS], task.y[:_WARM_POINTS], task.test_x[:1], task.test_y[:1])
        for task in stream.tasks[:2]
    ]
    small = replace(stream, tasks=tuple(parts))
    # What fails on a few points may do well on all; if not, the run itself says so.
    with suppress(ValueError, ArithmeticError, RuntimeError):
        priors = Priors(small, once, seed=0)
        learner = build_learner(method, small, replace(settings, model=once), priors, seed=0)
        for task in parts:
            learner.learn(task.x, task.y)


def _announce(settings: OnlineSettings, stream: Stream, folder: Path) -> None:
    train = sum(len(task.y) for task in stream.tasks)
    test = sum(len(task.test_y) for task in stream.tasks)
    print(
        f"{stream.name}: {train:,} points in {len(stream.tasks)} tasks, {test:,} for evaluation; "
        f"{counted(settings.method, settings.seeds)} -> {folder}",
        flush=True,
    )
