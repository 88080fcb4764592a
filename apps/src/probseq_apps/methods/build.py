"""The transformer of a method for a data set."""

from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from probseq.transformers import sequence_transformer, text_transformer, vision_transformer
from probseq_apps.baselines.mean_field import mean_field_model
from probseq_apps.baselines.sngp import sngp_model
from probseq_apps.baselines.svdkl import svdkl_model
from probseq_apps.data.images import ImageData
from probseq_apps.data.molecules import GraphData
from probseq_apps.data.sequences import SequenceData
from probseq_apps.data.sets import ClassData
from probseq_apps.data.texts import TextData
from probseq_apps.settings.classify import ClassifySettings, RegressSettings
from probseq_apps.settings.methods import TrainedMethod

Data: TypeAlias = ClassData | GraphData

_BASELINES = {"mfvi": mean_field_model, "sngp": sngp_model, "svdkl": svdkl_model}
Compared: TypeAlias = ClassifySettings | RegressSettings


def build(trained: TrainedMethod[Compared], data: Data, *, seed: int) -> nn.Module:
    """Build a method's transformer; the global random generator is left as it was."""
    model, baseline = trained.settings.model, trained.method.baseline
    kernel = model.kernel
    if kernel == "auto":
        kernel = "exponential" if isinstance(data, TextData) else "rbf"
    make = partial(
        _transformer(model, data),
        model,
        trained.attention,
        kernel=kernel,
        initial_variance=model.initial_variance,
        num_data=len(data.train),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = make()
        return built if baseline is None else _BASELINES[baseline](built, num_data=len(data.train))


def _transformer(model: Any, data: Data) -> Any:
    if isinstance(data, ImageData):
        return partial(
            vision_transformer,
            image_size=data.image_size,
            patch_size=model.patch_size,
            channels=data.channels,
            num_classes=data.num_classes,
        )
    if isinstance(data, TextData):
        sizes = {"vocab_size": len(data.vocab), "max_length": data.max_length}
        return partial(text_transformer, num_classes=data.num_classes, **sizes)
    if isinstance(data, SequenceData):
        sizes = {"input_dim": data.input_dim, "max_length": data.max_length}
        return partial(sequence_transformer, num_outputs=data.num_classes, **sizes)
    # Tokens carry their place in the graph: the transformer knows nothing of their order.
    sizes = {"input_dim": data.layout.width, "max_length": data.max_tokens}
    return partial(sequence_transformer, num_outputs=1, positions=False, **sizes)


def count_tokens(settings: ClassifySettings, data: ClassData) -> int:
    """Return the most tokens that an attention module sees, a class token included."""
    if isinstance(data, ImageData):
        tokens = (data.image_size // settings.model.patch_size) ** 2
    else:
        tokens = data.max_length
    return tokens + (settings.model.pooling == "cls")
