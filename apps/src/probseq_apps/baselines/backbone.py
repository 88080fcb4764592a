"""The transformers that baselines change, and the features before their last layer."""

from jaxtyping import Float
from torch import Tensor

from probseq.transformers import SequenceTransformer, TextTransformer, VisionTransformer

Backbone = VisionTransformer | TextTransformer | SequenceTransformer


def pooled_features(model: Backbone, inputs: Tensor) -> Float[Tensor, "folded dim"]:
    """Return the pooled features that a model feeds into its last layer."""
    captured: list[Tensor] = []
    hook = model.head.linear.register_forward_pre_hook
    with hook(lambda _, arguments: captured.append(arguments[0])):
        model(inputs)
    (features,) = captured
    return features
