"""`probseq bench online`: the time and memory of online updates, and of learned inducing points.

The streams are generated: the time of an update doesn't depend on the values.
"""

import math
import warnings
from collections.abc import Callable
from functools import partial
from statistics import quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ohsvgp import AdamSteps, Gaussian, LegS, LostInformationWarning, OnlineGP, RandomSubset
from ohsvgp.bases import Basis
from probseq.kernels import RBF
from probseq_apps.bench import Case, Timing, interleaved, show, single_thread, timed
from probseq_apps.settings.bench import BenchOnlineSettings

# Points, tasks, length and hyperparameters of the thesis' solar series.
SOLAR, TASKS, LENGTH = 391, 10, 39.0
LENGTHSCALE, _OUTPUTSCALE, _NOISE = 0.40, 0.77, 0.0075
# As many points as the thesis' audio series has, over as many lengthscales.
AUDIO = 9000
# The thesis learns the inducing points of OSGPR by this many Adam steps at each task.
_ITERATIONS = 1000

Series = tuple[Tensor, Tensor]


class StreamSizes(NamedTuple):
    """Sizes of the problems."""

    singles: int = 200  # points that are learned one by one
    few: int = 5  # Adam steps a task of the shorter run of OSGPR
    more: int = 25  # of the longer one
    early: int = 1_000  # points of the short stream
    late: int = 100_000  # points of the long stream


QUICK = StreamSizes(singles=40, few=2, more=6, late=10_000)


def bench_online(settings: BenchOnlineSettings) -> None:
    """Measure, and print the table."""
    sizes = QUICK if settings.quick else StreamSizes()
    with single_thread(), warnings.catch_warnings():
        # Speed is measured on streams that are too long for M.
        warnings.simplefilter("ignore", LostInformationWarning)
        rows = measure_online(sizes, settings.repeats)
    note = (
        f". Generated streams: sines with noise, {LENGTH / LENGTHSCALE:.0f} lengthscales long, RBF "
        f"kernel, LegS basis.\nThe time of {_ITERATIONS:,} Adam steps is extrapolated: that of "
        f"{sizes.few} steps a task plus the others times that of one step."
    )
    show(rows, settings.repeats, note)


def measure_online(sizes: StreamSizes, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of everything."""
    solar, audio = stream(SOLAR), stream(AUDIO)

    def in_tasks(basis: Callable[[], Basis], series: Series = solar) -> Case:
        return learning(lambda: _model(basis()), series)

    rows = [
        Timing(f"{len(s[0]):,} points in {TASKS} tasks, M={M}", in_tasks(partial(LegS, M), s), "ms")
        for M, s in ((50, solar), (150, solar), (100, audio), (200, audio))
    ]
    (fifty,) = rows[0].cases
    singles, each = sizes.singles, max(sizes.singles // 4, 2) - 1
    first = solar[0][:singles], solar[1][:singles]
    single = learning(lambda: _model(LegS(50)), first, singles)
    short, long = grown_model(sizes.early), grown_model(sizes.late)
    early, late = next_points(short, each), next_points(long, each)
    growing = partial(growing_point, first)
    rows += [
        Timing("one point at a time, M=50", single, "ms", amount=singles),
        Timing('  with rebase="grow:1.05", M=100: median', partial(growing, 50), "ms"),
        Timing("  99th percentile", partial(growing, 99), "ms"),
        Timing(f"a point after {sizes.early:,} others, M=50", early, "ms", amount=each),
        Timing(f"  after {sizes.late:,}, against it", late, over=early),
        Timing(f"state after {sizes.early:,} points, M=50", state_bytes(short), "bytes"),
        Timing(f"  after {sizes.late:,}", state_bytes(long), "bytes"),
    ]
    few, more = (
        in_tasks(partial(RandomSubset, 50, learn=AdamSteps(steps=count)))
        for count in (sizes.few, sizes.more)
    )
    cases = [*(case for row in rows for case in row.cases), few, more]
    seconds = interleaved(dict.fromkeys(cases, repeats))
    step = (seconds[more] - seconds[few]) / (sizes.more - sizes.few)
    osgpr = seconds[few] + (_ITERATIONS - sizes.few) * step
    rows += [
        Timing(f"OSGPR, M=50, {_ITERATIONS:,} Adam steps a task, extrapolated", osgpr, "s"),
        Timing("  against LegS", osgpr / seconds[fifty]),
    ]
    return [row.result(seconds) for row in rows]


def stream(count: int, length: float = LENGTH) -> Series:
    """Return two sines with noise, whose points cover a time evenly."""
    t = torch.linspace(0.0, length, count, dtype=torch.float64)
    noise = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return t, 0.7 * (1.1 * t).sin() + 0.5 * (2.9 * t).sin() + math.sqrt(_NOISE) * noise


def _model(basis: Basis, rebase: str = "task") -> OnlineGP:
    kernel = RBF(1, lengthscale=LENGTHSCALE, outputscale=_OUTPUTSCALE)
    return OnlineGP(kernel, Gaussian(_NOISE), basis, rebase=rebase)


def _learn(gp: OnlineGP, series: Series, num_tasks: int) -> OnlineGP:
    """Update a model with a series, one task after the other, and return it."""
    for t, y in zip(*(column.tensor_split(num_tasks) for column in series), strict=True):
        gp.update(t, y)
    return gp


def learning(make: Callable[[], OnlineGP], series: Series, num_tasks: int = TASKS) -> Case:
    """Return the case of learning a series in tasks; the model is built outside the clock."""
    return lambda: timed(partial(_learn, make(), series, num_tasks), gradients=True)()


def growing_point(series: Series, share: int) -> float:
    """Return a percentile of the seconds of points that come one by one to a growing window."""
    gp = _model(LegS(100), "grow:1.05")
    points = zip(*(column.split(1) for column in series), strict=True)
    seconds = [timed(partial(gp.update, *point), gradients=True)() for point in points]
    return quantiles(seconds, n=100, method="inclusive")[share - 1]


def grown_model(count: int) -> OnlineGP:
    """Return a model of 50 inducing variables that has learned so many points."""
    return _learn(_model(LegS(50)), stream(count), math.ceil(count / 1000))


def next_points(grown: OnlineGP, count: int) -> Case:
    """Return the case of later points that move the window; the model stays as it is."""
    t, y = stream(count + 1, length=1.0)
    # The first takes the model's copy a step on, which keeps the original out of the clock.
    first, others = (LENGTH + t[:1], y[:1]), (LENGTH + t[1:], y[1:])
    return learning(lambda: grown.updated(*first), others, count)


def state_bytes(gp: OnlineGP) -> int:
    """Return the bytes of everything that a model remembers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in gp.state_dict().values())
