"""The Gaussian processes of SV-DKL, on gpytorch."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.errors import require
from probseq.gaussians import DiagonalGaussian


class GaussianProcesses(nn.Module):
    """Independent sparse variational Gaussian processes, each of one scalar input.

    Each has a constant mean, an RBF kernel, and inducing inputs of its own, whitened.

    Args:
        num_processes: number of processes G.
        num_inducing: inducing inputs M of each; they start evenly spaced from -2 to 2.

    Raises:
        MissingExtraError: gpytorch is not installed.
    """

    def __init__(self, num_processes: int, num_inducing: int) -> None:
        super().__init__()
        gpytorch = _gpytorch()
        shape = torch.Size([num_processes])
        grid = torch.linspace(-2.0, 2.0, num_inducing)
        self.variational_strategy = gpytorch.variational.VariationalStrategy(
            self,
            grid.repeat(num_processes, 1)[..., None],
            gpytorch.variational.CholeskyVariationalDistribution(num_inducing, batch_shape=shape),
            learn_inducing_locations=True,
        )
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(batch_shape=shape), batch_shape=shape
        )
        # The first call in training mode sets the posterior to the prior, with a little noise from
        # the global generator: here, so that a first training step draws nothing unseen.
        self.variational_strategy(torch.zeros(num_processes, 1, 1))
        self._forget()

    def forward(self, x: Tensor) -> Any:
        """Prior at the inputs, as gpytorch's variational strategy asks its model for it."""
        distributions = _gpytorch().distributions
        return distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def marginals(self, x: Float[Tensor, "n processes"]) -> DiagonalGaussian:
        """Posterior of each process at its input, ``(n, processes)``."""
        posterior = self.variational_strategy(x.mT[..., None])
        marginals = DiagonalGaussian(posterior.mean.mT, posterior.variance.mT)
        self._forget()
        return marginals

    def kl(self) -> Float[Tensor, ""]:
        """KL divergence of all posteriors from their priors, in nats."""
        divergence = self.variational_strategy.kl_divergence().sum()
        self._forget()
        return divergence

    def _forget(self) -> None:
        """Drop what gpytorch remembers: stale once weights are loaded, and in the way of copies."""
        _gpytorch().utils.memoize.clear_cache_hook(self.variational_strategy)


def _gpytorch() -> Any:
    return require("gpytorch", extra="dkl", distribution="probseq-apps")
