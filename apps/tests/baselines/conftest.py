import pytest

from probseq.transformers import KernelAttention, SoftmaxAttention
from small import small_batch, small_transformer

DIM, HEADS = 8, 2
ATTENTION = {
    "softmax": lambda dropout: SoftmaxAttention(DIM, HEADS, dropout=dropout),
    "kernel": lambda dropout: KernelAttention(DIM, HEADS, dropout=dropout),
    "kernel-asym": lambda dropout: KernelAttention(DIM, HEADS, symmetric=False),
}


def build(kind="vision", attention="softmax", *, dropout=0.0, classes=3, seed=0, **settings):
    """A small transformer of a kind and a batch that it takes, both in float64."""

    def factory(index):
        return ATTENTION[attention](dropout) if attention in ATTENTION else attention(index)

    sizes = {"num_outputs" if kind == "sequence" else "num_classes": classes}
    model = small_transformer(
        kind, factory, sizes=sizes, seed=seed, dim=DIM, num_heads=HEADS, dropout=dropout, **settings
    )
    return model, small_batch(kind, seed)


@pytest.fixture
def make_model():
    return build
