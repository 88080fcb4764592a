"""Settings, methods and recipes of `probseq online` and `online vae`.

Importable without torch; docstrings of fields are the help. A method is an entry of `METHODS`.
"""

import codecs
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from tyro.conf import arg

import ohsvgp
from ohsvgp.integrations.live.state import check_marks
from probseq.settings import Bound, Count, NotNegative, Positive, Settings, Share
from probseq_apps.data.names import CSV_PREFIX, SERIES_NAMES, TABLE_NAMES, user_path
from probseq_apps.engine.config import Fraction
from probseq_apps.settings.common import DISTINCT, Flat, Names, Recipes, Seeds, check_name, require

if TYPE_CHECKING:
    from ohsvgp.bases import Basis

ONLINE, ONLINE_VAE = "online", "online-vae"
MOVING_DIGITS, ROTATED_MNIST = "moving-digits", "rotated-mnist"

LikelihoodName = Literal["gaussian", "student-t", "poisson", "negative-binomial", "bernoulli"]
STANDARDISED: tuple[LikelihoodName, ...] = ("gaussian", "student-t")


class StreamInfo(NamedTuple):
    """Facts of a stream that a basis may need: length of a sliding window, first and last time."""

    window: float = 1.0
    start: float = 0.0
    end: float = 1.0


class OnlineMethod(NamedTuple):
    """A method of the comparison."""

    title: str  # for reports: its name in words, and behind a colon what it is
    basis: "Callable[[Any, StreamInfo], Basis] | None"  # None for the exact process
    inputs: Literal["time", "points", "both"] = "time"
    follows: bool = True  # its hyperparameters can change once it has learned
    learned: Literal["", "points", "posterior"] = ""  # what Adam learns, in `learn_steps` a task
    at_once: bool = False  # all tasks come as one, with the steps of all


def _basis(name: str, *needs: str) -> "Callable[[Any, StreamInfo], Basis]":
    """Return how to make a basis of `ohsvgp` from M and from what it needs of the stream."""
    return lambda s, at: getattr(ohsvgp, name)(s.num_inducing, *(getattr(at, n) for n in needs))


def _learned(title: str, name: str) -> OnlineMethod:
    def basis(s: "GPSettings", _: StreamInfo) -> "Basis":
        steps = ohsvgp.AdamSteps(steps=s.learn_steps, learning_rate=s.learn_rate)
        return getattr(ohsvgp, name)(s.num_inducing, learn=steps)

    return OnlineMethod(title, basis, "both", learned="points")


def _at_once(method: OnlineMethod) -> OnlineMethod:
    name, _, what = method.title.partition(":")
    return method._replace(title=f"{name}, tasks at once:{what}", follows=False, at_once=True)


def _path(title: str, order: Any) -> OnlineMethod:
    def basis(s: "GPSettings", _: StreamInfo) -> "Basis":
        return ohsvgp.Path(
            s.num_inducing, order=order, memory=s.path_memory, num_features=s.num_features
        )

    return OnlineMethod(f"OHSVGP, {title}", basis, "points")


def _features(s: "GPSettings", _: StreamInfo) -> "Basis":
    return ohsvgp.RecurrentFeatures(
        ohsvgp.LegS(s.num_inducing), num_features=s.num_features, step=s.recurrence
    )


_RFF = "OHSVGP, random features: LegS by the thesis' recurrence"
_OVFF = "Fourier features (OVFF): on the data's interval, Matérn-5/2 kernel"
_OVC = "pivoted points (OVC): inducing points by pivoted Cholesky"
_OVC_OPTZ = _learned("pivoted, learned (OVC-optZ): starts from OVC", "PivotedCholesky")
_OSVGP = _learned("learned points (OSVGP): random inducing points, learned", "RandomSubset")
METHODS: dict[str, OnlineMethod] = {
    "ohsvgp": OnlineMethod("OHSVGP: LegS, exact covariances", _basis("LegS")),
    "ohsvgp-adam": OnlineMethod("OHSVGP by Adam: LegS", _basis("LegS"), learned="posterior"),
    "ohsvgp-rff": OnlineMethod(_RFF, _features, follows=False),
    "ohsvgp-legt": OnlineMethod("OHSVGP, sliding window: LegT", _basis("LegT", "window")),
    "ohsvgp-lagt": OnlineMethod("OHSVGP, fading past: LagT", _basis("LagT", "window")),
    "ohsvgp-fout": OnlineMethod("OHSVGP, Fourier window: FouT", _basis("FouT", "window")),
    "cosine": OnlineMethod("cosines: on the window so far", _basis("Cosine")),
    "fading": OnlineMethod("latest stamps: older ones the thinner", _basis("Fading")),
    "grid": OnlineMethod("uniform grid: inducing points that move", _basis("UniformGrid")),
    "ovc": OnlineMethod(_OVC, _basis("PivotedCholesky"), "both"),
    "ovc-optz": _OVC_OPTZ,
    "ovc-optz-at-once": _at_once(_OVC_OPTZ),
    "osgpr": _learned("learned points (OSGPR): random inducing points, learned", "RandomSubset"),
    "osvgp": _OSVGP,
    "osvgp-at-once": _at_once(_OSVGP),
    "ovff": OnlineMethod(_OVFF, _basis("VariationalFourier", "start", "end"), follows=False),
    "exact": OnlineMethod("exact GP on all data: the gold standard", None, "both", follows=False),
    "ohsvgp-o": _path("path as given: in the order of the tasks", "given"),
    "ohsvgp-k": _path("path by similarity: most similar neighbours", "kernel-max"),
    "ohsvgp-k-min": _path("path by distance: least similar neighbours", "kernel-min"),
    "ohsvgp-rand": _path("random path: in random order", "random"),
}
_INPUTS = {"time": "series", "points": "points of several dimensions"}
VAE_METHODS: dict[str, str] = {
    "ohsvgp": "OHSVGP: LegS, exact covariances",
    "ovc": "OVC, shared points: pivoted Cholesky, the same for all latents",
    "ovc-per-dim": "OVC, own points: pivoted Cholesky, every latent's own",
    "osvgp": "OSVGP: random inducing points, learned with the networks",
}


def _of(kind: str) -> str:
    return ", ".join(name for name, method in METHODS.items() if method.inputs == kind)


_METHOD_HELP = (
    f"For series: {_of('time')}; for points: {_of('points')}; for both: {_of('both')} (osvgp is "
    "another name of osgpr)."
)


def check_text(encoding: str) -> None:
    """Refuse what is no encoding of text."""
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ValueError(f"encoding must be one that Python knows, got {encoding!r}") from None


class StreamSettings(Settings):
    """Stream."""

    num_tasks: Count = 10
    """Parts that the training points come in, one after the other, of equal size."""
    order: Literal["first", "l2"] = "first"
    """Points without a time: sort them by their first input or distance from the origin."""
    test_share: Fraction = 0.2
    """Share of the points (series from csv: of each task's), at random, for evaluation."""
    time: str | None = None
    """csv: column of the stamps, numbers or ISO dates (which become days); None: `time`. Points
    come in its order where it is given."""
    target: Names = ("value",)
    """csv: column of the numbers, or labels 0 and 1; several are learned side by side."""
    inputs: Annotated[tuple[str, ...], DISTINCT] = ()
    """csv: columns of the inputs of points; none for a series over time."""
    series: str | None = None
    """csv: column that tells which series a row belongs to; learned side by side too."""
    separator: str | None = None
    """csv: between cells; None: tabs in .tsv and .tab, else commas."""
    decimal: Literal[".", ","] = "."
    """csv: mark of decimals in numbers."""
    encoding: str = "utf-8-sig"
    """csv: of the text, such as utf-8-sig or latin-1."""

    def check(self) -> None:
        """Refuse columns that don't go together."""
        stamps = self.time or ("" if self.inputs else "time")
        names = [*self.inputs, *self.target, *filter(None, [stamps, self.series])]
        if not all(names) or len(set(names)) < len(names):
            raise ValueError(f"columns must be named, and each once, got {', '.join(names)}")
        if len(self.inputs) == 1:
            raise ValueError(f"inputs need two columns or more: give {self.inputs[0]!r} as time")
        if self.series is not None and (self.inputs or len(self.target) > 1):
            raise ValueError("series needs one target, and no inputs")
        check_text(self.encoding)
        if self.separator is not None:
            check_marks(self.separator, self.decimal)


class GPSettings(Settings):
    """Model."""

    num_inducing: Count = 50
    """Inducing variables M."""
    likelihood: LikelihoodName = "gaussian"
    """How targets scatter; `online` standardises them for gaussian and student-t."""
    kernel: str = "rbf"
    """Prior covariance: rbf, matern12, matern32, matern52, rational_quadratic, periodic, walk,
    linear, constant, white, or sums and products such as "periodic(365.25)*rbf(900) +
    0.5*matern32", with period, lengthscale and variance in brackets; ovff always has matern52."""
    trend: bool = False
    """A line beside the process, whose weights are learned exactly."""
    season: tuple[Positive, ...] = ()
    """Periods of seasons beside the process, three harmonics each, in the units of the inputs."""
    lengthscale: Positive = 1.0
    """Of kernels that don't say theirs, in the units of the inputs; where to start from unless
    fixed."""
    outputscale: Positive = 1.0
    """Variance of terms that don't say theirs; where to start from unless fixed."""
    noise: Positive = 0.1
    """Variance of gaussian noise; squared scale of student-t; where to start from unless fixed."""
    dispersion: Positive = 1.0
    """negative-binomial: the variance of a count with mean m is m + m²/dispersion."""

    hyperparameters: Literal["fixed", "first", "online"] | None = None
    """fixed: those given; first: of greatest evidence on (at most 500 points of) the first task,
    from there on fixed; online: re-estimated at every task on the online bound. None: online for
    csv, where the first task need not be like the later ones, of methods that can; else first."""
    ovff_lengthscale: Positive | None = None
    """ovff: its own lengthscale where fixed; None: of greatest evidence on the first task."""
    fit_steps: Count = 100
    """L-BFGS iterations for the hyperparameters of a task."""
    alpha: Share = 0.1
    """How uncertain becomes what moved inducing variables cannot hold, 0 (as if known exactly, the
    papers' bound) to 1, by power EP."""
    window: Positive | None = None
    """ohsvgp-legt, -fout, -lagt: time in which the past is forgotten; None: the first task's."""
    path_memory: Literal["inputs", "features"] = "inputs"
    """Paths: keep the inputs seen, for exact covariances, or random features of fixed size."""
    num_features: Count = 1000
    """ohsvgp-rff, and paths that keep features: their number."""
    recurrence: Literal["closed", "exact", "bilinear", "euler"] = "closed"
    """ohsvgp-rff: features in closed form, or by steps from point to point as in the thesis, which
    are too long for euler where points are sparse."""
    learn_steps: Count = 100
    """osgpr, osvgp, ovc-optz: Adam steps on the inducing points at every task; ohsvgp-adam: on
    q(u). The thesis has 1000 for solar and audio, 5000 for covid and 2000 for points."""
    learn_rate: Positive = 0.01
    """Their step size, in lengthscales, or standard deviations of the posterior so far."""

    def check(self) -> None:
        """Refuse what is no kernel."""
        if self.kernel not in (type(self).kernel, "rbf", "matern12", "matern32", "matern52"):
            from probseq.kernels import parse_kernel  # late: it loads torch

            parse_kernel(self.kernel)


class OnlineComparison(Settings):
    """Comparison of methods that learn a stream."""

    data_names: ClassVar[tuple[str, ...]]
    data: str
    method: Names
    seeds: Seeds = (0, 1, 2, 3, 4)
    """Each seed has a split of its own, the same for all methods."""

    def check(self) -> None:
        """Refuse unknown data."""
        user_path(self.data)  # refuses an empty path
        if not self.data.startswith(CSV_PREFIX):
            check_name("data set", self.data, (*self.data_names, f"{CSV_PREFIX}PATH"))


class OnlineSettings(OnlineComparison):
    """Comparison."""

    data_names = (*SERIES_NAMES, *TABLE_NAMES)
    data: str = "sp500"
    """sp500 (monthly index that matplotlib ships), toy (two sines); solar, audio, covid (series)
    and skillcraft, powerplant (points), files in the data folder; two-moons (points); or csv:PATH,
    columns of a CSV or TSV file."""
    method: Annotated[Names, arg(help=_METHOD_HELP)] = ("ohsvgp", "ovc", "osgpr")
    stream: Flat[StreamSettings] = StreamSettings()
    model: Flat[GPSettings] = GPSettings()

    def can_follow(self, name: str) -> bool:
        """Return whether a method can change its hyperparameters once it has learned."""
        method, stores_inputs = METHODS[name], self.model.path_memory == "inputs"
        return method.follows and (method.inputs != "points" or stores_inputs)

    def follows(self, name: str) -> bool:
        """Return whether a method estimates its hyperparameters at every task."""
        chosen, of_user = self.model.hyperparameters, self.data.startswith(CSV_PREFIX)
        return chosen == "online" or (chosen is None and of_user and self.can_follow(name))

    @property
    def of_time(self) -> bool:
        """True where the inputs are times."""
        of_points = self.data.startswith(CSV_PREFIX) and self.stream.inputs
        return self.data not in TABLE_NAMES and not of_points

    def check(self) -> None:
        """Refuse unknown names."""
        for name in self.method:
            check_name("method", name, METHODS)

    def check_complete(self) -> None:
        """Refuse methods, data and a model that don't go together, once all of them are known."""
        model, inputs = self.model, "time" if self.of_time else "points"
        twice = {"osgpr", "osvgp"} <= set(self.method)
        require(not twice, "method must not name osgpr and osvgp: they are the same method")
        other = ", or name inputs" if self.of_time else ", or no inputs"
        other = other if self.data.startswith(CSV_PREFIX) else ""
        for name in self.method:
            method = METHODS[name]
            require(
                method.inputs in (inputs, "both"),
                f"method {name!r} is for {_INPUTS.get(method.inputs)}, and {self.data!r} is not: "
                f"name methods for {_INPUTS[inputs]}{other}",
            )
            require(
                not (model.trend or model.season) or (self.of_time and method.basis),
                f"trend and season need series and a method that is online, got {name!r}",
            )
            require(
                method.basis or model.likelihood == "gaussian",
                f"method {name!r} needs likelihood gaussian, to be exact, got {model.likelihood}",
            )
            require(
                method.learned != "posterior" or model.likelihood != "gaussian",
                f"method {name!r} needs another likelihood than gaussian, which is in closed form",
            )
            require(
                self.can_follow(name) or model.hyperparameters != "online",
                f"method {name!r} cannot change its hyperparameters: set them to fixed or first",
            )


class ChannelSettings(Settings):
    """Stream."""

    num_tasks: Count = 5
    """Parts that the series comes in, one after the other."""
    task_length: Annotated[int, Bound("at least 3", lambda length: length >= 3)] | None = None
    """Time steps of a task; None: the whole series in equal parts. Later steps are left out."""
    num_frames: Count = 200
    """moving-digits, rotated-mnist: length of the film."""
    test_share: Fraction = 0.2
    """Share of each task's time steps, chosen at random for each seed, for evaluation."""
    time: str = "time"
    """csv: column of the stamps, numbers or ISO dates; all other columns are channels."""


class VaeSettings(Settings):
    """Model."""

    num_inducing: Count = 30
    """Inducing variables M of every method."""
    num_latents: Count = 6
    """Latent processes L."""
    hidden_dim: Count = 64
    """Width of the layer inside encoder and decoder."""
    lengthscale: Positive = 0.3
    """Of the latents, in lengths of the first task, in which it is learned; then fixed."""
    noise: Positive = 0.01
    """Variance of the channels' noise to start from."""
    carry: bool = True
    """Keep what was known of earlier tasks as a site; the thesis' equations read as if not."""
    consolidation: NotNegative = 10.0
    """Weight of elastic weight consolidation of the networks; 0 for none, 1 for Laplace's."""


class VaeTrainingSettings(Settings):
    """Training and evaluation."""

    epochs: Count = 100
    """Passes over each task."""
    batch_size: Count | None = None
    """Time steps that an optimizer step decodes; None: all of the task."""
    learning_rate: Positive = 1e-2
    """Of Adam."""
    num_samples: Count = 1
    """Draws of the latents per time step while training."""
    prediction_samples: Count = 50
    """Draws of the latents per time step in predictions."""


class OnlineVaeSettings(OnlineComparison):
    """Comparison."""

    data_names = (MOVING_DIGITS, ROTATED_MNIST)
    data: str = MOVING_DIGITS
    """moving-digits (a real digit on a generated path), rotated-mnist (one of MNIST, in the data
    folder, that turns around once), or csv:PATH (time, and channels)."""
    method: Names = tuple(VAE_METHODS)
    """ohsvgp, ovc, ovc-per-dim (every latent its own inducing points), osvgp."""
    seeds: Seeds = (0, 1, 2)
    """Each method is trained once per seed."""
    stream: Flat[ChannelSettings] = ChannelSettings()
    model: Flat[VaeSettings] = VaeSettings()
    training: Flat[VaeTrainingSettings] = VaeTrainingSettings()

    def check(self) -> None:
        """Refuse unknown names."""
        for name in self.method:
            check_name("method", name, VAE_METHODS)


ONLINE_RECIPES = Recipes("online", OnlineSettings)
ONLINE_VAE_RECIPES = Recipes("online_vae", OnlineVaeSettings)
