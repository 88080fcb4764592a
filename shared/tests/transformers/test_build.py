"""Transformers of settings: which attention stands where, and the same draws as by hand."""

from dataclasses import replace

import pytest
import torch

from probseq.transformers import (
    AttentionConfig,
    BlockContext,
    KernelAttention,
    Preset,
    SoftmaxAttention,
    TextTransformer,
    TransformerConfig,
    VisionTransformer,
    text_transformer,
    vision_transformer,
)
from probseq.transformers.names import KernelName

BACKBONE = TransformerConfig(depth=2, dim=4, num_heads=2, hidden_dim=6)
IMAGES = dict(image_size=4, patch_size=2, channels=1, num_classes=3)
TEXTS = dict(vocab_size=5, max_length=6, num_classes=3)


class KernelLast(AttentionConfig):
    """Kernel attention in the last block, softmax attention in the others."""

    kernel: KernelName = "rbf"
    longest: int = 10

    def build(self, context: BlockContext):
        if context.max_tokens > self.longest:
            raise ValueError(f"longest must be at least {context.max_tokens}, got {self.longest}")
        sizes = (context.backbone.dim, context.backbone.num_heads)
        if context.block < context.backbone.depth - 1:
            return SoftmaxAttention(*sizes)
        return KernelAttention(*sizes, kernel=self.kernel)


def by_hand(index):
    return KernelAttention(4, 2) if index == 1 else SoftmaxAttention(4, 2)


@pytest.mark.parametrize(
    ("build", "by_hand", "sizes"),
    [
        (
            vision_transformer,
            lambda: VisionTransformer(BACKBONE, attention=by_hand, **IMAGES),
            IMAGES,
        ),
        (text_transformer, lambda: TextTransformer(BACKBONE, attention=by_hand, **TEXTS), TEXTS),
    ],
)
def test_a_preset_makes_the_transformer_that_one_makes_by_hand(build, by_hand, sizes):
    torch.manual_seed(0)
    found = build(*Preset(BACKBONE, KernelLast()), **sizes).state_dict()
    torch.manual_seed(0)
    expected = by_hand().state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("pooling", "extra"), [("mean", 0), ("cls", 1)])
def test_the_longest_sequence_holds_the_class_token(pooling, extra):
    backbone = replace(BACKBONE, pooling=pooling)
    for build, sizes, tokens in ((vision_transformer, IMAGES, 4), (text_transformer, TEXTS, 6)):
        build(backbone, KernelLast(longest=tokens + extra), **sizes)
        with pytest.raises(ValueError, match=f"longest must be at least {tokens + extra}, got"):
            build(backbone, KernelLast(longest=tokens + extra - 1), **sizes)
