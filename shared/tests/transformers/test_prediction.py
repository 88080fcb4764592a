"""Predictive probabilities against a loop over samples."""

import torch
from torch import nn
from torch.testing import assert_close

from probseq.transformers import (
    AttentionOutput,
    SoftmaxAttention,
    predict_probabilities,
    repeat_samples,
)
from small import small_transformer


class NoisyAttention(nn.Module):
    """Adds noise to the tokens, a draw a sample."""

    stochastic = True

    def forward(self, x, mask=None, *, token_map=None, generator=None, num_samples=None):
        x = repeat_samples(x, num_samples or 1)
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return AttentionOutput(3.0 * noise, x.new_zeros(()))


def make_model(attention=NoisyAttention):
    sizes = {"depth": 1, "dim": 4, "hidden_dim": 6}
    return small_transformer("vision", lambda index: attention(), **sizes).eval()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def images():
    return torch.randn(5, 1, 4, 4, generator=seeded(1), dtype=torch.float64)


def test_equals_a_loop_over_samples():
    model, inputs = make_model(), images()
    actual = predict_probabilities(model, inputs, num_samples=6, generator=seeded(2))
    logits = model(inputs, num_samples=6, generator=seeded(2)).logits
    assert logits.std(0).min() > 0.1  # the samples differ, so that what is averaged matters
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for sample in logits:
        expected += sample.softmax(-1) / 6
    assert_close(actual, expected)
    assert_close(actual.sum(-1), torch.ones(5, dtype=torch.float64))
    assert not actual.requires_grad


def test_a_model_without_noise_predicts_its_softmax():
    model, inputs = make_model(lambda: SoftmaxAttention(4, 2)), images()
    expected = model(inputs).logits.softmax(-1)
    assert_close(predict_probabilities(model, inputs, num_samples=3), expected)
