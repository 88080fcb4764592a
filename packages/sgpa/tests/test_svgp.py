"""Sparse GP attention is an SVGP over global and amortised inducing points, in dense float64.

Nothing is cancelled here: q(u) is the joint Gaussian of all inducing variables (thesis Eq. 3.12),
predictions are those of any SVGP (Eq. 2.36, B.4), and the divergence is torch's.
"""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probseq.testing.instruments import constant_noise
from probseq.transformers import TokenMap
from sgpa import SparseGPAttention, StandardSparseGPAttention
from small import small_transformer

HEADS, WIDTH, INDUCING, JITTER = 3, 2, 4, 1e-8
DIM = HEADS * WIDTH
KERNELS = ["rbf", "exponential"]


def make_layer(kernel="rbf", seed=0, cls=SparseGPAttention, size=INDUCING, **options):
    """A layer whose kernel matrices are far from singular, with distinct weights in every head."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = cls(DIM, HEADS, size, kernel=kernel, jitter=JITTER, **options).double()
        with torch.no_grad():
            layer.to_qk.weight.copy_(torch.randn(DIM, DIM) / DIM**0.5)
            layer.kernel.raw_lengthscale.copy_(0.2 * torch.randn(HEADS, 1, WIDTH) - 0.3)
            layer.kernel.raw_outputscale.copy_(0.4 * torch.randn(HEADS))
    return layer.eval()


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gram(layer, h, x, z):
    """Kernel matrix of head h, entry by entry."""
    lengthscale = layer.kernel.raw_lengthscale[h, 0].exp()
    outputscale = layer.kernel.raw_outputscale[h].exp()
    if layer.kernel_name == "rbf":
        rows = [[torch.exp(-0.5 * ((a - b) / lengthscale).square().sum()) for b in z] for a in x]
    else:
        rows = [[torch.exp((a * b / lengthscale.square()).sum()) for b in z] for a in x]
    return outputscale * torch.stack([torch.stack(row) for row in rows])


def with_jitter(matrix):
    """Add the jitter of the layer's Cholesky factor."""
    return matrix + JITTER * matrix.diagonal().diag()


def head_rows(weight, h):
    return weight[h * WIDTH : (h + 1) * WIDTH]


def dense_q(layer, h, k_g, k_a, v_a, d):
    """Mean and covariance of q(u_g, u_a), and the prior covariance, for one output dimension."""
    k_gg, k_aa = with_jitter(gram(layer, h, k_g, k_g)), gram(layer, h, k_a, k_a)
    k_ag = gram(layer, h, k_a, k_g)
    raw = layer.raw_inducing_factor[h, d]
    factor = raw.tril(-1) + raw.diagonal().exp().diag()
    lower = torch.linalg.cholesky(k_gg)
    s_g = lower @ factor @ factor.mT @ lower.mT
    c = k_ag @ torch.linalg.inv(k_gg)
    b = k_aa - c @ k_ag.mT
    if layer.inducing_mean is not None:  # 3.12, reparametrised as under it
        m_g = k_gg @ layer.inducing_mean[h, :, d]
        mean = torch.cat([m_g, c @ m_g + b @ v_a])
    else:  # the q whose prediction is B.14; 3.10 as printed does not follow from 3.6
        mean = torch.cat([k_ag.mT @ v_a, k_aa @ v_a])
    covariance = torch.cat(
        [torch.cat([s_g, s_g @ c.mT], 1), torch.cat([c @ s_g, b + c @ s_g @ c.mT], 1)]
    )
    prior = torch.cat([torch.cat([k_gg, k_ag.mT], 1), torch.cat([k_ag, k_aa], 1)])
    return mean, covariance, prior


@torch.no_grad()
def dense_layer(layer, x, lengths, inducing=None):
    """Mean, covariance, divergence a sequence, and its part from the global inducing points."""
    inducing = layer.inducing_inputs if inducing is None else inducing
    batch, length, _ = x.shape
    mean = torch.zeros(HEADS, batch, length, WIDTH, dtype=torch.float64)
    covariance = torch.zeros(HEADS, batch, WIDTH, length, length, dtype=torch.float64)
    kl, global_kl = torch.zeros(2, dtype=torch.float64)
    for h in range(HEADS):
        k_g = inducing[h] @ head_rows(layer.to_qk.weight, h).mT
        for i, n in enumerate(lengths):
            q = x[i, :n] @ head_rows(layer.to_qk.weight, h).mT
            v = x[i, :n] @ head_rows(layer.to_v.weight, h).mT
            for d in range(WIDTH):
                m_u, s_u, k_zz = dense_q(layer, h, k_g, q, v[:, d], d)
                k_xz = gram(layer, h, q, torch.cat([k_g, q]))
                a = k_xz @ torch.linalg.inv(k_zz)
                mean[h, i, :n, d] = a @ m_u
                covariance[h, i, d, :n, :n] = gram(layer, h, q, q) + a @ (s_u - k_zz) @ a.mT
                kl += divergence(m_u, s_u, k_zz) / batch
                m = INDUCING
                global_kl += divergence(m_u[:m], s_u[:m, :m], k_zz[:m, :m]) / batch
    return mean, covariance, kl, global_kl


def divergence(mean, covariance, prior):
    return kl_divergence(
        MultivariateNormal(mean, covariance), MultivariateNormal(torch.zeros_like(mean), prior)
    )


def mixed(layer, per_head):
    """What the layer does with its heads' outputs."""
    return layer.to_out(per_head.permute(1, 2, 0, 3).flatten(2))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("variant", ["orthogonal", "decoupled"])
@pytest.mark.parametrize("kernel", KERNELS)
@torch.no_grad()
def test_mean_variance_and_divergence_are_those_of_the_dense_svgp(kernel, variant, padded):
    layer, x = make_layer(kernel, variant=variant), 0.7 * tokens(2, 4, DIM)
    lengths = (4, 2) if padded else (4, 4)
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    mean, covariance, kl, _ = dense_layer(layer, x, lengths)
    variance = covariance.diagonal(dim1=-2, dim2=-1).mT
    marginals = layer.posterior(x, mask if padded else None)
    # The dense inverse of a joint matrix of condition up to 1e6 loses digits that the layer keeps.
    tolerance = {"rtol": 1e-7, "atol": 1e-7}
    assert_close(marginals.mean[:, mask], mean[:, mask], **tolerance)
    assert_close(marginals.variance[:, mask], variance[:, mask], **tolerance)
    for noise in (0.0, 1.0, -2.0):
        with constant_noise(noise):
            out = layer(x, mask if padded else None)
        expected = mixed(layer, mean + noise * variance.sqrt())
        assert_close(out.values[mask], expected[mask], **tolerance)
        assert_close(out.penalty, kl, **tolerance)


@torch.no_grad()
def test_inducing_inputs_go_through_the_token_map():
    layer, x = make_layer(), tokens(2, 4, DIM)
    linear = torch.nn.Linear(DIM, DIM).double()
    token_map = TokenMap(lambda z: linear(z).tanh(), (linear,))
    mean, covariance, kl, _ = dense_layer(layer, x, (4, 4), linear(layer.inducing_inputs).tanh())
    marginals = layer.posterior(x, token_map=token_map)
    assert_close(marginals.mean, mean)
    assert_close(marginals.variance, covariance.diagonal(dim1=-2, dim2=-1).mT)
    assert_close(layer(x, token_map=token_map).penalty, kl)


@torch.no_grad()
def test_dataset_weighting_counts_the_global_divergence_once():
    x = tokens(2, 4, DIM)
    sequence = make_layer()
    dataset = make_layer(kl_weighting="dataset", num_data=10)
    _, _, kl, global_kl = dense_layer(sequence, x, (4, 4))
    assert_close(sequence(x).penalty, kl)
    # KL(q(u)) = KL(q(u_g)) + E KL(q(u_a | u_g)), the second part a sequence's own.
    assert_close(dataset(x).penalty, kl - global_kl + global_kl / 10)


@torch.no_grad()
def shared_covariance(layer, x, lengths):
    """Covariance of the tokens where what the inducing inputs leave open is each token's own."""
    covariance = dense_layer(layer, x, lengths)[1]
    for h in range(HEADS):
        k_g = layer.inducing_inputs[h] @ head_rows(layer.to_qk.weight, h).mT
        k_gg = with_jitter(gram(layer, h, k_g, k_g))
        for i, n in enumerate(lengths):
            q = x[i, :n] @ head_rows(layer.to_qk.weight, h).mT
            k_qg = gram(layer, h, q, k_g)
            # K_qq − K_qg K_gg⁻¹ K_gq keeps its diagonal alone.
            rest = gram(layer, h, q, q) - k_qg @ torch.linalg.solve(k_gg, k_qg.mT)
            covariance[h, i, :, :n, :n] -= rest - rest.diagonal().diag()
    return covariance


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("drawn", ["inducing", "full"])
@torch.no_grad()
def test_joint_samples_have_the_dense_covariance(kernel, drawn):
    layer, x = make_layer(kernel, covariance=drawn), 0.7 * tokens(2, 4, DIM)
    layer.to_out[0].weight.copy_(torch.eye(DIM))
    layer.to_out[0].bias.zero_()
    mean, covariance, _, _ = dense_layer(layer, x, (4, 3))
    if drawn == "inducing":
        covariance = shared_covariance(layer, x, (4, 3))
    samples = 40_000
    mask = torch.arange(4) < torch.tensor([[4], [3]])
    values = layer(
        x, mask, num_samples=samples, generator=torch.Generator().manual_seed(0)
    ).values.view(samples, 2, 4, HEADS, WIDTH)
    for i, n in enumerate((4, 3)):
        # All entries of a sequence at once: heads and output dimensions are independent.
        flat = values[:, i, :n].permute(0, 2, 3, 1).reshape(samples, -1)
        blocks = covariance[:, i, :, :n, :n].flatten(0, 1)
        expected = torch.block_diag(*blocks)
        deviations = expected.diagonal().sqrt()
        scale = (deviations[:, None].square() * deviations.square() + expected.square()).sqrt()
        # Five and a half standard errors.
        bound = 5.5 / samples**0.5
        assert ((flat.T.cov() - expected).abs() < bound * scale).all()
        centre = mean[:, i, :n].transpose(1, 2).flatten()
        assert ((flat.mean(0) - centre).abs() < bound * deviations).all()


@torch.no_grad()
def test_all_samples_have_the_marginals_and_pooled_outputs_vary_as_much_as_noise_is_shared():
    # Tokens close to one another, whose values a GP ties together.
    x = tokens(1, 1, DIM) + 0.1 * tokens(1, 8, DIM, seed=2)
    pooled = {}
    for covariance in ("diag", "inducing", "full"):
        layer = make_layer(covariance=covariance, initial_posterior="prior")
        layer.to_out[0].weight.copy_(torch.eye(DIM))
        dense = dense_layer(layer, x, (8,))[1][:, 0].flatten(0, 1)
        values = layer(x, num_samples=8000, generator=torch.Generator().manual_seed(0)).values
        marginal = dense.diagonal(dim1=-2, dim2=-1).mT
        # The standard error of a variance from 8,000 draws is 1.6 %.
        assert_close(values.var(0), marginal, rtol=0.09, atol=0.0)
        pooled[covariance] = values.mean(1).var(0)
        joint = {"full": dense, "inducing": shared_covariance(layer, x, (8,))[:, 0].flatten(0, 1)}
        truth = joint[covariance].sum((-2, -1)) if covariance in joint else marginal.sum(0)
        assert_close(pooled[covariance], truth / 64, rtol=0.09, atol=0.0)
    assert (pooled["full"] > 4 * pooled["diag"]).all()
    assert (pooled["inducing"] > pooled["diag"]).all()
    assert (pooled["full"] > pooled["inducing"]).all()


@torch.no_grad()
def test_identity_factors_and_zero_values_give_the_prior():
    for kernel in ("rbf", "exponential"):
        layer = make_layer(kernel, initial_posterior="prior")
        layer.inducing_mean.zero_()
        layer.to_v.weight.zero_()
        x = tokens(2, 5, DIM)
        marginals = layer.posterior(x)
        assert_close(marginals.mean, torch.zeros_like(marginals.mean))
        for h in range(HEADS):
            q = x @ head_rows(layer.to_qk.weight, h).mT
            for i in range(2):
                prior = gram(layer, h, q[i], q[i]).diagonal()
                assert_close(marginals.variance[h, i], prior[:, None].expand(5, WIDTH))
        assert_close(layer(x).penalty, torch.zeros((), dtype=torch.float64))


@torch.no_grad()
def test_tokens_at_the_inducing_inputs_read_q_of_u_off():
    layer, x = make_layer(), tokens(1, INDUCING, DIM)
    layer.inducing_inputs.copy_(x.expand(HEADS, -1, -1))
    marginals = layer.posterior(x)
    for h in range(HEADS):
        k = x[0] @ head_rows(layer.to_qk.weight, h).mT
        k_gg = gram(layer, h, k, k)
        lower = torch.linalg.cholesky(k_gg)
        # What the amortised values say is what the global points already know. Jitter: 1e-8.
        expected = k_gg @ layer.inducing_mean[h]
        assert_close(marginals.mean[h, 0], expected, rtol=1e-5, atol=1e-5)
        for d in range(WIDTH):
            raw = layer.raw_inducing_factor[h, d]
            root = lower @ (raw.tril(-1) + raw.diagonal().exp().diag())
            variance = root.square().sum(-1)
            assert_close(marginals.variance[h, 0, :, d], variance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("covariance", ["diag", "full"])
@pytest.mark.parametrize("kernel", ["rbf", "exponential"])
@torch.no_grad()
def test_standard_attention_is_the_svgp_with_the_keys_as_inducing_inputs(kernel, covariance):
    layer = make_layer(kernel, cls=StandardSparseGPAttention, size=6, covariance=covariance)
    x, lengths = 0.7 * tokens(2, 5, DIM), (5, 3)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    mean = torch.zeros(HEADS, 2, 5, WIDTH, dtype=torch.float64)
    ones = torch.zeros_like(mean)
    kl = torch.zeros((), dtype=torch.float64)
    for h in range(HEADS):
        for i, n in enumerate(lengths):
            s = x[i, :n]
            k = s @ head_rows(layer.to_qk.weight, h).mT
            v = s @ head_rows(layer.to_v.weight, h).mT
            raw = (s @ layer.to_factor.weight[h * 6 : (h + 1) * 6].mT)[:, :n]
            r = raw.tril(-1) + raw.diagonal().exp().diag()
            k_kk = with_jitter(gram(layer, h, k, k))
            lower = torch.linalg.cholesky(k_kk)
            s_u = lower @ r @ r.mT @ lower.mT
            inverse = torch.linalg.inv(k_kk)
            # 3.4, literally, with q = k.
            sigma = k_kk + k_kk @ (inverse @ s_u @ inverse - inverse) @ k_kk
            mean[h, i, :n] = gram(layer, h, k, k) @ v
            root = torch.linalg.cholesky(sigma)
            deviation = sigma.diagonal().sqrt() if covariance == "diag" else root.sum(-1)
            ones[h, i, :n] = deviation[:, None]
            for d in range(WIDTH):
                kl += divergence(mean[h, i, :n, d], s_u, k_kk) / 2
    for noise in (0.0, 1.0):
        with constant_noise(noise):
            out = layer(x, mask)
        expected = mixed(layer, mean + noise * ones)
        assert_close(out.values[mask], expected[mask], rtol=1e-6, atol=1e-6)
        assert_close(out.penalty, kl, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shared_norm", [True, False])
@torch.no_grad()
def test_global_inducing_inputs_follow_the_tokens_through_a_vision_transformer(shared_norm, norm):
    layers = [make_layer(seed=s) for s in (0, 1)]
    sizes = {"dim": DIM, "num_heads": HEADS, "hidden_dim": 7}
    sizes |= {"norm": norm, "shared_norm": shared_norm}
    model = small_transformer("vision", lambda index: layers[index], **sizes).eval()
    for n, layer_norm in enumerate(model.encoder.norms):
        layer_norm.weight.copy_(1 + 0.3 * tokens(DIM, seed=n))
        layer_norm.bias.copy_(0.3 * tokens(DIM, seed=n + 9))
    norms = list(model.encoder.norms) * (4 if shared_norm else 1)
    images = tokens(2, 1, 4, 4)
    with constant_noise(0.0):
        out = model(images)

    x = model.embed(images).flatten(2).mT + model.positions
    penalty = 0.0
    first, second = model.encoder.feedforward
    z_second = layers[1].inducing_inputs
    if norm == "pre":
        z_second = norms[2](z_second + first(norms[1](z_second)))
    else:
        z_second = norms[1](z_second + first(z_second))
    for index, z in enumerate((layers[0].inducing_inputs, z_second)):
        mlp = (first, second)[index]
        before, after = norms[2 * index], norms[2 * index + 1]
        mean, _, kl, _ = dense_layer(layers[index], before(x) if norm == "pre" else x, (4, 4), z)
        x, penalty = x + mixed(layers[index], mean), penalty + kl
        if norm == "pre":
            x = x + mlp(after(x))
        else:
            x = before(x)
            x = after(x + mlp(x))
    logits = model.head.linear(model.head.norm(x).mean(1))
    assert_close(out.logits, logits, rtol=1e-6, atol=1e-6)
    assert_close(out.penalty, penalty, rtol=1e-6, atol=1e-6)


def test_tokens_that_are_not_finite_have_no_posterior():
    layer = SparseGPAttention(4, 1, num_inducing=2)
    with pytest.raises(ValueError, match="x must be finite"):
        layer.posterior(torch.full((1, 2, 4), torch.nan))
