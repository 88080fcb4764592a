import pytest
import torch

from probseq.transformers import (
    KernelConfig,
    SoftmaxConfig,
    TransformerConfig,
    copy_kernel_weights,
    sequence_transformer,
)
from sgpa import SGPAConfig

BACKBONE = TransformerConfig(depth=2, dim=16, num_heads=2, hidden_dim=16)


def model(attention, seed=0):
    torch.manual_seed(seed)
    return sequence_transformer(BACKBONE, attention, input_dim=3, max_length=5, num_outputs=2)


@pytest.mark.parametrize("variant", ["decoupled", "standard"])
def test_all_weights_but_the_inducing_ones_come_from_the_kernel_model(variant):
    kernel, sgpa = model(KernelConfig(), 1), model(SGPAConfig(num_inducing=4, variant=variant), 2)
    before = {name: tensor.clone() for name, tensor in sgpa.state_dict().items()}
    copy_kernel_weights(kernel, sgpa)
    given, after = kernel.state_dict(), sgpa.state_dict()
    own = after.keys() - given.keys()
    assert own
    assert all(torch.equal(after[name], tensor) for name, tensor in given.items())
    assert all(torch.equal(after[name], before[name]) for name in own)
    assert any(not torch.equal(before[name], given[name]) for name in given)


def test_a_model_without_kernel_attention_is_refused():
    with pytest.raises(RuntimeError, match="to_qkv"):
        copy_kernel_weights(model(SoftmaxConfig()), model(SGPAConfig(num_inducing=4)))
