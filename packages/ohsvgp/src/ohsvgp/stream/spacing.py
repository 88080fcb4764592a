"""The spacing of a stream's stamps."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median_low

# Of so many gaps the median is the step: one that stands out, or a few, say nothing.
GAPS = 9


@dataclass
class StampSpacing:
    """The latest stamp, and the gaps before it."""

    last: float | None = None  # the latest stamp; None before the first
    gaps: list[float] = field(default_factory=list[float])  # times between the latest stamps

    def observe(self, stamp: float) -> None:
        """Take up a stamp; a late one changes nothing."""
        if self.last is not None and stamp > self.last:
            self.gaps = [*self.gaps, stamp - self.last][-GAPS:]
        self.last = stamp if self.last is None else max(self.last, stamp)

    def updated(self, stamps: Iterable[float]) -> "StampSpacing":
        """Return the spacing after more stamps, in any order; this one stays as it is."""
        later = StampSpacing(self.last, self.gaps)
        for stamp in sorted(set(stamps))[-GAPS - 1 :]:
            later.observe(stamp)
        return later

    @property
    def step(self) -> float | None:
        """Return the median of the latest gaps; None before there is one."""
        return median_low(self.gaps) if self.gaps else None
