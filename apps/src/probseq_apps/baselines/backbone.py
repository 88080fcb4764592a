"""The transformers that baselines change, and the features before their last layer."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from probseq.transformers import (
    Predictor,
    SequenceTransformer,
    TextTransformer,
    VisionTransformer,
)

Backbone = VisionTransformer | TextTransformer | SequenceTransformer


def pooled_features(model: Backbone, inputs: Tensor) -> Float[Tensor, "folded dim"]:
    """Return the pooled features that a model feeds into its last layer."""
    captured: list[Tensor] = []
    hook = model.head.linear.register_forward_pre_hook
    with hook(lambda _, arguments: captured.append(arguments[0])):
        model(inputs)
    (features,) = captured
    return features


@contextmanager
def with_features(model: nn.Module, predictor: Predictor) -> Generator[Predictor]:
    """Give a predictor that returns behind all else pooled features, means over the samples."""
    captured: list[Tensor] = []
    last = next(module for name, module in model.named_modules() if name.endswith("head.linear"))

    def reduce(logits: Tensor) -> tuple[Tensor, ...]:
        features = captured.pop().unflatten(0, (-1, logits.shape[1])).mean(0)
        return *predictor.reduce(logits), features

    with last.register_forward_pre_hook(lambda _, arguments: captured.append(arguments[0])):
        yield replace(predictor, reduce=reduce)
