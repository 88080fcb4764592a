"""Checks of the transformers that baselines change, and the features before the last layer."""

from jaxtyping import Float
from torch import Tensor, nn

from probseq.transformers import (
    KernelAttention,
    SequenceTransformer,
    SoftmaxAttention,
    TextTransformer,
    VisionTransformer,
)

Backbone = VisionTransformer | TextTransformer | SequenceTransformer


def check_backbone(model: nn.Module) -> Backbone:
    """Return the model if it is one of the backbones with an ordinary linear last layer."""
    kind = type(model).__name__
    if not isinstance(model, Backbone):
        raise ValueError(f"model must be a Vision-, Text- or SequenceTransformer, got {kind}")
    if type(last := model.head.linear) is not nn.Linear:
        kind = type(last).__name__
        raise ValueError(f"model must end with an nn.Linear, and is a baseline already: {kind}")
    return model


def check_plain(model: nn.Module, *, method: str) -> Backbone:
    """Raise as `check_backbone`, for methods that change layers of softmax or kernel attention.

    Other attention modules read their layers' weights on their own, or draw samples themselves.
    """
    backbone = check_backbone(model)
    for index, attention in enumerate(backbone.encoder.attention):
        if not isinstance(attention, SoftmaxAttention | KernelAttention):
            raise ValueError(
                f"model must have SoftmaxAttention or KernelAttention in each block for {method}, "
                f"got {type(attention).__name__} in block {index}"
            )
    return backbone


def pooled_features(model: Backbone, inputs: Tensor) -> Float[Tensor, "folded dim"]:
    """Return the pooled features that a model feeds into its last layer."""
    captured: list[Tensor] = []
    hook = model.head.linear.register_forward_pre_hook
    with hook(lambda _, arguments: captured.append(arguments[0])):
        model(inputs)
    (features,) = captured
    return features
