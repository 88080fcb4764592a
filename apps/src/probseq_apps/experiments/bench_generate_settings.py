"""Settings of `probseq bench generate`; importable without torch, for the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class BenchGenerateSettings:
    """How often the parts of image generation are timed, and at which sizes."""

    repeats: int = 3
    """Timed runs of each case, in turns; medians are shown."""
    quick: bool = False
    """Small batches and 64 tokens only; says less, in about a minute."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where UNets are timed: cpu, small ones; cuda, those of the thesis. All else is on the CPU."""
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
        if self.json is not None and not self.json.absolute().parent.is_dir():
            raise ValueError(f"json must lie in an existing folder, got {self.json}")
