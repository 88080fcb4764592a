"""Forgetting in a sequence of tasks."""

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_floating


def forgetting(
    matrix: Float[Tensor, "..."], *, higher_is_better: bool = False
) -> Float[Tensor, " tasks"]:
    """Return how much worse each task is at the end than right after it was learned.

    F_i = R_{K,i} − R_{i,i} in the metric's unit, with the sign turned where higher values are
    better; the last task's is 0. ``matrix`` is R, a metric on task i (column) after learning task j
    (row). Above its diagonal, tasks that are yet to come, it is not read and may be NaN.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ValueError(f"matrix must have shape (tasks, tasks), got {tuple(matrix.shape)}")
    check_floating(matrix=matrix)
    learned = torch.ones_like(matrix, dtype=torch.bool).tril()
    if not bool(matrix[learned].isfinite().all()):
        raise ValueError("matrix must be finite on and below its diagonal, got NaN or infinity")
    change = matrix[-1] - matrix.diagonal()
    return -change if higher_is_better else change
