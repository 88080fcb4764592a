"""Equally spaced Fourier features: the deterministic alternative to random ones.

On a window of length T a kernel is a Fourier series of any period longer than T by as much as it
takes to die out. For the squared exponential, period T + 7ℓ and frequencies up to 7/ℓ leave an
error of e^{−49/2} ≈ 2e-11, with N = 7 (T/ℓ + 7)/(2π) frequencies. Random ones would err by about
1/√N.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ohsvgp.hippo.random_features import FeatureKernel
from probseq.fourier import fourier_features
from probseq.kernels import RBF, Kernel

# Lengthscales of margin in time, and frequencies times the lengthscale: e^{−7²/2} = 2e-11.
_MARGIN = 7.0


def equispaced_frequencies(
    kernel: Kernel, length: float
) -> tuple[Float[Tensor, "f 1"], Float[Tensor, " f"]]:
    """Return frequencies 0, Δ, 2Δ, ... at unit lengthscale, and their shares of the variance.

    Matérn kernels are refused: their spectra fall off as a power only, so that 1e-6 takes ten
    thousands of frequencies or more.

    Args:
        kernel: squared exponential on a line.
        length: longest distance T between two inputs, in units of the inputs.

    Returns:
        Frequencies of shape (F, 1) and weights of shape (F,) with sum one: k(r) ≈ σ_f² Σ w cos ωr/ℓ
        for |r| ≤ T, F = N + 1.

    Raises:
        ValueError: another kernel, more than one input dimension, or a length below zero.
    """
    if not isinstance(kernel, RBF):
        raise ValueError(
            f"kernel must be RBF for equally spaced frequencies, got {type(kernel).__name__}: "
            "its spectrum has no end, use random frequencies or exact covariances"
        )
    if kernel.dim != 1:
        raise ValueError(f"kernel must have dim=1, got dim={kernel.dim}")
    if not (math.isfinite(length) and length >= 0):
        raise ValueError(f"length must be finite and not negative, got {length}")
    parameter = kernel.like
    # One spacing for all heads: the one that the shortest lengthscale needs.
    period = length / float(kernel.lengthscale.detach().min()) + _MARGIN
    count = math.ceil(_MARGIN * period / (2 * math.pi))
    frequencies = torch.arange(count + 1, dtype=torch.float64) * (2 * math.pi / period)
    weights = (-0.5 * frequencies.square()).exp()
    weights[0] *= 0.5
    return frequencies[:, None].to(parameter), (weights / weights.sum()).to(parameter)


class EquispacedKernel(FeatureKernel):
    """Kernel of finite rank with the features √(σ_f² w)(cos ωx/ℓ, sin ωx/ℓ).

    ``frequencies`` ω and ``weights`` w are those of ``equispaced_frequencies``.
    """

    weights: Tensor

    def __init__(
        self, kernel: Kernel, frequencies: Float[Tensor, "f 1"], weights: Float[Tensor, " f"]
    ) -> None:
        super().__init__(kernel, frequencies)
        self.register_buffer("weights", weights)

    def features(self, x: Float[Tensor, "*#b n d"]) -> Float[Tensor, "*b n g"]:
        """Return φ(x), g = 2F: all cosines, then all sines."""
        # Those of random features have the weight 1/F each.
        scale = (self.weights * self.weights.shape[-1]).sqrt()
        return fourier_features(self.kernel, x, self.frequencies) * torch.cat([scale, scale])
