"""Spectra of attention matrices, against matrices made entry by entry."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from kepsvgp import KEPSVGPConfig, attention_spectrum
from kepsvgp.spectrum import attention_matrix
from probseq.transformers import (
    KernelAttention,
    SoftmaxAttention,
    TransformerConfig,
    text_transformer,
)
from small import small_transformer

CONFIG = TransformerConfig(depth=2, dim=8, num_heads=2, hidden_dim=16)


def make_model(seed=0, layers="last", **changes):
    torch.manual_seed(seed)
    config = KEPSVGPConfig(rank=2, layers=layers)
    return (
        text_transformer(
            replace(CONFIG, **changes), config, vocab_size=9, max_length=7, num_classes=2
        )
        .double()
        .eval()
    )


def sentences(count, length, seed=1):
    return torch.randint(1, 9, (count, length), generator=torch.Generator().manual_seed(seed))


def softmax_matrix(module, x, h):
    """Attention weights of one sequence and head, row by row."""
    width = module.dim // module.num_heads
    block = slice(h * width, (h + 1) * width)
    q, k, _ = (w[block] for w in module.to_qkv.weight.split(module.dim))
    rows = [[torch.exp((q @ a) @ (k @ b) / width**0.5) for b in x] for a in x]
    matrix = torch.stack([torch.stack(row) for row in rows])
    return matrix / matrix.sum(1, keepdim=True)


@torch.no_grad()
def test_softmax_attention_has_the_matrix_that_its_values_are_made_with():
    torch.manual_seed(0)
    module = SoftmaxAttention(6, 2).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    found = attention_matrix(module, x, mask)
    for b, n in enumerate((5, 3)):
        for h in range(2):
            assert_close(found[b, h, :n, :n], softmax_matrix(module, x[b, :n], h))
    assert not found[1, :, 3:].any()
    assert not found[1, :, :, 3:].any()
    values = rearranged_values(module, x)
    assert_close(module.to_out((found @ values).transpose(1, 2).flatten(2))[0], module(x).values[0])


def rearranged_values(module, x):
    width = module.dim // module.num_heads
    v = module.to_qkv(x)[..., 2 * module.dim :]
    return v.unflatten(-1, (module.num_heads, width)).transpose(1, 2)


@torch.no_grad()
def test_spectra_are_means_over_all_sequences_of_all_batches():
    model = make_model()
    batches = [(sentences(3, 7),), (sentences(2, 4, seed=2),)]
    spectra = attention_spectrum(model, batches)
    assert [found.layer for found in spectra] == [0, 1]
    inputs = {}
    handles = [
        module.register_forward_pre_hook(lambda module, x, i=i: inputs.setdefault(i, []).append(x))
        for i, module in enumerate(model.encoder.attention)
    ]
    for (batch,) in batches:
        model(batch)
    for handle in handles:
        handle.remove()
    for found in spectra:
        module = model.encoder.attention[found.layer]
        values, energy = torch.zeros(2, 2, 7, dtype=torch.float64)
        for x, _ in inputs[found.layer]:
            for row in x:
                for h in range(2):
                    matrix = (
                        softmax_matrix(module, row, h)
                        if found.layer == 0
                        else module.kernel(row[None])[0, h]
                    )
                    singular = torch.zeros(7, dtype=torch.float64)
                    singular[: len(row)] = torch.linalg.svdvals(matrix)
                    values[h] += singular / singular.sum() / 5
                    energy[h] += singular.square().cumsum(0) / singular.square().sum() / 5
        assert_close(found.values, values)
        assert_close(found.energy, energy)
        assert_close(found.cumulative[:, -1], torch.ones(2, dtype=torch.float64))
        assert (found.values.diff() <= 1e-12).all()


@torch.no_grad()
def test_padding_is_no_part_of_the_matrix():
    model = make_model()
    tokens = sentences(3, 4)
    padded = torch.nn.functional.pad(tokens, (0, 3))
    for plain, longer in zip(
        attention_spectrum(model, [(tokens,)]), attention_spectrum(model, [(padded,)]), strict=True
    ):
        assert_close(longer.values[:, :4], plain.values)
        assert not longer.values[:, 4:].gt(1e-12).any()


def test_a_kernel_of_rank_two_has_two_singular_values():
    (found,) = attention_spectrum(
        make_model(depth=1, num_heads=4), [(sentences(3, 7),)]
    )  # heads of width 2
    assert_close(found.cumulative[:, 1], torch.ones(4, dtype=torch.float64))


def test_hooks_are_gone_afterwards():
    model = make_model()
    attention_spectrum(model, [(sentences(1, 3),)])
    with pytest.raises(ValueError, match="tokens must have shape"):
        attention_spectrum(model, [(sentences(1, 8),)])
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_models_and_data_without_attention_matrices_are_refused():
    with pytest.raises(ValueError, match=r"model must have softmax or kernel-eigen-pair .* Linear"):
        attention_spectrum(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="batches must hold at least one batch"):
        attention_spectrum(make_model(), [])
    with pytest.raises(ValueError, match=r"module must be softmax .* KernelAttention"):
        attention_matrix(KernelAttention(4, 2), torch.zeros(1, 2, 4))


def test_spectra_of_half_precision_are_computed_in_float32():
    sizes = {"vocab_size": 9, "max_length": 7}
    model = small_transformer("text", lambda block: SoftmaxAttention(8, 2), sizes=sizes, depth=1)
    module = model.bfloat16().encoder.attention[0]
    inputs = []
    module.register_forward_pre_hook(lambda module, x: inputs.append(x[0]))
    (found,) = attention_spectrum(model, [(sentences(1, 7),)])
    expected = torch.linalg.svdvals(attention_matrix(module, inputs[0])[0].double())
    assert_close(
        found.values.double(), expected / expected.sum(-1, keepdim=True), atol=1e-5, rtol=0
    )


def test_attention_that_is_not_finite_has_no_spectrum():
    model, tokens = make_model(), sentences(2, 5)
    next(model.parameters()).data.fill_(torch.nan)
    with pytest.raises(ValueError, match="batches must lead to finite attention"):
        attention_spectrum(model, [(tokens, tokens > 0)])
