"""Softmax attention with a sparse GP as its deviation, against dense float64 algebra and draws."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probseq.testing.attention import AttentionSuite
from probseq.transformers import (
    SoftmaxAttention,
    SoftmaxConfig,
    TransformerConfig,
    sequence_transformer,
)
from sgpa import ResidualSGPAConfig, ResidualSparseGPAttention

HEADS, WIDTH, INDUCING, JITTER = 3, 2, 4, 1e-8
DIM = HEADS * WIDTH


def make_layer(**options):
    """A layer far from its start, with distinct weights in every head, that leaves heads alone."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = ResidualSparseGPAttention(DIM, HEADS, INDUCING, jitter=JITTER, **options).double()
        process = layer.process
        with torch.no_grad():
            layer.to_qkv.weight.copy_(torch.randn(3 * DIM, DIM) / DIM**0.5)
            process.inducing_inputs.copy_(torch.randn(HEADS, INDUCING, WIDTH))
            process.inducing_mean.copy_(torch.randn(HEADS, INDUCING, WIDTH))
            process.raw_inducing_factor.copy_(0.5 * torch.randn(process.raw_inducing_factor.shape))
            process.kernel.raw_lengthscale.copy_(0.2 * torch.randn(HEADS, 1, WIDTH))
            process.kernel.raw_outputscale.copy_(0.4 * torch.randn(HEADS))
            layer.to_out[0].weight.copy_(torch.eye(DIM))
            layer.to_out[0].bias.zero_()
    return layer.eval()


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gram(layer, h, x, z):
    """Kernel matrix of head h, entry by entry."""
    kernel = layer.process.kernel
    scale = kernel.raw_lengthscale[h, 0].exp()
    rows = [[torch.exp(-0.5 * ((a - b) / scale).square().sum()) for b in z] for a in x]
    return kernel.raw_outputscale[h].exp() * torch.stack([torch.stack(row) for row in rows])


def inducing_moments(layer, h, c):
    """Mean and covariance of q(u) of one head and output dimension, and the prior covariance."""
    z = layer.process.inducing_inputs[h]
    prior = gram(layer, h, z, z)
    prior = prior + JITTER * prior.diagonal().diag()
    lower, raw = torch.linalg.cholesky(prior), layer.process.raw_inducing_factor[h, c]
    root = lower @ (raw.tril(-1) + raw.diagonal().exp().diag())
    return lower @ layer.process.inducing_mean[h, :, c], root @ root.mT, prior


def softmax_of_head(layer, h, x):
    """Queries, and softmax attention of one head and one sequence, token by token."""
    rows = slice(h * WIDTH, (h + 1) * WIDTH)
    q, k, v = (x @ part[rows].mT for part in layer.to_qkv.weight.chunk(3))
    out = []
    for t in range(len(x)):
        weights = torch.exp((q[t] * k).sum(-1) / math.sqrt(WIDTH))
        out.append((weights[:, None] * v).sum(0) / weights.sum())
    return q, torch.stack(out)


@torch.no_grad()
def dense_layer(layer, x, lengths):
    """Mean (heads, batch, tokens, width), and covariance of the tokens as the layer draws them."""
    batch, length, _ = x.shape
    mean = torch.zeros(HEADS, batch, length, WIDTH, dtype=torch.float64)
    covariance = torch.zeros(HEADS, batch, WIDTH, length, length, dtype=torch.float64)
    for h in range(HEADS):
        for i, n in enumerate(lengths):
            q, attended = softmax_of_head(layer, h, x[i, :n])
            q = q / WIDTH**0.25
            for c in range(WIDTH):
                m_u, s_u, k_zz = inducing_moments(layer, h, c)
                a = gram(layer, h, q, layer.process.inducing_inputs[h]) @ torch.linalg.inv(k_zz)
                mean[h, i, :n, c] = attended[:, c] + a @ m_u
                # Tokens share what u says of them, and nothing else.
                rest = (gram(layer, h, q, q) - a @ k_zz @ a.mT).diagonal().diag()
                covariance[h, i, c, :n, :n] = rest + a @ s_u @ a.mT
    return mean, covariance


class TestResidual(AttentionSuite):
    def make(self, dim, num_heads):
        layer = ResidualSparseGPAttention(dim, num_heads, 3, num_data=7)
        torch.nn.init.normal_(layer.process.inducing_mean)
        return layer


@pytest.mark.parametrize("lengths", [(4, 4), (4, 2)])
@torch.no_grad()
def test_moments_are_softmax_attention_and_the_conditioned_process(lengths):
    layer, x = make_layer(), tokens(2, 4, DIM)
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    mean, covariance = dense_layer(layer, x, lengths)
    found = layer.posterior(x, mask)
    assert_close(found.mean[:, mask], mean[:, mask])
    assert_close(found.variance[:, mask], covariance.diagonal(dim1=-2, dim2=-1).mT[:, mask])


@torch.no_grad()
def test_samples_have_the_dense_mean_and_covariance_and_sequences_are_independent():
    layer, x, count = make_layer(), tokens(2, 4, DIM), 40_000
    x[0, 3] = x[0, 2] + 0.01  # nearly one query: nearly one deviation but for what u does not know
    mean, covariance = dense_layer(layer, x, (4, 4))
    generator = torch.Generator().manual_seed(0)
    drawn = layer(x, num_samples=count, generator=generator).values
    drawn = drawn.view(count, 2, 4, HEADS, WIDTH).permute(0, 1, 3, 4, 2).reshape(count, -1)
    expected = torch.block_diag(*covariance.transpose(0, 1).flatten(0, 2))
    deviation = expected.diagonal().sqrt()
    # Five and a half standard errors.
    bound = 5.5 / count**0.5
    error = (deviation[:, None].square() * deviation.square() + expected.square()).sqrt()
    assert ((drawn.T.cov() - expected).abs() < bound * error).all()
    centre = mean.permute(1, 0, 3, 2).flatten()
    assert ((drawn.mean(0) - centre).abs() < bound * deviation).all()


@torch.no_grad()
def test_the_divergence_is_that_of_the_inducing_outputs_whatever_the_tokens():
    layer, shared = make_layer(), make_layer(num_data=50)
    expected = torch.zeros((), dtype=torch.float64)
    for h in range(HEADS):
        for c in range(WIDTH):
            mean, covariance, prior = inducing_moments(layer, h, c)
            zero = torch.zeros_like(mean)
            q, p = MultivariateNormal(mean, covariance), MultivariateNormal(zero, prior)
            expected += kl_divergence(q, p)
    assert_close(layer.process.kl(), expected)
    for x in (tokens(1, 3, DIM), 5.0 + tokens(4, 2, DIM)):
        assert_close(layer(x, num_samples=2).penalty, expected)
        assert_close(shared(x).penalty, expected / 50)


@torch.no_grad()
def test_at_the_prior_the_divergence_is_zero_and_the_variance_the_same_everywhere():
    layer = ResidualSparseGPAttention(DIM, HEADS, INDUCING, rho=1.0, initial_variance=0.3).double()
    assert float(layer.process.kl()) == 0.0
    variance = layer.posterior(tokens(2, 5, DIM)).variance
    assert_close(variance, torch.full_like(variance, 0.3), rtol=1e-6, atol=0.0)


@torch.no_grad()
def test_the_start_is_certain_at_the_inducing_inputs_and_at_the_prior_far_from_them():
    layer = ResidualSparseGPAttention(DIM, HEADS, INDUCING, rho=0.1, initial_variance=2.0).double()
    layer.process.jitter = JITTER
    x = tokens(1, INDUCING, DIM)
    layer.initialise_inducing(x)
    # R = ρI: the covariance of u is ρ² K.
    near, far = layer.posterior(x).variance, layer.posterior(100.0 * x).variance
    assert_close(near, torch.full_like(near, 0.01 * 2.0), rtol=1e-4, atol=0.0)
    assert_close(far, torch.full_like(far, 2.0), rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_without_deviation_it_is_softmax_attention_to_the_last_digit(padded):
    layer = make_layer()
    softmax = SoftmaxAttention(DIM, HEADS).double()
    layer.load_state_dict(layer.state_dict() | softmax.state_dict())
    layer.process.kernel.raw_outputscale.fill_(-math.inf)
    x = tokens(3, 5, DIM)
    mask = torch.arange(5) < torch.tensor([5, 1, 3])[:, None] if padded else None
    expected = softmax(x, mask).values
    assert torch.equal(layer(x, mask).values, expected)
    assert torch.equal(layer(x, mask, num_samples=2).values, expected.repeat(2, 1, 1))


@torch.no_grad()
def test_a_transformer_takes_over_the_weights_of_one_with_softmax_attention():
    backbone = TransformerConfig(depth=2, dim=8, num_heads=2, hidden_dim=8)
    sizes = dict(input_dim=3, max_length=5, num_outputs=2)
    softmax, residual = (
        sequence_transformer(backbone, attention, **sizes).double().eval()
        for attention in (SoftmaxConfig(), ResidualSGPAConfig(initial_variance=1e-20))
    )
    residual.load_state_dict(residual.state_dict() | softmax.state_dict())
    x = tokens(3, 5, 3)
    assert_close(residual(x).logits, softmax(x).logits)


@torch.no_grad()
def test_inducing_inputs_are_put_on_queries_of_real_tokens():
    layer, x = make_layer(), tokens(2, 40, DIM)
    mask = torch.arange(40) < torch.tensor([40, 10])[:, None]
    x[~mask] = 1e6
    layer.initialise_inducing(x, mask, generator=torch.Generator().manual_seed(0))
    for h in range(HEADS):
        queries = x[mask] @ layer.to_qkv.weight[h * WIDTH : (h + 1) * WIDTH].mT / WIDTH**0.25
        at = (layer.process.inducing_inputs[h][:, None] - queries).norm(dim=-1)
        assert float(at.min(-1).values.max()) < 1e-12
        assert len(set(at.argmin(-1).tolist())) == INDUCING
        # Of random pairs: half as many, and twice as many, are nearer than the median.
        squares = torch.pdist(queries).square()
        found = 2.0 * layer.process.kernel.lengthscale[h].square()
        assert (squares.quantile(0.25) < found).all()
        assert (found < squares.quantile(0.75)).all()


def test_the_variance_to_start_from_is_a_hundredth_of_the_attention_s_or_what_is_given():
    torch.manual_seed(0)
    x, mask = tokens(6, 20, DIM).double(), torch.arange(20) < torch.tensor([[20], [5]] * 3)
    layer = ResidualSparseGPAttention(DIM, HEADS, INDUCING).double()
    layer.initialise_inducing(x, mask)
    q, k, v = layer.to_qkv(x).chunk(3, -1)
    heads = [each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v)]
    hidden = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None])
    rows = hidden.transpose(1, 2)[mask].flatten(1)
    expected = 0.01 * rows.var(0, correction=0).mean()
    assert_close(layer.process.deviation.square().flatten(), expected.repeat(HEADS))
    fixed = ResidualSparseGPAttention(DIM, HEADS, INDUCING, initial_variance=0.3).double()
    fixed.initialise_inducing(x)
    assert_close(fixed.process.deviation.square().flatten(), torch.full((HEADS,), 0.3).double())


def test_tokens_that_cannot_initialise_inducing_inputs_are_refused_and_change_nothing():
    layer = make_layer()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    mask = torch.tensor([[True, True, True, False, False]])
    with pytest.raises(ValueError, match="x must have at least 4 real tokens, got 3"):
        layer.initialise_inducing(tokens(1, 5, DIM), mask)
    for x in (torch.ones(1, 5, DIM).double(), torch.full((1, 5, DIM), math.nan).double()):
        with pytest.raises(ValueError, match="x must be finite tokens of which most differ"):
            layer.initialise_inducing(x)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_tokens_that_are_not_finite_have_no_posterior():
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="x must be finite"):
            make_layer().posterior(torch.full((1, 2, DIM), value).double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_inducing": 0}, "num_inducing must be a whole number of at least 1, got 0"),
        ({"num_data": 0}, "num_data must be a whole number of at least 1, got 0"),
        ({"initial_variance": 0.0}, "initial_variance must be positive and finite, got 0.0"),
        ({"rho": math.nan}, "rho must be positive and finite, got nan"),
        ({"jitter": 0.0}, "jitter must be positive and finite, got 0.0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_arguments_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        ResidualSparseGPAttention(4, 2, **{"num_inducing": 3, **changes})
