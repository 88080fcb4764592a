"""Hyperparameters by maximum likelihood, before the stream starts or between its batches."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from ohsvgp.likelihoods import Gaussian, Likelihood
from probseq.checks import check_counts, check_whole
from probseq.errors import CholeskyError, JitterWarning
from probseq.kernels import Kernel
from probseq.kernels.base import Limits

# Nats per target below the best that hyperparameters count where the objective fails.
_PENALTY = 1.0
# The noise stays above this share of the mean square of y: at zero the evidence has no maximum
# for targets that the kernel can interpolate.
_NOISE_FLOOR = 1e-6
# Nats per target and unit of a logarithm below which a gradient counts as zero.
_CONVERGED_SLOPE = 1e-3
# Coordinates drawn for a start, the least steps from each, and, in units of the logarithm, how far
# inside the limits of a lengthscale its draws lie, which are a tenth of a gap and 100 spans.
_DRAWS, _MIN_STEPS = 16, 10
_INSIDE = (math.log(10.0), math.log(100.0))
_OF_INPUTS = ("raw_lengthscale", "raw_period")
# Fewer targets along a stream move each parameter by a factor of two at most, and tell of no calm.
FEW_TARGETS = 10
# Probability of errors below which a batch counts as drift, or of smaller ones.
_DRIFT_PROBABILITY = 1e-3


class FitInfo(NamedTuple):
    """Result of a fit of hyperparameters."""

    # "evidence", the exact log marginal likelihood, or "energy", the online objective
    # (``UpdateInfo.energy``)
    objective: Literal["evidence", "energy"]
    before: float  # its value in nats at the hyperparameters before, summed over series
    after: float  # its value at those that the model has now; never below ``before``
    failures: int  # how often it could not be computed; those hyperparameters were left again
    # whether the gradient there, in nats per target and unit of a logarithm, is below 1e-3 in each
    # parameter: more steps would find little more near by
    converged: bool
    # names of parameters within a factor of two of their limits, which the data do not determine
    at_limit: tuple[str, ...] = ()
    # what the search reached from each start; more than a nat apart there are several maxima, and
    # more ``restarts`` may find a greater one
    reached: tuple[float, ...] = ()


@dataclass(frozen=True)
class Refit:
    """Schedule of a model's fits of its hyperparameters, on the batch that it is about to absorb.

    After the first batch the objective is the online energy, in which the old site stands for all
    data before: it approximates the evidence of the whole stream (thesis section 4.3).

    Args:
        when: "first" for the first batch only; "every:5" for it and every fifth update after it;
            "drift" for it and batches that the model before them does not expect: errors as large,
            by the sum of their squares in units of what it expects, have a probability below 1e-3,
            or of ten targets or more above .999.
        steps: iterations of L-BFGS at most, of each start.
        priors: (median, factor) of log-normal priors by a parameter's name, such as
            "kernel.raw_lengthscale", in user units: two thirds of the mass lies within the factor
            of the median.
        restarts: further starts of the search, each the best of 16 draws of the parameters; along a
            stream for the first batch only.
        limited: whether parameters stay within wide limits in the units of the data
            (``ohsvgp.limits.data_limits``), which matter where data say nothing of them; by fewer
            than ten targets beside a state each moves by a factor of two at most.
    """

    when: str = "first"
    steps: int = 50
    priors: Mapping[str, tuple[float, float]] | None = None
    restarts: int = 2
    limited: bool = True

    def __post_init__(self) -> None:
        check_counts(steps=self.steps)
        check_whole(restarts=self.restarts)
        if self.restarts < 0:
            raise ValueError(f"restarts must be a whole number of at least 0, got {self.restarts}")
        priors = cast("object", self.priors)
        if priors is not None and not isinstance(priors, Mapping):
            raise ValueError(f"priors must map names of parameters to pairs, got {priors!r}")
        for name, pair in cast("Mapping[object, Any]", priors or {}).items():
            numbers = (
                [float(x) for x in pair if isinstance(x, Real)]
                if isinstance(pair, Sequence)
                else []
            )
            if len(numbers) != 2 or not (0 < numbers[0] < math.inf and 1 < numbers[1] < math.inf):
                raise ValueError(
                    f"priors must be (median above 0, factor above 1), got {pair} of {name}"
                )
        if self.when not in ("first", "drift") and self.period is None:
            raise ValueError(f'when must be "first", "every:5" or "drift", got {self.when!r}')

    @property
    def period(self) -> int | None:
        """Return the number of updates from one fit to the next; None if they are not counted."""
        word, _, count = str(self.when).partition(":")
        counted = word == "every" and count.isascii() and count.isdigit() and int(count) > 0
        return int(count) if counted else None

    def due(self, updates: int, count: int, probability: Callable[[], float]) -> bool:
        """Return whether to fit before an update of so many targets.

        The probability is of errors at least as large as those of the batch, and asked if it
        matters.
        """
        if updates == 0:
            return True
        if self.period is not None:
            return updates % self.period == 0
        if self.when != "drift":
            return False
        p = probability()
        return p < _DRIFT_PROBABILITY or (count >= FEW_TARGETS and p > 1.0 - _DRIFT_PROBABILITY)


def fit(
    kernel: Kernel,
    likelihood: Likelihood,
    objective: Callable[[], Tensor],
    *,
    targets: Tensor,
    name: Literal["evidence", "energy"],
    options: Refit,
    seed: int = 0,
    limits: Mapping[str, Limits] | None = None,
) -> FitInfo:
    """Maximise an objective by L-BFGS over the parameters of kernel and likelihood, in place.

    Those with ``requires_grad=False`` stay; the best values that were evaluated remain.

    The objective, in nats and differentiable in the parameters, takes so many targets as the loss
    is divided by; with priors it is that of greatest posterior. Limits, by name, hold the values of
    now; without them the noise alone has a lower one.
    """
    named = {
        f"{owner}.{parameter}": value
        for owner, module in (("kernel", kernel), ("likelihood", likelihood))
        for parameter, value in module.named_parameters()
        if value.requires_grad
    }
    parameters = list(named.values())
    limits = {} if limits is None else limits
    weak = {name: side.prior for name, side in limits.items() if side.prior and name in named}
    priors = weak | dict(options.priors or {})
    if wrong := priors.keys() - named.keys():
        raise ValueError(f"priors must be of {', '.join(named)}, got {min(wrong)!r}")
    if not parameters:
        raise ValueError("model must have parameters that require gradients, got none")
    if targets.numel() < 1:
        raise ValueError("y must hold at least one target to fit hyperparameters, got none")
    none = Limits(torch.zeros(()), torch.full((), math.inf))
    sides = [(limits.get(name, none), raw) for name, raw in named.items()]
    chosen = [
        side._replace(low=side.low.to(raw).expand_as(raw), high=side.high.to(raw).expand_as(raw))
        for side, raw in sides
    ]
    if isinstance(likelihood, Gaussian) and "likelihood.raw_noise" not in limits:
        free = likelihood.raw_noise.requires_grad
        if name == "evidence" and free and not bool(targets.any()):
            raise ValueError(
                "y must not be zero everywhere where the noise is fitted: the evidence of zeros "
                "grows without end as the noise shrinks"
            )
        # A noise that the user chose lower than that may stay.
        share = _NOISE_FLOOR * targets.square().mean()
        lowest = torch.minimum(share, 0.1 * likelihood.noise.detach())
        pairs = zip(parameters, chosen, strict=True)
        chosen = [
            side._replace(low=lowest) if raw is likelihood.raw_noise else side
            for raw, side in pairs
        ]

    def posterior() -> Tensor:
        value = objective()
        for parameter, (median, factor) in priors.items():
            # −½ ((log θ − log median)/log factor)².
            distance = (named[parameter] - math.log(median)) / math.log(factor)
            value = value - 0.5 * distance.square().sum()
        return value

    search = _Objective(posterior, parameters, chosen, targets.numel())
    first, generator = search.start(), torch.Generator().manual_seed(seed)
    try:
        with warnings.catch_warnings():
            # On the way matrices may need more jitter; the model tells if they do in the end.
            warnings.simplefilter("ignore", JitterWarning)
            reached: list[float] = []
            if options.restarts:
                # A short way from each start, then all of it from where the best has come.
                short = max(_MIN_STEPS, options.steps // 4)
                others = [search.draw([*named], generator) for _ in range(options.restarts)]
                for start in [first, *others]:
                    reached.append(search.climb(start, short))
                first = search.start()
            end = search.climb(first, options.steps)
    finally:
        search.restore()
    return FitInfo(
        objective=name,
        before=search.before,
        after=search.value,
        failures=search.failures,
        converged=search.slope < _CONVERGED_SLOPE,
        reached=tuple(reached) or (end,),
        at_limit=tuple(name for name, at in zip(named, search.at_limit(), strict=True) if at),
    )


class _Objective:
    """The objective as a function of free coordinates z, and the best parameters so far.

    A raw parameter is a logarithm. With limits a and b, exp(raw) = (e^z + a)/(1 + e^z/b), which is
    all but e^z between them: raw = z + log(1 + a e^−z) − log(1 + e^z/b).
    """

    def __init__(
        self,
        function: Callable[[], Tensor],
        parameters: list[nn.Parameter],
        limits: list[Limits],
        count: int,
    ) -> None:
        self.function = function
        self.parameters = parameters
        self.logs = [(side.low.log(), side.high.log()) for side in limits]
        self.count = count
        self.failures = 0
        self.before, _ = self._evaluate()
        self.value = self.before
        self.slope = math.inf
        self.values = [parameter.detach().clone() for parameter in parameters]
        if any(side.start is not None for side in limits):
            # Far from the data's units searches go astray.
            self._try(
                [
                    raw if side.start is None else side.start.log()
                    for raw, side in zip(self.values, limits, strict=True)
                ]
            )

    def _try(self, values: list[Tensor]) -> None:
        """Start from other values if the objective is higher there."""
        self._write(values)
        with suppress(CholeskyError):
            value, _ = self._evaluate()
            if value > self.value:
                self.value, self.values = value, values
        self.restore()

    def start(self) -> list[Tensor]:
        """Return the coordinates of the parameters of now."""
        return [
            raw + torch.log1p(-(low - raw).exp()) - torch.log1p(-(raw - high).exp())
            for raw, (low, high) in zip(self.values, self.logs, strict=True)
        ]

    def draw(self, names: list[str], generator: torch.Generator) -> list[Tensor]:
        """Return the best of some drawn coordinates, which are not searched from.

        Far from their optimum the objective is flat in lengthscales and periods, and has many
        maxima: these are uniform in the logarithm, from the inputs' gap to their span, if there are
        limits, all others a factor e^ε away.
        """
        best, most, centre = self.start(), -math.inf, self.start()
        for _ in range(_DRAWS):
            candidate: list[Tensor] = []
            for name, z, (low, high) in zip(names, centre, self.logs, strict=True):
                ends = (low + _INSIDE[0], high - _INSIDE[1])
                if name.endswith("raw_period"):
                    ends = (low, high)
                if name.endswith(_OF_INPUTS) and bool((ends[1] - ends[0]).isfinite().all()):
                    share = torch.rand(z.shape, generator=generator).to(z)
                    candidate.append(ends[0] + share * (ends[1] - ends[0]))
                else:
                    candidate.append(z + torch.randn(z.shape, generator=generator).to(z))
            self._write(self._raw(candidate))
            with suppress(CholeskyError), torch.no_grad():
                if (value := self._value().item()) > most:
                    best, most = candidate, value
        self.restore()
        return best

    def climb(self, start: list[Tensor], steps: int) -> float:
        """Go up from some coordinates by L-BFGS; return the objective in the end."""
        free = [z.detach().clone().requires_grad_() for z in start]
        optimizer = torch.optim.LBFGS(free, max_iter=steps, line_search_fn="strong_wolfe")
        optimizer.step(lambda: self.loss(free))
        return -float(self.loss(free)) * self.count

    def at_limit(self) -> list[bool]:
        """Return whether some of each parameter lies within a factor of two of a limit."""
        near = math.log(2)
        return [
            bool(((raw < low + near) | (raw > high - near)).any())
            for raw, (low, high) in zip(self.values, self.logs, strict=True)
        ]

    def loss(self, free: list[Tensor]) -> Tensor:
        """Return minus the objective per target at coordinates whose gradients are set.

        Where it cannot be computed it is one nat above the least so far, and flat.
        """
        self._write(self._raw(free))
        try:
            value, gradients = self._evaluate()
        except CholeskyError:
            self.failures += 1
            value, gradients = self.value - _PENALTY * self.count, None
        for i, z in enumerate(free):
            # d raw/d z = σ(z − log a) − σ(z − log b).
            slope = torch.zeros_like(z) if gradients is None else gradients[i]
            below, above = (torch.sigmoid(z.detach() - side) for side in self.logs[i])
            slope = -slope * (below - above) / self.count
            z.grad = slope.contiguous()  # L-BFGS takes a view of it
        if gradients is not None and value >= self.value:
            self.value = value
            self.slope = max(float(z.grad.abs().max()) for z in free if z.grad is not None)
            self.values = [parameter.detach().clone() for parameter in self.parameters]
        return free[0].new_tensor(-value / self.count)

    def restore(self) -> None:
        """Give the parameters their best values."""
        self._write(self.values)

    def _raw(self, free: list[Tensor]) -> list[Tensor]:
        return [
            torch.logaddexp(z, low) - torch.nn.functional.softplus(z - high)
            for z, (low, high) in zip(free, self.logs, strict=True)
        ]

    def _write(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)

    def _value(self) -> Tensor:
        """Return the objective at the parameters of now, or raise a CholeskyError."""
        try:
            value = self.function()
        except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
            raise CholeskyError(str(error)) from error
        if not bool(value.isfinite().all()):
            raise CholeskyError(f"the objective must be finite, got {value.item()} in nats")
        return value

    def _evaluate(self) -> tuple[float, tuple[Tensor, ...]]:
        """Return objective and gradients at the parameters of now, or raise a CholeskyError."""
        with torch.enable_grad():
            value = self._value()
            try:
                gradients = torch.autograd.grad(value, self.parameters, materialize_grads=True)
            except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
                raise CholeskyError(str(error)) from error
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            raise CholeskyError("the gradient of the objective must be finite")
        return value.item(), gradients
