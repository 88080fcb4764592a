"""Squared distances whose derivatives of first and second order are finite everywhere."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import broadcastable, check_real

__all__ = ["check_points", "scaled_squared_distance"]


def check_points(x: Tensor, z: Tensor, names: tuple[str, str] = ("x", "z")) -> None:
    """Refuse points that no kernel can be evaluated between."""
    if x.ndim < 2 or z.ndim < 2 or x.shape[-1] != z.shape[-1]:
        raise ValueError(
            f"{' and '.join(names)} must have the shapes (..., n, d) and (..., m, d), got "
            f"{tuple(x.shape)} and {tuple(z.shape)}"
        )
    if not broadcastable(x.shape[:-2], z.shape[:-2]):
        raise ValueError(
            f"{' and '.join(names)} must have batches that broadcast, got shapes "
            f"{tuple(x.shape)} and {tuple(z.shape)}"
        )
    check_real(**{names[0]: x, names[1]: z})


def scaled_squared_distance(
    x: Float[Tensor, "*#b n d"],
    z: Float[Tensor, "*#b m d"],
    scale: Float[Tensor, "*#b 1 d"],
    *,
    exact: bool,
) -> Float[Tensor, "*#b n m"]:
    """Return the squared distances Σ_j scale_j² (x_ij − z_mj)², ``scale`` the inverse lengthscales.

    Both inputs are first centred on the mean of ``z``. Distances do not change, but the expansion
    |a|² + |b|² − 2 aᵀb then loses digits in proportion to the spread of the points and not to their
    offset from the origin: in float32 that decides whether a Cholesky factorisation succeeds.
    ``exact`` sums squared differences instead: some four times slower, and needed where a square
    root follows, which turns an error of 1e-7 into one of 3e-4.
    """
    check_points(x, z)
    centre = z.detach().mean(-2, keepdim=True)
    return _SquaredDistance.apply((x - centre) * scale, (z - centre) * scale, exact)


class _SquaredDistance(torch.autograd.Function):
    """|a_i − b_j|² with the analytic derivative 2(a_i − b_j), by matrix products.

    The derivative does not see the clamp at zero (nor the square root inside ``cdist``), so that
    coincident points have the right second derivatives, which are not zero. Only ``a`` and ``b``
    are kept for the backward pass, no n×m matrix. Being made of differentiable operations, the
    backward pass can be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, exact: bool) -> Tensor:
        ctx.save_for_backward(a, b)
        compiling = torch.compiler.is_compiling()  # torch 2.11: wrong gradients in place
        if a.shape[-1] == 1:
            # On a line the difference itself is no dearer than the expansion, and exact.
            difference = a - b.mT
            return difference.square() if compiling else difference.square_()
        if exact:
            return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
        # One product of widened factors, (−2a, |a|², 1)·(b, 1, |b|²): additions of n×m matrices
        # would take longer than the product itself.
        a_square, b_square = (a * a).sum(-1, keepdim=True), (b * b).sum(-1, keepdim=True)
        rows = torch.cat([-2 * a, a_square, torch.ones_like(a_square)], dim=-1)
        columns = torch.cat([b, torch.ones_like(b_square), b_square], dim=-1)
        product = rows @ columns.mT
        return product.clamp_min(0) if compiling else product.clamp_min_(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grads
        a, b = ctx.saved_tensors
        # Σ_j g_ij 2(a_i − b_j) = 2 (a_i Σ_j g_ij − Σ_j g_ij b_j), and of b with g transposed
        grad_a = 2 * (a * grad.sum(-1)[..., None] - grad @ b)
        grad_b = 2 * (b * grad.sum(-2)[..., None] - grad.mT @ a)
        return grad_a.sum_to_size(a.shape), grad_b.sum_to_size(b.shape), None
