"""`probseq bench online`: what online updates cost in time and memory, and what they are beside.

The streams are generated: the time of an update doesn't depend on the values.
"""

import math
import os
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from scipy.linalg import solve_triangular
from torch import Tensor

from ohsvgp import (
    AdamSteps,
    Fading,
    Gaussian,
    LegS,
    LostInformationWarning,
    NegativeBinomial,
    OnlineGP,
    RandomSubset,
    RecurrentFeatures,
)
from ohsvgp import Path as InputPath
from ohsvgp.bases import Advance, Basis
from ohsvgp.integrations.live import LiveStream
from probseq.kernels import RBF, Walk
from probseq_apps.bench import Case, Row, interleaved, one_thread, show, timed
from probseq_apps.bench.fleets import state_rows
from probseq_apps.engine import log
from probseq_apps.settings.bench import BenchOnlineSettings
from probseq_apps.settings.online import METHODS, LiveModel, StreamInfo

# Length and hyperparameters of the thesis' solar series, in ten tasks.
SOLAR, TASKS, LENGTH = 391, 10, 39.0
LENGTHSCALE, _OUTPUTSCALE, _NOISE = 0.40, 0.77, 0.0075
# As many points as the thesis' audio series has, over as many lengthscales.
AUDIO = 9000
FEATURES = 1000
# The thesis learns the inducing points of OSGPR by this many Adam steps at each task, and q(u) of
# counts by so many.
_ITERATIONS, _COUNT_ITERATIONS = 1000, 5000
# First lines of a live stream, and ends of the bins of its histogram in ms.
_FIRST, _ENDS = 20, (1, 2, 4, 8, 16, 32)
_kernel = partial(RBF, 1, lengthscale=LENGTHSCALE, outputscale=_OUTPUTSCALE)

Series = tuple[Tensor, Tensor]


class Sizes(NamedTuple):
    """Sizes of the problems."""

    watched: int  # points of the stream on which memory is watched
    singles: int = 200  # points that are learned one by one where that is timed
    few: int = 5  # Adam steps a task of the shorter run of OSGPR
    more: int = 25  # of the longer one
    early: int = 1_000  # points of the short stream
    late: int = 100_000  # points of the long stream
    predicted: int = 10_000  # inputs that are predicted at once
    counts: int = 600  # points of the stream of counts
    inputs: int = 8_611  # of four dimensions, learned at once
    batched: int = 1_000_000  # points of the stream that comes in 1,000 batches
    answered: int = 1_000  # lines of a live stream
    batches: int = 160  # of the stream on which every basis is watched


def bench_online(settings: BenchOnlineSettings) -> None:
    """Measure, print the table, and write the numbers where asked."""
    sizes = Sizes(settings.long)
    if settings.quick:
        sizes = Sizes(min(500, settings.long), singles=40, few=2, more=6, late=10_000)
        sizes = sizes._replace(
            predicted=1_000,
            counts=100,
            inputs=500,
            batched=10_000,
            answered=40,
            batches=8,
        )
    with one_thread(), warnings.catch_warnings():
        # Speed is measured on streams that are too long for M.
        warnings.simplefilter("ignore", LostInformationWarning)
        rows = measure(sizes, settings.repeats)
    note = (
        f". Generated streams: sines with noise, {LENGTH / LENGTHSCALE:.0f} lengthscales long, RBF "
        f"kernel, LegS basis.\nTimes of {_ITERATIONS:,} and {_COUNT_ITERATIONS:,} Adam steps are "
        f"extrapolated: those of {sizes.few} steps a task plus the others times that of one step.\n"
        "The streaming GP is Bui et al.'s in explicit form, on points that are given; Maddox et "
        "al. take a step\nof Adam on its bound at each task."
    )
    show(rows, settings.repeats, note, settings.json)


def measure(sizes: Sizes, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of everything."""
    solar, audio, singles = stream(SOLAR), stream(AUDIO), sizes.singles
    # The thesis' recurrence for random features, one explicit Euler step a point.
    euler = partial(RecurrentFeatures, num_features=FEATURES, step="euler")

    def in_tasks(basis: Callable[[], Basis], series: Series = solar) -> Case:
        return learning(lambda: _model(basis()), series)

    def task_row(M: int, series: Series, goal: float) -> Row:
        label = f"{len(series[0]):,} points in {TASKS} tasks, M={M}"
        return Row(label, in_tasks(partial(LegS, M), series), "s", goal)

    def single_row(label: str, rebase: str) -> Row:
        first = solar[0][:singles], solar[1][:singles]
        case = learning(lambda: _model(LegS(50), rebase), first, singles)
        return Row(label, case, "ms", 3.0, amount=singles)

    rows = [task_row(50, solar, 0.05), task_row(150, solar, 0.25)]
    rows += [task_row(100, audio, 0.25), task_row(200, audio, 0.6)]
    (fifty,) = rows[0].cases
    nearly = _learn(_model(LegS(100)), (audio[0][:-900], audio[1][:-900]), TASKS - 1)
    batch = timed(lambda: nearly.updated(audio[0][-900:], audio[1][-900:]), gradients=True)
    each = max(singles // 4, 2) - 1
    short, long = grown_model(sizes.early), grown_model(sizes.late)
    early, late = next_points(short, each), next_points(long, each)
    size = state_bytes(short)
    rows += [
        Row("the last 900 points of them, M=100", batch, "ms", 25.0),
        single_row("one point at a time, M=50", "task"),
        single_row('  with rebase="grow:1.05"', "grow:1.05"),
        Row(f"a point after {sizes.early:,} others, M=50", early, "ms", amount=each),
        Row(f"a point after {sizes.late:,} others, M=50", late, "ms", amount=each),
        Row("  late against early", late, goal=1.2, over=early),
        Row(f"state after {sizes.early:,} points, M=50", size, "bytes"),
        Row(f"state after {sizes.late:,} points, M=50", state_bytes(long), "bytes", size),
    ]
    for M in (50, 150):
        window, steps = (window_covariance(basis, solar[0]) for basis in (LegS(M), euler(LegS(M))))
        rows += [
            Row(f"K_uu after {SOLAR} points, M={M}", window, "ms"),
            Row(f"  by {SOLAR} Euler steps, {FEATURES} random features", steps, "ms"),
            Row("  against LegS", steps, goal=100.0, least=True, over=window),
        ]
    recurrence = in_tasks(lambda: euler(LegS(50)))
    rows += [
        Row(f"{SOLAR} points in {TASKS} tasks by that recurrence, M=50", recurrence, "s"),
        Row("  against LegS", recurrence, over=fifty),
    ]
    others = [*prediction_rows(sizes.predicted), *path_rows(sizes.inputs)]
    others += single_rows(singles)
    counts = count_cases(sizes)
    few, more = (
        in_tasks(partial(RandomSubset, 50, learn=AdamSteps(steps=count)))
        for count in (sizes.few, sizes.more)
    )
    cases = [*(case for row in (*rows, *others) for case in row.cases), few, more, *counts]
    seconds = interleaved(dict.fromkeys(cases, repeats))
    step = (seconds[more] - seconds[few]) / (sizes.more - sizes.few)
    osgpr = seconds[few] + (_ITERATIONS - sizes.few) * step
    rows += [
        Row(f"OSGPR, M=50: one Adam step at each of {TASKS} tasks", 1e3 * step, "ms"),
        Row(f"  {_ITERATIONS} steps a task, extrapolated", osgpr, "s"),
        Row("  against LegS", osgpr / seconds[fifty], goal=500.0, least=True),
        *memory_rows(sizes.watched),
        *others,
        *count_rows(sizes, *(seconds[case] for case in counts)),
        *growth_rows(sizes.batches),
        *batched_rows(sizes.batched),
        *state_rows(stream(sizes.answered + _FIRST), _wandering, _FIRST),
        *answer_rows(sizes.answered),
    ]
    return [row.result(seconds) for row in rows]


def memory_rows(count: int) -> list[Row]:
    """Learn a stream point by point and return the rows of the memory that it takes."""
    # LegS takes more nodes up to a hundred lengthscales: both measurements are of longer windows.
    (t, y), gp = stream(count, 20 * LENGTH), _model(LegS(50), "grow:1.05")
    first = max(count // 10, 50)
    looks: list[tuple[int, int | None]] = []
    for place in log.bar(range(count), desc="memory"):
        gp.update(t[place : place + 1], y[place : place + 1])
        if place + 1 in (first, count):  # what the first updates load stays out
            looks.append((state_bytes(gp), _resident_bytes()))
    (early, before), (late, after) = looks
    rows = [
        Row(f"state after {first:,} points one by one", early, "bytes"),
        Row(f"  after {count:,} points", late, "bytes", goal=early),
    ]
    if before is not None and after is not None:
        # The goal is what an allocator may keep.
        grew = after - before
        rows.append(Row("  growth of the process in between", grew, "bytes", goal=2**23))
    return rows


def prediction_rows(count: int) -> list[Row]:
    """Return the rows of many predictions at once, and of the same in numpy."""
    gp = _learn(_model(LegS(100)), stream(AUDIO), TASKS)
    t, _ = stream(count)
    ours, plain = timed(lambda: gp.predict(t)), timed(numpy_predictor(gp, t))
    return [
        Row(f"{count:,} predictions, M=100", ours, "ms"),
        Row("  by the same formulas in numpy", plain, "ms"),
        Row("  against ours", plain, goal=1.0, least=True, over=ours),
    ]


def numpy_predictor(gp: OnlineGP, x: Tensor) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Return the prediction of a model at times x as a function in numpy, given its arrays.

    With L Lᵀ = K_uu and C Cᵀ = I + G, of P = L⁻¹ W k(z, x) and A = C⁻¹ P:

        mean = Pᵀ m,   variance = k(x, x) − Σ P² + Σ A².
    """
    state, kernel = cast("Any", gp.state), cast("RBF", gp.kernel)
    z, t = state.inducing.nodes[:, 0].numpy(), x.numpy()
    W, L = state.inducing.weights.numpy(), state.whitening.root.numpy()
    m, C = state.moments.mean.numpy(), state.moments.root.numpy()
    ell, scale = float(kernel.lengthscale.detach()), float(kernel.outputscale.detach())

    def predict() -> tuple[np.ndarray, np.ndarray]:
        K = scale * np.exp(-0.5 * ((z[:, None] - t) / ell) ** 2)
        P = solve_triangular(L, W @ K, lower=True)
        A = solve_triangular(C, P, lower=True)
        return P.T @ m, scale - (P**2).sum(0) + (A**2).sum(0)

    return predict


def path_rows(count: int) -> list[Row]:
    """Return the rows of a first update along a path through inputs of four dimensions."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = draw(count, 4)
    y = x.sum(-1).sin() + 0.1 * draw(count)

    def path(memory: Literal["features", "inputs"]) -> Case:
        def make() -> OnlineGP:
            return OnlineGP(RBF(4), Gaussian(_NOISE), InputPath(256, memory=memory))

        return learning(make, (x, y), 1)

    label = f"{count:,} inputs of four dimensions at once, M=256"
    return [
        Row(f"{label}: inputs", path("inputs"), "s", 2.0),
        Row("  features", path("features"), "s", 2.0),
    ]


def single_rows(count: int) -> list[Row]:
    """Return the rows of the median and of the slowest of points that come one by one."""
    t, y = (column[:count] for column in stream(SOLAR))

    def each(pick: Callable[[list[float]], float]) -> Case:
        def run() -> float:
            gp = _model(LegS(100), "grow:1.05")
            points = zip(t.split(1), y.split(1), strict=True)
            return pick([timed(partial(gp.update, *point), gradients=True)() for point in points])

        return run

    slowest = each(lambda seconds: quantiles(seconds, n=100, method="inclusive")[98])
    return [
        Row('one point, rebase="grow:1.05", M=100: median', each(median), "ms", 1.0),
        Row("  99th percentile", slowest, "ms"),
    ]


def answer_rows(count: int) -> list[Row]:
    """Return the rows of how long a live stream takes to answer a line and to save its state."""
    (t, y), rows = stream(count + _FIRST), list[Row]()
    lines = [f"{at},{value}" for at, value in zip(t.tolist(), y.tolist(), strict=True)]
    for M in (50, 200):
        with TemporaryDirectory() as folder:
            model = _model(LegS(M), "grow:1.05")
            answers = LiveStream(model, Path(folder) / "state", warmup=_FIRST).follow(lines)
            times = [1e3 * timed(partial(next, answers), gradients=True)() for _ in lines][_FIRST:]
        cuts = quantiles(times, n=100, method="inclusive")
        rows.append(Row(f"a line of a live stream, M={M}: median", cuts[49], "ms"))
        rows += [Row(f"  {share}th percentile", cuts[share - 1], "ms") for share in (90, 99)]
        for low, high in pairwise((0, *_ENDS, math.inf)):
            count = sum(low <= time < high for time in times)
            rows.append(Row(f"  {low} to {high} ms", count, "lines"))
    return rows


def count_cases(sizes: Sizes) -> tuple[Case, Case, Case]:
    """Return the cases of counts in tasks: by natural gradients, few Adam steps, and more."""
    days = torch.arange(float(sizes.counts), dtype=torch.float64)
    rate = 20 + 15 * (days / 15).sin()
    deaths = torch.poisson(rate, generator=torch.Generator().manual_seed(0))

    def case(inference: Literal["natural"] | AdamSteps) -> Case:
        def make() -> OnlineGP:
            kernel = RBF(1, lengthscale=10.0)
            return OnlineGP(kernel, NegativeBinomial(10.0), LegS(15), inference=inference)

        return learning(make, (days, deaths), 5)

    few, more = (case(AdamSteps(steps=count)) for count in (sizes.few, sizes.more))
    return case("natural"), few, more


def count_rows(sizes: Sizes, natural: float, few: float, more: float) -> list[Row]:
    """Return the rows of counts."""
    step = (more - few) / (sizes.more - sizes.few)
    adam = few + (_COUNT_ITERATIONS - sizes.few) * step
    return [
        Row(f"{sizes.counts} counts in 5 tasks, negative binomial, M=15", 1e3 * natural, "ms"),
        Row(f"  by {_COUNT_ITERATIONS:,} Adam steps a task, extrapolated", adam, "s"),
        Row("  against natural gradients", adam / natural, goal=1500.0, least=True),
    ]


def batched_rows(count: int) -> list[Row]:
    """Learn a long stream in 1,000 batches and return the rows of time and memory."""
    (t, y), gp = stream(count, 10 * LENGTH), _model(LegS(50))
    seconds: list[float] = []
    sizes: list[int] = []
    for batch in log.bar(list(zip(t.chunk(1000), y.chunk(1000), strict=True)), desc="batches"):
        seconds.append(timed(partial(gp.update, *batch), gradients=True)())
        sizes.append(state_bytes(gp) if len(seconds) in (200, 1000) else 0)
    early, late = median(seconds[150:250]), median(seconds[-100:])
    return [
        Row(f"{count:,} points in 1,000 batches, M=50: the last ones", 1e3 * late, "ms"),
        Row("  against the 200th", late / early, goal=1.2),
        Row("  state", sizes[-1], "bytes", goal=sizes[199]),
    ]


def growth_rows(count: int) -> list[Row]:
    """Return the rows of state and update of every basis against the length of the stream."""
    # A batch is 10 points and 5 lengthscales long; what the first updates load stays out.
    t, y = stream(10 * count, 5 * LENGTHSCALE * count)
    batches = list(zip(t.chunk(count), y.chunk(count), strict=True))
    looks = sorted({max(count // 4**k, 2) for k in range(4)})
    rows = list[Row]()
    for name, method in METHODS.items():
        if not method.live or method.basis is None:
            continue
        gp = _model(method.basis(LiveModel(num_inducing=100), StreamInfo(10.0)))
        for place, batch in enumerate(batches, 1):
            seconds = timed(partial(gp.update, *batch), gradients=True)()
            if place in looks:
                label = f"{name}, M=100, {place} batches"
                rows += [
                    Row(f"{label}: state", state_bytes(gp), "bytes"),
                    Row("  update", 1e3 * seconds, "ms"),
                ]
    return rows


def stream(count: int, length: float = LENGTH) -> Series:
    """Return two sines with noise, whose points cover a time evenly."""
    t = torch.linspace(0.0, length, count, dtype=torch.float64)
    noise = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return t, 0.7 * (1.1 * t).sin() + 0.5 * (2.9 * t).sin() + math.sqrt(_NOISE) * noise


def _model(basis: Basis, rebase: str = "task") -> OnlineGP:
    return OnlineGP(_kernel(), Gaussian(_NOISE), basis, rebase=rebase)


def _wandering(M: int) -> OnlineGP:
    """Return the kind of model that live streams have by default."""
    kernel = _kernel() + Walk(step=0.1, outputscale=0.1)
    return OnlineGP(kernel, Gaussian(_NOISE), Fading(M))


def _learn(gp: OnlineGP, series: Series, num_tasks: int) -> OnlineGP:
    """Update a model with a series, one task after the other, and return it."""
    for t, y in zip(*(column.tensor_split(num_tasks) for column in series), strict=True):
        gp.update(t, y)
    return gp


def learning(make: Callable[[], OnlineGP], series: Series, num_tasks: int = TASKS) -> Case:
    """Return the case of learning a series in tasks; the model is built outside the clock."""
    return lambda: timed(partial(_learn, make(), series, num_tasks), gradients=True)()


def grown_model(count: int) -> OnlineGP:
    """Return a model of 50 inducing variables that has learned so many points."""
    return _learn(_model(LegS(50)), stream(count), math.ceil(count / 1000))


def next_points(grown: OnlineGP, count: int) -> Case:
    """Return the case of later points that move the window; the model stays as it is."""
    t, y = stream(count + 1, length=1.0)
    # The first takes the model's copy a step on, which keeps the original out of the clock.
    first, rest = (LENGTH + t[:1], y[:1]), (LENGTH + t[1:], y[1:])
    return learning(lambda: grown.updated(*first), rest, count)


def window_covariance(basis: Basis, t: Tensor) -> Case:
    """Return the case of the prior covariance of the inducing variables after a stream."""
    kernel = _kernel().double()
    basis.bind(kernel, torch.Generator().manual_seed(0))

    def work() -> None:
        with torch.no_grad():
            prior = basis.prior(kernel)
            step = Advance(prior, None, t[:, None], float(t[-1] - t[0]))
            basis.advance(step).covariance(prior)

    return timed(work, gradients=True)


def state_bytes(gp: OnlineGP) -> int:
    """Return the bytes of everything that a model remembers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in gp.state_dict().values())


def _resident_bytes() -> int | None:
    # The memory of this process; None where the system doesn't tell.
    statm = Path("/proc/self/statm")
    return (
        int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else None
    )
