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

DIM, HEADS = 8, 2
ATTENTION = {
    "softmax": lambda dropout: SoftmaxAttention(DIM, HEADS, dropout=dropout),
    "kernel": lambda dropout: KernelAttention(DIM, HEADS, dropout=dropout),
    "kernel-asym": lambda dropout: KernelAttention(DIM, HEADS, symmetric=False),
}


def build(kind="vision", attention="softmax", *, dropout=0.0, classes=3, seed=0, **settings):
    """A small transformer of a kind and a batch that it takes, both in float64."""
    sizes = {"depth": 2, "dim": DIM, "num_heads": HEADS, "hidden_dim": 12, "dropout": dropout}
    config = TransformerConfig(**sizes, **settings)

    def factory(index):
        return ATTENTION[attention](dropout) if attention in ATTENTION else attention(index)

    images = {"image_size": 4, "patch_size": 2, "channels": 1, "num_classes": classes}
    texts = {"vocab_size": 7, "max_length": 6, "num_classes": classes}
    rows = {"input_dim": 3, "max_length": 6, "num_outputs": classes}
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "vision":
            model = VisionTransformer(config, **images, attention=factory)
            return model.double(), torch.randn(5, 1, 4, 4, generator=generator).double()
        if kind == "text":
            model = TextTransformer(config, **texts, attention=factory)
            inputs = torch.randint(1, 7, (5, 6), generator=generator)
        else:
            model = SequenceTransformer(config, **rows, attention=factory)
            inputs = torch.randn(5, 6, 3, generator=generator).double()
    inputs[1, 3:] = 0
    return model.double(), inputs


@pytest.fixture
def make_model():
    return build
