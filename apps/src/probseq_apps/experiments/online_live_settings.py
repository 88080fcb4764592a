"""Settings of `probseq online live`; importable without torch and numpy, for the command line."""

import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ohsvgp.live_state import saved_settings
from probseq_apps.experiments.checks import at_least, positive
from probseq_apps.experiments.online_settings import KernelName, LikelihoodName
from probseq_apps.experiments.settings import settings_from_dict
from probseq_apps.settings.common import Flat, Pick

LiveMethod = Literal["ohsvgp", "cosine", "grid", "ovc", "ohsvgp-legt", "ohsvgp-lagt", "ohsvgp-fout"]


@dataclass(frozen=True, kw_only=True)
class LiveModel:
    """Model."""

    method: LiveMethod = "ohsvgp"
    """How inducing variables follow the stream; the last three forget what is older than the
    window."""
    num_inducing: int = 50
    """Inducing variables M."""
    kernel: KernelName = "rbf"
    """Prior covariance."""
    lengthscale: float = 1.0
    """Of the kernel, in the units of time."""
    outputscale: float = 1.0
    """Prior variance."""
    noise: float = 0.1
    """Variance of gaussian noise; squared scale of student-t."""
    likelihood: LikelihoodName = "gaussian"
    """How values scatter about the process."""
    dispersion: float = 1.0
    """negative-binomial: the variance of a count with mean m is m + m²/dispersion."""
    offset: float = 0.0
    """Subtracted from each value, added to each forecast: the process has mean zero."""
    window: float = 10.0
    """Length of the sliding window, or the time in which the past fades."""
    time_unit: Literal["s", "m", "h", "D", "W"] = "D"
    """Unit of time for stamps that are dates: seconds to weeks."""
    t0: str | None = None
    """Earliest stamp that can come, a number or an ISO date; None: the first that does."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_inducing", self.num_inducing, 1)
        for name in ("lengthscale", "outputscale", "noise", "dispersion", "window"):
            positive(name, getattr(self, name))
        if not math.isfinite(self.offset):
            raise ValueError(f"offset must be finite, got {self.offset}")
        if self.t0 is not None:
            from probseq_apps.data.series import parse_stamp  # late: it needs numpy

            try:
                parse_stamp(self.t0)
            except ValueError as error:
                raise ValueError(f"t0: {error}") from None
        if self.offset and self.likelihood not in ("gaussian", "student-t"):
            raise ValueError(f"offset must be 0 for likelihood {self.likelihood}")


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """What is learned and forecast."""

    model: Flat[LiveModel] = field(default_factory=LiveModel)
    horizon: int = 1
    """Stamps to forecast after each line."""
    step: float | None = None
    """Time between them; None: the median of the latest gaps between stamps."""
    state: Path | None = None
    """File of the state: made if it isn't there, else taken up with the model in it, whose flags
    may be left out and must not differ."""
    every: int = 1
    """Lines between two savings of the state."""
    replay: bool = False
    """The input starts at the stream's first line: skip those that the state has absorbed."""
    threads: int = 1
    """CPU threads of torch."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        for name in ("horizon", "every", "threads"):
            at_least(name, getattr(self, name), 1)
        if self.step is not None:
            positive("step", self.step)
        if self.replay and self.state is None:
            raise ValueError("replay needs state: name the file that knows what was absorbed")


def defaults(pick: Pick) -> LiveSettings:
    """Return the settings with the model of the state that is named."""
    model = None
    # A file that cannot be read is no wrong usage: the stream refuses it when it begins.
    with suppress(ValueError, OSError):
        model = None if pick.state is None else saved_model(Path(pick.state))
    return LiveSettings() if model is None else LiveSettings(model=model)


def saved_model(path: Path) -> LiveModel | None:
    """The settings of the model in a state file; None if there is no file.

    Raises:
        ValueError: the file is no such state, damaged, or from another version.
        OSError: it cannot be read.
    """
    try:
        values = saved_settings(path)
        return None if values is None else settings_from_dict(LiveModel, values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged or from another version: {error}") from error
