"""All settings of `probseq online`; importable without torch, for the command line.

Their docstrings are the command line's help.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from probseq_apps.data.names import CSV_PREFIX, DataError, own_path, unknown_name_message
from probseq_apps.experiments.checks import at_least, positive, unique
from probseq_apps.experiments.saved import saved_settings
from probseq_apps.experiments.settings import settings_from_dict
from probseq_apps.settings.common import Flat

ONLINE = "online"
SERIES = ("sp500", "solar", "audio", "covid", "toy")
TABLES = ("skillcraft", "powerplant", "two-moons")

LikelihoodName = Literal["gaussian", "student-t", "poisson", "negative-binomial", "bernoulli"]
KernelName = Literal["rbf", "matern12", "matern32", "matern52"]
Kind = Literal["time", "points", "both"]
COUNTS: tuple[LikelihoodName, ...] = ("poisson", "negative-binomial")


class OnlineMethod(NamedTuple):
    """A method of the comparison.

    Attributes:
        title: what it is, for reports.
        inputs: times, points of several dimensions, or both.
        follows: whether its hyperparameters can change once it has learned.
    """

    title: str
    inputs: Kind
    follows: bool = True


ONLINE_METHODS: dict[str, OnlineMethod] = {
    "ohsvgp": OnlineMethod("OHSVGP: LegS, exact covariances", "time"),
    "ohsvgp-rff": OnlineMethod(
        "OHSVGP: LegS by the thesis' recurrence, random features", "time", follows=False
    ),
    "ohsvgp-legt": OnlineMethod("OHSVGP: LegT, a sliding window", "time"),
    "ohsvgp-lagt": OnlineMethod("OHSVGP: LagT, a fading past", "time"),
    "ohsvgp-fout": OnlineMethod("OHSVGP: FouT, a sliding window", "time"),
    "cosine": OnlineMethod("cosines on the window so far", "time"),
    "grid": OnlineMethod("moving uniform grid of inducing points", "time"),
    "ovc": OnlineMethod("OVC: pivoted-Cholesky inducing points", "both"),
    "ovc-optz": OnlineMethod("OVC-optZ: pivoted Cholesky, then learned", "both"),
    "osgpr": OnlineMethod("OSGPR: random inducing points, learned", "both"),
    "osvgp": OnlineMethod("OSVGP: random inducing points, learned", "both"),
    "ovff": OnlineMethod("OVFF: Fourier features, Matérn-5/2 kernel", "time", follows=False),
    "exact": OnlineMethod("exact GP that keeps all data", "both", follows=False),
    "ohsvgp-o": OnlineMethod("OHSVGP: path in the order of the tasks", "points"),
    "ohsvgp-k": OnlineMethod("OHSVGP: path of most similar neighbours", "points"),
    "ohsvgp-k-min": OnlineMethod("OHSVGP: path of least similar neighbours", "points"),
    "ohsvgp-rand": OnlineMethod("OHSVGP: path in random order", "points"),
}
LEARNED_METHODS = ("ovc-optz", "osgpr", "osvgp")


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """Stream."""

    num_tasks: int = 10
    """Parts that the training points come in, one after the other, of equal size."""
    order: Literal["first", "l2"] = "first"
    """Tables: sort points by their first input or by their distance from the origin."""
    test_share: float = 0.2
    """Series: share of the points, chosen at random for each seed, for evaluation; csv: of each
    task's."""
    time_column: str = "time"
    """csv: column of the stamps, numbers or ISO dates (which become days)."""
    target_column: str = "value"
    """csv: column of the numbers."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        at_least("num_tasks", self.num_tasks, 1)
        if not 0.0 < self.test_share < 1.0:
            raise ValueError(f"test_share must be between 0 and 1, got {self.test_share}")


@dataclass(frozen=True, kw_only=True)
class GPSettings:
    """Model."""

    num_inducing: int = 50
    """Inducing variables M of every method."""
    likelihood: LikelihoodName = "gaussian"
    """How targets scatter about the process; targets are standardised for gaussian and
    student-t."""
    kernel: KernelName = "rbf"
    """Prior covariance; ovff always has matern52."""
    hyperparameters: Literal["fixed", "first", "online"] = "first"
    """fixed: those given below; first: of greatest evidence on (at most 500 points of) the first
    task, from there on fixed; online: re-estimated at every task on the online bound."""
    lengthscale: float = 1.0
    """Of the kernel, in the units of the inputs; where to start from unless fixed (csv: beside
    shares of the first task's length)."""
    outputscale: float = 1.0
    """Prior variance; where to start from unless fixed."""
    noise: float = 0.1
    """Variance of gaussian noise; squared scale of student-t; where to start from unless fixed."""
    dispersion: float = 1.0
    """negative-binomial: the variance of a count with mean m is m + m²/dispersion."""
    ovff_lengthscale: float | None = None
    """ovff: its own lengthscale where hyperparameters are fixed; None: of greatest evidence on the
    first task."""
    fit_steps: int = 100
    """L-BFGS iterations for the hyperparameters of a task."""
    alpha: float = 0.1
    """How sure a move of the inducing variables stays of what the new ones cannot hold, 0 to 1: as
    if it were known exactly (0, as in the papers), or less and less, by power EP."""
    window: float | None = None
    """ohsvgp-legt, ohsvgp-fout: length of the sliding window in units of time; ohsvgp-lagt: time
    in which the past fades. None: the length of the first task."""
    path_memory: Literal["inputs", "features"] = "inputs"
    """Paths: keep the inputs seen, for exact covariances, or random features of fixed size."""
    num_features: int = 1000
    """ohsvgp-rff, and paths that keep features: their number."""
    recurrence: Literal["closed", "exact", "bilinear", "euler"] = "closed"
    """ohsvgp-rff: how the features follow the stream: in closed form, or by steps from point to
    point as in the thesis, which are too long for euler where points are sparse."""
    learn_steps: int = 100
    """osgpr, osvgp, ovc-optz: Adam steps on the inducing points at every task. The thesis has
    1000 for solar and audio, 5000 for covid and 2000 for tables; with fewer, as in most recipes,
    a run is done in minutes."""
    learn_rate: float = 0.01
    """Their step size, in lengthscales."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range.

        Raises:
            ValueError: names the setting.
        """
        for name in ("num_inducing", "fit_steps", "num_features", "learn_steps"):
            at_least(name, getattr(self, name), 1)
        for name in ("lengthscale", "outputscale", "noise", "dispersion", "learn_rate"):
            positive(name, getattr(self, name))
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha must be from 0 to 1, got {self.alpha}")
        for name in ("ovff_lengthscale", "window"):
            if (value := getattr(self, name)) is not None:
                positive(name, value)


@dataclass(frozen=True, kw_only=True)
class OnlineSettings:
    """What is compared, and on what."""

    data: str = "sp500"
    """sp500 (monthly index that matplotlib ships), toy (two sines); solar, audio, covid (series)
    and skillcraft, powerplant (tables), files in the data folder; two-moons; or csv:PATH, two
    columns of a CSV or TSV file."""
    method: tuple[str, ...] = ("ohsvgp", "ovc", "osgpr")
    """For series: ohsvgp, ohsvgp-rff, ohsvgp-legt, ohsvgp-lagt, ohsvgp-fout, cosine, grid, ovff;
    for tables: ohsvgp-o, ohsvgp-k, ohsvgp-k-min, ohsvgp-rand; for both: ovc, ovc-optz, osgpr (also
    called osvgp), exact."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Each seed has a split of its own, the same for all methods."""
    stream: Flat[StreamSettings] = field(default_factory=StreamSettings)
    model: Flat[GPSettings] = field(default_factory=GPSettings)

    def __post_init__(self) -> None:
        """Refuse unknown names and settings that don't go together.

        Raises:
            ValueError: names the setting.
        """
        _check_data(self.data)
        for name, values in (("method", self.method), ("seeds", self.seeds)):
            if not values:
                raise ValueError(f"{name} must name at least one, got none")
            unique(name, values)
        if {"osgpr", "osvgp"} <= set(self.method):
            raise ValueError(
                "method must not repeat a value, got osgpr and osvgp, two names of the same method"
            )
        for seed in self.seeds:
            at_least("seeds", seed, 0)
        for name in self.method:
            self._check_method(name)

    @property
    def of_time(self) -> bool:
        """Whether the inputs are times."""
        return self.data not in TABLES

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OnlineSettings":
        """Build from plain values, as a run's `config.json` holds them.

        Raises:
            ValueError: a key is unknown or a value is refused.
        """
        return settings_from_dict(cls, values)

    def _check_method(self, name: str) -> None:
        if name not in ONLINE_METHODS:
            raise ValueError(unknown_name_message("method", name, ONLINE_METHODS))
        method = ONLINE_METHODS[name]
        if method.inputs == "time" and not self.of_time:
            raise ValueError(
                f"method {name!r} is for series, and {self.data!r} has points of several dimensions"
            )
        if method.inputs == "points" and self.of_time:
            raise ValueError(
                f"method {name!r} is for points of several dimensions, and {self.data!r} is a "
                "series: name ohsvgp"
            )
        model = self.model
        if name == "exact" and model.likelihood != "gaussian":
            raise ValueError(
                f"method 'exact' needs likelihood gaussian, got {model.likelihood}: only there it "
                "is in closed form"
            )
        follows = method.follows and (method.inputs != "points" or model.path_memory == "inputs")
        if not follows and model.hyperparameters == "online":
            raise ValueError(
                f"method {name!r} cannot change its hyperparameters: leave it out, or set "
                "hyperparameters to fixed or first"
            )


def saved_online(folder: Path) -> tuple[str, OnlineSettings] | None:
    """Recipe and settings that the `online` experiment in a folder was started with.

    Args:
        folder: any folder.

    Returns:
        None where the folder holds no such experiment.

    Raises:
        ValueError: the file is damaged or from another version.
    """
    return saved_settings(folder, ONLINE, OnlineSettings.from_dict)


def _check_data(name: str) -> None:
    if name not in (*SERIES, *TABLES) and not name.startswith(CSV_PREFIX):
        known = (*SERIES, *TABLES, f"{CSV_PREFIX}PATH")
        raise DataError(unknown_name_message("data set", name, known))
    own_path(name)  # refuses an empty path
