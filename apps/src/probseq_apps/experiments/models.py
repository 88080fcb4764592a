"""Builds the transformer of a method for a data set."""

from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from cgpt import CGPTConfig, SCGPTConfig
from kepsvgp import KEPSVGPConfig
from probseq.transformers import (
    AttentionConfig,
    KernelConfig,
    SoftmaxConfig,
    TransformerConfig,
    sequence_transformer,
    text_transformer,
    vision_transformer,
)
from probseq_apps.baselines.mean_field import mean_field_model
from probseq_apps.baselines.sngp import sngp_model
from probseq_apps.baselines.svdkl import svdkl_model
from probseq_apps.data.images import ImageData
from probseq_apps.data.texts import EmbeddedTextData, TextData
from probseq_apps.experiments.method_settings import CgptSettings, KepsvgpSettings, SgpaSettings
from probseq_apps.experiments.methods import MethodSpec
from probseq_apps.experiments.settings import ClassifySettings, ModelSettings
from sgpa import SGPAConfig

Data = ImageData | TextData | EmbeddedTextData
KernelName = Literal["rbf", "exponential"]


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
    backbone, attention = backbone_config(model), attention_config(method, settings)
    own: dict[str, Any] = {
        "kernel": kernel_name(method, data, settings),
        "initial_variance": model.initial_variance,
        "num_data": len(data.train),
    }
    if isinstance(data, ImageData):
        return vision_transformer(
            backbone,
            attention,
            image_size=data.image_size,
            patch_size=model.patch_size,
            channels=data.channels,
            num_classes=data.num_classes,
            **own,
        )
    if isinstance(data, EmbeddedTextData):
        return sequence_transformer(
            backbone,
            attention,
            input_dim=data.input_dim,
            max_length=data.max_length,
            num_outputs=data.num_classes,
            **own,
        )
    return text_transformer(
        backbone,
        attention,
        vocab_size=len(data.vocab),
        max_length=data.max_length,
        num_classes=data.num_classes,
        **own,
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


def attention_config(method: MethodSpec, settings: MethodSettings) -> AttentionConfig:
    """Settings of a method's attention."""
    sgpa, cgpt, kepsvgp = settings.sgpa, settings.cgpt, settings.kepsvgp
    match method.attention:
        case "softmax":
            return SoftmaxConfig()
        case "kernel":
            return KernelConfig(symmetric=method.symmetric)
        case "sgpa":
            return SGPAConfig(
                num_inducing=sgpa.num_inducing,
                initial_posterior=sgpa.initial_posterior,
                kl_weighting=sgpa.kl_weighting,
            )
        case "cgpt":
            return CGPTConfig(
                noise=cgpt.cgpt_noise, conditional=cgpt.conditional, regulariser=cgpt.regulariser
            )
        case "scgpt":
            return SCGPTConfig(
                noise=cgpt.scgpt_noise,
                num_inducing=cgpt.scgpt_inducing,
                inducing=cgpt.scgpt_inducing_inputs,
                regulariser=cgpt.regulariser,
            )
        case "kepsvgp":
            return KEPSVGPConfig(
                rank=kepsvgp.rank,
                merge=kepsvgp.merge,
                branches=method.branches,
                layers=kepsvgp.layers,
                eta=kepsvgp.ksvd_weight,
            )


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
