"""One task of the stream as the GP-VAE's training sees it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp import core
from ohsvgp.bases.base import Advance, Basis
from ohsvgp.inducing import Inducing
from ohsvgp.state import OnlineState
from ohsvgp.step import Move, move
from ohsvgp.stream.arrays import as_real
from ohsvgp.stream.clock import Clock, sorted_times, start_clock
from ohsvgp.vae.memory import Memory
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
    """Covariances of a task: all that doesn't depend on the encoder.

    Attributes:
        step: the inducing set and the old site.
        Psi: Ψ at the task's times.
        K_ff: prior variances there.
    """

    step: Move
    Psi: Tensor
    K_ff: Tensor


def relate(
    kernel: Kernel,
    old: OnlineState | None,
    task: Task,
    inducing: Inducing,
    *,
    rel_jitter: float | None,
    changed: bool,
) -> Window:
    """Covariances of the task under the kernel of now; differentiable.

    Args:
        kernel: prior covariance function, from ``Basis.prior``.
        old: what is carried; None for nothing.
        task: gives the times.
        inducing: the task's set, or one whose points are being learned.
        rel_jitter: of ``whiten``.
        changed: whether hyperparameters are, or may become, other than those of ``old``.
    """
    step = move(kernel, old, inducing, method="chol", rel_jitter=rel_jitter, changed=changed)
    Psi = core.features(kernel, step.inducing, step.whitening, task.x)
    return Window(step, Psi, kernel.diag(task.x))


def read_task(
    t: Any,
    y: Any,
    *,
    memory: Memory,
    basis: Basis,
    kernel: Kernel,
    generator: torch.Generator,
    time_unit: str,
    like: Tensor,
) -> tuple[Clock, Task]:
    """Check the data of a task, and let the inducing set follow them.

    Args:
        t: stamps of shape (n,), sorted, not before t0.
        y: data of shape (n, d_y).
        memory: where the stream stands.
        basis: moves the inducing set.
        kernel: of the latents.
        generator: source of randomness of the basis.
        time_unit: unit of calendar stamps.
        like: gives dtype and device of the data.

    Returns:
        The clock by which the task's times are told, and the task.

    Raises:
        ValueError: no stamps, unsorted or too early ones, a first task of no length, or bad data.
    """
    clock = memory.clock or start_clock(t, time_unit)
    times, _ = sorted_times(clock, t)
    if times.numel() == 0:
        raise ValueError("t must hold at least one stamp, got none")
    x = times.to(kernel.like)[:, None]
    data = as_channels(y, x.shape[0], like)
    old = memory.state
    length = max(float(times[-1]), 0.0 if old is None else old.length)
    if not length > 0:
        raise ValueError(
            "t must span some time in the first task, got a single instant: give more stamps, or t0"
        )
    step = Advance(
        kernel=basis.prior(kernel),
        previous=None if old is None else old.inducing,
        inputs=x,
        length=length,
        origin=float(clock.origin) if clock.unit is None else 0.0,
        generator=generator,
    )
    with torch.no_grad():
        inducing = basis.advance(step)
    return clock, Task(x, data, inducing, length, x.shape[0] + (old.count if old else 0))


def as_channels(y: Any, count: int | None, like: Tensor) -> Tensor:
    """Data of shape (n, d_y), finite.

    Args:
        y: torch tensor, numpy array or nested lists.
        count: n; None for any.
        like: gives dtype and device.

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
