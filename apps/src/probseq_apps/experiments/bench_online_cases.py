"""What `probseq bench online` times: streams, models, and updates of them.

A case makes its model outside the clock and gives the seconds of what is timed, in the process'
own time.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm, trange

from ohsvgp import AdamSteps, Gaussian, LegS, OnlineGP, RandomSubset, RecurrentFeatures
from ohsvgp.bases import Advance, Basis
from probseq.kernels import RBF

# Length and hyperparameters of the thesis' solar series, in ten tasks.
SOLAR, TASKS = 391, 10
LENGTHSCALE, _OUTPUTSCALE, _NOISE = 0.40, 0.77, 0.0075
LENGTH = 39.0
# As many points as the thesis' audio series has, over as many lengthscales.
AUDIO = 9000
FEATURES = 1000

Series = tuple[Tensor, Tensor]
Case = Callable[[], float]


class Memory(NamedTuple):
    """What a long stream leaves behind.

    Attributes:
        first: number of points after which memory was looked at for the first time.
        early: bytes of the state then.
        late: bytes of the state after all points.
        growth: bytes by which the process has grown in between; None where the system doesn't
            tell.
    """

    first: int
    early: int
    late: int
    growth: int | None


def stream(count: int, length: float = LENGTH) -> Series:
    """Two sines with noise.

    Args:
        count: number of points.
        length: of the time that they cover evenly.
    """
    t = torch.linspace(0.0, length, count, dtype=torch.float64)
    noise = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return t, 0.7 * (1.1 * t).sin() + 0.5 * (2.9 * t).sin() + math.sqrt(_NOISE) * noise


def model(basis: Basis, rebase: str = "task") -> OnlineGP:
    """An online GP with the hyperparameters of the solar series.

    Args:
        basis: of its inducing variables.
        rebase: when the window's end moves.
    """
    return OnlineGP(_kernel(), Gaussian(_NOISE), basis, rebase=rebase)


def euler(M: int) -> Basis:
    """The thesis' recurrence for random features, one explicit Euler step a point."""
    return RecurrentFeatures(LegS(M), num_features=FEATURES, step="euler")


def learned(M: int, steps: int) -> Basis:
    """OSGPR: a random subset that Adam moves at each task."""
    return RandomSubset(M, learn=AdamSteps(steps=steps))


def learn(gp: OnlineGP, series: Series, parts: int) -> float:
    """Seconds of learning a series in so many parts, one after the other."""
    t, y = series
    pairs = list(zip(t.tensor_split(parts), y.tensor_split(parts), strict=True))
    start = time.process_time()
    for part in pairs:
        gp.update(*part)
    return time.process_time() - start


def in_tasks(basis: Callable[[], Basis], series: Series) -> Case:
    """All of a series in ten tasks."""
    return lambda: learn(model(basis()), series, TASKS)


def last_task(basis: Basis, series: Series) -> Case:
    """The last of ten tasks, again and again."""
    t, y = series
    size = len(t) // TASKS
    grown = model(basis)
    learn(grown, (t[:-size], y[:-size]), TASKS - 1)

    def run() -> float:
        start = time.process_time()
        grown.updated(t[-size:], y[-size:])
        return time.process_time() - start

    return run


def one_by_one(basis: Basis, rebase: str, count: int) -> Case:
    """Seconds a point, from the start of the solar-like stream."""
    t, y = stream(SOLAR)
    return lambda: learn(model(basis, rebase), (t[:count], y[:count]), count) / count


def grown_model(count: int) -> OnlineGP:
    """A model of 50 inducing variables that has learned so many points."""
    gp = model(LegS(50))
    learn(gp, stream(count), math.ceil(count / 1000))
    return gp


def next_points(grown: OnlineGP, count: int) -> Case:
    """Seconds a point that comes after all others and moves the window.

    Args:
        grown: the model, which stays as it is.
        count: number of points.
    """
    t, y = stream(count, length=1.0)
    # The first takes the model's copy a step on, which keeps the original out of the clock.
    first, rest = (LENGTH + t[:1], y[:1]), (LENGTH + t[1:], y[1:])
    return lambda: learn(grown.updated(*first), rest, count - 1) / (count - 1)


def window_covariance(basis: Basis, t: Tensor) -> Case:
    """From nothing to the prior covariance of the inducing variables after a stream."""
    kernel = _kernel().double()
    basis.bind(kernel, torch.Generator().manual_seed(0))

    def run() -> float:
        start = time.process_time()
        with torch.no_grad():
            prior = basis.prior(kernel)
            step = Advance(prior, None, t[:, None], float(t[-1] - t[0]))
            basis.advance(step).covariance(prior)
        return time.process_time() - start

    return run


def interleaved(cases: Mapping[str, Case], repeats: int) -> dict[str, float]:
    """Run cases in turns, so that a slow minute of the machine meets all of them.

    Each runs once before it counts.

    Args:
        cases: by name.
        repeats: runs that count.

    Returns:
        The median seconds of each.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    # Hidden where the output is no terminal.
    with tqdm(total=len(cases) * (repeats + 1), desc="speed", leave=False, disable=None) as bar:
        for turn in range(repeats + 1):
            for name, case in cases.items():
                found = case()
                if turn > 0:
                    seconds[name].append(found)
                bar.update()
    return {name: median(found) for name, found in seconds.items()}


def watch_memory(count: int) -> Memory:
    """Learn a stream point by point and look at what is kept."""
    t, y = stream(count)
    gp = model(LegS(50), "grow:1.05")
    first = max(count // 10, 50)
    early, resident = 0, None
    for place in trange(count, desc="memory", leave=False, disable=None):
        gp.update(t[place : place + 1], y[place : place + 1])
        if place + 1 == first:
            # What the first updates load stays out.
            early, resident = state_bytes(gp), resident_bytes()
    after = resident_bytes()
    growth = None if resident is None or after is None else after - resident
    return Memory(first, early, state_bytes(gp), growth)


def state_bytes(gp: OnlineGP) -> int:
    """Bytes of everything that a model remembers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in gp.state_dict().values())


def resident_bytes() -> int | None:
    """Memory of this process; None where the system doesn't tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), None)


def _kernel() -> RBF:
    return RBF(1, lengthscale=LENGTHSCALE, outputscale=_OUTPUTSCALE)
