"""Builds the transformer of a method for a data set."""

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import nn

from cgpt import CGPTConfig
from kepsvgp import KEPSVGPConfig
from probseq.transformers import (
    KernelAttention,
    SequenceTransformer,
    SoftmaxAttention,
    TextTransformer,
    TransformerConfig,
    VisionTransformer,
)
from probseq_apps.baselines.mean_field import mean_field_model
from probseq_apps.baselines.sngp import sngp_model
from probseq_apps.baselines.svdkl import svdkl_model
from probseq_apps.data.containers import EmbeddedTextData, ImageData, TextData
from probseq_apps.experiments.method_settings import CgptSettings, KepsvgpSettings, SgpaSettings
from probseq_apps.experiments.methods import MethodSpec
from probseq_apps.experiments.settings import ClassifySettings, ModelSettings
from sgpa import SGPAConfig

Data = ImageData | TextData | EmbeddedTextData
KernelName = Literal["rbf", "exponential"]
AttentionFactory = Callable[[int], nn.Module]


@runtime_checkable
class MethodSettings(Protocol):
    """The settings that define a method's transformer."""

    @property
    def model(self) -> ModelSettings:
        """Of the backbone."""
        ...

    @property
    def sgpa(self) -> SgpaSettings:
        """Of SGPA."""
        ...

    @property
    def cgpt(self) -> CgptSettings:
        """Of CGPT and SCGPT."""
        ...

    @property
    def kepsvgp(self) -> KepsvgpSettings:
        """Of KEP-SVGP."""
        ...


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
        MissingExtraError: the method needs a library that is not installed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _transformer(method, settings, data)
        return wrap_baseline(method, model, settings, num_data=len(data.train))


def _transformer(method: MethodSpec, settings: ClassifySettings, data: Data) -> nn.Module:
    model = settings.model
    attention = attention_factory(
        method,
        settings,
        kernel=kernel_name(method, data, settings),
        max_tokens=max_tokens(settings.model, data),
        num_data=len(data.train),
        fixed_length=isinstance(data, ImageData),
    )
    config = backbone_config(model)
    if isinstance(data, ImageData):
        return VisionTransformer(
            config,
            image_size=data.image_size,
            patch_size=model.patch_size,
            channels=data.channels,
            num_classes=data.num_classes,
            attention=attention,
        )
    if isinstance(data, EmbeddedTextData):
        return SequenceTransformer(
            config,
            input_dim=data.input_dim,
            max_length=data.max_length,
            num_outputs=data.num_classes,
            attention=attention,
        )
    return TextTransformer(
        config,
        vocab_size=len(data.vocab),
        max_length=data.max_length,
        num_classes=data.num_classes,
        attention=attention,
    )


def backbone_config(model: ModelSettings) -> TransformerConfig:
    """The backbone's own configuration."""
    return TransformerConfig(
        depth=model.depth,
        dim=model.dim,
        num_heads=model.num_heads,
        hidden_dim=model.hidden_dim,
        dropout=model.dropout,
        pooling=model.pooling,
        norm=model.norm,
        shared_norm=model.shared_norm,
    )


def max_tokens(model: ModelSettings, data: Data) -> int:
    """Most tokens that an attention module sees, a class token included."""
    if isinstance(data, ImageData):
        tokens = (data.image_size // model.patch_size) ** 2
    else:
        tokens = data.max_length
    return tokens + (model.pooling == "cls")


def kernel_name(method: MethodSpec, data: Data, settings: ClassifySettings) -> KernelName:
    """Kernel of a method's attention: its own, the settings', or the one that suits the data."""
    name = settings.model.kernel if method.kernel == "auto" else method.kernel
    if name == "auto":
        return "rbf" if isinstance(data, ImageData) else "exponential"
    return name


def attention_factory(
    method: MethodSpec,
    settings: MethodSettings,
    *,
    kernel: KernelName,
    max_tokens: int,
    num_data: int,
    fixed_length: bool = False,
) -> AttentionFactory:
    """What builds the attention module of each block.

    Args:
        method: says which.
        settings: sizes.
        kernel: kernel of kernel attention and SGPA.
        max_tokens: longest sequence.
        num_data: number of training examples.
        fixed_length: whether every sequence has `max_tokens` tokens, as images have.

    Raises:
        ValueError: the settings don't fit each other.
    """
    model = settings.model
    if method.attention == "softmax":
        return lambda index: SoftmaxAttention(model.dim, model.num_heads, dropout=model.dropout)
    if method.attention == "kernel":
        return lambda index: KernelAttention(
            model.dim,
            model.num_heads,
            kernel=kernel,
            symmetric=method.symmetric,
            initial_variance=model.initial_variance,
            dropout=model.dropout,
        )
    if method.attention == "sgpa":
        sgpa = _sgpa_config(settings, kernel, num_data)
        return lambda index: sgpa.attention(max_tokens)
    if method.attention == "kepsvgp":
        return _kepsvgp_config(settings, method, fixed_length).attention(max_tokens)
    cgpt = _cgpt_config(settings) if method.attention == "cgpt" else _scgpt_config(settings)
    return lambda index: cgpt.attention(max_tokens)


def wrap_baseline(
    method: MethodSpec, model: nn.Module, settings: MethodSettings, *, num_data: int
) -> nn.Module:
    """Change a transformer as the baselines do that are no attention of their own.

    Args:
        method: says which baseline, if any.
        model: transformer with a pooled head.
        settings: of the methods.
        num_data: number of training examples.

    Raises:
        MissingExtraError: the baseline needs a library that is not installed.
    """
    if method.baseline == "mfvi":
        return mean_field_model(model, num_data=num_data)
    if method.baseline == "sngp":
        return sngp_model(model, num_data=num_data)
    if method.baseline == "svdkl":
        return svdkl_model(model, num_data=num_data)
    return model


def _sgpa_config(settings: MethodSettings, kernel: KernelName, num_data: int) -> SGPAConfig:
    own = settings.sgpa
    return SGPAConfig(
        **backbone_config(settings.model).to_dict(),
        num_inducing=own.num_inducing,
        kernel=kernel,
        initial_posterior=own.initial_posterior,
        initial_variance=settings.model.initial_variance,
        kl_weighting=own.kl_weighting,
        num_data=num_data if own.kl_weighting == "dataset" else None,
    )


def _cgpt_config(settings: MethodSettings) -> CGPTConfig:
    own = settings.cgpt
    return CGPTConfig(
        **backbone_config(settings.model).to_dict(),
        noise=own.cgpt_noise,
        conditional=own.conditional,
        regulariser=own.regulariser,
    )


def _scgpt_config(settings: MethodSettings) -> CGPTConfig:
    own = settings.cgpt
    return CGPTConfig(
        **backbone_config(settings.model).to_dict(),
        method="sparse",
        noise=own.scgpt_noise,
        num_inducing=own.scgpt_inducing,
        inducing=own.scgpt_inducing_inputs,
        regulariser=own.regulariser,
    )


def _kepsvgp_config(
    settings: MethodSettings, method: MethodSpec, fixed_length: bool
) -> KEPSVGPConfig:
    own = settings.kepsvgp
    merge = own.merge
    if merge == "auto":
        merge = "concatenation" if fixed_length else "addition"
    return KEPSVGPConfig(
        **backbone_config(settings.model).to_dict(),
        rank=own.rank,
        merge=merge,
        branches=method.branches,
        layers=own.layers,
        eta=own.ksvd_weight,
    )
