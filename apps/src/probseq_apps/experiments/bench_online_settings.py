"""Settings of `probseq bench online`; importable without torch, for the command line."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class BenchOnlineSettings:
    """How often updates of online Gaussian processes are timed, and on how long streams."""

    repeats: int = 7
    """Timed runs of each case, in turns; medians are shown."""
    quick: bool = False
    """Shorter streams and fewer iterations; says the same with more scatter, in a few seconds."""
    long: int = 10_000
    """Points of the stream that is learned one by one while memory is watched; 1000000 takes a
    quarter of an hour."""
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
        if self.long < 100:
            raise ValueError(f"long must be at least 100 points, got {self.long}")
        if self.json is not None and not self.json.absolute().parent.is_dir():
            raise ValueError(f"json must lie in an existing folder, got {self.json}")
