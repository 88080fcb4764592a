"""The transformer of a method for a data set."""

from typing import Any, TypeAlias

import torch
from torch import nn

from probseq.transformers import sequence_transformer, text_transformer, vision_transformer
from probseq_apps.baselines.mean_field import mean_field_model
from probseq_apps.baselines.sngp import sngp_model
from probseq_apps.baselines.svdkl import svdkl_model
from probseq_apps.data.images import ImageData
from probseq_apps.data.molecules import GraphData
from probseq_apps.data.texts import EmbeddedTextData, TextData
from probseq_apps.settings.classify import ClassifySettings, RegressSettings
from probseq_apps.settings.methods import Method

Data: TypeAlias = ImageData | TextData | EmbeddedTextData | GraphData
ComparisonSettings: TypeAlias = ClassifySettings | RegressSettings

_BASELINES = {"mfvi": mean_field_model, "sngp": sngp_model, "svdkl": svdkl_model}


def build(method: Method, settings: ComparisonSettings, data: Data, *, seed: int) -> nn.Module:
    """Build a method's transformer; the global random generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _transformer(method, settings, data)
        if method.baseline is None:
            return model
        return _BASELINES[method.baseline](model, num_data=len(data.train))


def max_tokens(settings: ComparisonSettings, data: Data) -> int:
    """Return the most tokens that an attention module sees, a class token included."""
    model = settings.model
    if isinstance(data, ImageData):
        assert isinstance(settings, ClassifySettings)
        tokens = (data.image_size // settings.model.patch_size) ** 2
    else:
        tokens = data.max_tokens if isinstance(data, GraphData) else data.max_length
    return tokens + (model.pooling == "cls")


def _transformer(method: Method, settings: ComparisonSettings, data: Data) -> nn.Module:
    model = settings.model
    kernel = model.kernel
    if kernel == "auto":
        kernel = "exponential" if isinstance(data, TextData | EmbeddedTextData) else "rbf"
    attention = method.config(settings)
    given: dict[str, Any] = {
        "kernel": kernel,
        "initial_variance": model.initial_variance,
        "num_data": len(data.train),
    }
    if isinstance(data, ImageData):
        assert isinstance(settings, ClassifySettings)
        return vision_transformer(
            model,
            attention,
            image_size=data.image_size,
            patch_size=settings.model.patch_size,
            channels=data.channels,
            num_classes=data.num_classes,
            **given,
        )
    if isinstance(data, TextData):
        return text_transformer(
            model,
            attention,
            vocab_size=len(data.vocab),
            max_length=data.max_length,
            num_classes=data.num_classes,
            **given,
        )
    if isinstance(data, EmbeddedTextData):
        return sequence_transformer(
            model,
            attention,
            input_dim=data.input_dim,
            max_length=data.max_length,
            num_outputs=data.num_classes,
            **given,
        )
    # Tokens carry their place in the graph: the transformer knows nothing of their order.
    return sequence_transformer(
        model,
        attention,
        input_dim=data.layout.width,
        max_length=data.max_tokens,
        num_outputs=1,
        positions=False,
        **given,
    )
