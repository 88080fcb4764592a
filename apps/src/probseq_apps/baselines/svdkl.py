"""Stochastic variational deep kernel learning (Wilson et al. 2016), on gpytorch."""

import warnings

import torch
from torch import Tensor, nn

from probseq.checks import check_counts
from probseq.errors import require
from probseq.transformers import TransformerOutput
from probseq.transformers.attention import full_precision
from probseq_apps.baselines.backbone import Backbone, check_backbone
from probseq_apps.baselines.gp_layer import GaussianProcesses


class SVDKLTransformer(nn.Module):
    r"""A transformer whose last layer are Gaussian processes; see `svdkl_model`.

    The pooled features h become G numbers, each the input of a Gaussian process of its own, and
    the logits are linear combinations of these (Wilson et al. 2016, Eqs. 5-6):
    :math:`f_g \sim GP, \quad y \sim \operatorname{softmax}(A f(B h + b))`.

    Args:
        model: the transformer, without its last layer.
        dim: width of the features.
        num_classes: width of the output.
        num_data: number of training examples.
        num_processes: number of processes G.
        num_inducing: inducing inputs of each process.
    """

    def __init__(
        self,
        model: Backbone,
        *,
        dim: int,
        num_classes: int,
        num_data: int,
        num_processes: int,
        num_inducing: int,
    ) -> None:
        super().__init__()
        self.model, self.num_data = model, num_data
        self.reduction = nn.Linear(dim, num_processes)
        self.processes = GaussianProcesses(num_processes, num_inducing)
        self.mixing = nn.Linear(num_processes, num_classes, bias=False)

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
    model: nn.Module, *, num_data: int, num_processes: int = 16, num_inducing: int = 32
) -> SVDKLTransformer:
    """Put Gaussian processes in the place of a transformer's last layer.

    The paper trains in two steps: first the transformer with its linear layer, then everything
    together. Give a trained model for that; a fresh one makes it one step.

    Differences from the paper: the inducing inputs are free and start as a grid, where the paper
    keeps the grid and interpolates (its trick for many of them, in one dimension no gain for 32);
    each posterior is a full Gaussian; the constant means stand in for a bias of the mixing.

    Args:
        model: transformer; it is changed and becomes a part of the result.
        num_data: number of training examples.
        num_processes: number of processes G.
        num_inducing: inducing inputs of each process.

    Returns:
        A transformer with ``forward(inputs, *, generator, num_samples)`` that always draws.

    Raises:
        ValueError: the model is of another kind, or an argument is out of range.
        MissingExtraError: gpytorch is not installed.
    """
    check_counts(num_data=num_data)
    for name, value in (("num_processes", num_processes), ("num_inducing", num_inducing)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    backbone = check_backbone(model)
    with warnings.catch_warnings():
        # What gpytorch says on import about a part of torch that it uses helps nobody here.
        warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", FutureWarning)
        require("gpytorch", extra="dkl", distribution="probseq-apps")
    linear = backbone.head.linear
    backbone.head.register_module("linear", nn.Identity())
    changed = SVDKLTransformer(
        backbone,
        dim=linear.in_features,
        num_classes=linear.out_features,
        num_data=num_data,
        num_processes=num_processes,
        num_inducing=num_inducing,
    )
    return changed.to(linear.weight)
