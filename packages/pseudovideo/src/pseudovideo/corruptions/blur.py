"""Blur as linear algebra: a step is a matrix for each axis, and all steps share eigenvectors.

The kernel is an 11-tap normalised Gaussian per axis with reflect padding (the border pixel is not
repeated), and step i = 0..T−2 has standard deviation exp(rate·i) (thesis section 5.3.2). Its
matrix B_i is diagonal in the basis of the DCT of type I, borders included.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from probseq.checks import check_counts
from pseudovideo.spec import check_blur_rate

_HALF_WIDTH = 5


def blur_matrices(size: int, num_frames: int, rate: float) -> Float64[Tensor, "T size size"]:
    """Return M_t of the recursive blur M_t X M_tᵀ: M_T = I, M_{T−1−i} = B_i M_{T−i}.

    Of N = `size` pixels along the axis, one matrix for each of T frames, the strongest blur first,
    the identity last; standard deviations grow as exp(rate·i).
    """
    check_counts(size=size, num_frames=num_frames)
    check_blur_rate("rate", rate, num_frames)
    _check_size(size)
    taps = _taps(num_frames - 1, rate)
    positions = torch.arange(size)[:, None] + torch.arange(-_HALF_WIDTH, _HALF_WIDTH + 1)
    reflected = size - 1 - (size - 1 - positions.abs()).abs()
    eye = torch.eye(size, dtype=torch.float64)
    matrices = [eye]
    for step in torch.einsum("ik,nkm->inm", taps, eye[reflected]):
        matrices.append(step @ matrices[-1])
    return torch.stack(matrices[::-1])


def blur_eigenvalues(size: int, num_steps: int, rate: float) -> Float64[Tensor, "steps size"]:
    """Return eigenvalues of B_i: λ_k = w_0 + 2 Σ_{j=1..5} w_j cos(πkj/(N−1)), k = 0..N−1.

    Of N = `size` pixels and T−1 = `num_steps` blurs, as `blur_matrices`.
    """
    _check_size(size)
    shifts = torch.arange(-_HALF_WIDTH, _HALF_WIDTH + 1, dtype=torch.float64)
    frequencies = torch.arange(size, dtype=torch.float64) * math.pi / (size - 1)
    return _taps(num_steps, rate) @ (shifts[:, None] * frequencies).cos()


def cosine_basis(size: int) -> tuple[Float64[Tensor, "size size"], Float64[Tensor, "size size"]]:
    """Return the eigenvectors V of every B_i and V⁻¹: B_i = V diag(λ) V⁻¹, for N ≥ 2 pixels.

    V[n, k] = cos(πkn/(N−1)), and V⁻¹ = 2/(N−1)·D V D, where D halves the two borders; this is the
    DCT of type I.
    """
    positions = torch.arange(size, dtype=torch.float64)
    basis = (positions[:, None] * positions * math.pi / (size - 1)).cos()
    borders = torch.ones(size, dtype=torch.float64)
    borders[[0, -1]] = 0.5
    return basis, 2 / (size - 1) * borders[:, None] * basis * borders


def high_order_multipliers(
    height: int, width: int, num_frames: int, rate: float
) -> Float64[Tensor, "T height width"]:
    """Return multipliers of the high-order blur (Table 5.5) in the cosine basis of both axes.

    A frame is the blur of the mean of all cleaner frames. The mean of products M_s X M_sᵀ is no
    such product, but stays diagonal: Λ_T = 1 and Λ_{T−1−i} = λ_i λ_iᵀ ∘ mean(Λ_{T−i}, …, Λ_T), so
    that frame_t = V (Λ_t ∘ V⁻¹ X V⁻ᵀ) Vᵀ; the strongest blur first, ones last.
    """
    rows = blur_eigenvalues(height, num_frames - 1, rate)
    columns = blur_eigenvalues(width, num_frames - 1, rate)
    multipliers = [torch.ones(height, width, dtype=torch.float64)]
    total = multipliers[0]
    for step, both in enumerate(rows[:, :, None] * columns[:, None, :], start=1):
        multipliers.append(both * total / step)
        total = total + multipliers[-1]
    return torch.stack(multipliers[::-1])


def _taps(num_steps: int, rate: float) -> Tensor:
    """Return kernels (num_steps, 11), each of sum 1."""
    sigmas = (rate * torch.arange(num_steps, dtype=torch.float64)).exp()
    shifts = torch.arange(-_HALF_WIDTH, _HALF_WIDTH + 1, dtype=torch.float64)
    return (-0.5 * (shifts / sigmas[:, None]).square()).softmax(-1)


def _check_size(size: int) -> None:
    if size <= _HALF_WIDTH:
        raise ValueError(
            f"images must have a size of at least {_HALF_WIDTH + 1} pixels on each side for a "
            f"config with blur, got {size}: the kernel reflects {_HALF_WIDTH} pixels at the border"
        )
