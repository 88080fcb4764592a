"""Orders in which the points of a batch are strung into a path (thesis section 4.4).

Every rule returns a permutation: ``x[order]`` is the path.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probseq.kernels import Kernel

Order = Literal["given", "kernel-max", "kernel-min", "random"]
ORDERS: tuple[Order, ...] = ("given", "kernel-max", "kernel-min", "random")

# Up to so many points one kernel matrix (32 MB in float64) is faster than a row at a time.
_MATRIX_LIMIT = 2048


def path_order(
    rule: Order,
    kernel: Kernel,
    x: Float[Tensor, "n d"],
    previous: Float[Tensor, " d"] | None = None,
    generator: torch.Generator | None = None,
) -> Int64[Tensor, " n"]:
    """Return the order of the points of one batch.

    "given": as they come (the thesis' oracle, OHSVGP-o). "kernel-max" and "kernel-min": every point
    is the one nearest to, or farthest from, the one before in the kernel. "random": a permutation.

    The greedy rules start from ``previous``, where the path so far ends, or if None from the
    origin, as the thesis says for the first task; it leaves later tasks open.
    """
    if rule not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {rule!r}")
    if rule == "given":
        return torch.arange(x.shape[0], device=x.device)
    if rule == "random":
        device = "cpu" if generator is None else generator.device
        return torch.randperm(x.shape[0], generator=generator, device=device).to(x.device)
    start = x.new_zeros(x.shape[-1]) if previous is None else previous
    return greedy_order(kernel, x, start, nearest=rule == "kernel-max")


def greedy_order(
    kernel: Kernel, x: Float[Tensor, "n d"], start: Float[Tensor, " d"], *, nearest: bool
) -> Int64[Tensor, " n"]:
    """Order by x_i = arg max (or arg min) of k(x, x_{i-1}) over those left; O(n² d).

    Of equal ones the earliest in the batch is taken. With a batch of kernels, their sum decides.

    x_0, ``start``, is not on the path itself; ``nearest`` maximises k, else it is minimised.
    """
    n, sign = x.shape[0], 1.0 if nearest else -1.0

    def scores(z: Tensor) -> Tensor:
        K = sign * kernel(z, x).detach()
        return K.flatten(0, -3).sum(0) if K.ndim > 2 else K

    matrix = scores(x) if n <= _MATRIX_LIMIT else None
    row = scores(start[None])[0]
    taken = torch.zeros_like(row)
    order: list[int] = []
    for _ in range(n):
        best = int((row + taken).argmax())
        order.append(best)
        taken[best] = -torch.inf
        row = scores(x[best : best + 1])[0] if matrix is None else matrix[best]
    return torch.tensor(order, dtype=torch.int64, device=x.device)
