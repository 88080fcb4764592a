"""Cholesky factors of covariance matrices that are positive definite only up to round-off."""

import math
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import check_counts, check_real
from probseq.errors import CholeskyError, JitterWarning

__all__ = ["default_jitter", "safe_cholesky", "triangular_inverse"]

_DEFAULT_JITTER = {torch.float32: 1e-6, torch.float64: 1e-8}
_GROWTH = 10.0


def default_jitter(dtype: torch.dtype) -> float:
    """Return the jitter, relative to the mean of the diagonal, that ``dtype`` starts from."""
    if dtype not in _DEFAULT_JITTER:
        raise ValueError(
            f"the dtype of a matrix must be float32 or float64 to be factorised, got {dtype}: "
            "convert it with .float(), under autocast too"
        )
    return _DEFAULT_JITTER[dtype]


def safe_cholesky(
    matrix: Float[Tensor, "*b n n"], *, jitter: float | None = None, max_tries: int = 4
) -> Float[Tensor, "*b n n"]:
    """Return the lower Cholesky factor of A + j·mean(diag A)·I, j grown only where it must be.

    The starting jitter, relative, of 1e-6 in float32 and 1e-8 in float64 by default, is always
    added: it belongs to the model, so that the result is a smooth function of ``matrix`` and equal
    matrices have equal factors whatever batch they are in. Batch members that fail are tried again
    with ten times the jitter, `max_tries` in all; the others keep theirs. Only the lower triangle
    is read. Gradients flow through the jitter's scale too, so they are those of the function that
    is computed.

    Works inside ``torch.compile(fullgraph=True)``. There the jitter is found by an opaque operator
    and the factorisation is done once more inside the graph: twice the (small) cost.

    Raises:
        CholeskyError: ``matrix`` holds NaN or infinity, or is indefinite at the largest jitter.

    Warns:
        JitterWarning: more than the starting jitter was needed; the message says how much.
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(
            f"matrix must have shape (..., n, n), got {tuple(matrix.shape)}: "
            "only square matrices have a Cholesky factor"
        )
    first = default_jitter(matrix.dtype)
    if jitter is not None:
        if not 0 < jitter < math.inf:
            raise ValueError(
                f"jitter must be positive and finite, got {jitter}: leave it out for the default "
                f"{first}, or call torch.linalg.cholesky for none"
            )
        first = jitter
    check_counts(max_tries=max_tries)
    if torch.compiler.is_compiling():
        # The search branches on data, which a graph cannot hold; its outcome, one number per
        # matrix, has no gradient, so the search is hidden behind an operator.
        needed = torch.ops.probseq.cholesky_jitter(matrix.detach(), first, max_tries)
        return torch.linalg.cholesky_ex(_with_jitter(matrix, needed)).L
    return _search(matrix, first, max_tries)[0]


def triangular_inverse(L: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n n"]:
    """Return the inverse of a lower triangular matrix, by a triangular solve against the identity.

    NaN and infinity in a tensor reach the result.

    Entries above the diagonal are not read.
    """
    if L.ndim < 2 or L.shape[-1] != L.shape[-2]:
        raise ValueError(f"L must have shape (..., n, n), got {tuple(L.shape)}")
    check_real(L=L)
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return torch.linalg.solve_triangular(L, eye.expand(L.shape), upper=False)


def _with_jitter(matrix: Tensor, relative: Tensor) -> Tensor:
    """Return A + relative·mean(diag A)·I, with one ``relative`` per batch member."""
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    raised = diagonal + relative[..., None] * diagonal.mean(-1, keepdim=True)
    return matrix.diagonal_scatter(raised, dim1=-2, dim2=-1)


def _search(matrix: Tensor, jitter: float, max_tries: int) -> tuple[Tensor, Tensor]:
    """Return the factor and the relative jitter that it took, per batch member."""
    relative = torch.full(matrix.shape[:-2], jitter, dtype=matrix.dtype, device=matrix.device)
    done = torch.zeros_like(relative, dtype=torch.bool)
    for tries in range(max_tries):
        if tries > 0:
            relative = torch.where(done, relative, relative * _GROWTH)
        L, info = torch.linalg.cholesky_ex(_with_jitter(matrix, relative))
        # Some backends report success on NaN and infinity; those always reach L's diagonal.
        done = L.detach().diagonal(dim1=-2, dim2=-1).isfinite().all(-1) & (info == 0)
        if bool(done.all()):
            if tries > 0:
                _warn(relative, jitter)
            return L, relative
        if tries == 0:
            _refuse_nonfinite(matrix)
    raise CholeskyError(
        f"{int((~done).sum())} of {done.numel()} matrices of size {matrix.shape[-1]} are not "
        f"positive definite even with a relative jitter of {float(relative.max()):.0e}: use "
        "float64, a larger jitter, fewer or better separated inputs, or a shorter lengthscale"
    )


def _warn(relative: Tensor, jitter: float) -> None:
    raised = int((relative > jitter * (_GROWTH / 2)).sum())
    warnings.warn(
        f"{raised} of {relative.numel()} matrices needed a relative jitter above {jitter:.0e}; "
        f"up to {float(relative.max()):.0e} times the mean of the diagonal was added",
        JitterWarning,
        stacklevel=4,
    )


def _refuse_nonfinite(matrix: Tensor) -> None:
    finite = matrix.isfinite()
    if finite.all():
        return
    nan = int(matrix.isnan().sum())
    infinite = int((~finite).sum()) - nan
    members = int((~finite).flatten(-2).any(-1).sum())
    raise CholeskyError(
        f"matrix must be finite, got {nan} NaN and {infinite} infinite entries in {members} of "
        f"{matrix.shape[:-2].numel()} matrices: look for the cause in what made the matrix, "
        "no jitter can help"
    )


@torch.library.custom_op("probseq::cholesky_jitter", mutates_args=())
def _cholesky_jitter(matrix: Tensor, jitter: float, max_tries: int) -> Tensor:
    return _search(matrix, jitter, max_tries)[1].clone()


@_cholesky_jitter.register_fake
def _(matrix: Tensor, jitter: float, max_tries: int) -> Tensor:
    return matrix.new_empty(matrix.shape[:-2])
