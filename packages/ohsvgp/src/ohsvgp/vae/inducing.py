"""One inducing set for all latents, where each would choose its own."""

from dataclasses import replace

import torch
from torch import Tensor

from ohsvgp.bases.base import Advance, Basis
from ohsvgp.inducing import Inducing
from probseq.kernels import Kernel


class SharedSet(Basis):
    """The set that a basis chooses under the mean of the latents' kernels.

    ``PivotedCholesky`` under a batch of kernels allocates M points to every latent (OVC-per-dim of
    thesis 4.6.3); inside this it allocates M points to all of them together (OVC).

    The basis may not replace the kernel.
    """

    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self.num_inducing = basis.num_inducing
        self.fixed_hyperparameters = basis.fixed_hyperparameters

    def bind(self, kernel: Kernel, generator: torch.Generator) -> None:
        """Attach the basis inside to the mean kernel."""
        mean = _MeanKernel(kernel)
        self.basis.bind(mean, generator)
        if self.basis.prior(mean) is not mean:
            raise ValueError(
                "basis must use the kernel as it is to share its set between latents, "
                f"got {type(self.basis).__name__}"
            )

    def advance(self, step: Advance) -> Inducing:
        """Return what the basis inside chooses."""
        return self.basis.advance(replace(step, kernel=_MeanKernel(step.kernel)))


class _MeanKernel(Kernel):
    """Mean over a batch of kernels: the covariance of their processes' normalised sum."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.dim)
        self.to(kernel.like)
        self.kernels = kernel

    def _covariance(self, x: Tensor, z: Tensor) -> Tensor:
        return self._mean(self.kernels(x, z))

    def _variance(self, x: Tensor) -> Tensor:
        return self._mean(self.kernels.diag(x))

    def _mean(self, values: Tensor) -> Tensor:
        batch = len(self.kernels.batch_shape)
        return values.mean(tuple(range(batch))) if batch else values
