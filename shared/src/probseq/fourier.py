"""Random Fourier features of stationary kernels (Rahimi and Recht, 2007).

NaN and infinity in a tensor reach the result.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from probseq.checks import broadcastable, check_counts, check_real
from probseq.gaussians import standard_normal
from probseq.kernels import Kernel, StationaryKernel

__all__ = ["fourier_features", "sample_frequencies"]


def sample_frequencies(
    kernel: Kernel, num_features: int, generator: torch.Generator | None = None
) -> Float[Tensor, "*heads f d"]:
    """Draw frequencies ω from the kernel's spectral density at unit lengthscale.

    RBF: ω ~ N(0, I). Matérn of smoothness ν: ω is multivariate Student-t with 2ν degrees of
    freedom, i.e. a normal vector divided by √(χ²/2ν), with one χ²_2ν per frequency.

    Lengthscales are left out on purpose: ``fourier_features`` applies the current ones, so the
    same frequencies serve while hyperparameters are learned, and gradients reach them. They have no
    gradient themselves; the generator is on the kernel's device.
    """
    nu = _stationary(kernel).smoothness
    check_counts(num_features=num_features)
    parameter = kernel.like

    def normal(*shape: int) -> Tensor:
        return standard_normal(shape, like=parameter, generator=generator)

    frequencies = normal(*kernel.batch_shape, num_features, kernel.dim)
    if math.isinf(nu):
        return frequencies
    # 2ν is 1, 3 or 5: χ² is a sum of so many squared normals, and the generator is obeyed.
    degrees = round(2 * nu)
    chi_square = normal(*kernel.batch_shape, num_features, degrees).square().sum(-1, keepdim=True)
    return frequencies * (degrees / chi_square).sqrt()


def fourier_features(
    kernel: Kernel, x: Float[Tensor, "*#b n d"], frequencies: Float[Tensor, "*#b f d"]
) -> Float[Tensor, "*#b n g"]:
    """Return features with E[φ(x)ᵀφ(z)] = k(x, z): √(σ_f²/F) (cos ωᵀ(x/ℓ), sin ωᵀ(x/ℓ)).

    Pairs of cosine and sine, not a cosine with a random phase: the variance φ(x)ᵀφ(x) = σ_f² is
    then exact, and the error of the rest is smaller at the same number of features.

    The frequencies are those of :func:`sample_frequencies` for this stationary kernel; of the
    g = 2F features first come all cosines, then all sines.
    """
    kernel = _stationary(kernel)
    check_real(x=x, frequencies=frequencies)
    if torch.promote_types(x.dtype, kernel.like.dtype) != frequencies.dtype:
        raise ValueError(
            f"x, frequencies and the kernel must be of one dtype, got {x.dtype}, "
            f"{frequencies.dtype} and {kernel.like.dtype}"
        )
    for name, value in (("x", x), ("frequencies", frequencies)):
        if value.ndim < 2 or value.shape[-1] != kernel.dim:
            raise ValueError(
                f"{name} must have shape (..., count, {kernel.dim}), got {tuple(value.shape)}: "
                "the last dimension is the kernel's dim"
            )
    if not broadcastable(x.shape[:-2], frequencies.shape[:-2], kernel.batch_shape):
        raise ValueError(
            "x and frequencies must have batches that broadcast against one another and against "
            f"batch_shape={kernel.batch_shape}, got {tuple(x.shape)} and {tuple(frequencies.shape)}"
        )
    phase = (x / kernel.lengthscale) @ frequencies.mT
    amplitude = (kernel.outputscale / frequencies.shape[-2]).sqrt()[..., None, None]
    return amplitude * torch.cat([phase.cos(), phase.sin()], dim=-1)


def _stationary(kernel: Kernel) -> StationaryKernel:
    if not isinstance(kernel, StationaryKernel):
        raise ValueError(
            f"kernel must be stationary to have Fourier features, got {type(kernel).__name__}: "
            "use RBF, Matern12, Matern32 or Matern52"
        )
    return kernel
