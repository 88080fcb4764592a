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
    """Result of ``fit_task``."""

    bounds: Float[Tensor, " epochs"]  # mean bound of every epoch in nats per time point
    # nats of old knowledge that the new inducing set cannot hold, per latent
    lost_information: Float[Tensor, " l"]
    n_new: int  # number of time points


@dataclass(frozen=True, eq=False)
class TaskData:
    """Checked data of a task and the inducing set for it."""

    x: Tensor  # times counted from t0, shape (n, 1)
    y: Tensor  # data, shape (n, d_y)
    inducing: Inducing  # the set of the task
    length: float  # end of the window minus t0
    count: int  # number of time points seen, these counted


class TaskCovariances(NamedTuple):
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
) -> TaskCovariances:
    """Return the covariances at some times under the kernel of now; differentiable.

    The set may be that of the old state, or one whose points are being learned; ``changed`` says
    whether hyperparameters are, or may become, other than those of the old state.
    """
    step = change_inducing(kernel, old, inducing, rel_jitter=None, changed=changed)
    Psi = core.features(kernel, step.inducing, step.whitening, x)
    return TaskCovariances(step, Psi, kernel.diag(x))


def as_channels(y: Any, count: int, like: Tensor) -> Tensor:
    """Check data of shape (n, d_y); they get the dtype and device of ``like``."""
    data = as_real(y, like, "y")
    if data.ndim != 2 or data.shape[0] != count:
        raise ValueError(f"y must have shape ({count}, channels), got {tuple(data.shape)}")
    if not bool(data.isfinite().all()):
        bad = int((~data.isfinite()).any(-1).sum())
        raise ValueError(f"y must be finite, got NaN or infinity at {bad} of {len(data)} times")
    return data
