"""Adam on the bound of one task."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.inducing import Inducing, PointFunctional
from probseq.kernels import Kernel


def train(
    bound: Callable[[Tensor], Tensor],
    penalty: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    *,
    count: int,
    epochs: int,
    batch_size: int | None,
    learning_rate: float,
    generator: torch.Generator,
) -> Float[Tensor, " epochs"]:
    """Maximise a task's bound minus a penalty, both in nats.

    The bound is an unbiased estimate from the time points at some positions of ``count``;
    parameters are trained in place by Adam. Return the mean bound of every epoch in nats per time
    point.
    """
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    bounds: list[Tensor] = []
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator, device=generator.device)
        shares: list[Tensor] = []
        for rows in order.split(batch_size or count):
            optimizer.zero_grad()
            value = bound(rows)
            ((penalty() - value) / count).backward()
            optimizer.step()
            # Weighted by the batch's size, so that a small last batch counts little.
            shares.append(value.detach() * (rows.numel() / count))
        bounds.append(torch.stack(shares).sum() / count)
    return torch.stack(bounds)


class LearnedPoints:
    """Inducing points that are learned, in units of the lengthscale like all of the package's."""

    def __init__(self, start: Inducing, kernel: Kernel) -> None:
        if not isinstance(start, PointFunctional) or start.weights is not None:
            raise ValueError(
                "learn_inducing must be False unless the inducing variables are points, "
                f"got {type(start).__name__}: use RandomSubset or PivotedCholesky"
            )
        self.start = start.nodes
        # Points that all latents share move by the mean of their lengthscales.
        scale = torch.nan_to_num(kernel.resolution.detach(), posinf=1.0)
        shared = scale.ndim > start.nodes.ndim
        self.scale = scale.mean(tuple(range(scale.ndim - 2))) if shared else scale
        self.offset = torch.zeros_like(start.nodes).requires_grad_()

    def inducing(self) -> Inducing:
        """Return the points of now."""
        return PointFunctional(self.start + self.scale * self.offset)
