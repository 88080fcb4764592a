"""Small transformers of each kind, in float64, and batches that they take."""

import torch

from probseq.transformers import (
    SequenceTransformer,
    TextTransformer,
    TransformerConfig,
    VisionTransformer,
)

KINDS = {
    "vision": (
        VisionTransformer,
        {"image_size": 4, "patch_size": 2, "channels": 1, "num_classes": 3},
    ),
    "text": (TextTransformer, {"vocab_size": 7, "max_length": 6, "num_classes": 3}),
    "sequence": (SequenceTransformer, {"input_dim": 3, "max_length": 6, "num_outputs": 3}),
}
BACKBONE = {"depth": 2, "dim": 8, "num_heads": 2, "hidden_dim": 12}


def small_transformer(kind, attention, *, sizes=None, seed=0, **backbone):
    """Return a transformer whose blocks have the attention that is given for their index."""
    make, own = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = TransformerConfig(**BACKBONE | backbone)
        return make(config, **own | (sizes or {}), attention=attention).double()


def small_batch(kind, seed=0):
    """Return five inputs; of sequences the second is padded."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "vision":
        return torch.randn(5, 1, 4, 4, generator=generator).double()
    if kind == "text":
        inputs = torch.randint(1, 7, (5, 6), generator=generator)
    else:
        inputs = torch.randn(5, 6, 3, generator=generator).double()
    inputs[1, 3:] = 0
    return inputs
