"""`probseq online`: learn a stream task by task, and measure what is remembered."""

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from probseq_apps.data.fetch import download_online
from probseq_apps.engine.schedule import derive_seed
from probseq_apps.experiment import Job, Results, by_row, counted
from probseq_apps.experiments.online_evaluation import Curves, evaluate, metric_names
from probseq_apps.experiments.online_evaluation import Results as Measured
from probseq_apps.experiments.online_methods import Priors, build_learner, make_likelihood
from probseq_apps.experiments.online_report import make_report
from probseq_apps.experiments.online_settings import ONLINE, OnlineSettings
from probseq_apps.experiments.online_tasks import Stream, Task, load_stream
from probseq_apps.experiments.stored import save_arrays
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options

_WARM_POINTS = 20


class Online:
    """Methods on a stream, split anew by each seed.

    Args:
        settings: what to compare.
    """

    kind, command, parts, brief = ONLINE, "online", ("predictions",), True

    def __init__(self, settings: OnlineSettings) -> None:
        self.settings = settings
        self.jobs = [Job(row, seed) for seed in settings.seeds for row in settings.method]
        self._warm: set[str] = set()
        self._priors: dict[int, Priors] = {}

    def load(self, options: Options) -> dict[int, Stream]:
        """Read the stream, as each seed sees it."""
        settings = self.settings
        if options.download:
            if options.data_dir is None:
                raise ValueError("download needs data_dir: name the folder for the files")
            download_online(settings.data, options.data_dir)
        return {seed: load_stream(settings, options.data_dir, seed=seed) for seed in settings.seeds}

    def check(self, data: dict[int, Stream]) -> None:
        """Raise if the likelihood does not suit the targets."""
        likelihood = make_likelihood(self.settings.model)
        for stream in data.values():
            try:
                for task in stream.tasks:
                    likelihood.check_targets(torch.cat([task.y, task.test_y]))
            except ValueError as error:
                raise ValueError(
                    f"likelihood {self.settings.model.likelihood} does not suit "
                    f"{stream.target_label!r} of data set {stream.name!r}: {error}"
                ) from error

    def describe(self, data: dict[int, Stream]) -> str:
        """Return a line about data and jobs."""
        stream = data[self.settings.seeds[0]]
        train = sum(len(task.y) for task in stream.tasks)
        test = sum(len(task.test_y) for task in stream.tasks)
        return (
            f"{stream.name}: {train:,} points in {len(stream.tasks)} tasks, {test:,} for "
            f"evaluation; {counted(self.settings.method, self.settings.seeds)}"
        )

    def run(self, job: Job, data: dict[int, Stream], at: RunFolder) -> dict[str, Any]:
        """Let a method learn the stream, and return what was measured."""
        settings, stream = self.settings, data[job.seed]
        if job.row not in self._warm:
            _warm_up(job.row, data[settings.seeds[0]], settings)
            self._warm.add(job.row)
        priors = self._priors.setdefault(job.seed, Priors(stream, settings.model, seed=job.seed))
        found, arrays = run_method(job.row, stream, settings, priors, seed=job.seed)
        save_arrays(at.path / "predictions" / f"{job.name}.npz", arrays)
        return found

    def report(self, data: dict[int, Stream], results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        stream = data[self.settings.seeds[0]]
        runs = by_row(results)
        return make_report(at.path, self.settings, stream, runs, recipe=at.recipe).write(at.path)


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
    results, curves = Measured(names, len(stream.tasks)), Curves(stream, likelihood)
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
