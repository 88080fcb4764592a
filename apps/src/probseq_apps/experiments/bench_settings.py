"""Settings of `probseq bench`; importable without torch, for the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

ShapeName = Literal["cifar", "imdb", "long", "cgpt-cifar", "scgpt-long", "kepsvgp-cifar"]
SGPA, CGPT, SCGPT, KEPSVGP = "SGPA", "CGPT", "SCGPT", "KEP-SVGP"


class Goal(NamedTuple):
    """What a method should reach.

    Attributes:
        forward: most time of a forward pass, as a ratio to softmax attention.
        both: the same for a forward and a backward pass; ``None`` without a goal.
        kept: most MiB kept for the backward pass, or ``"O(T)"`` where the goal is its growth;
            ``None`` without a goal.
    """

    forward: float
    both: float | None
    kept: float | Literal["O(T)"] | None


class Shape(NamedTuple):
    """One problem to time.

    Attributes:
        batch: number of sequences.
        tokens: their length.
        heads: attention heads.
        dim: width of a token.
        kernel: kernel of kernel attention and SGPA.
        goals: the methods that are timed beside softmax and kernel attention.
        inducing: SGPA's global inducing inputs of each head.
        merge: how KEP-SVGP's two processes become one output.
    """

    batch: int
    tokens: int
    heads: int
    dim: int
    kernel: Literal["rbf", "exponential"]
    goals: Mapping[str, Goal]
    inducing: int = 32
    merge: Literal["addition", "concatenation"] = "addition"


# SCGPT has 16 inducing inputs in each set, KEP-SVGP rank 10, everywhere. Goals of memory are a
# quarter, a sixth and a tenth of what the authors' layers keep (323, 1536 and 842 MiB).
SHAPES: dict[str, Shape] = {
    "cifar": Shape(
        *(100, 64, 4, 128, "rbf"),
        goals={SGPA: Goal(5.0, 5.0, 81.0), SCGPT: Goal(3.5, 3.3, None)},
    ),
    "imdb": Shape(
        *(32, 512, 8, 128, "exponential"),
        goals={SGPA: Goal(3.6, 4.0, 256.0), KEPSVGP: Goal(0.45, 0.4, None)},
        inducing=50,
    ),
    "long": Shape(
        *(1, 4096, 4, 128, "rbf"),
        goals={SGPA: Goal(1.6, 1.6, "O(T)"), KEPSVGP: Goal(0.1, 0.1, None)},
    ),
    "cgpt-cifar": Shape(25, 64, 4, 128, "rbf", goals={CGPT: Goal(14.0, 11.0, 84.2)}),
    "scgpt-long": Shape(2, 512, 8, 128, "rbf", goals={SCGPT: Goal(2.4, 2.5, "O(T)")}),
    "kepsvgp-cifar": Shape(
        *(128, 64, 12, 384, "rbf"),
        goals={KEPSVGP: Goal(1.05, 1.0, None)},
        merge="concatenation",
    ),
}


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What is timed, and where."""

    shape: tuple[ShapeName, ...] = get_args(ShapeName)
    """Problems: the papers' CIFAR-10 and IMDB layers, and long sequences."""
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
