"""Transformers of settings: a backbone with the attention that its blocks ask for."""

from probseq.transformers.encoder import AttentionFactory
from probseq.transformers.spec import AttentionConfig, Place, TransformerConfig
from probseq.transformers.text import TextTransformer
from probseq.transformers.vision import VisionTransformer, count_tokens


def attention_factory(
    backbone: TransformerConfig, attention: AttentionConfig, *, max_tokens: int
) -> AttentionFactory:
    """Return what builds the attention module of a block from its index.

    Args:
        backbone: settings of the backbone.
        attention: settings of the attention modules.
        max_tokens: longest sequence, a class token included.
    """
    return lambda index: attention.build(Place(backbone, index, max_tokens))


def vision_transformer(
    backbone: TransformerConfig,
    attention: AttentionConfig,
    *,
    image_size: int,
    patch_size: int,
    channels: int,
    num_classes: int,
) -> VisionTransformer:
    """Build a vision transformer; ``vision_transformer(*preset, ...)`` takes a ``Preset``.

    Args:
        backbone: settings of the backbone.
        attention: settings of the attention modules.
        image_size: height and width of the images, in pixels.
        patch_size: height and width of a patch.
        channels: image channels.
        num_classes: number of classes.

    Raises:
        ValueError: ``patch_size`` does not divide ``image_size``, a size is no whole number of at
            least 1, or the settings of the attention do not fit the backbone.
    """
    max_tokens = count_tokens(backbone, image_size=image_size, patch_size=patch_size)
    return VisionTransformer(
        backbone,
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        num_classes=num_classes,
        attention=attention_factory(backbone, attention, max_tokens=max_tokens),
    )


def text_transformer(
    backbone: TransformerConfig,
    attention: AttentionConfig,
    *,
    vocab_size: int,
    max_length: int,
    num_classes: int,
) -> TextTransformer:
    """Build a text transformer; ``text_transformer(*preset, ...)`` takes a ``Preset``.

    Args:
        backbone: settings of the backbone.
        attention: settings of the attention modules.
        vocab_size: number of token ids, padding (0) included.
        max_length: longest sequence.
        num_classes: number of classes; 1 for regression.

    Raises:
        ValueError: a size is out of range, or the settings of the attention do not fit the
            backbone.
    """
    max_tokens = max_length + (backbone.pooling == "cls")
    return TextTransformer(
        backbone,
        vocab_size=vocab_size,
        max_length=max_length,
        num_classes=num_classes,
        attention=attention_factory(backbone, attention, max_tokens=max_tokens),
    )
