"""Cosine similarity by depth against a loop over pairs, and hooks that leave no trace."""

import inspect

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from cgpt.analysis import mean_cosine_similarity, token_cosine_similarity
from probseq.transformers import AttentionOutput, SoftmaxAttention
from small import small_transformer


def softmax(index):
    return SoftmaxAttention(8, 2)


def vision():
    return small_transformer("vision", softmax, depth=3).float().eval()


def test_similarity_is_the_mean_over_pairs_of_different_real_tokens(draw):
    tokens = draw(3, 6, 4)
    mask = torch.arange(6) < torch.tensor([6, 2, 3])[:, None]
    expected = []
    for sequence, real in zip(tokens, mask, strict=True):
        sequence = sequence[real]
        pairs = [
            torch.cosine_similarity(a, b, dim=0)
            for i, a in enumerate(sequence)
            for j, b in enumerate(sequence)
            if i != j
        ]
        expected.append(torch.stack(pairs).mean())
    assert_close(mean_cosine_similarity(tokens, mask), torch.stack(expected))
    assert_close(mean_cosine_similarity(tokens)[0], expected[0])


def test_equal_directions_have_similarity_one_and_orthogonal_ones_zero():
    lengths = torch.tensor([1.0, 2.0, 0.5])
    equal = lengths[:, None] * torch.tensor([1.0, -2.0, 3.0])
    tokens = torch.stack([equal, lengths.diag()])
    assert_close(mean_cosine_similarity(tokens), torch.tensor([1.0, 0.0]))


def test_a_sequence_of_one_token_has_no_similarity():
    mask = torch.tensor([[True, False], [True, True]])
    similarity = mean_cosine_similarity(torch.ones(2, 2, 3), mask)
    assert similarity.isnan().tolist() == [True, False]


def test_a_token_of_zero_length_is_similar_to_none():
    tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]])
    assert_close(mean_cosine_similarity(tokens), torch.tensor([1 / 3]))


def test_rows_are_the_outputs_of_each_block_s_attention(draw):
    torch.manual_seed(0)
    model, images = vision(), draw(5, 1, 4, 4).float()
    outputs = []
    handles = [
        module.register_forward_hook(lambda *arguments: outputs.append(arguments[2].values))
        for module in model.encoder.attention
    ]
    similarities = token_cosine_similarity(model, images)
    for handle in handles:
        handle.remove()
    assert similarities.shape == (3, 5)
    for row, output in zip(similarities, outputs[:3], strict=True):
        assert_close(row, mean_cosine_similarity(output))


def test_padding_of_text_is_left_out():
    model = small_transformer("text", softmax, sizes={"vocab_size": 9}, depth=3).float().eval()
    tokens = torch.tensor([[3, 5, 1, 0, 0, 0], [2, 2, 7, 4, 1, 8]])
    together = token_cosine_similarity(model, tokens)
    assert_close(together[:, 0], token_cosine_similarity(model, tokens[:1, :3])[:, 0])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    masked = token_cosine_similarity(model, tokens[:, :3], mask)
    assert_close(masked[:, 0], token_cosine_similarity(model, tokens[:1, :2])[:, 0])


class NoisyAttention(nn.Module):
    """Adds a draw to every token."""

    stochastic = True

    def forward(self, x, mask=None, *, token_map=None, generator=None, num_samples=None):
        copies = x.repeat(num_samples or 1, 1, 1)
        noise = torch.randn(copies.shape, generator=generator, dtype=x.dtype)
        return AttentionOutput(copies + noise, x.new_zeros(()))


def test_samples_are_averaged_sequence_by_sequence():
    model = small_transformer("text", lambda index: NoisyAttention()).float().eval()
    tokens = torch.tensor([[1, 1, 1, 1], [2, 5, 0, 0]])
    outputs = []
    handle = model.encoder.attention[0].register_forward_hook(
        lambda *arguments: outputs.append(arguments[2].values)
    )
    found = token_cosine_similarity(
        model, tokens, generator=torch.Generator().manual_seed(1), num_samples=5
    )
    handle.remove()
    samples = outputs[0].unflatten(0, (5, 2))
    expected = mean_cosine_similarity(samples[:, 1, :2]).mean()
    assert_close(found[0, 1], expected)
    assert found.shape == (2, 2)


def test_no_hook_and_no_graph_is_left_behind_even_after_an_error():
    model = vision()
    assert not token_cosine_similarity(model, torch.zeros(2, 1, 4, 4)).requires_grad
    with pytest.raises(ValueError, match="images must have shape"):
        token_cosine_similarity(model, torch.zeros(2, 1, 5, 5))
    assert all(not module._forward_hooks for module in model.modules())


def test_models_without_an_encoder_are_refused_by_name():
    with pytest.raises(ValueError, match=r"model must have an encoder .* got Linear"):
        token_cosine_similarity(nn.Linear(2, 2), torch.zeros(1, 2))


def test_tokens_of_whole_numbers_are_refused_by_name():
    with pytest.raises(ValueError, match="tokens must be of a floating dtype"):
        inspect.unwrap(mean_cosine_similarity)(torch.ones(1, 2, 3, dtype=torch.int64))
