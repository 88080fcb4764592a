"""The transformers that baselines change, and the features before their last layer."""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probseq.metrics import SCORES, SHIFTED, Predictions, feature_scores
from probseq.transformers import Predictor, SequenceTransformer, TextTransformer, VisionTransformer

TRAINING = "training"  # among predictions
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


def with_distances(predictions: Mapping[str, tuple[Tensor, ...]]) -> dict[str, dict[str, Tensor]]:
    """Return the fields of predictions, with the distances of features from the training part's.

    Given are log probabilities, scores of the logits, features and labels. Where there is no
    training part, or features have no width, and of shifted sets the distances are NaN.
    """
    *_, train, classes = predictions.get(TRAINING, (torch.zeros(0, 0), torch.zeros(0)))
    stored: dict[str, dict[str, Tensor]] = {}
    for name, (log_probs, scores, features, labels) in predictions.items():
        distances = scores.new_full((len(labels), len(SCORES) - scores.shape[1]), math.nan)
        if train.numel() and not name.startswith(SHIFTED):
            distances = torch.stack([*feature_scores(features, train, classes).values()], -1)
        if name != TRAINING:
            scores = torch.cat([scores, distances], -1)
            stored[name] = Predictions(log_probs, scores, labels)._asdict()
    return stored
