"""`probseq online`: learn a stream task by task, and measure what is remembered."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ohsvgp import (
    Bernoulli,
    ExactGP,
    Gaussian,
    LostInformationWarning,
    NegativeBinomial,
    OnlineGP,
    PivotedCholesky,
    Poisson,
    StudentT,
)
from ohsvgp.likelihoods import Likelihood
from ohsvgp.plots import coefficients_plot
from probseq import metrics
from probseq.errors import CholeskyError
from probseq.kernels import RBF, Kernel, Matern12, Matern32, Matern52
from probseq_apps.data.fetch import download_online
from probseq_apps.data.names import CSV_PREFIX
from probseq_apps.engine.config import derive_seed
from probseq_apps.engine.files import load_arrays, save_arrays
from probseq_apps.experiment import Experiment, Job, Results, by_row, counted
from probseq_apps.experiments.streams import Stream, Task, load_stream
from probseq_apps.folder import RunFolder
from probseq_apps.options import Options
from probseq_apps.report.online import metric_figures, online_report, prediction_figures
from probseq_apps.settings.online import (
    METHODS,
    ONLINE,
    STANDARDISED,
    GPSettings,
    OnlineSettings,
    Place,
    Prior,
)

_KERNELS = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}
_WARM_POINTS, _FIT_POINTS = 20, 500
_START_SHARES = (1.0 / 3.0, 1.0 / 10.0, 1.0 / 30.0)
_SAMPLES = 100  # of a count, for the coverage of thesis Eq. 4.20


class Online(Experiment[dict[int, Stream]]):
    """Methods on a stream, split anew by each seed."""

    kind, command, parts, brief = ONLINE, "online", ("predictions",), True

    def __init__(self, settings: OnlineSettings) -> None:
        self.settings = settings
        self.jobs = [Job(row, seed) for seed in settings.seeds for row in settings.method]
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
        """Raise if the likelihood does not suit the targets."""
        likelihood = make_likelihood(self.settings.model)
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
        train, test = map(sum, stream.sizes())
        return (
            f"{stream.name}: {train:,} points in {len(stream.tasks)} tasks, {test:,} for "
            f"evaluation; {counted(self.settings.method, self.settings.seeds)}"
        )

    def run(self, job: Job, data: dict[int, Stream], at: RunFolder) -> dict[str, Any]:
        """Let a method learn the stream, and return what was measured."""
        if job.row not in self._warm:
            warm_up(job.row, data[self.settings.seeds[0]], self.settings)
            self._warm.add(job.row)
        stream, own, number = data[job.seed], self.settings.model, 1
        steps = own.fit_steps if own.hyperparameters == "online" else None
        records, curves = list[dict[str, Any]](), Curves(stream)
        generator = torch.Generator().manual_seed(derive_seed(job.seed, "samples of counts"))
        try:
            model = build(job.row, stream, own, self._prior(job, stream), job.seed)
            for number, task in enumerate(stream.tasks, 1):
                start = time.perf_counter()
                lost = learn(model, task, steps)
                seconds = time.perf_counter() - start
                each, over = evaluate(model, stream.tasks[:number], generator)
                records.append({"each": each, "over": over, "seconds": seconds, "lost": lost})
                curves.add(model)
        except (ValueError, ArithmeticError, RuntimeError) as error:
            raise RuntimeError(f"{job.row}, seed {job.seed}, task {number}: {error}") from error
        save_arrays(at.path / "predictions" / f"{job.name}.npz", curves.arrays())
        return scores(records, len(stream.tasks))

    def report(self, data: dict[int, Stream], results: Results, at: RunFolder) -> str:
        """Write the report and return it as text."""
        settings, runs = self.settings, by_row(results)
        model, stream = settings.model, data[settings.seeds[0]]
        standardised = model.likelihood in STANDARDISED
        toy = settings.data == "toy" and settings.stream.num_tasks == 2
        train, test = stream.sizes()
        learned = [name for name, own in METHODS.items() if own.learned and name in runs]
        how = f"hyperparameters: {model.hyperparameters}"
        kernel = f"M = {model.num_inducing}; {model.kernel} kernel; {how}"
        rate = f"{model.learn_steps:,} of rate {model.learn_rate:g} lengthscales"
        steps = f"Adam steps a task on inducing points: {rate}"
        unit = " (standardised)" if standardised else ""
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
                "train": train,
                "test": test,
                "notes": list(stream.notes),
            },
            opening=(
                f"{sum(train):,} points in {len(train)} tasks, {sum(test):,} for evaluation; "
                f"input: {stream.input_label}, target: {stream.target_label}."
            ),
            facts=[kernel, *([f"{steps} ({', '.join(learned)})"] if learned else [])],
            seconds="all updates",
            figures=lambda: {
                **metric_figures(runs, standardised=standardised),
                **prediction_figures(
                    kept(self, data, at),
                    (stream.input_label, f"{stream.target_label}{unit}"),
                ),
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


def kept(experiment: Any, data: Any, at: RunFolder) -> dict[str, dict[str, np.ndarray]]:
    """Return what each method keeps of its first seed, made anew where a file was deleted."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for row in experiment.settings.method:
        job = Job(row, min(experiment.settings.seeds))
        file = at.path / experiment.parts[-1] / f"{job.name}.npz"
        if not file.exists():
            experiment.run(job, data, at)
        found[row] = {name: array.numpy() for name, array in load_arrays(file).items()}
    return found


def learn(model: OnlineGP | ExactGP, task: Task, refit_steps: int | None) -> float:
    """Absorb a task; return what its update lost of the old knowledge, in nats."""
    if isinstance(model, ExactGP):
        model.update(task.x, task.y)
        model.predict(task.x[-1:])  # pays for the factorisation, so that its time is seen
        return 0.0
    if refit_steps is not None and model.state is not None:
        model.fit_hyperparameters(task.x, task.y, steps=refit_steps)
    with warnings.catch_warnings():
        # The report tells what is lost, for every task.
        warnings.simplefilter("ignore", LostInformationWarning)
        return float(model.update(task.x, task.y).lost_information.sum())


def inducing_points(model: OnlineGP | ExactGP) -> Tensor | None:
    """Return inducing points in the units of the inputs, where there are any."""
    if isinstance(model, ExactGP) or model.state is None:
        return None
    points, clock = model.state.inducing.points, model.clock
    if points is None or clock is None or not model.of_time:
        return points
    return points + float(clock.origin)


def build(
    method: str,
    stream: Stream,
    settings: GPSettings,
    prior: tuple[Kernel, Likelihood],
    seed: int,
) -> OnlineGP | ExactGP:
    """Return a model that has seen nothing yet."""
    kernel, likelihood = prior
    basis, place = METHODS[method].basis, Place()
    options: dict[str, Any] = {"alpha": settings.alpha, "seed": seed}
    if basis is None and isinstance(likelihood, Gaussian):
        return ExactGP(kernel, likelihood)
    if stream.dim == 1:
        first, last = stream.interval
        # Unless it is given, the window is as long as the first task.
        window = settings.window or float(stream.tasks[0].x.max()) - first
        place, options["t0"] = Place(window, first, last), first
    if basis is None:
        raise ValueError(f"method {method!r} has no inducing variables")
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
        return make_kernel(settings, stream.dim), make_likelihood(settings)
    task, generator = stream.tasks[0], torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(task.x), generator=generator)[:_FIT_POINTS].sort().values
    best, most, failure = None, -math.inf, None
    for lengthscale in starting_lengthscales(stream, settings.lengthscale):
        start = replace(settings, lengthscale=lengthscale)
        prior = make_kernel(start, stream.dim), make_likelihood(start)
        # With as many inducing points as points: the exact evidence.
        model = OnlineGP(*prior, PivotedCholesky(len(chosen)), seed=seed)
        x, y, steps = task.x[chosen], task.y[..., chosen], settings.fit_steps
        try:
            evidence = model.fit_hyperparameters(x, y, steps=steps).after
        except CholeskyError as error:
            failure = error
            continue
        if best is None or evidence > most:
            best, most = prior, evidence
    if best is None:
        raise failure or RuntimeError("there is no lengthscale to start from")
    return best


def starting_lengthscales(stream: Stream, given: float) -> tuple[float, ...]:
    """Return where the search for a lengthscale starts.

    Settings count in units that are known for the standard sets. The times of a file of one's own
    may be anything, such as seconds since 1970, and far from its optimum the evidence is flat:
    there, shares of the first task's span are tried too, none below its median gap.
    """
    times = stream.tasks[0].x
    if not stream.name.startswith(CSV_PREFIX) or times.ndim > 1 or len(times) < 2:
        return (given,)
    span = float(times.max() - times.min())
    gap = float(times.sort().values.diff().median())
    shares = (max(span * share, gap) for share in _START_SHARES)
    return tuple(dict.fromkeys((*(start for start in shares if start > 0.0), given)))


def make_kernel(settings: Prior, dim: int) -> Kernel:
    """Return the prior covariance, with a lengthscale for each dimension."""
    scale = _double(settings.lengthscale).expand(dim)
    return _KERNELS[settings.kernel](
        dim, lengthscale=scale, outputscale=_double(settings.outputscale)
    )


def make_likelihood(settings: Prior) -> Likelihood:
    """Return the observation model."""
    noise, dispersion = _double(settings.noise), _double(settings.dispersion)
    made: dict[str, Callable[[], Likelihood]] = {
        "gaussian": lambda: Gaussian(noise),
        "student-t": lambda: StudentT(scale=noise.sqrt()),
        "poisson": Poisson,
        "negative-binomial": lambda: NegativeBinomial(dispersion),
        "bernoulli": Bernoulli,
    }
    return made[settings.likelihood]()


def _double(value: float) -> Tensor:
    """A number that keeps its digits: a Python float would pass through float32."""
    return torch.tensor(value, dtype=torch.float64)


def evaluate(
    model: OnlineGP | ExactGP, tasks: Sequence[Task], generator: torch.Generator
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return metrics on the test part of each task, and on all of them together.

    For counts also coverage, with counts drawn by the generator; for classes accuracy in place of
    errors.
    """
    likelihood = model.likelihood
    y = torch.cat([task.test_y for task in tasks], -1)
    latent = model.predict(torch.cat([task.test_x for task in tasks]))
    counts = isinstance(likelihood, Poisson | NegativeBinomial)
    with torch.no_grad():
        density = likelihood.predictive_log_prob(latent.mean, latent.variance, y)
        if not bool(density.isfinite().all()):
            raise ArithmeticError("nlpd of the predictions is not finite")
        mean = likelihood.predictive_moments(latent.mean, latent.variance).mean
        samples = mean[None]
        if counts:
            noise = torch.randn(_SAMPLES, *y.shape, dtype=y.dtype, generator=generator)
            f = latent.mean + latent.variance.clamp(min=0.0).sqrt() * noise
            samples = likelihood.sample(f, generator=generator)

    def measure(part: slice) -> dict[str, float]:
        own, truth = mean[..., part].flatten(), y[..., part].flatten()
        found = {"nlpd": -density[..., part].mean()}
        if isinstance(likelihood, Bernoulli):
            found["accuracy"] = ((own > 0.5) == (truth > 0.5)).double().mean()
        else:
            found["rmse"] = metrics.rmse(own, truth)
        if counts:
            drawn = samples[..., part].flatten(1)
            found["ece"] = metrics.coverage_calibration_error(drawn, truth)
        return {name: float(value) for name, value in found.items()}

    ends = torch.tensor([0, *(len(task.test_x) for task in tasks)]).cumsum(0).tolist()
    return [measure(slice(*pair)) for pair in pairwise(ends)], measure(slice(None))


def scores(records: Sequence[Mapping[str, Any]], num_tasks: int) -> dict[str, Any]:
    """Return what one run measured, in the form of `report.json`.

    A record is of a task: metrics on each task so far, over all of them, seconds, and nats lost.
    """
    over = {name: [one["over"][name] for one in records] for name in records[0]["over"]}

    def row(name: str, each: Sequence[Mapping[str, float]]) -> list[float | None]:
        return [*(found[name] for found in each), *[None] * (num_tasks - len(each))]

    return {
        "tasks": num_tasks,
        "matrix": {name: [row(name, one["each"]) for one in records] for name in over},
        "over_tasks": over,
        "seconds": [one["seconds"] for one in records],
        "lost_information": [one["lost"] for one in records],
    }


class Curves:
    """Predictions on the stream's grid after each task, as arrays for figures."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._found: dict[str, list[Tensor]] = {}
        self._inducing: list[Tensor | None] = []

    def add(self, model: OnlineGP | ExactGP) -> None:
        """Add the predictions after one more task: probabilities, or mean and deviation of y."""
        self._inducing.append(inducing_points(model))
        if self._stream.grid is None:
            return
        latent = model.predict(self._stream.grid)
        with torch.no_grad():
            law = model.likelihood.predictive_moments(latent.mean, latent.variance)
        arrays = {"mean": law.mean, "sd": law.variance.clamp(min=0.0).sqrt()}
        if isinstance(model.likelihood, Bernoulli):
            arrays = {"probability": law.mean}
        for name, values in arrays.items():
            self._found.setdefault(name, []).append(values)

    def arrays(self) -> dict[str, Tensor]:
        """Return grid, predictions, data and, where they are points, inducing points by name.

        Where early tasks have fewer inducing points than later ones, NaN fill the rows.
        """
        stream, of_time = self._stream, self._stream.dim == 1
        arrays: dict[str, Tensor] = {}
        if stream.grid is not None:
            arrays["t" if of_time else "grid"] = stream.grid
        arrays |= {name: torch.stack(values) for name, values in self._found.items()}
        for part, (x, y) in {"train": (0, 1), "test": (2, 3)}.items():
            numbers = [torch.full((len(task[x]),), k) for k, task in enumerate(stream.tasks)]
            arrays[f"{part}_{'t' if of_time else 'x'}"] = torch.cat([t[x] for t in stream.tasks])
            arrays[f"{part}_y"] = torch.cat([task[y] for task in stream.tasks], -1)
            arrays[f"{part}_task"] = torch.cat(numbers)
        points = [found for found in self._inducing if found is not None]
        if points and len(points) == len(self._inducing):
            padded = pad_sequence(points, batch_first=True, padding_value=math.nan)
            arrays["inducing"] = padded[..., 0] if of_time else padded
        return arrays


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
