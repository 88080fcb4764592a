"""Mean-field variational inference over the weights (Blundell et al. 2015)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from probseq.transformers import TransformerOutput
from probseq.transformers.protocol import check_num_samples
from probseq.transformers.sampling import call_on_copies
from probseq_apps.baselines.backbone import Backbone


class MeanFieldLinear(nn.Module):
    r"""Linear layer with an independent normal posterior over each weight and bias.

    With :math:`q(W_{ij}) = N(\mu_{ij}, \sigma_{ij}^2)` an output given its input x is
    :math:`N(\mu x, \sigma^2 x^2)` (Kingma et al. 2015, Eq. 6: local reparametrisation).

    Outputs are drawn, one for each token. The weights of `linear` become the means.
    """

    generator: torch.Generator | None = None  # of the current forward pass

    def __init__(self, linear: nn.Linear, *, prior_std: float, initial_std: float) -> None:
        super().__init__()
        self._prior_std, start = prior_std, math.log(initial_std)
        self.weight_mean = linear.weight
        self.raw_weight_std = nn.Parameter(torch.full_like(linear.weight, start))
        self.bias_mean = dict(linear.named_parameters()).get("bias")
        self.raw_bias_std = (
            None if self.bias_mean is None else nn.Parameter(torch.full_like(self.bias_mean, start))
        )

    def forward(self, x: Float[Tensor, "folded *tokens in"]) -> Float[Tensor, "folded *tokens out"]:
        """Draw the layer's outputs."""
        mean = F.linear(x, self.weight_mean, self.bias_mean)
        bias_variance = None if self.raw_bias_std is None else self.raw_bias_std.exp().square()
        variance = F.linear(x.square(), self.raw_weight_std.exp().square(), bias_variance)
        # The square root has no gradient at zero, where an input of zeros leads.
        std = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
        noise = torch.empty_like(mean).normal_(generator=self.generator)
        return mean + std * noise

    def kl(self) -> Float[Tensor, ""]:
        r"""Return KL from N(0, p²), :math:`\sum \log(p/\sigma) + (\sigma^2 + \mu^2)/2p^2 - 1/2`."""
        total = _kl(self.weight_mean, self.raw_weight_std, self._prior_std)
        if self.bias_mean is not None and self.raw_bias_std is not None:
            total = total + _kl(self.bias_mean, self.raw_bias_std, self._prior_std)
        return total


class MeanFieldTransformer(nn.Module):
    """A transformer whose linear layers are `MeanFieldLinear`; see `mean_field_model`."""

    def __init__(self, model: Backbone, *, num_data: int) -> None:
        super().__init__()
        self.model, self.num_data = model, num_data

    def forward(
        self,
        inputs: Tensor,
        *,
        generator: torch.Generator | None = None,
        num_samples: int | None = None,
    ) -> TransformerOutput:
        """Draw each layer's outputs and classify."""
        check_num_samples(num_samples)
        for layer in self._layers():
            layer.generator = generator
        try:
            if num_samples is None:
                logits, penalty = self.model(inputs)
            else:
                logits, penalty = call_on_copies(self.model, inputs, num_samples)
        finally:
            for layer in self._layers():
                layer.generator = None
        return TransformerOutput(logits, penalty + self.kl() / self.num_data)

    def kl(self) -> Float[Tensor, ""]:
        """Return the KL divergence of all weights' posterior from the prior, in nats."""
        return torch.stack([layer.kl() for layer in self._layers()]).sum()

    def _layers(self) -> list[MeanFieldLinear]:
        return [module for module in self.modules() if isinstance(module, MeanFieldLinear)]


def mean_field_model(
    model: Backbone, *, num_data: int, prior_std: float = 1.0, initial_std: float = 0.01
) -> MeanFieldTransformer:
    """Give the linear layers of a transformer a mean-field Gaussian posterior.

    All linear layers of the blocks and of the head have one, weights and biases. Embeddings (the
    patches' convolution too), positions, layer norms and kernel hyperparameters stay point
    estimates. Dropout is switched off: the thesis (B.4) has it for all methods but this one.

    Each layer's outputs are drawn, one for each token: every single one has the right distribution,
    but a weight serves all tokens of a sequence, and that dependence is lost. What is pooled over T
    tokens varies too little, by up to a factor T in variance.

    The transformer has softmax or kernel attention; it is changed and becomes a part of the result.
    Its weights are the initial means of the posterior, `initial_std` its standard deviation.
    """
    for module in (model.encoder, model.head):
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    layer = MeanFieldLinear(child, prior_std=prior_std, initial_std=initial_std)
                    parent.register_module(name, layer)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return MeanFieldTransformer(model, num_data=num_data)


def _kl(mean: Tensor, raw_std: Tensor, prior_std: float) -> Tensor:
    scaled = (torch.exp(2.0 * raw_std) + mean.square()) / prior_std**2
    return (math.log(prior_std) - raw_std + 0.5 * scaled - 0.5).sum()
