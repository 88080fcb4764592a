"""Image and text transformers are compiled and exported once for batches of every size."""

import pytest

from probseq.testing.instruments import batch_failure

IMPORTS = """
import cgpt, kepsvgp, sgpa
from probseq.transformers import TransformerConfig, text_transformer, vision_transformer
from probseq.transformers.spec import KernelConfig, SoftmaxConfig

class Images(torch.nn.Module):
    def __init__(self, attention, pooling):
        super().__init__()
        config = TransformerConfig(depth=2, dim=4, num_heads=2, hidden_dim=4, pooling=pooling)
        sizes = {"image_size": 4, "patch_size": 2, "channels": 1, "num_classes": 3}
        self.model = vision_transformer(config, attention, **sizes)

    def forward(self, x, mask):
        return self.model(x[:, None, :4])

class Texts(torch.nn.Module):
    def __init__(self, attention, pooling):
        super().__init__()
        config = TransformerConfig(depth=1, dim=4, num_heads=2, hidden_dim=4, pooling=pooling)
        sizes = {"vocab_size": 9, "max_length": 6, "num_classes": 3}
        self.model = text_transformer(config, attention, **sizes)

    def forward(self, x, mask):
        return self.model((3 * x[..., 0]).abs().long().clamp(1, 8).masked_fill(~mask, 0))
"""
ATTENTION = {
    "SoftmaxConfig()": "mean",
    "SoftmaxConfig(num_keys=3)": "mean",
    "KernelConfig(noise=0.1)": "mean",
    "sgpa.SGPAConfig(num_inducing=3)": "mean",
    "cgpt.CGPTConfig()": "cls",
    "cgpt.SCGPTConfig(num_inducing=3)": "flatten",
    "kepsvgp.KEPSVGPConfig(rank=2)": "sequence",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Images", "Texts"])
def test_one_graph_serves_batches_of_every_size(kind):
    models = [f"{kind}({config}, {pooling!r})" for config, pooling in ATTENTION.items()]
    failure = batch_failure(IMPORTS, models)
    assert failure is None, failure
