"""`probseq online` and `online live`: learn a stream task by task, or line by line."""

import copy
import sys
import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from typing import Any

import numpy as np
import torch

from ohsvgp import AdamSteps, ExactGP, Gaussian, OnlineGP, Refit
from ohsvgp.beyond.prior import PRIOR_OPTIONS, fit_prior, make_mean, make_prior
from ohsvgp.integrations.live import LiveStream
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
    starting_lengthscales,
)
from probseq.kernels import Kernel
from probseq_apps.data.fetch import download_online
from probseq_apps.data.names import CSV_PREFIX
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import load_arrays, save_arrays
from probseq_apps.experiment import Data, Experiment, Job, Results, RunFolder, by_row, counted
from probseq_apps.experiments.streams import Stream, load_stream
from probseq_apps.options import Options
from probseq_apps.report.online import online_report
from probseq_apps.settings.online import (
    METHODS,
    ONLINE,
    STANDARDISED,
    GPSettings,
    LiveModel,
    LiveSettings,
    OnlineSettings,
    Place,
    Prior,
)

_WARM_POINTS, _FIT_POINTS = 20, 500
_REBASE = "grow:1.05"


class TaskExperiment(Experiment[Data]):
    """Methods that learn tasks one after the other, anew for each seed.

    The last of `parts` holds what they keep for pictures.
    """

    brief = True

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.jobs = [Job(row, seed) for seed in settings.seeds for row in settings.method]

    def kept(self, data: Data, at: RunFolder) -> dict[str, dict[str, np.ndarray]]:
        """Return what each method keeps of its first seed, made anew where a file was deleted."""
        found: dict[str, dict[str, np.ndarray]] = {}
        for row in self.settings.method:
            job = Job(row, min(self.settings.seeds))
            file = at.path / self.parts[-1] / f"{job.name}.npz"
            if not file.exists():
                self.run(job, data, at)
            found[row] = {name: array.numpy() for name, array in load_arrays(file).items()}
        return found


class Online(TaskExperiment[dict[int, Stream]]):
    """Methods on a stream, split anew by each seed."""

    kind, command, parts = ONLINE, "online", ("predictions",)

    def __init__(self, settings: OnlineSettings) -> None:
        super().__init__(settings)
        self._warm: set[str] = set()
        self._priors: dict[tuple[int, bool], tuple[Kernel, Likelihood]] = {}

    def load(self, options: Options) -> dict[int, Stream]:
        """Read the stream, as each seed sees it."""
        settings = self.settings
        if options.download:
            if options.data_dir is None:
                raise ValueError("download needs data_dir: name the folder for the files")
            download_online(settings.data, options.data_dir)
        return {seed: load_stream(settings, options.data_dir, seed=seed) for seed in settings.seeds}

    def check(self, data: dict[int, Stream]) -> None:
        """Raise if the settings don't go together, or the likelihood does not suit the targets."""
        self.settings.check_given()
        _, likelihood = prior_of(self.settings.model)
        for stream in data.values():
            try:
                for task in stream.tasks:
                    likelihood.check_targets(torch.cat([task.y, task.test_y], -1))
            except ValueError as error:
                raise ValueError(
                    f"likelihood {self.settings.model.likelihood} does not suit "
                    f"{stream.target_label!r} of data set {stream.name!r}: {error}"
                ) from error

    def describe(self, data: dict[int, Stream]) -> str:
        """Return a line about data and jobs."""
        stream = data[self.settings.seeds[0]]
        compared = counted(self.settings.method, self.settings.seeds)
        return f"{stream.name}: {extent(stream.tasks)}; {compared}"

    def run(self, job: Job, data: dict[int, Stream], at: RunFolder) -> dict[str, Any]:
        """Let a method learn the stream, and return what was measured."""
        settings, stream, at_once = self.settings.model, data[job.seed], METHODS[job.row].at_once
        if at_once:
            steps = settings.learn_steps * len(stream.tasks)
            settings = replace(settings, learn_steps=steps)
        if job.row not in self._warm:
            warm_up(job.row, data[self.settings.seeds[0]], self.settings)
            self._warm.add(job.row)
        refit = settings.fit_steps if settings.hyperparameters == "online" else None
        records, seen = list[dict[str, Any]](), list[GridPrediction]()
        generator = torch.Generator().manual_seed(derive_seed(job.seed, "samples of counts"))
        with naming(job, 1):
            model = build(job.row, stream, settings, self._prior(job, stream), job.seed)
        for number, task in enumerate(stream.tasks, 1):
            with naming(job, number):
                start, seconds, lost = time.perf_counter(), 0.0, 0.0
                if number == 1 or not at_once:
                    lost = learn(model, concatenate_tasks(stream.tasks) if at_once else task, refit)
                    seconds = time.perf_counter() - start
                each, over = evaluate(model, stream.tasks[:number], generator)
                records.append({"each": each, "over": over, "seconds": seconds, "lost": lost})
                seen.append(predict_on_grid(model, stream.grid))
        save_arrays(
            at.path / "predictions" / f"{job.name}.npz", curves(stream.tasks, stream.grid, seen)
        )
        return scores(records, len(stream.tasks))

    def report(self, data: dict[int, Stream], results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        settings, runs = self.settings, by_row(results)
        model, stream = settings.model, data[settings.seeds[0]]
        standard = model.likelihood in STANDARDISED
        toy = settings.data == "toy" and settings.stream.num_tasks == 2
        learned = [name for name, own in METHODS.items() if own.learned and name in runs]
        how = f"hyperparameters: {model.hyperparameters}"
        steps = f"{model.learn_steps:,} of rate {model.learn_rate:g} ({', '.join(learned)})"
        label = f"{stream.target_label}{' (standardised)' if standard else ''}"
        report = online_report(
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
                f"{extent(stream.tasks)}; input: {stream.input_label}, target: "
                f"{stream.target_label}."
            ),
            facts=[
                f"M = {model.num_inducing}; {model.kernel} kernel; {how}",
                *([f"Adam steps a task: {steps}"] if learned else []),
            ],
            seconds="all updates",
            standardised=standard,
            figures=lambda: {
                **prediction_figures(self.kept(data, at), (stream.input_label, label)),
                **({"toy": coefficients_plot()} if toy else {}),
            },
        )
        return report.write(at.path)

    def _prior(self, job: Job, stream: Stream) -> tuple[Kernel, Likelihood]:
        """A method's prior, its own to change: ovff has another kernel than all others."""
        key = (job.seed, job.row == "ovff")
        if key not in self._priors:
            self._priors[key] = estimate(stream, self.settings.model, fourier=key[1], seed=job.seed)
        return copy.deepcopy(self._priors[key])


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
    method: str, stream: Stream, settings: GPSettings, prior: tuple[Kernel, Likelihood], seed: int
) -> OnlineGP | ExactGP:
    """Return a model that has seen nothing yet."""
    kernel, likelihood = prior
    basis, place = METHODS[method].basis, Place()
    options: dict[str, Any] = {"alpha": settings.alpha, "seed": seed}
    if METHODS[method].learned == "posterior":
        rate = settings.learn_rate
        options["inference"] = AdamSteps(steps=settings.learn_steps, learning_rate=rate)
    if basis is None:
        assert isinstance(likelihood, Gaussian)
        return ExactGP(kernel, likelihood)
    if stream.dim == 1:
        first, last = stream.interval
        # Unless it is given, the window is as long as the first task.
        window = settings.window or float(stream.tasks[0].x.max()) - first
        place, options["t0"] = Place(window, first, last), first
    options["mean"] = make_mean(trend=settings.trend, season=settings.season)
    return OnlineGP(kernel, likelihood, basis(settings, place), **options)


def estimate(
    stream: Stream, settings: GPSettings, *, fourier: bool, seed: int
) -> tuple[Kernel, Likelihood]:
    """Return the prior of a stream: as given, or of greatest evidence on the first task."""
    if fourier:
        own = settings.ovff_lengthscale or settings.lengthscale
        settings = replace(settings, kernel="matern52", lengthscale=own)
    known = not fourier or settings.ovff_lengthscale is not None
    if settings.hyperparameters == "fixed" and known:
        return prior_of(settings, stream.dim)
    task, generator = stream.tasks[0], torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(task.x), generator=generator)[:_FIT_POINTS].sort().values
    scales = [settings.lengthscale]
    if stream.name.startswith(CSV_PREFIX) and stream.dim == 1:
        # Settings count in units that are known for the standard sets alone.
        scales = dict.fromkeys((*starting_lengthscales(task.x), *scales))
    starts = [replace(settings, lengthscale=scale) for scale in scales]
    priors = [prior_of(start, stream.dim) for start in starts]
    x, y = task.x[chosen], task.y[..., chosen]
    mean = make_mean(trend=settings.trend, season=settings.season)
    # The papers' evidence has no limits.
    options: Any = {"mean": mean, "limited": stream.name.startswith(CSV_PREFIX)}
    return fit_prior(priors, x, y, steps=settings.fit_steps, seed=seed, **options)


def prior_of(
    settings: Prior, dim: int = 1, season: Sequence[float] = ()
) -> tuple[Kernel, Likelihood]:
    """Return covariance, with a lengthscale for each dimension, and observation model."""
    values = settings.to_dict()
    return make_prior(**{name: values[name] for name in PRIOR_OPTIONS}, dim=dim, season=season)


def warm_up(method: str, stream: Stream, settings: OnlineSettings) -> None:
    """Pay for what comes once only: late imports, first Adam steps, tables that are kept.

    Otherwise the first seed's first tasks would be as much slower. The inducing variables are as
    many as in the run, since some tables depend on their number.
    """
    once = replace(settings.model, learn_steps=2, fit_steps=1)
    if once.hyperparameters == "first":  # they are found before the clock runs
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
            learn(model, task, 1 if once.hyperparameters == "online" else None)


# -- online live ----------------------------------------------------------------------------------


def live_command(settings: LiveSettings) -> None:
    """Follow the stream to its end, and print what answers each line."""
    torch.set_num_threads(settings.threads)
    given, model, whole = settings.lines, settings.model, settings.replay or bool(settings.lines)
    # What is no UTF-8 is refused in the answer to its line; a mark before the first is passed over.
    reading: Any = {"encoding": settings.encoding, "errors": "replace"}
    if given is None and isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(**reading)
    with (
        nullcontext(sys.stdin) if given is None else given.open(**reading) as lines,
        warnings.catch_warnings(),
    ):
        # A plain line, without a place in our sources.
        tell = partial(print, file=sys.stderr, flush=True)
        warnings.showwarning = lambda message, *_: tell(f"warning: {message}")
        names = ("horizon", "step", "separator", "decimal", "widen")
        options: Any = {name: getattr(settings, name) for name in names} | {"warmup": model.warmup}
        stream = LiveStream(
            build_live_model(model), settings.state, settings=model.to_dict(), **options
        )
        for answer in stream.follow(lines, every=settings.every, replay=whole):
            print(answer, flush=True)


def build_live_model(settings: LiveModel) -> OnlineGP:
    """Return a model that has seen nothing yet."""
    basis, when = METHODS[settings.method].basis, settings.hyperparameters
    assert basis is not None
    return OnlineGP(
        *prior_of(settings, season=settings.season),
        basis(settings, Place(settings.window)),
        mean=make_mean(trend=settings.trend, season=()),
        t0=settings.t0,
        rebase="task" if settings.method == "fading" else _REBASE,
        time_unit=settings.time_unit,
        refit=None if when == "fixed" else Refit(when),
    )
