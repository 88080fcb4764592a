"""The model of `probseq regress`: a transformer over tokens of graphs, and its likelihood."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.transformers import TransformerOutput, sequence_transformer
from probseq_apps.data.molecules import GraphData
from probseq_apps.experiments.methods import MethodSpec
from probseq_apps.experiments.models import (
    KernelName,
    attention_config,
    backbone_config,
    wrap_baseline,
)
from probseq_apps.experiments.regress_settings import RegressSettings
from sgpa import LaplaceLikelihood


class RegressionModel(nn.Module):
    """A transformer and the likelihood of its output, trained as one (thesis B.3.2).

    Args:
        transformer: has one output.
        likelihood: of the standardised targets.
    """

    def __init__(self, transformer: nn.Module, likelihood: LaplaceLikelihood) -> None:
        super().__init__()
        self.transformer = transformer
        self.likelihood = likelihood

    def forward(
        self,
        tokens: Float[Tensor, "n t w"],
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """The transformer's output, in units of the targets' standard deviation."""
        return self.transformer(tokens, generator=generator, num_samples=num_samples)


def build_regression_model(
    method: MethodSpec, settings: RegressSettings, data: GraphData, *, seed: int
) -> RegressionModel:
    """Build a method's transformer with a Laplace likelihood of scale 1.

    Tokens carry their place in the graph, so the transformer knows nothing of their order.

    Args:
        method: says which attention module goes into each block.
        settings: sizes.
        data: gives the shape of the inputs.
        seed: of the initialisation; the global generator is left as it was.

    Raises:
        ValueError: the settings don't fit each other or the data.
    """
    model = settings.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = sequence_transformer(
            backbone_config(model),
            attention_config(method, settings),
            input_dim=data.layout.width,
            max_length=data.max_tokens,
            num_outputs=1,
            positions=False,
            kernel=kernel_name(method, settings),
            initial_variance=model.initial_variance,
            num_data=len(data.train),
        )
        wrapped = wrap_baseline(method, transformer, settings, num_data=len(data.train))
        return RegressionModel(wrapped, LaplaceLikelihood())


def kernel_name(method: MethodSpec, settings: RegressSettings) -> KernelName:
    """Kernel of a method's attention: its own, the settings', or RBF, the thesis' for graphs."""
    name = settings.model.kernel if method.kernel == "auto" else method.kernel
    return "rbf" if name == "auto" else name
