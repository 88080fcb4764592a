"""The mathematics of a codebook: nearest codes, cluster sums, k-means; on one rank or on many."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pseudovideo.ranks import from_first_rank, sum_over_ranks

# Points of one matrix product: a large batch times a large codebook would fill the memory.
_PIECE = 1 << 14


def nearest_codes(
    points: Float[Tensor, "n d"], codebook: Float[Tensor, "k d"]
) -> Int64[Tensor, " n"]:
    """Return the closest code, argmin_k ‖x − e_k‖² = argmin_k ‖e_k‖² − 2 xᵀe_k (eq. 5.5).

    Matrix products, some ten thousand points at a time. Of codes that are equally far the lowest
    index is taken. Both are taken from the codes' mean, far from which the squares would
    lose the digits in which the distances differ.
    """
    origin = codebook.mean(dim=0)
    codebook = codebook - origin
    norms = codebook.square().sum(dim=-1)
    nearest = [
        torch.addmm(norms, piece - origin, codebook.T, alpha=-2).argmin(dim=-1)
        for piece in points.split(_PIECE)
    ]
    return torch.cat(nearest)


def cluster_sums(
    points: Float[Tensor, "n d"],
    indices: Int64[Tensor, " n"],
    codebook_size: int,
    *,
    over_ranks: bool = False,
) -> tuple[Float[Tensor, " k"], Float[Tensor, "k d"]]:
    """Return how many points chose each code, and their sum.

    A product with the one-hot matrix, which adds in the same order at every run: `index_add_`
    does not on a GPU. Points that are not finite count for nothing.

    The points of all ranks count if `over_ranks`.
    """
    moments = points.new_zeros(codebook_size, 1 + points.shape[1])
    for piece, chosen in zip(points.split(_PIECE), indices.split(_PIECE), strict=True):
        finite = piece.isfinite().all(dim=-1, keepdim=True)
        assignments = piece.new_zeros(len(piece), codebook_size)
        assignments.scatter_(1, chosen[:, None], finite.to(piece.dtype))
        rows = torch.cat((piece.new_ones(len(piece), 1), piece.where(finite, 0)), dim=1)
        moments.addmm_(assignments.T, rows)
    if over_ranks:
        moments = sum_over_ranks(moments)
    return moments[:, 0], moments[:, 1:]


def random_points(points: Float[Tensor, "n d"], count: int) -> Float[Tensor, "{count} d"]:
    """Draw rows of the first rank by the global random generator; all ranks get the same rows.

    They are distinct where there are enough of them, and else come again and again.
    """
    order = torch.randperm(len(points), device=points.device)
    chosen = order[torch.arange(count, device=points.device) % len(points)]
    return from_first_rank(points[chosen])


def k_means(
    points: Float[Tensor, "n d"], codebook: Float[Tensor, "k d"], steps: int
) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"]]:
    """Run Lloyd's algorithm on the points of all ranks; a code that nobody chooses stays.

    It starts at the codebook, the same on all ranks.

    Returns:
        The codebook, and how many points choose each of its codes.
    """
    for _ in range(steps):
        nearest = nearest_codes(points, codebook)
        counts, sums = cluster_sums(points, nearest, len(codebook), over_ranks=True)
        codebook = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), codebook)
    nearest = nearest_codes(points, codebook)
    counts, _ = cluster_sums(points, nearest, len(codebook), over_ranks=True)
    return codebook, counts
