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


ValueKind = Literal["quiet", "rounding", "constant", "saturated", "night", "counts"]
Change = Literal["level", "reset", "slope", "variance", "wild", "calm", "phase"]
SensorError = Literal["outlier", "sentinel", "outage", "duplicate", "missing"]
ClockKind = Literal["repeats", "late", "gap", "ahead", "back", "sampling"]
Regime = Literal[ValueKind, Change, SensorError, ClockKind]


class BenchStreamsSettings(Settings):
    """Streams that are judged."""

    regimes: Annotated[tuple[Regime, ...], SOME, DISTINCT] = get_args(Regime)
    """What happens in the middle, to a level that wanders alone and with a daily wave."""
    seeds: Count = 5
    """Streams of each regime; means over them are shown."""
    repeats: Count = 3
    """Timed runs of each method, in turns; medians are shown."""
