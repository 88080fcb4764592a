"""Greedy partial Cholesky factorisation of a kernel matrix."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohsvgp.inducing import continuous
from probseq.kernels import Kernel
from probseq.linalg import default_jitter

# Up to this many candidates for each pivot their whole matrix is computed.
_FEW = 4


@torch.no_grad()
def pivots(kernel: Kernel, candidates: Float[Tensor, "*#b n d"], count: int) -> Int[Tensor, "*b m"]:
    """Return indices of the points that a pivoted Cholesky factorisation picks, in order.

    Each is the one whose variance, once those before are known, is largest, the first of equals
    (Maddox et al. 2021, after Burt et al. 2019). Among many points only one row of the kernel
    is computed for each pivot: O(n M²) time and O(n M) memory.

    It stops where what remains of every variance is below the jitter that factorisations add
    anyway: more points would only repeat what those before know.

    Each kernel of a batch picks for itself, as many M ≤ min(n, count) points as the others.
    """
    kernel = continuous(kernel)
    variance = kernel.diag(candidates)
    batch, n = variance.shape[:-1], variance.shape[-1]
    points = candidates.expand(*batch, n, candidates.shape[-1]).to(variance)
    remaining = variance.clone()
    least = default_jitter(variance.dtype) * variance.mean(-1, keepdim=True)
    size = min(n, count)
    factor = variance.new_zeros(*batch, size, n)
    chosen = torch.zeros(*batch, size, dtype=torch.int64, device=variance.device)
    # The matrix of few points is no larger than the factor, and faster than a row at a time.
    matrix = kernel(points, points) if n <= _FEW * size else None
    for m in range(size):
        largest, index = remaining.max(-1, keepdim=True)
        if m > 0 and bool((largest <= least).all()):
            return chosen[..., :m]
        chosen[..., m : m + 1] = index
        if matrix is None:
            pivot = points.gather(-2, index[..., None].expand(*batch, 1, points.shape[-1]))
            prior = kernel(pivot, points)
        else:
            prior = matrix.gather(-2, index[..., None].expand(*batch, 1, n))
        # Row of the Schur complement: k(pivot, ·) minus what the rows before explain.
        rows = factor[..., :m, :].gather(-1, index[..., None, :].expand(*batch, m, 1))
        row = prior - rows.mT @ factor[..., :m, :]
        # A member that has finished before others adds rows of round-off: divided by the floor.
        row = row[..., 0, :] / torch.maximum(largest, least).sqrt()
        factor[..., m, :] = row
        remaining -= row.square()
        remaining.scatter_(-1, index, -torch.inf)
    return chosen
