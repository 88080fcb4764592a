"""Settings of `probseq bench`."""

from pathlib import Path
from typing import Annotated, Literal, get_args

from probseq.settings import Bound, Count, Settings
from probseq_apps.settings.common import DISTINCT, SOME

ShapeName = Literal["cifar", "imdb", "long", "cgpt-cifar", "scgpt-long", "kepsvgp-cifar"]


class _BenchSettings(Settings):
    json: Path | None = None
    """File for the numbers."""

    def check(self) -> None:
        """Refuse a file that cannot be written."""
        if self.json is not None and not self.json.absolute().parent.is_dir():
            raise ValueError(f"json must lie in an existing folder, got {self.json}")


class BenchSettings(_BenchSettings):
    """What is timed, and where."""

    shape: Annotated[tuple[ShapeName, ...], SOME, DISTINCT] = get_args(ShapeName)
    """Problems: the papers' CIFAR-10 and IMDB layers, and long sequences."""
    repeats: Count = 9
    """Timed runs of each method; the formula-literal reference gets three at most."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cpu: one thread, process time. cuda: wall time."""


class BenchOnlineSettings(_BenchSettings):
    """How often updates of online Gaussian processes are timed, and on how long streams."""

    repeats: Count = 7
    """Timed runs of each case, in turns; medians are shown."""
    quick: bool = False
    """Shorter streams and fewer iterations; says the same with more scatter, in a few seconds."""
    long: Annotated[int, Bound("at least 100 points", lambda points: points >= 100)] = 10_000
    """Points that are learned one by one while memory is watched; 1000000 takes 15 minutes."""


class BenchGenerateSettings(_BenchSettings):
    """How often the parts of image generation are timed, and at which sizes."""

    repeats: Count = 3
    """Timed runs of each case, in turns; medians are shown."""
    quick: bool = False
    """Small batches and 64 tokens only; says less, in about a minute."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where UNets are timed: cpu, small ones; cuda, those of the thesis. All else is on the CPU."""
