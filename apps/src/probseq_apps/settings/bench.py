"""Settings of `probseq bench`."""

from typing import Annotated, Literal, get_args

from probseq.settings import Count, Settings
from probseq_apps.settings.common import DISTINCT, SOME

ShapeName = Literal["cifar", "imdb", "long", "cgpt-cifar", "scgpt-long", "kepsvgp-cifar"]


class BenchSettings(Settings):
    """Timings of attention."""

    shape: Annotated[tuple[ShapeName, ...], SOME, DISTINCT] = get_args(ShapeName)
    """Problems: the papers' CIFAR-10 and IMDB layers, and long sequences."""
    repeats: Count = 9
    """Timed runs of each method, in turns; medians are shown."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cpu: one thread, process time. cuda: wall time."""


class BenchOnlineSettings(Settings):
    """Timings of updates of online Gaussian processes."""

    repeats: Count = 7
    """Timed runs of each case, in turns; medians are shown."""
    quick: bool = False
    """Shorter streams and fewer iterations; says the same with more scatter, in a few seconds."""
