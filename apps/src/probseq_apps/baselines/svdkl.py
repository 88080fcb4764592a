"""Stochastic variational deep kernel learning (Wilson et al. 2016), on gpytorch."""

import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.errors import require
from probseq.gaussians import DiagonalGaussian
from probseq.precision import full_precision
from probseq.transformers import TransformerOutput
from probseq_apps.baselines.backbone import Backbone


class GaussianProcesses(nn.Module):
    """Independent sparse variational Gaussian processes, each of one scalar input.

    Each has a constant mean, an RBF kernel, and whitened inducing inputs of its own, which start
    evenly spaced from -2 to 2.
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
        """Return the prior at the inputs, as gpytorch's variational strategy asks for it."""
        distributions = _gpytorch().distributions
        return distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def marginals(self, x: Float[Tensor, "n processes"]) -> DiagonalGaussian:
        """Return the posterior of each process at its input, ``(n, processes)``."""
        posterior = self.variational_strategy(x.mT[..., None])
        marginals = DiagonalGaussian(posterior.mean.mT, posterior.variance.mT)
        self._forget()
        return marginals

    def kl(self) -> Float[Tensor, ""]:
        """Return the KL divergence of all posteriors from their priors, in nats."""
        divergence = self.variational_strategy.kl_divergence().sum()
        self._forget()
        return divergence

    def _forget(self) -> None:
        """Drop what gpytorch remembers: stale once weights are loaded, and in the way of copies."""
        _gpytorch().utils.memoize.clear_cache_hook(self.variational_strategy)


class SVDKLTransformer(nn.Module):
    r"""A transformer whose last layer are Gaussian processes; see `svdkl_model`.

    The pooled features h become G numbers, each the input of a Gaussian process of its own, and
    the logits are linear combinations of these (Wilson et al. 2016, Eqs. 5-6):
    :math:`f_g \sim GP, \quad y \sim \operatorname{softmax}(A f(B h + b))`.
    """

    def __init__(
        self, model: Backbone, *, num_data: int, num_processes: int, num_inducing: int
    ) -> None:
        super().__init__()
        last = model.head.linear
        model.head.register_module("linear", nn.Identity())
        self.model, self.num_data = model, num_data
        self.reduction = nn.Linear(last.in_features, num_processes)
        self.processes = GaussianProcesses(num_processes, num_inducing)
        self.mixing = nn.Linear(num_processes, last.out_features, bias=False)
        self.to(last.weight)

    def forward(
        self,
        inputs: Tensor,
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Draw from the processes' posterior and classify.

        Each input's logits depend on the processes at that input alone, so that independent draws
        are exact.
        """
        features, penalty = self.model(inputs, generator=generator, num_samples=num_samples)
        with torch.autocast(features.device.type, enabled=False):
            reduced = self.reduction(full_precision(features))
            marginals = self.processes.marginals(reduced.flatten(0, -2))
            draws = marginals.rsample(generator=generator)
            logits = self.mixing(draws).unflatten(0, features.shape[:-1])
            return TransformerOutput(logits, penalty + self.processes.kl() / self.num_data)


def svdkl_model(
    model: Backbone, *, num_data: int, num_processes: int = 16, num_inducing: int = 32
) -> SVDKLTransformer:
    """Put Gaussian processes in the place of a transformer's last layer.

    The paper trains in two steps: first the transformer with its linear layer, then everything
    together. Give a trained model for that; a fresh one makes it one step.

    Differences from the paper: the inducing inputs are free and start as a grid, where the paper
    keeps the grid and interpolates (its trick for many of them, in one dimension no gain for 32);
    each posterior is a full Gaussian; the constant means stand in for a bias of the mixing.

    The transformer is changed and becomes a part of the result, which always draws. The extra with
    gpytorch must be installed.
    """
    with warnings.catch_warnings():
        # What gpytorch says on import about a part of torch that it uses helps nobody here.
        warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", FutureWarning)
        _gpytorch()
    return SVDKLTransformer(
        model, num_data=num_data, num_processes=num_processes, num_inducing=num_inducing
    )


def _gpytorch() -> Any:
    return require("gpytorch", extra="dkl", distribution="probseq-apps")
