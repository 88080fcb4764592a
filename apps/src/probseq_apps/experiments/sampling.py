"""Monte Carlo samples of a model's outputs, as a method draws them."""

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.transformers import repeat_samples
from probseq_apps.baselines.dropout import active_dropout
from probseq_apps.experiments.methods import MethodSpec


def sample_outputs(
    method: MethodSpec,
    model: nn.Module,
    inputs: Tensor,
    *,
    num_samples: int,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "s n outputs"]:
    """Draw a model's outputs for one batch.

    Args:
        method: says whether its predictions are sampled, and how.
        model: transformer, in eval mode but for `fit`'s own uses.
        inputs: what the model takes.
        num_samples: samples S of methods that sample, drawn as one batch; others give one.
        generator: source of the attention modules' draws; dropout draws from the global one.
    """
    if not method.sampled:
        return model(inputs, generator=generator).logits[None]
    if not method.test_dropout:
        return model(inputs, generator=generator, num_samples=num_samples).logits
    # Copies of the inputs, not `num_samples`: the dropout behind the embedding draws too.
    with active_dropout(model) if not model.training else nullcontext():
        copies = repeat_samples(inputs, num_samples)
        return model(copies, generator=generator).logits.unflatten(0, (num_samples, -1))
