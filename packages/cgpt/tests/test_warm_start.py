import pytest
import torch

from cgpt.spec import CGPTConfig, SCGPTConfig
from probseq.transformers import (
    KernelConfig,
    SoftmaxConfig,
    TransformerConfig,
    copy_kernel_weights,
    sequence_transformer,
)

BACKBONE = TransformerConfig(depth=2, dim=16, num_heads=2, hidden_dim=16)
ASYMMETRIC = KernelConfig(symmetric=False, kernel="rbf")


def model(attention, seed=0, backbone=BACKBONE):
    torch.manual_seed(seed)
    return sequence_transformer(backbone, attention, input_dim=3, max_length=5, num_outputs=2)


@pytest.mark.parametrize("config", [CGPTConfig(), SCGPTConfig()])
def test_correlated_attention_starts_from_the_asymmetric_kernels_projections(config):
    kernel, correlated = model(ASYMMETRIC, 1), model(config, 2)
    before = {name: tensor.clone() for name, tensor in correlated.state_dict().items()}
    latents = [tensor.chunk(4)[1] for name, tensor in before.items() if "to_qokv" in name]
    copy_kernel_weights(kernel, correlated)
    after = correlated.state_dict()
    pairs = zip(kernel.encoder.attention, correlated.encoder.attention, strict=True)
    for number, (given, taken) in enumerate(pairs):
        wanted = (given.to_qk.weight, given.to_k.weight, given.to_v.weight)
        if isinstance(config, SCGPTConfig):
            queries, latent, keys, values = taken.to_qokv.weight.chunk(4)
            assert torch.equal(latent, latents[number])
            found = (queries, keys, values)
        else:
            found = (taken.to_q.weight, taken.to_k.weight, taken.to_v.weight)
        assert all(map(torch.equal, found, wanted))
        assert torch.equal(taken.lengthscale, given.kernel.lengthscale)
        torch.testing.assert_close(taken.query_scale * taken.key_scale, given.kernel.outputscale)
        assert torch.equal(taken.to_out[0].weight, given.to_out[0].weight)
    assert torch.equal(kernel.head.linear.weight, correlated.head.linear.weight)
    own = {n for n in after if any(x in n for x in ("to_latent", "inducing", "raw_noise"))}
    assert all(torch.equal(after[name], before[name]) for name in own)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="asymmetric"):
        copy_kernel_weights(model(KernelConfig(kernel="rbf")), model(CGPTConfig()))
    with pytest.raises(ValueError, match="asymmetric"):
        copy_kernel_weights(model(SoftmaxConfig()), model(SCGPTConfig()))
    with pytest.raises(ValueError, match="nystrom"):
        copy_kernel_weights(model(ASYMMETRIC), model(CGPTConfig(conditional="exact")))
    wider = TransformerConfig(depth=2, dim=16, num_heads=2, hidden_dim=32)
    with pytest.raises(RuntimeError, match="size mismatch"):
        copy_kernel_weights(model(ASYMMETRIC, backbone=wider), model(CGPTConfig()))
