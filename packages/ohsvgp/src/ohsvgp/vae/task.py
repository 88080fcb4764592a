"""One task of the stream as the GP-VAE's training sees it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from ohsvgp import core
from ohsvgp.inducing import Inducing
from ohsvgp.process import InducingChange, change_inducing
from ohsvgp.state import OnlineState
from ohsvgp.stream.arrays import as_real
from probseq.kernels import Kernel


class TaskInfo(NamedTuple):
    """What ``fit_task`` did.

    Attributes:
        bounds: mean bound of every epoch in nats per time point.
        lost_information: nats of old knowledge that the new inducing set cannot hold, per latent.
        n_new: number of time points.
    """

    bounds: Float[Tensor, " epochs"]
    lost_information: Float[Tensor, " l"]
    n_new: int


@dataclass(frozen=True, eq=False)
class Task:
    """Checked data of a task and the inducing set for it.

    Attributes:
        x: times counted from t0, shape (n, 1).
        y: data, shape (n, d_y).
        inducing: the set of the task.
        length: end of the window minus t0.
        count: number of time points seen, these counted.
    """

    x: Tensor
    y: Tensor
    inducing: Inducing
    length: float
    count: int


class Window(NamedTuple):
    """Covariances of a task: all that doesn't depend on the encoder."""

    step: InducingChange  # the inducing set and the old site
    Psi: Tensor  # Ψ at the task's times
    K_ff: Tensor  # prior variances there


def relate(
    kernel: Kernel,
    old: OnlineState | None,
    x: Float[Tensor, "n 1"],
    inducing: Inducing,
    *,
    changed: bool,
) -> Window:
    """Return the covariances at some times under the kernel of now; differentiable.

    Args:
        kernel: prior covariance function, from ``Basis.prior``.
        old: what is carried; None for nothing.
        x: times counted from t0.
        inducing: the set, which may be that of ``old``, or one whose points are being learned.
        changed: whether hyperparameters are, or may become, other than those of ``old``.
    """
    step = change_inducing(kernel, old, inducing, method="chol", rel_jitter=None, changed=changed)
    Psi = core.features(kernel, step.inducing, step.whitening, x)
    return Window(step, Psi, kernel.diag(x))


def as_channels(y: Any, count: int | None, like: Tensor) -> Tensor:
    """Check data of shape (n, d_y), any n if ``count`` is None; dtype and device of ``like``.

    Raises:
        ValueError: another shape, complex numbers, NaN or infinity.
    """
    data = as_real(y, like, "y")
    if data.ndim != 2 or (count is not None and data.shape[0] != count):
        raise ValueError(
            f"y must have shape ({'n' if count is None else count}, channels), "
            f"got {tuple(data.shape)}"
        )
    if not bool(data.isfinite().all()):
        bad = int((~data.isfinite()).any(-1).sum())
        raise ValueError(f"y must be finite, got NaN or infinity at {bad} of {len(data)} times")
    return data
