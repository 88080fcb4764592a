"""From a method's name to a learner."""

import copy
import math
import warnings
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp import LostInformationWarning, OnlineGP
from ohsvgp.bases.base import Basis
from ohsvgp.bases.fourier import Cosine, FouT
from ohsvgp.bases.grid import UniformGrid
from ohsvgp.bases.laguerre import LagT
from ohsvgp.bases.legendre import LegS, LegT
from ohsvgp.bases.ordering import Order
from ohsvgp.bases.path import Path
from ohsvgp.bases.points import AdamSteps, PivotedCholesky, RandomSubset
from ohsvgp.bases.recurrent import RecurrentFeatures
from ohsvgp.bases.variational_fourier import VariationalFourier
from ohsvgp.exact import exact_posterior
from ohsvgp.inducing import PointFunctional
from ohsvgp.likelihoods import Gaussian, Likelihood
from ohsvgp.likelihoods.bernoulli import Bernoulli
from ohsvgp.likelihoods.negative_binomial import NegativeBinomial
from ohsvgp.likelihoods.poisson import Poisson
from ohsvgp.likelihoods.student_t import StudentT
from probseq.errors import CholeskyError
from probseq.gaussians import DiagonalGaussian
from probseq.kernels import RBF, Kernel, Matern12, Matern32, Matern52
from probseq_apps.data.names import CSV_PREFIX
from probseq_apps.experiments.online_evaluation import Learner
from probseq_apps.experiments.online_settings import GPSettings, OnlineSettings
from probseq_apps.experiments.online_tasks import Stream

_KERNELS = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}
_FIT_POINTS = 500
_START_SHARES = (1.0 / 3.0, 1.0 / 10.0, 1.0 / 30.0)
_PATH_ORDERS: dict[str, Order] = {
    "ohsvgp-o": "given",
    "ohsvgp-k": "kernel-max",
    "ohsvgp-k-min": "kernel-min",
    "ohsvgp-rand": "random",
}


class Prior(NamedTuple):
    """What all methods of one kernel start from.

    Attributes:
        kernel: with its hyperparameters.
        likelihood: with its parameters.
    """

    kernel: Kernel
    likelihood: Likelihood


class Priors:
    """Priors of one stream, each estimated once.

    Args:
        stream: whose first task tells the hyperparameters.
        settings: of the model.
        seed: of the points that they are estimated on.
    """

    def __init__(self, stream: Stream, settings: GPSettings, *, seed: int) -> None:
        self._stream, self._settings, self._seed = stream, settings, seed
        self._found: dict[bool, Prior] = {}

    def of(self, method: str) -> Prior:
        """A method's prior, its own to change: ovff has another kernel than all others."""
        fourier = method == "ovff"
        if fourier not in self._found:
            self._found[fourier] = self._estimate(fourier)
        return copy.deepcopy(self._found[fourier])

    def _estimate(self, fourier: bool) -> Prior:
        settings, dim = self._settings, self._stream.dim
        if fourier:
            own = settings.ovff_lengthscale or settings.lengthscale
            settings = replace(settings, kernel="matern52", lengthscale=own)
        given = settings.hyperparameters == "fixed" and (
            not fourier or settings.ovff_lengthscale is not None
        )
        if given:
            return Prior(make_kernel(settings, dim), make_likelihood(settings))
        best, most, failure = None, -math.inf, None
        for lengthscale in starting_lengthscales(self._stream, settings.lengthscale):
            start = replace(settings, lengthscale=lengthscale)
            prior = Prior(make_kernel(start, dim), make_likelihood(start))
            try:
                evidence = self._fit(prior)
            except CholeskyError as error:
                failure = error
                continue
            if best is None or evidence > most:
                best, most = prior, evidence
        if best is None:
            raise failure or RuntimeError("there is no lengthscale to start from")
        return best

    def _fit(self, prior: Prior) -> float:
        """ML-II on the first task, with as many inducing points as points: the exact evidence."""
        task = self._stream.tasks[0]
        generator = torch.Generator().manual_seed(self._seed)
        chosen = torch.randperm(len(task.y), generator=generator)[:_FIT_POINTS].sort().values
        basis = PivotedCholesky(len(chosen))
        model = OnlineGP(prior.kernel, prior.likelihood, basis, seed=self._seed)
        steps = self._settings.fit_steps
        return model.fit_hyperparameters(task.x[chosen], task.y[chosen], steps=steps).after


def starting_lengthscales(stream: Stream, given: float) -> tuple[float, ...]:
    """Where the search for a lengthscale starts.

    Settings count in units that are known for the standard sets. The times of a file of one's own
    may be anything, such as seconds since 1970, and far from its optimum the evidence is flat:
    there, shares of the first task's span are tried too, none below its median gap.

    Args:
        stream: whose first task tells the span.
        given: by the settings, in the units of the inputs.
    """
    times = stream.tasks[0].x
    if not stream.name.startswith(CSV_PREFIX) or len(times) < 2:
        return (given,)
    span = float(times.max() - times.min())
    gap = float(times.sort().values.diff().median())
    shares = (max(span * share, gap) for share in _START_SHARES)
    return tuple(dict.fromkeys((*(start for start in shares if start > 0.0), given)))


class OnlineLearner:
    """An online Gaussian process.

    Args:
        model: which has seen nothing yet.
        refit_steps: L-BFGS iterations for the hyperparameters of each task after the first; None
            to keep them.
    """

    def __init__(self, model: OnlineGP, *, refit_steps: int | None) -> None:
        self.model, self.likelihood = model, model.likelihood
        self._refit_steps = refit_steps

    def learn(self, x: Tensor, y: Tensor) -> float:
        """Absorb a task."""
        if self._refit_steps is not None and self.model.state is not None:
            self.model.fit_hyperparameters(x, y, steps=self._refit_steps)
        with warnings.catch_warnings():
            # The report tells what is lost, for every task.
            warnings.simplefilter("ignore", LostInformationWarning)
            return float(self.model.update(x, y).lost_information)

    def latent(self, x: Tensor) -> DiagonalGaussian:
        """Posterior of f."""
        return self.model.predict(x)

    def inducing_points(self) -> Float[Tensor, "m d"] | None:
        """Inducing points in the units of the inputs."""
        state, clock = self.model.state, self.model.clock
        if state is None or not isinstance(state.inducing, PointFunctional):
            return None
        if state.inducing.weights is not None:
            return None
        origin = float(clock.origin) if self.model.of_time and clock is not None else 0.0
        return state.inducing.nodes.detach() + origin


class ExactLearner:
    """The exact Gaussian process, which keeps all data: what the others approximate.

    Args:
        kernel: prior covariance.
        likelihood: gives the noise.
    """

    def __init__(self, kernel: Kernel, likelihood: Gaussian) -> None:
        self._kernel, self.likelihood = kernel.double(), likelihood.double()
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []

    def learn(self, x: Tensor, y: Tensor) -> float:
        """Keep a task; nothing is lost."""
        self._x.append(x.reshape(len(y), -1))
        self._y.append(y)
        self.latent(x[-1:])  # pays for the factorisation, so that its time is seen
        return 0.0

    def latent(self, x: Tensor) -> DiagonalGaussian:
        """Posterior of f given all data."""
        data, y = torch.cat(self._x), torch.cat(self._y)
        with torch.no_grad():
            return exact_posterior(
                self._kernel, self.likelihood.noise, data, y, x.reshape(len(x), -1)
            )

    def inducing_points(self) -> None:
        """There are none."""


def build_learner(
    method: str, stream: Stream, settings: OnlineSettings, priors: Priors, *, seed: int
) -> Learner:
    """A learner that has seen nothing yet.

    Args:
        method: its name.
        stream: gives the start of time and the dimensions.
        settings: of the model.
        priors: hyperparameters to start from.
        seed: of its own draws.
    """
    kernel, likelihood = priors.of(method)
    if isinstance(likelihood, Gaussian) and method == "exact":
        return ExactLearner(kernel, likelihood)
    if stream.dim == 1:
        first, last = stream.interval
        # Unless it is given, the window is as long as the first task.
        window = settings.model.window or float(stream.tasks[0].x.max()) - first
        basis = make_basis(method, settings.model, window=window, interval=(first, last))
        model = OnlineGP(kernel, likelihood, basis, alpha=settings.model.alpha, t0=first, seed=seed)
    else:
        basis = make_basis(method, settings.model)
        model = OnlineGP(kernel, likelihood, basis, alpha=settings.model.alpha, seed=seed)
    online = settings.model.hyperparameters == "online"
    return OnlineLearner(model, refit_steps=settings.model.fit_steps if online else None)


def make_kernel(settings: GPSettings, dim: int) -> Kernel:
    """The prior covariance, with a lengthscale for each dimension."""
    return _KERNELS[settings.kernel](
        dim,
        lengthscale=_double(settings.lengthscale).expand(dim),
        outputscale=_double(settings.outputscale),
    )


def make_likelihood(settings: GPSettings) -> Likelihood:
    """The observation model."""
    match settings.likelihood:
        case "gaussian":
            return Gaussian(_double(settings.noise))
        case "student-t":
            return StudentT(scale=_double(settings.noise).sqrt())
        case "poisson":
            return Poisson()
        case "negative-binomial":
            return NegativeBinomial(_double(settings.dispersion))
        case "bernoulli":
            return Bernoulli()


def _double(value: float) -> Tensor:
    """A number that keeps its digits: a Python float would pass through float32."""
    return torch.tensor(value, dtype=torch.float64)


def make_basis(
    method: str,
    settings: GPSettings,
    *,
    window: float = 1.0,
    interval: tuple[float, float] = (0.0, 1.0),
) -> Basis:
    """How a method's inducing variables follow the stream.

    Args:
        method: its name.
        settings: of the model.
        window: length of the sliding window, for those that have one.
        interval: of all times, for ovff.

    Raises:
        ValueError: the method has no inducing variables.
    """
    M = settings.num_inducing
    if method in _PATH_ORDERS:
        return Path(
            M,
            memory=settings.path_memory,
            num_features=settings.num_features,
            order=_PATH_ORDERS[method],
        )
    learn = AdamSteps(steps=settings.learn_steps, learning_rate=settings.learn_rate)
    match method:
        case "ohsvgp":
            return LegS(M)
        case "ohsvgp-rff":
            return RecurrentFeatures(
                LegS(M), num_features=settings.num_features, step=settings.recurrence
            )
        case "ohsvgp-legt":
            return LegT(M, window)
        case "ohsvgp-lagt":
            return LagT(M, window)
        case "ohsvgp-fout":
            return FouT(M, window)
        case "cosine":
            return Cosine(M)
        case "grid":
            return UniformGrid(M)
        case "ovc":
            return PivotedCholesky(M)
        case "ovc-optz":
            return PivotedCholesky(M, learn=learn)
        case "osgpr" | "osvgp":
            return RandomSubset(M, learn=learn)
        case "ovff":
            return VariationalFourier(M, *interval)
        case _:
            raise ValueError(f"method {method!r} has no inducing variables")
