"""Transformers of settings: a backbone with the attention that its blocks ask for."""

from probseq.transformers.encoder import ConfiguredAttention
from probseq.transformers.names import KernelName
from probseq.transformers.sequence import SequenceTransformer
from probseq.transformers.spec import AttentionConfig, BlockContext, TransformerConfig
from probseq.transformers.text import TextTransformer
from probseq.transformers.vision import VisionTransformer, count_tokens


def vision_transformer(
    backbone: TransformerConfig,
    attention: AttentionConfig,
    *,
    image_size: int,
    patch_size: int,
    channels: int,
    num_classes: int,
    kernel: KernelName = "rbf",
    initial_variance: float | None = None,
    num_data: int | None = None,
) -> VisionTransformer:
    """Build a vision transformer; ``vision_transformer(*preset, ...)`` takes a ``Preset``.

    Sizes are in pixels. For ``kernel``, ``initial_variance`` and ``num_data``, the number of
    training images, see :class:`~probseq.transformers.spec.BlockContext`.
    """
    max_tokens = count_tokens(backbone, image_size=image_size, patch_size=patch_size)
    context = BlockContext(backbone, 0, max_tokens, True, kernel, initial_variance, num_data)
    return VisionTransformer(
        backbone,
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        num_classes=num_classes,
        attention=ConfiguredAttention(attention, context),
    )


def text_transformer(
    backbone: TransformerConfig,
    attention: AttentionConfig,
    *,
    vocab_size: int,
    max_length: int,
    num_classes: int,
    kernel: KernelName = "exponential",
    initial_variance: float | None = None,
    num_data: int | None = None,
) -> TextTransformer:
    """Build a text transformer; ``text_transformer(*preset, ...)`` takes a ``Preset``.

    Padding (id 0) counts in ``vocab_size``; other arguments are those of
    :func:`vision_transformer`.
    """
    max_tokens = max_length + (backbone.pooling == "cls")
    context = BlockContext(backbone, 0, max_tokens, False, kernel, initial_variance, num_data)
    return TextTransformer(
        backbone,
        vocab_size=vocab_size,
        max_length=max_length,
        num_classes=num_classes,
        attention=ConfiguredAttention(attention, context),
    )


def sequence_transformer(
    backbone: TransformerConfig,
    attention: AttentionConfig,
    *,
    input_dim: int,
    max_length: int,
    num_outputs: int,
    positions: bool = True,
    kernel: KernelName = "rbf",
    initial_variance: float | None = None,
    num_data: int | None = None,
) -> SequenceTransformer:
    """Build a transformer of sequences of vectors.

    ``positions`` adds learned embeddings of the places; other arguments are those of
    :func:`vision_transformer`.
    """
    max_tokens = max_length + (backbone.pooling == "cls")
    context = BlockContext(backbone, 0, max_tokens, False, kernel, initial_variance, num_data)
    return SequenceTransformer(
        backbone,
        input_dim=input_dim,
        max_length=max_length,
        num_outputs=num_outputs,
        attention=ConfiguredAttention(attention, context),
        positions=positions,
    )
