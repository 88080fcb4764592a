import pytest
import torch

from probseq.transformers import (
    KernelAttention,
    SequenceTransformer,
    SoftmaxAttention,
    TextTransformer,
    TransformerConfig,
    VisionTransformer,
)

DIM, HEADS, CLASSES = 8, 2, 3


def build(kind="vision", attention="softmax", *, dropout=0.0, classes=CLASSES, seed=0, **settings):
    """A small transformer of a kind and a batch that it takes, both in float64."""
    config = TransformerConfig(
        depth=2, dim=DIM, num_heads=HEADS, hidden_dim=12, dropout=dropout, **settings
    )
    modules = {
        "softmax": lambda index: SoftmaxAttention(DIM, HEADS, dropout=dropout),
        "kernel": lambda index: KernelAttention(DIM, HEADS, dropout=dropout),
        "kernel-asym": lambda index: KernelAttention(DIM, HEADS, symmetric=False),
    }
    factory = modules[attention] if isinstance(attention, str) else attention
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "vision":
            model = VisionTransformer(
                config,
                image_size=4,
                patch_size=2,
                channels=1,
                num_classes=classes,
                attention=factory,
            )
            inputs = torch.randn(5, 1, 4, 4, generator=generator).double()
        elif kind == "text":
            model = TextTransformer(
                config, vocab_size=7, max_length=6, num_classes=classes, attention=factory
            )
            inputs = torch.randint(1, 7, (5, 6), generator=generator)
            inputs[1, 3:] = 0
        else:
            model = SequenceTransformer(
                config, input_dim=3, max_length=6, num_outputs=classes, attention=factory
            )
            inputs = torch.randn(5, 6, 3, generator=generator).double()
            inputs[1, 3:] = 0.0
    return model.double(), inputs


@pytest.fixture
def make_model():
    return build
