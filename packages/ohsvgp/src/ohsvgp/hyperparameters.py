"""Hyperparameters by maximum likelihood, before the stream starts or between its batches."""

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ohsvgp.bases.points import PointBasis
from ohsvgp.exact import log_marginal_likelihood
from ohsvgp.likelihoods import Gaussian
from ohsvgp.reading import read_batch
from probseq.errors import CholeskyError, JitterWarning

if TYPE_CHECKING:
    from ohsvgp.online import OnlineGP

__all__ = ["FitInfo", "fit_hyperparameters"]

# Up to here the exact evidence takes at most about a second an evaluation.
_MAX_EXACT = 2000
# The noise stays above this share of the mean square of y: at zero the evidence has no maximum
# for targets that the kernel can interpolate.
_NOISE_FLOOR = 1e-6
# Nats per target below the best that hyperparameters count where the objective fails.
_PENALTY = 1.0


class FitInfo(NamedTuple):
    """What a fit of hyperparameters did.

    Attributes:
        objective: "evidence", the exact log marginal likelihood, or "bound", the online bound.
        before: its value in nats at the hyperparameters before, summed over series.
        after: its value at those that the model has now; never below ``before``.
        evaluations: how often it was computed.
        failures: how often it could not be (an indefinite or non-finite matrix); those
            hyperparameters were left again.
        last_failure: the error of the last of them; empty without any.
    """

    objective: Literal["evidence", "bound"]
    before: float
    after: float
    evaluations: int
    failures: int
    last_failure: str


def fit_hyperparameters(
    model: "OnlineGP", t: Any, y: Any, *, mask: Any = None, steps: int = 100
) -> FitInfo:
    """Fit the parameters of kernel and likelihood to data, without absorbing them.

    Before any data, with a Gaussian likelihood and at most 2000 points, by the exact log marginal
    likelihood (ML-II); otherwise by the model's online bound of these data, which sees the old
    ones through the posterior. L-BFGS on the unconstrained parameters; those with
    ``requires_grad=False`` stay, and the Gaussian noise cannot fall below 1e-6 of the mean square
    of y. The best parameters that were met are kept. Bases that learn inducing points do not
    learn them meanwhile.

    Args:
        model: the model; its kernel and likelihood are changed in place.
        t: as in ``OnlineGP.update``.
        y: as in ``OnlineGP.update``.
        mask: as in ``OnlineGP.update``.
        steps: iterations of L-BFGS at most.

    Returns:
        The objective before and after, and how often it failed.

    Raises:
        ValueError: bad data, ``steps`` below 1, no parameter to fit, or data have been absorbed
            under a basis whose hyperparameters must stay.
        CholeskyError: the objective cannot be computed at the hyperparameters before.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if model.state is not None and model.basis.fixed_hyperparameters:
        raise ValueError(
            f"kernel must keep its hyperparameters once {type(model.basis).__name__} has absorbed "
            "data: fit them before the first update"
        )
    candidates = [*model.kernel.parameters(), *model.likelihood.parameters()]
    parameters = [parameter for parameter in candidates if parameter.requires_grad]
    if not parameters:
        raise ValueError("model must have parameters that require gradients, got none")
    x, targets, chosen = read_batch(model, t, y, mask).data
    count = targets.numel() if chosen is None else int(chosen.expand_as(targets).sum())
    if count == 0:
        raise ValueError("y must hold at least one target to fit hyperparameters, got none")
    likelihood = model.likelihood
    if model.state is None and isinstance(likelihood, Gaussian) and len(x) <= _MAX_EXACT:
        name: Literal["evidence", "bound"] = "evidence"

        def objective() -> Tensor:
            noise = likelihood.noise
            return log_marginal_likelihood(model.kernel, noise, x, targets, mask=chosen).sum()
    else:
        name = "bound"
        twin = copy.copy(model)
        if isinstance(model.basis, PointBasis):
            twin.basis = model.basis.without_learning()

        def objective() -> Tensor:
            return twin.bound(t, y, mask=mask).sum()

    floors = [torch.zeros_like(parameter.detach()) for parameter in parameters]
    if isinstance(likelihood, Gaussian):
        floor = _NOISE_FLOOR * targets.square().sum() / count
        # A noise that the user chose lower than that may stay.
        lowest = torch.minimum(floor, 0.1 * likelihood.noise.detach())
        for i, parameter in enumerate(parameters):
            if parameter is likelihood.raw_noise:
                floors[i] = lowest
    return _maximise(_Objective(objective, parameters, floors, count), name, steps)


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


def _maximise(objective: _Objective, name: Literal["evidence", "bound"], steps: int) -> FitInfo:
    free = [z.requires_grad_() for z in objective.start()]
    optimizer = torch.optim.LBFGS(free, max_iter=steps, line_search_fn="strong_wolfe")
    try:
        with warnings.catch_warnings():
            # On the way matrices may need more jitter; the model tells if they do in the end.
            warnings.simplefilter("ignore", JitterWarning)
            optimizer.step(lambda: objective.loss(free))
    finally:
        objective.restore()
    return FitInfo(
        objective=name,
        before=objective.before,
        after=objective.value,
        evaluations=objective.evaluations,
        failures=objective.failures,
        last_failure=objective.last_failure,
    )
