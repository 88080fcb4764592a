"""`probseq bench online`: what online updates cost in time and memory, and what they are beside.

The streams are generated: the time of an update doesn't depend on the values.
"""

import math
import re
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ohsvgp import (
    AdamSteps,
    Gaussian,
    LegS,
    LostInformationWarning,
    OnlineGP,
    RandomSubset,
    RecurrentFeatures,
)
from ohsvgp.bases import Advance, Basis
from probseq.kernels import RBF
from probseq_apps.bench import Case, Row, interleaved, one_thread, show, timed
from probseq_apps.engine import log
from probseq_apps.settings.bench import BenchOnlineSettings

# Length and hyperparameters of the thesis' solar series, in ten tasks.
SOLAR, TASKS, LENGTH = 391, 10, 39.0
LENGTHSCALE, _OUTPUTSCALE, _NOISE = 0.40, 0.77, 0.0075
# As many points as the thesis' audio series has, over as many lengthscales.
AUDIO = 9000
FEATURES = 1000
# The thesis learns the inducing points of OSGPR by this many Adam steps at each task.
_ITERATIONS = 1000
_COMPARED = (50, 150)
_kernel = partial(RBF, 1, lengthscale=LENGTHSCALE, outputscale=_OUTPUTSCALE)


class Sizes(NamedTuple):
    """How much is run."""

    watched: int  # points of the stream on which memory is watched
    singles: int = 200  # points that are learned one by one where that is timed
    few: int = 5  # Adam steps a task of the shorter run of OSGPR
    more: int = 25  # of the longer one
    early: int = 1_000  # points of the short stream
    late: int = 100_000  # points of the long stream


def bench_online(settings: BenchOnlineSettings) -> None:
    """Measure, print the table, and write the numbers where asked."""
    sizes = Sizes(settings.long)
    if settings.quick:
        sizes = Sizes(min(500, settings.long), singles=40, few=2, more=6, late=10_000)
    with one_thread(), warnings.catch_warnings():
        # Speed is measured on streams that are too long for M.
        warnings.simplefilter("ignore", LostInformationWarning)
        rows = measure(sizes, settings.repeats)
    note = (
        f"cpu, one thread, process time, medians of {settings.repeats} runs in turns. Generated "
        f"streams: sines with noise, {LENGTH / LENGTHSCALE:.0f} lengthscales long, RBF kernel, "
        f"LegS basis.\nOSGPR's time is extrapolated: that of {sizes.few} Adam steps a task plus "
        f"{_ITERATIONS - sizes.few} times the time of one step."
    )
    show(rows, note, settings.json)


def measure(sizes: Sizes, repeats: int) -> list[dict[str, Any]]:
    """Return the rows of everything."""
    grown = {count: grown_model(count) for count in (sizes.early, sizes.late)}
    (early, a), (late, b) = ((f"{n:,}", state_bytes(model)) for n, model in grown.items())
    each, singles = max(sizes.singles // 4, 2), sizes.singles
    # The thesis' recurrence for random features, one explicit Euler step a point.
    euler = partial(RecurrentFeatures, num_features=FEATURES, step="euler")
    solar, audio = stream(SOLAR), stream(AUDIO)

    def tasks(M: int, name: str, series: tuple[Tensor, Tensor], goal: float) -> Row:
        label = f"{len(series[0]):,} points in {TASKS} tasks, M={M}"
        return Row(label, f"{name}-{M}", in_tasks(partial(LegS, M), series), "s", goal)

    def one_by_one(rebase: str) -> Case:
        first = solar[0][:singles], solar[1][:singles]
        return lambda: _learn(_model(LegS(50), rebase), first, singles) / singles

    rows = [
        tasks(50, "solar", solar, 0.05),
        tasks(150, "solar", solar, 0.25),
        tasks(100, "audio", audio, 0.25),
        tasks(200, "audio", audio, 0.6),
        Row("the last 900 points of them, M=100", "batch", last_task(audio), "ms", 25.0),
        Row("one point at a time, M=50", "move", one_by_one("task"), "ms", 3.0),
        Row('  with rebase="grow:1.05"', "grow", one_by_one("grow:1.05"), "ms", 3.0),
        Row(
            f"a point after {early} others, M=50",
            "early",
            next_points(grown[sizes.early], each),
            "ms",
        ),
        Row(
            f"a point after {late} others, M=50", "late", next_points(grown[sizes.late], each), "ms"
        ),
        Row("  late against early", "late / early", goal=1.2),
        Row(f"state after {early} points, M=50", a, unit="bytes"),
        Row(f"state after {late} points, M=50", b, unit="bytes", goal=a),
    ]
    for M in _COMPARED:
        window, steps = (window_covariance(basis, solar[0]) for basis in (LegS(M), euler(LegS(M))))
        name = f"  by {SOLAR} Euler steps, {FEATURES} random features"
        rows += [
            Row(f"K_uu after {SOLAR} points, M={M}", f"window-{M}", window, "ms"),
            Row(name, f"euler-{M}", steps, "ms"),
            Row("  against LegS", f"euler-{M} / window-{M}", goal=100.0, least=True),
        ]
    recurrence = in_tasks(lambda: euler(LegS(50)), solar)
    rows += [
        Row(f"{SOLAR} points in {TASKS} tasks by that recurrence, M=50", "euler", recurrence, "s"),
        Row("  against LegS", "euler / solar-50"),
        Row(f"OSGPR, M=50: one Adam step at each of {TASKS} tasks", "step", unit="ms"),
        Row(f"  {_ITERATIONS} steps a task, extrapolated", "osgpr", unit="s"),
        Row("  against LegS", "osgpr / solar-50", goal=500.0, least=True),
        *memory_rows(sizes.watched),
    ]
    cases = {str(row.value): row.case for row in rows if row.case is not None}
    for n in (sizes.few, sizes.more):
        cases[f"adam-{n}"] = in_tasks(lambda n=n: RandomSubset(50, learn=AdamSteps(steps=n)), solar)
    found = interleaved(cases, dict.fromkeys(cases, repeats))
    few, more = found[f"adam-{sizes.few}"], found[f"adam-{sizes.more}"]
    found["step"] = (more - few) / (sizes.more - sizes.few)
    found["osgpr"] = few + (_ITERATIONS - sizes.few) * found["step"]
    return [row.found(found) for row in rows]


def memory_rows(count: int) -> list[Row]:
    """Learn a stream point by point and return the rows of what is kept."""
    t, y = stream(count)
    gp = _model(LegS(50), "grow:1.05")
    first = max(count // 10, 50)
    early, resident = 0, None
    for place in log.bar(range(count), desc="memory"):
        gp.update(t[place : place + 1], y[place : place + 1])
        if place + 1 == first:
            # What the first updates load stays out.
            early, resident = state_bytes(gp), _resident_bytes()
    after = _resident_bytes()
    rows = [
        Row(f"state after {first:,} points one by one", early, unit="bytes"),
        Row(f"  after {count:,} points", state_bytes(gp), unit="bytes", goal=early),
    ]
    if resident is not None and after is not None:
        # The goal is what an allocator may keep.
        grew = after - resident
        rows.append(Row("  growth of the process in between", grew, unit="bytes", goal=2**23))
    return rows


def stream(count: int, length: float = LENGTH) -> tuple[Tensor, Tensor]:
    """Return two sines with noise, whose points cover a time evenly."""
    t = torch.linspace(0.0, length, count, dtype=torch.float64)
    noise = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return t, 0.7 * (1.1 * t).sin() + 0.5 * (2.9 * t).sin() + math.sqrt(_NOISE) * noise


def _model(basis: Basis, rebase: str = "task") -> OnlineGP:
    return OnlineGP(_kernel(), Gaussian(_NOISE), basis, rebase=rebase)


def _learn(gp: OnlineGP, series: tuple[Tensor, Tensor], parts: int) -> float:
    """Return the seconds of learning a series in so many parts, one after the other."""
    t, y = series
    pairs = list(zip(t.tensor_split(parts), y.tensor_split(parts), strict=True))
    start = time.process_time()
    for part in pairs:
        gp.update(*part)
    return time.process_time() - start


def in_tasks(basis: Callable[[], Basis], series: tuple[Tensor, Tensor]) -> Case:
    """Time all of a series in ten tasks."""
    return lambda: _learn(_model(basis()), series, TASKS)


def last_task(series: tuple[Tensor, Tensor]) -> Case:
    """Time the last of ten tasks, again and again."""
    t, y = series
    size = len(t) // TASKS
    grown = _model(LegS(100))
    _learn(grown, (t[:-size], y[:-size]), TASKS - 1)
    return timed(lambda: grown.updated(t[-size:], y[-size:]), gradients=True)


def grown_model(count: int) -> OnlineGP:
    """Return a model of 50 inducing variables that has learned so many points."""
    gp = _model(LegS(50))
    _learn(gp, stream(count), math.ceil(count / 1000))
    return gp


def next_points(grown: OnlineGP, count: int) -> Case:
    """Time a point that comes after all others and moves the window; the model stays as it is."""
    t, y = stream(count, length=1.0)
    # The first takes the model's copy a step on, which keeps the original out of the clock.
    first, rest = (LENGTH + t[:1], y[:1]), (LENGTH + t[1:], y[1:])
    return lambda: _learn(grown.updated(*first), rest, count - 1) / (count - 1)


def window_covariance(basis: Basis, t: Tensor) -> Case:
    """Time the prior covariance of the inducing variables after a stream, from nothing."""
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
    status = Path("/proc/self/status")
    found = re.search(r"VmRSS:\s+(\d+)", status.read_text("ascii")) if status.exists() else None
    return None if found is None else 1024 * int(found[1])
