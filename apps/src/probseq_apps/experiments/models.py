"""Builds the transformer of a method for a data set."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

import sgpa
from probseq.transformers import (
    KernelAttention,
    SoftmaxAttention,
    TextTransformer,
    TransformerConfig,
    VisionTransformer,
)
from probseq_apps.data.sets import ImageData, TextData
from probseq_apps.experiments.methods import MethodSpec
from probseq_apps.experiments.settings import ClassifySettings

Data = ImageData | TextData


def build_model(
    method: MethodSpec, settings: ClassifySettings, data: Data, *, seed: int
) -> nn.Module:
    """Build a method's transformer.

    Args:
        method: says which attention module goes into each block.
        settings: sizes.
        data: gives the shape of the inputs and the number of classes.
        seed: of the initialisation; the global generator is left as it was.

    Raises:
        ValueError: the settings don't fit each other or the data.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if method.attention == "sgpa":
            return _sgpa_model(settings, data, kernel_name(method, data, settings))
        return _plain_model(settings, data, _attention(method, settings, data))


def kernel_name(
    method: MethodSpec, data: Data, settings: ClassifySettings
) -> Literal["rbf", "exponential"]:
    """Kernel of a method's attention: its own, the settings', or the one that suits the data."""
    name = settings.model.kernel if method.kernel == "auto" else method.kernel
    if name == "auto":
        return "rbf" if isinstance(data, ImageData) else "exponential"
    return name


def _attention(
    method: MethodSpec, settings: ClassifySettings, data: Data
) -> Callable[[int], nn.Module]:
    model = settings.model
    if method.attention == "softmax":
        return lambda index: SoftmaxAttention(model.dim, model.num_heads, dropout=model.dropout)
    kernel = kernel_name(method, data, settings)
    return lambda index: KernelAttention(
        model.dim,
        model.num_heads,
        kernel=kernel,
        symmetric=True,
        initial_variance=model.initial_variance,
        dropout=model.dropout,
    )


def _plain_model(
    settings: ClassifySettings, data: Data, attention: Callable[[int], nn.Module]
) -> nn.Module:
    model = settings.model
    config = TransformerConfig(
        depth=model.depth,
        dim=model.dim,
        num_heads=model.num_heads,
        hidden_dim=model.hidden_dim,
        dropout=model.dropout,
        pooling=model.pooling,
        norm=model.norm,
        shared_norm=model.shared_norm,
    )
    if isinstance(data, ImageData):
        return VisionTransformer(
            config,
            image_size=data.image_size,
            patch_size=model.patch_size,
            channels=data.channels,
            num_classes=data.num_classes,
            attention=attention,
        )
    return TextTransformer(
        config,
        vocab_size=len(data.vocab),
        max_length=data.max_length,
        num_classes=data.num_classes,
        attention=attention,
    )


def _sgpa_model(
    settings: ClassifySettings, data: Data, kernel: Literal["rbf", "exponential"]
) -> nn.Module:
    model, own = settings.model, settings.sgpa
    config = sgpa.SGPAConfig(
        depth=model.depth,
        dim=model.dim,
        num_heads=model.num_heads,
        hidden_dim=model.hidden_dim,
        dropout=model.dropout,
        pooling=model.pooling,
        norm=model.norm,
        shared_norm=model.shared_norm,
        num_inducing=own.num_inducing,
        kernel=kernel,
        initial_posterior=own.initial_posterior,
        initial_variance=model.initial_variance,
        kl_weighting=own.kl_weighting,
        num_data=len(data.train) if own.kl_weighting == "dataset" else None,
    )
    if isinstance(data, ImageData):
        return sgpa.vision_transformer(
            config,
            image_size=data.image_size,
            patch_size=model.patch_size,
            channels=data.channels,
            num_classes=data.num_classes,
        )
    return sgpa.text_transformer(
        config,
        vocab_size=len(data.vocab),
        max_length=data.max_length,
        num_classes=data.num_classes,
    )
