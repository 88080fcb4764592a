"""`probseq online`: learn a stream task by task."""

import copy
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ohsvgp import AdamSteps, ExactGP, Gaussian, OnlineGP, PivotedCholesky
from ohsvgp.beyond.prior import PRIOR_OPTIONS, make_mean, make_prior
from ohsvgp.likelihoods import Likelihood
from ohsvgp.plots import coefficients_plot, prediction_figures
from ohsvgp.tasks import (
    GridPrediction,
    Task,
    concatenate_tasks,
    curves,
    evaluate,
    learn,
    predict_on_grid,
    scores,
)
from probseq.kernels import Kernel
from probseq.metrics import rmse
from probseq_apps.data.fetch import download_online
from probseq_apps.data.names import CSV_PREFIX
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import load_arrays, save_arrays
from probseq_apps.experiment import Job, Results, RunFolder, Workflow, by_row, counted
from probseq_apps.experiments.streams import TaskStream, load_stream
from probseq_apps.options import Options
from probseq_apps.report.online import online_report
from probseq_apps.settings.online import (
    METHODS,
    ONLINE,
    STANDARDISED,
    GPSettings,
    OnlineComparison,
    OnlineSettings,
    StreamInfo,
)

PREDICTIONS = "predictions"
_WARM_POINTS, _FIT_POINTS = 20, 500


class Streams:
    """A stream as each seed sees it, and what is made once for all jobs of a process."""

    def __init__(self, by_seed: Mapping[int, TaskStream]) -> None:
        self.by_seed = by_seed
        # By seed, and whether they are of ovff, which has another kernel than all others.
        self.priors: dict[tuple[int, bool], tuple[Kernel, Likelihood]] = {}
        self.warm = set[str]()  # methods that have paid for what comes once only


def load(settings: OnlineSettings, options: Options) -> Streams:
    """Read the stream, as each seed sees it."""
    if options.download:
        if options.data_dir is None:
            raise ValueError("download needs data_dir: name the folder for the files")
        download_online(settings.data, options.data_dir)
    folder, seeds = options.data_dir, settings.seeds
    return Streams({seed: load_stream(settings, folder, seed=seed) for seed in seeds})


def check(settings: OnlineSettings, streams: Streams) -> None:
    """Raise if the settings don't go together, or the likelihood does not suit the targets."""
    settings.check_complete()
    _, likelihood = prior_of(settings.model)
    for stream in streams.by_seed.values():
        try:
            for task in stream.tasks:
                likelihood.check_targets(torch.cat([task.y, task.test_y], -1))
        except ValueError as error:
            raise ValueError(
                f"likelihood {settings.model.likelihood} does not suit "
                f"{stream.target_label!r} of data set {stream.name!r}: {error}"
            ) from error


def jobs_of(settings: OnlineComparison) -> list[Job]:
    """Return a job for each method and seed, all methods of a seed together."""
    return [Job(row, seed) for seed in settings.seeds for row in settings.method]


def describe(settings: OnlineSettings, streams: Streams) -> str:
    """Return a line about data and jobs."""
    stream = streams.by_seed[settings.seeds[0]]
    return f"{stream.name}: {extent(stream.tasks)}; {counted(settings.method, settings.seeds)}"


def learn_stream(
    settings: OnlineSettings, streams: Streams, job: Job, at: RunFolder
) -> dict[str, Any]:
    """Let a method learn the stream, and return what was measured."""
    stream, model_settings = streams.by_seed[job.seed], settings.model
    if at_once := METHODS[job.row].at_once:
        steps = model_settings.learn_steps * len(stream.tasks)
        model_settings = replace(model_settings, learn_steps=steps)
    if job.row not in streams.warm:
        warm_up(job.row, streams.by_seed[settings.seeds[0]], settings)
        streams.warm.add(job.row)
    refit = model_settings.fit_steps if settings.follows(job.row) else None
    records, predictions = list[dict[str, Any]](), list[GridPrediction]()
    generator = torch.Generator().manual_seed(derive_seed(job.seed, "samples of counts"))
    with naming(job, 1):
        prior = prior_for(job, streams, settings.model)
        model = build(job.row, stream, model_settings, prior, job.seed)
    for number, task in enumerate(stream.tasks, 1):
        with naming(job, number):
            start, seconds, lost = time.perf_counter(), 0.0, 0.0
            if number == 1 or not at_once:
                lost = learn(model, concatenate_tasks(stream.tasks) if at_once else task, refit)
                seconds = time.perf_counter() - start
            each, over = evaluate(model, stream.tasks[:number], generator)
            records.append({"each": each, "over": over, "seconds": seconds, "lost": lost})
            predictions.append(predict_on_grid(model, stream.grid))
    file = at.path / PREDICTIONS / f"{job.name}.npz"
    save_arrays(file, curves(stream.tasks, stream.grid, predictions))
    return scores(records, len(stream.tasks))


def report(settings: OnlineSettings, streams: Streams, results: Results, at: RunFolder) -> str:
    """Write the report and return it as text."""
    model, runs = settings.model, by_row(results)
    stream = streams.by_seed[settings.seeds[0]]
    standard = model.likelihood in STANDARDISED
    toy = settings.data == "toy" and settings.stream.num_tasks == 2
    learned = [name for name, method in METHODS.items() if method.learned and name in runs]
    fixed = model.hyperparameters == "fixed"
    how = ["first task's", "given"][fixed]
    if refitted := [name for name in runs if settings.follows(name)]:
        how = f"{how}, then every task's ({', '.join(refitted)})"
    steps = f"{model.learn_steps:,} of rate {model.learn_rate:g} ({', '.join(learned)})"
    label = f"{stream.target_label}{' (standardised)' if standard else ''}"

    def figures(names: Mapping[str, str]) -> dict[str, Figure]:
        """Draw the predictions of the best and the worst method, and of all."""
        stored = first_seed_arrays(settings, at, PREDICTIONS)
        arrays, labels = {t: stored[n] for n, t in names.items()}, (stream.input_label, label)
        drawings = prediction_figures(arrays, labels)
        if "fits" in drawings:
            ends = {title: arrays[title] for title in (next(iter(arrays)), [*arrays][-1])}
            drawings["forecast"] = prediction_figures(ends, labels)["fits"]
        return {**drawings, **({"toy": coefficients_plot()} if toy else {})}

    return online_report(
        ONLINE,
        at.recipe,
        runs,
        titles={name: METHODS[name].title for name in runs},
        settings=settings.to_dict(),
        data={
            "name": stream.name,
            "input": stream.input_label,
            "target": stream.target_label,
            **sizes(stream.tasks),
            "notes": list(stream.notes),
        },
        opening=(
            f"{extent(stream.tasks)}; input: {stream.input_label}, target: {stream.target_label}."
        ),
        facts=[
            f"M = {model.num_inducing}; {model.kernel} kernel; hyperparameters: {how}",
            *([f"Adam steps a task: {steps}"] if learned else []),
        ],
        naive=(
            f"{'last value' if stream.dim == 1 else 'nearest point'} of all data",
            [naive_score(streams.by_seed[s].tasks, model.likelihood) for s in settings.seeds],
        ),
        standardised=standard,
        story=("forecast", "boundaries") if stream.grid is not None else ("over-tasks",),
        figures=figures,
    ).write(at.path)


def naive_score(tasks: Sequence[Task], likelihood: str = "gaussian") -> float:
    """Return RMSE, of labels accuracy, where test points have the value learned just before them.

    Points of several dimensions have that of the nearest one.
    """
    whole = concatenate_tasks(tasks)
    if whole.x.ndim == 1:
        times, order = whole.x.sort()
        chosen = order[(torch.searchsorted(times, whole.test_x) - 1).clamp(min=0)]
    else:
        chosen = torch.cdist(whole.test_x, whole.x).argmin(1)
    values = whole.y[..., chosen]
    if likelihood == "bernoulli":
        return float((values == whole.test_y).double().mean())
    return float(rmse(values.flatten(), whole.test_y.flatten()))


WORKFLOW = Workflow(
    kind=ONLINE,
    command="online",
    single_process="a stream is learned in its order",
    folders=(PREDICTIONS,),
    brief=True,
    jobs=jobs_of,
    load=load,
    check=check,
    describe=describe,
    run=learn_stream,
    report=report,
)


def first_seed_arrays(
    settings: OnlineComparison, at: RunFolder, name: str
) -> dict[str, dict[str, np.ndarray]]:
    """Return what each method has stored of its first seed in a folder of the run."""
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for job in (Job(row, min(settings.seeds)) for row in settings.method):
        file = at.made_by(job, at.path / name / f"{job.name}.npz")
        arrays[job.row] = {key: array.numpy() for key, array in load_arrays(file).items()}
    return arrays


def prior_for(job: Job, streams: Streams, settings: GPSettings) -> tuple[Kernel, Likelihood]:
    """Return a copy of the prior that a method has for the stream of a seed, for it to change."""
    key = (job.seed, job.row == "ovff")
    if key not in streams.priors:
        stream = streams.by_seed[job.seed]
        streams.priors[key] = estimate(stream, settings, fourier=key[1], seed=job.seed)
    return copy.deepcopy(streams.priors[key])


@contextmanager
def naming(job: Job, task: int) -> Generator[None]:
    """Name method, seed and task in an error."""
    try:
        yield
    except (ValueError, ArithmeticError, RuntimeError) as error:
        raise RuntimeError(f"{job.row}, seed {job.seed}, task {task}: {error}") from error


def sizes(tasks: Sequence[Task]) -> dict[str, list[int]]:
    """Return the points of each task to learn, and for evaluation."""
    return {"train": [len(task.x) for task in tasks], "test": [len(task.test_x) for task in tasks]}


def extent(tasks: Sequence[Task], what: str = "points") -> str:
    """Return how many there are, in words."""
    train, test = map(sum, sizes(tasks).values())
    return f"{train:,} {what} in {len(tasks)} tasks, {test:,} for evaluation"


def build(
    method: str,
    stream: TaskStream,
    settings: GPSettings,
    prior: tuple[Kernel, Likelihood],
    seed: int,
) -> OnlineGP | ExactGP:
    """Return a model that has seen nothing yet."""
    kernel, likelihood = prior
    basis, info = METHODS[method].basis, None
    adam = AdamSteps(steps=settings.learn_steps, learning_rate=settings.learn_rate)
    if basis is None:
        assert isinstance(likelihood, Gaussian)
        return ExactGP(kernel, likelihood)
    if stream.dim == 1:
        first, last = stream.interval
        # Unless it is given, the window is as long as the first task.
        window = settings.window or float(stream.tasks[0].x.max()) - first
        info = StreamInfo(window, first, last)
    return OnlineGP(
        kernel,
        likelihood,
        basis(settings, info or StreamInfo()),
        mean=make_mean(trend=settings.trend, season=settings.season),
        t0=info and info.start,
        alpha=settings.alpha,
        inference=adam if METHODS[method].learned == "posterior" else "natural",
        seed=seed,
    )


def estimate(
    stream: TaskStream, settings: GPSettings, *, fourier: bool, seed: int
) -> tuple[Kernel, Likelihood]:
    """Return the prior of a stream: as given, or of greatest evidence on the first task."""
    if fourier:
        lengthscale = settings.ovff_lengthscale or settings.lengthscale
        settings = replace(settings, kernel="matern52", lengthscale=lengthscale)
    has_lengthscale = not fourier or settings.ovff_lengthscale is not None
    if settings.hyperparameters == "fixed" and has_lengthscale:
        return prior_of(settings, stream.dim)
    task, generator = stream.tasks[0], torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(task.x), generator=generator)[:_FIT_POINTS].sort().values
    x, y = task.x[chosen], task.y[..., chosen]
    # Settings count in units that are known for the standard sets alone, of which the papers'
    # evidence has no limits.
    of_user = stream.name.startswith(CSV_PREFIX)
    prior = prior_of(settings, stream.dim)
    mean = make_mean(trend=settings.trend, season=settings.season)
    # With as many inducing points as points: the exact evidence.
    model = OnlineGP(*prior, PivotedCholesky(len(x)), mean=mean, seed=seed)
    restarts = 2 if of_user else 0
    model.fit_hyperparameters(x, y, steps=settings.fit_steps, limited=of_user, restarts=restarts)
    return prior


def prior_of(settings: GPSettings, dim: int = 1) -> tuple[Kernel, Likelihood]:
    """Return covariance, with a lengthscale for each dimension, and observation model."""
    values = settings.to_dict()
    return make_prior(**{name: values[name] for name in PRIOR_OPTIONS}, dim=dim)


def warm_up(method: str, stream: TaskStream, settings: OnlineSettings) -> None:
    """Pay for what comes once only: late imports, first Adam steps, tables that are kept.

    Otherwise the first seed's first tasks would be as much slower. The inducing variables are as
    many as in the run, since some tables depend on their number.
    """
    once, follows = replace(settings.model, learn_steps=2, fit_steps=1), settings.follows(method)
    if not follows:  # they are found before the clock runs
        once = replace(once, hyperparameters="fixed")
    cut = slice(_WARM_POINTS)
    tasks = [
        Task(task.x[cut], task.y[..., cut], task.test_x[:1], task.test_y[..., :1])
        for task in stream.tasks[:2]
    ]
    small = stream._replace(tasks=tuple(tasks))
    # What fails on a few points may do well on all; if not, the run itself says so.
    with suppress(ValueError, ArithmeticError, RuntimeError):
        prior = estimate(small, once, fourier=method == "ovff", seed=0)
        model = build(method, small, once, prior, 0)
        for task in tasks:
            learn(model, task, 1 if follows else None)
