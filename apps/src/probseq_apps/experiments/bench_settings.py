"""Settings of `probseq bench`; importable without torch, for the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple


class Shape(NamedTuple):
    """One problem to time, and what sparse GP attention should reach on it.

    Attributes:
        batch: number of sequences.
        tokens: their length.
        heads: attention heads.
        dim: width of a token.
        inducing: global inducing inputs of each head.
        kernel: kernel of kernel attention and SGPA.
        forward: most time of a forward pass, as a ratio to softmax attention.
        both: the same for a forward and a backward pass.
        kept: most MiB kept for the backward pass; ``None`` where the goal is its growth, O(T).
    """

    batch: int
    tokens: int
    heads: int
    dim: int
    inducing: int
    kernel: Literal["rbf", "exponential"]
    forward: float
    both: float
    kept: float | None


SHAPES = {
    # A quarter and a sixth of what the authors' layer keeps (323 and 1536 MiB).
    "cifar": Shape(100, 64, 4, 128, 32, "rbf", forward=5.0, both=5.0, kept=81.0),
    "imdb": Shape(32, 512, 8, 128, 50, "exponential", forward=3.6, both=4.0, kept=256.0),
    "long": Shape(1, 4096, 4, 128, 32, "rbf", forward=1.6, both=1.6, kept=None),
}


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What is timed, and where."""

    shape: tuple[Literal["cifar", "imdb", "long"], ...] = ("cifar", "imdb", "long")
    """Problems: the paper's CIFAR-10 and IMDB layers, and one sequence of 4096 tokens."""
    repeats: int = 9
    """Timed runs of each method; the formula-literal reference gets three at most."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cpu: one thread, process time. cuda: wall time."""
    json: Path | None = None
    """File for the numbers."""
    debug: bool = False
    """Show where an error came from."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run or written.

        Raises:
            ValueError: names the setting.
        """
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")
        if not self.shape or len(set(self.shape)) < len(self.shape):
            raise ValueError(
                f"shape must name each of some problems once, got {' '.join(self.shape) or 'none'}"
            )
        if self.json is not None and not self.json.absolute().parent.is_dir():
            raise ValueError(f"json must lie in an existing folder, got {self.json}")
