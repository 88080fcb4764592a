"""Adam on the bound of one task."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ohsvgp.inducing import Inducing, PointFunctional
from ohsvgp.vae.task import Task
from probseq.kernels import Kernel

if TYPE_CHECKING:
    from ohsvgp.vae.model import OnlineSVGPVAE

__all__ = ["train"]


def train(
    model: "OnlineSVGPVAE",
    task: Task,
    *,
    epochs: int,
    batch_size: int | None,
    learning_rate: float,
    num_samples: int,
    learn_kernel: bool,
    learn_inducing: bool,
) -> tuple[Tensor, Inducing]:
    """Maximise the task's bound minus the penalty of consolidation.

    Args:
        model: trained in place.
        task: its data and first inducing set.
        epochs: passes over the time points.
        batch_size: time points that a step decodes; all if None.
        learning_rate: of Adam.
        num_samples: draws of f per time point and step.
        learn_kernel: train the kernel's hyperparameters too.
        learn_inducing: train the inducing points too.

    Returns:
        Mean bound of every epoch in nats per time point, and the inducing set.

    Raises:
        ValueError: a number below 1, or hyperparameters or inducing variables that cannot be
            learned with this basis.
    """
    numbers = {"epochs": epochs, "batch_size": batch_size, "num_samples": num_samples}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if learn_kernel and model.basis.fixed_hyperparameters:
        raise ValueError(
            f"learn_kernel must be False with {type(model.basis).__name__}: its inducing "
            "variables cannot be made again under other hyperparameters"
        )
    points = _Points(task.inducing, model.kernel) if learn_inducing else None
    kept: list[nn.Parameter] = model.kept()
    hyperparameters = list(model.kernel.parameters()) if learn_kernel else []
    moved = [] if points is None else [points.offset]
    optimizer = torch.optim.Adam([*kept, *hyperparameters, *moved], lr=learning_rate)
    fixed = None
    if points is None and not learn_kernel:
        with torch.no_grad():
            fixed = model.window(task, task.inducing)
    count = task.x.shape[0]
    bounds: list[Tensor] = []
    for _ in range(epochs):
        order = torch.randperm(count, generator=model.generator, device=model.generator.device)
        total = torch.zeros_like(model.raw_noise)
        for rows in order.split(batch_size or count):
            optimizer.zero_grad()
            if fixed is None:
                inducing = task.inducing if points is None else points.inducing()
                window = model.window(task, inducing, learning=learn_kernel)
            else:
                window = fixed
            bound = model.task_bound(task, window, rows, num_samples)
            penalty = model.consolidation_weight * model.consolidation.penalty(kept)
            ((penalty - bound) / count).backward()
            optimizer.step()
            # Weighted by the batch's size, so that a small last batch counts little.
            total = total + bound.detach() * (rows.numel() / count)
        bounds.append(total / count)
    with torch.no_grad():
        found = task.inducing if points is None else points.inducing()
    return torch.stack(bounds), found


class _Points:
    """Inducing points that are learned, in units of the lengthscale like all of the package's."""

    def __init__(self, start: Inducing, kernel: Kernel) -> None:
        if not isinstance(start, PointFunctional) or start.weights is not None:
            raise ValueError(
                "learn_inducing must be False unless the inducing variables are points, "
                f"got {type(start).__name__}: use RandomSubset or PivotedCholesky"
            )
        self.start = start.nodes
        # Points that all latents share move by the mean of their lengthscales.
        scale = kernel.lengthscale.detach()
        shared = scale.ndim > start.nodes.ndim
        self.scale = scale.mean(tuple(range(scale.ndim - 2))) if shared else scale
        self.offset = torch.zeros_like(start.nodes).requires_grad_()

    def inducing(self) -> Inducing:
        """The points of now."""
        return PointFunctional(self.start + self.scale * self.offset)
