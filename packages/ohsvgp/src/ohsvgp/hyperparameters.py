"""Hyperparameters by maximum likelihood, before the stream starts or between its batches."""

import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ohsvgp.likelihoods import Gaussian, Likelihood
from probseq.checks import check_counts
from probseq.errors import CholeskyError, JitterWarning
from probseq.kernels import Kernel

__all__ = ["FitInfo", "fit"]

# Nats per target below the best that hyperparameters count where the objective fails.
_PENALTY = 1.0
# The noise stays above this share of the mean square of y: at zero the evidence has no maximum
# for targets that the kernel can interpolate.
_NOISE_FLOOR = 1e-6


class FitInfo(NamedTuple):
    """What a fit of hyperparameters did.

    Attributes:
        objective: "evidence", the exact log marginal likelihood, or "energy", the online objective
            (``UpdateInfo.energy``).
        before: its value in nats at the hyperparameters before, summed over series.
        after: its value at those that the model has now; never below ``before``.
        evaluations: how often it was computed.
        failures: how often it could not be (an indefinite or non-finite matrix); those
            hyperparameters were left again.
        last_failure: the error of the last of them; empty without any.
    """

    objective: Literal["evidence", "energy"]
    before: float
    after: float
    evaluations: int
    failures: int
    last_failure: str


def fit(
    kernel: Kernel,
    likelihood: Likelihood,
    objective: Callable[[], Tensor],
    *,
    targets: Tensor,
    steps: int,
    name: Literal["evidence", "energy"],
) -> FitInfo:
    """Maximise an objective by L-BFGS over the parameters of kernel and likelihood, in place.

    Those with ``requires_grad=False`` stay; the best that were met are kept.

    Args:
        kernel: covariance function.
        likelihood: observation model.
        objective: its value in nats at the parameters of now, differentiable in them.
        targets: those that the objective takes; the loss is per target.
        steps: iterations at most.
        name: of the objective.

    Raises:
        ValueError: ``steps`` below 1, no targets, no parameter that requires gradients, or the
            evidence of zeros, which has no maximum in the noise.
        CholeskyError: the objective cannot be computed at the parameters of now.
    """
    check_counts(steps=steps)
    candidates = [*kernel.parameters(), *likelihood.parameters()]
    parameters = [parameter for parameter in candidates if parameter.requires_grad]
    if not parameters:
        raise ValueError("model must have parameters that require gradients, got none")
    if targets.numel() < 1:
        raise ValueError("y must hold at least one target to fit hyperparameters, got none")
    floors = [torch.zeros_like(parameter.detach()) for parameter in parameters]
    if isinstance(likelihood, Gaussian):
        free = likelihood.raw_noise.requires_grad
        if name == "evidence" and free and not bool(targets.any()):
            raise ValueError(
                "y must not be zero everywhere where the noise is fitted: the evidence of zeros "
                "grows without end as the noise shrinks"
            )
        # A noise that the user chose lower than that may stay.
        share = _NOISE_FLOOR * targets.square().mean()
        lowest = torch.minimum(share, 0.1 * likelihood.noise.detach())
        pairs = zip(parameters, floors, strict=True)
        floors = [lowest if raw is likelihood.raw_noise else zero for raw, zero in pairs]
    search = _Objective(objective, parameters, floors, targets.numel())
    free = [z.requires_grad_() for z in search.start()]
    optimizer = torch.optim.LBFGS(free, max_iter=steps, line_search_fn="strong_wolfe")
    try:
        with warnings.catch_warnings():
            # On the way matrices may need more jitter; the model tells if they do in the end.
            warnings.simplefilter("ignore", JitterWarning)
            optimizer.step(lambda: search.loss(free))
    finally:
        search.restore()
    return FitInfo(
        objective=name,
        before=search.before,
        after=search.value,
        evaluations=search.evaluations,
        failures=search.failures,
        last_failure=search.last_failure,
    )


class _Objective:
    """The objective as a function of free coordinates z, and the best parameters met so far.

    A raw parameter is a logarithm: raw = log(floor + exp(z)), or z itself where the floor is zero.

    Args:
        function: objective in nats at the parameters' values of now.
        parameters: what is fitted.
        floors: lower limits in user units, zero for none.
        count: number of targets; the loss is per target.

    Raises:
        CholeskyError: the objective cannot be computed at the parameters of now.
    """

    def __init__(
        self,
        function: Callable[[], Tensor],
        parameters: list[nn.Parameter],
        floors: list[Tensor],
        count: int,
    ) -> None:
        self.function = function
        self.parameters = parameters
        self.log_floors = [floor.log() for floor in floors]
        self.count = count
        self.failures = 0
        self.last_failure = ""
        self.evaluations = 1
        self.before, _ = self._evaluate()
        self.value = self.before
        self.values = [parameter.detach().clone() for parameter in parameters]

    def start(self) -> list[Tensor]:
        """Coordinates of the parameters of now."""
        pairs = zip(self.values, self.log_floors, strict=True)
        return [raw + torch.log1p(-(floor - raw).exp()) for raw, floor in pairs]

    def loss(self, free: list[Tensor]) -> Tensor:
        """Minus the objective per target at coordinates whose gradients are set.

        Where it cannot be computed it is one nat above the least so far, and flat.
        """
        raw = [torch.logaddexp(z, low) for z, low in zip(free, self.log_floors, strict=True)]
        self._write(raw)
        self.evaluations += 1
        try:
            value, gradients = self._evaluate()
        except CholeskyError as error:
            self.failures += 1
            self.last_failure = str(error)
            value, gradients = self.value - _PENALTY * self.count, None
        for i, z in enumerate(free):
            # d raw/d z = exp(z)/(floor + exp(z)).
            slope = torch.zeros_like(z) if gradients is None else gradients[i]
            z.grad = -slope * torch.sigmoid(z - self.log_floors[i]) / self.count
        if value > self.value:
            self.value = value
            self.values = [parameter.detach().clone() for parameter in self.parameters]
        return free[0].new_tensor(-value / self.count)

    def restore(self) -> None:
        """Give the parameters the best values met."""
        self._write(self.values)

    def _write(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)

    def _evaluate(self) -> tuple[float, tuple[Tensor, ...]]:
        """Objective and gradients at the parameters of now; what fails is a CholeskyError."""
        try:
            with torch.enable_grad():
                value = self.function()
                gradients = torch.autograd.grad(value, self.parameters, materialize_grads=True)
        except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
            raise CholeskyError(str(error)) from error
        finite = [value.isfinite().all(), *(gradient.isfinite().all() for gradient in gradients)]
        if not all(bool(part) for part in finite):
            raise CholeskyError(
                f"the objective and its gradient must be finite, got {value.item()} in nats"
            )
        return value.item(), gradients
