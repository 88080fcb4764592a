"""Sparse GP attention of decoders, against dense algebra of each prefix in float64."""

import itertools

import pytest
import torch
from torch import nn

import sgpa
from probseq.transformers import CausalTransformer, TransformerConfig
from sgpa import (
    CausalFeatureAttention,
    CausalNoise,
    CausalSparseGPAttention,
    ResidualSparseGPAttention,
)
from sgpa.random_features import features as fourier

COVARIANCES = ("diag", "inducing", "full")
DIM, HEADS, WIDTH, INDUCING = 8, 2, 4, 3


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def layer(seed=0, **settings):
    """A layer in float64 whose output is the heads' outputs side by side."""
    torch.manual_seed(seed)
    given = {"initial_posterior": "random", "initial_variance": 0.7, "jitter": 1e-8, **settings}
    made = CausalSparseGPAttention(DIM, HEADS, INDUCING, **given).double().eval()
    nn.init.eye_(made.to_out[0].weight)
    nn.init.zeros_(made.to_out[0].bias)
    made.raw_inducing_factor.data.mul_(0.3)
    if settings.get("kernel") == "exponential":
        made.kernel.raw_lengthscale.data.fill_(0.7)
    return made


def data(tokens=6, batch=2, seed=1):
    return torch.randn(batch, tokens, DIM, generator=seeded(seed)).double()


def heads(made, x, linear):
    return linear(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)  # (B, H, T, s)


def kernel(made, h, a, b):
    """Absolute covariances of one head, from differences or products."""
    ell, variance = made.kernel.lengthscale[h], made.kernel.outputscale[h]
    a, b = a / ell, b / ell
    if made.kernel_name == "exponential":
        return variance * torch.exp(a @ b.mT)
    return variance * torch.exp(-0.5 * (a[:, None] - b[None]).square().sum(-1))


def dense(made, h, keys, values, points, given):
    """Mean and covariance (s, n, n) of f at points with the first ``given`` keys (Eq. 3.14)."""
    rows = made.to_k.weight.unflatten(0, (HEADS, WIDTH))[h]
    inducing = made.inducing_inputs[h] @ rows.mT
    gg = kernel(made, h, inducing, inducing)
    gg = gg + made.jitter * torch.diag(gg.diagonal())
    pg, inverse = kernel(made, h, points, inducing), torch.linalg.inv(gg)
    k, v = keys[:given], values[:given]
    across = kernel(made, h, points, k) - pg @ inverse @ kernel(made, h, inducing, k)
    mean = across @ v + pg @ made.inducing_mean[h]
    raw = made.raw_inducing_factor[h]
    root = raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())
    root = torch.linalg.cholesky(gg) @ root
    middle = inverse @ (root @ root.mT - gg) @ inverse
    return mean, kernel(made, h, points, points) + pg @ middle @ pg.mT


def normaliser(made, h, q, keys, t):
    if made.normalise == "none":
        return 1.0
    if made.normalise == "count":
        return 1.0 / (t + 1)
    return float(1.0 / kernel(made, h, q[t : t + 1], keys[: t + 1]).sum().detach())


def moments(made, x):
    """Mean (B, T, dim) and, of the first sequence, its exact covariance (T·dim, T·dim)."""
    noise = made.noise(1, len(x), x.shape[1], generator=seeded(5))
    zero = CausalNoise(*(torch.zeros_like(each) for each in noise))
    with torch.no_grad():
        mean = made(x, noise=zero).values

    def output(inducing, token):
        return made(x[:1], noise=CausalNoise(inducing, token)).values.flatten()

    parts = torch.autograd.functional.jacobian(output, tuple(each[:, :, :1] for each in zero))
    flat = torch.cat([part.flatten(1) for part in parts], 1)
    return mean, flat @ flat.mT


CASES = [
    {"kernel": kernel_name, "tied": tied, "normalise": normalise}
    for kernel_name, tied, normalise in itertools.product(
        ("rbf", "exponential"), (True, False), ("none", "count", "kernel")
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_each_token_has_the_posterior_of_its_prefix(case):
    x = data()
    for covariance in COVARIANCES:
        made = layer(covariance=covariance, **case)
        mean, found = moments(made, x)
        found = found.unflatten(0, (6, HEADS, WIDTH)).unflatten(-1, (6, HEADS, WIDTH))
        q, k, v = (heads(made, x, lin) for lin in (made.to_q or made.to_k, made.to_k, made.to_v))
        for h in range(HEADS):
            weights = []
            for t in range(6):
                own, _ = dense(made, h, k[0, h], v[0, h], q[0, h, t : t + 1], t + 1)
                weights.append(normaliser(made, h, q[0, h], k[0, h], t))
                expected = weights[-1] * own[0]
                torch.testing.assert_close(
                    mean[0, t].unflatten(0, (HEADS, WIDTH))[h], expected, rtol=1e-7, atol=1e-9
                )
            a = torch.as_tensor(weights, dtype=torch.float64)
            _, whole = dense(made, h, k[0, h], v[0, h], q[0, h], 6)
            whole = whole * a[:, None] * a[None]
            for c in range(WIDTH):
                block = found[:, h, c, :, h, c]
                scale = whole[c].diagonal().max()
                torch.testing.assert_close(
                    block.diagonal() / scale, whole[c].diagonal() / scale, rtol=0, atol=1e-6
                )
                if covariance == "full":
                    torch.testing.assert_close(block / scale, whole[c] / scale, rtol=0, atol=1e-6)
        # Output dimensions and heads are independent given the posterior.
        assert float(found[:, 0, 0, :, 1, 0].detach().abs().max()) < 1e-12


def test_shared_noise_is_that_of_the_inducing_inputs_and_grows_with_what_is_shared():
    x, pooled = data(), []
    for covariance in COVARIANCES:
        made = layer(covariance=covariance, tied=True, normalise="none")
        _, found = moments(made, x)
        found = found.unflatten(0, (6, DIM)).unflatten(-1, (6, DIM))
        pooled.append(float(found.detach().diagonal(dim1=1, dim2=3).sum((0, 1)).mean()))
        if covariance == "inducing":
            made.covariance = "full"
            _, whole = moments(made, x)
            whole = whole.unflatten(0, (6, DIM)).unflatten(-1, (6, DIM))
            # What "full" has beyond: the tokens' residual, chol(K⊥ + jI).
            keys = heads(made, x, made.to_k)
            for h in range(HEADS):
                rows = made.to_k.weight.unflatten(0, (HEADS, WIDTH))[h]
                z = made.inducing_inputs[h] @ rows.mT
                gg = kernel(made, h, z, z)
                gg = gg + made.jitter * torch.diag(gg.diagonal())
                kg = kernel(made, h, keys[0, h], z)
                residual = kernel(made, h, keys[0, h], keys[0, h])
                residual = residual - kg @ torch.linalg.inv(gg) @ kg.mT
                residual.fill_diagonal_(0.0)
                difference = (whole - found)[:, h * WIDTH, :, h * WIDTH]
                difference = difference - torch.diag(difference.diagonal())
                torch.testing.assert_close(difference, residual, rtol=0, atol=1e-7)
    assert pooled[0] < pooled[1] < pooled[2]


@pytest.mark.parametrize("kernel_name", ["rbf", "exponential"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_kl_of_a_token_is_that_of_dense_gaussians_on_a_grid(kernel_name, tied):
    made = layer(kernel=kernel_name, tied=tied, jitter=1e-12)
    x = data(tokens=4)
    found = made.token_kl(x)
    with torch.no_grad():
        k, v = (heads(made, x, linear) for linear in (made.to_k, made.to_v))
        for b in range(2):
            for t in range(4):
                total, without = 0.0, 0.0
                for h in range(HEADS):
                    rows = made.to_k.weight.unflatten(0, (HEADS, WIDTH))[h]
                    z = made.inducing_inputs[h] @ rows.mT
                    for grid, add in ((torch.cat((z, k[b, h])), True), (k[b, h], False)):
                        new, covariance = dense(made, h, k[b, h], v[b, h], grid, t + 1)
                        old, _ = dense(made, h, k[b, h], v[b, h], grid, t)
                        moved = (new - old).mT
                        solved = torch.linalg.solve(covariance, moved[..., None])[..., 0]
                        kl = 0.5 * float((moved * solved).sum())
                        total, without = (total + kl, without) if add else (total, without + kl)
                assert float(found[b, t]) == pytest.approx(total, rel=1e-5)
                assert without <= total * (1 + 1e-6)
    penalty = made(x, generator=seeded(0)).penalty
    terms = made._global_terms(None)
    torch.testing.assert_close(penalty, found.sum(1).mean() + terms.kl)
    made.global_weight = 0.0
    torch.testing.assert_close(made(x, generator=seeded(0)).penalty, found.sum(1).mean())


def decoder(attention, depth=3):
    torch.manual_seed(0)
    config = TransformerConfig(depth=depth, dim=DIM, num_heads=HEADS, hidden_dim=12, dropout=0.0)
    model = CausalTransformer(config, vocab_size=7, max_length=20, attention=attention)
    return model.double().eval()


def gp(covariance, **settings):
    given = {"initial_posterior": "random", "covariance": covariance, **settings}
    return lambda index: CausalSparseGPAttention(DIM, HEADS, INDUCING, **given)


def residual(index):
    made = ResidualSparseGPAttention(DIM, HEADS, INDUCING, causal=True, rho=0.5)
    made.process.inducing_mean.data.normal_()
    return made


def features(index):
    given = {"initial_posterior": "random", "tied": index == 1}
    return CausalFeatureAttention(DIM, HEADS, INDUCING, num_features=10, **given)


MODELS = {
    **{covariance: gp(covariance) for covariance in COVARIANCES},
    "exponential": gp("inducing", kernel="exponential", tied=True, normalise="kernel"),
    "none": gp("diag", normalise="none"),
    "residual": residual,
    "features": features,
}


def tokens(batch=2, length=17):
    return torch.randint(7, (batch, length), generator=seeded(3))


def noise_of(model, samples, batch, length):
    """Noise of all layers: the first draws the samples, for the others they are the batch."""
    drawn, parts = seeded(4), []
    for index in range(len(model.encoder.attention)):
        count, rows = (samples, batch) if index == 0 else (1, samples * batch)
        sizes = (count, HEADS, rows, length, WIDTH, INDUCING)
        like = torch.zeros((), dtype=torch.float64)
        if isinstance(model.encoder.attention[index], CausalFeatureAttention):
            sizes = (count, HEADS, rows, 10, WIDTH, INDUCING)
        parts.append(CausalNoise.draw(*sizes, like=like, generator=drawn))
    return parts


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_step_by_step_is_the_parallel_pass_with_the_same_noise(name):
    model, ids = decoder(MODELS[name]), tokens()
    noise = noise_of(model, 3, 2, 17)
    whole = model(ids, num_samples=3, noise=noise)
    cache = model.init_cache(6, 17, noise=[each.folded() for each in noise])
    found, penalties, place = [], [], 0
    for new in (1, 1, 5, 1, 9):  # one token at a time, or several
        output, cache = model.step(ids[:, place : place + new].repeat(3, 1), cache)
        place += new
        found.append(output.logits)
        penalties.append(output.penalty)
    assert cache.length == 17
    torch.testing.assert_close(
        torch.cat(found, 1).unflatten(0, (3, 2)), whole.logits, rtol=0, atol=1e-9
    )
    if name != "residual":  # whose KL is that of its parameters, at each step
        layers = model.encoder.attention
        globally = sum(
            each._global_terms(model.encoder._token_map(index)).kl
            for index, each in enumerate(layers)
        )
        torch.testing.assert_close(sum(penalties) + globally, whole.penalty, rtol=1e-9, atol=0)
    if name == "features":  # which have room for any number of tokens
        return
    with pytest.raises(ValueError, match="max_tokens must be at least 18"):
        model.step(ids[:1, :1].expand(6, 1), cache)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_later_tokens_change_nothing_before_them(name):
    model, ids = decoder(MODELS[name]), tokens()
    noise = noise_of(model, 1, 2, 17)
    whole = model(ids, noise=noise).logits
    changed = ids.clone()
    changed[:, 11:] = (changed[:, 11:] + 1) % 7
    found = model(changed, noise=noise).logits[:, :11]
    # A factorisation in blocks may round the first rows otherwise.
    tolerance = 1e-12 if name == "full" else 0.0
    torch.testing.assert_close(found, whole[:, :11], rtol=0, atol=tolerance)
    torch.testing.assert_close(
        model(ids[:, :7], noise=noise).logits, whole[:, :7], rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(name):
    model, ids = decoder(MODELS[name]), tokens()
    noise = noise_of(model, 1, 2, 17)
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.long), ids[:, :14]), 1)
    mask = torch.arange(17).expand(2, 17) >= 3
    later = [CausalNoise(each.inducing, each.token[..., 3:, :]) for each in noise]
    if name == "features":
        later = noise  # of the features, and not of tokens
    found = model(padded, mask, noise=noise)
    expected = model(ids[:, :14], noise=later)
    torch.testing.assert_close(found.logits[:, 3:], expected.logits, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.penalty, expected.penalty)


@pytest.mark.parametrize("normalise", ["none", "count"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kernel_name", ["rbf", "exponential"])
def test_random_features_are_the_process_of_their_own_kernel(normalise, tied, kernel_name):
    # The dense algebra of the exact layer, with the covariances of the features in all places.
    torch.manual_seed(0)
    given = {"normalise": normalise, "tied": tied, "kernel": kernel_name}
    made = CausalFeatureAttention(
        DIM, HEADS, INDUCING, 10, initial_posterior="random", initial_variance=0.7, **given
    )
    made = made.double().eval()
    nn.init.eye_(made.to_out[0].weight)
    nn.init.zeros_(made.to_out[0].bias)
    made.raw_inducing_factor.data.mul_(0.3)
    if kernel_name == "exponential":
        made.kernel.raw_lengthscale.data.fill_(0.7)
    x, (centre, *_) = data(), made._global_terms(None)

    def covariance(own, h, a, b):
        ell, variance = own.kernel.lengthscale[h], own.kernel.outputscale[h]
        parts = [fourier(one / ell - centre[h], own.frequencies[h]) for one in (a, b)]
        if kernel_name == "exponential":
            sizes = [torch.exp(0.5 * (one / ell).square().sum(-1, keepdim=True)) for one in (a, b)]
            parts = [part * one for part, one in zip(parts, sizes, strict=True)]
        return variance * parts[0] @ parts[1].mT

    made.jitter = 0.0
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(f"{__name__}.kernel", covariance)
        noise = made.noise(1, 2, 6, generator=seeded(5))
        zero = CausalNoise(*(torch.zeros_like(each) for each in noise))
        mean = made(x, noise=zero).values
        with torch.enable_grad():
            parts = torch.autograd.functional.jacobian(
                lambda *each: made(x[:1], noise=CausalNoise(*each)).values.flatten(),
                tuple(each[:, :, :1] for each in zero),
            )
        flat = torch.cat([part.flatten(1) for part in parts], 1)
        found = (flat @ flat.mT).unflatten(0, (6, HEADS, WIDTH)).unflatten(-1, (6, HEADS, WIDTH))
        q, k, v = (heads(made, x, lin) for lin in (made.to_q or made.to_k, made.to_k, made.to_v))
        for h in range(HEADS):
            weights = torch.ones(6) if normalise == "none" else 1.0 / (torch.arange(6) + 1)
            weights = weights.double()
            for t in range(6):
                own, _ = dense(made, h, k[0, h], v[0, h], q[0, h, t : t + 1], t + 1)
                expected = weights[t] * own[0]
                torch.testing.assert_close(
                    mean[0, t].unflatten(0, (HEADS, WIDTH))[h], expected, rtol=1e-6, atol=1e-8
                )
            _, whole = dense(made, h, k[0, h], v[0, h], q[0, h], 6)
            whole = whole * weights[:, None] * weights[None]
            for c in range(WIDTH):
                scale = whole[c].diagonal().max()
                torch.testing.assert_close(
                    found[:, h, c, :, h, c] / scale, whole[c] / scale, rtol=0, atol=1e-6
                )


def test_random_features_keep_no_tokens_and_take_long_texts():
    made = CausalFeatureAttention(8, 2, 3, num_features=16).eval()
    cache = made.init_cache(1, 1)
    sizes = {tuple(part.shape) for part in (cache.state, *cache.noise)}
    with torch.no_grad():
        for _ in range(3):
            output, cache = made.step(torch.randn(1, 4000, 8), cache)
    assert cache.length == 12_000
    assert output.values.isfinite().all()
    assert sizes == {tuple(part.shape) for part in (cache.state, *cache.noise)}


def test_gradients_are_those_of_differences():
    made = layer(covariance="full", jitter=1e-4)
    x = data(tokens=3, batch=1).requires_grad_()
    noise = made.noise(1, 1, 3, generator=seeded(0))
    assert torch.autograd.gradcheck(lambda x: made(x, noise=noise), (x,))
    made(x, noise=noise).values.sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_untied_projections_that_are_equal_are_tied():
    tied = layer(tied=True)
    free = layer(tied=False)
    free.load_state_dict({**tied.state_dict(), "to_q.weight": tied.to_k.weight})
    noise = tied.noise(1, 2, 6, generator=seeded(0))
    assert torch.equal(tied(data(), noise=noise).values, free(data(), noise=noise).values)


def test_blocks_of_long_sequences_are_one_sum():
    x = data(tokens=600, batch=1)
    made = layer(normalise="kernel")
    noise = made.noise(1, 1, 600, generator=seeded(0))
    with torch.no_grad():
        found = made(x, noise=noise).values
        cache = made.init_cache(1, 600, noise=noise)
        (first, _), cache = made.step(x[:, :599], cache)
        (last, _), _ = made.step(x[:, 599:], cache)
    torch.testing.assert_close(torch.cat((first, last), 1), found, rtol=1e-8, atol=1e-10)


def test_one_token_one_inducing_input_and_one_head_are_enough():
    made = CausalSparseGPAttention(4, 1, 1).double()
    output = made(torch.randn(1, 1, 4).double(), num_samples=2)
    assert output.values.shape == (2, 1, 4)
    model = decoder(lambda index: CausalSparseGPAttention(DIM, 1, 1))
    assert model.generate(tokens(1, 1), 3, num_samples=2).shape == (1, 4)


@torch.no_grad()
def test_float32_steps_follow_the_parallel_pass():
    model, ids = decoder(MODELS["inducing"]).float(), tokens()
    noise = [CausalNoise(*(part.float() for part in each)) for each in noise_of(model, 1, 2, 17)]
    cache = model.init_cache(2, 17, noise=noise)
    found = []
    for t in range(17):
        output, cache = model.step(ids[:, t : t + 1], cache)
        found.append(output.logits)
    torch.testing.assert_close(
        torch.cat(found, 1), model(ids, noise=noise).logits, rtol=0, atol=1e-3
    )


@torch.no_grad()
def test_a_text_keeps_its_noise_and_other_texts_have_theirs():
    model, ids = decoder(MODELS["inducing"]), tokens(1, 5)
    one, same, other = (
        model.generate(ids, 10, num_samples=2, generator=seeded(s)) for s in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(one[:, :5], ids)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CausalSparseGPAttention(8, 3, 2), "num_heads must divide dim=8"),
        (lambda: CausalSparseGPAttention(8, 2, 0), "num_inducing"),
        (lambda: CausalSparseGPAttention(8, 2, 2, jitter=0.0), "jitter"),
        (lambda: layer()(data()[..., :4]), "x must have shape"),
        (lambda: layer()(data(), noise=layer().noise(1, 2, 5)), "noise must be of"),
        (lambda: layer().init_cache(2, 9, noise=layer().noise(2, 2, 9)), "noise must be of"),
        (lambda: layer().init_cache(0, 9), "batch"),
        (lambda: CausalFeatureAttention(8, 2, 4, 4), "num_features must be even and more than"),
        (lambda: CausalFeatureAttention(8, 2, 4, normalise="kernel"), "normalise must be 'none'"),
        (lambda: ResidualSparseGPAttention(8, 2, 3).init_cache(1, 5), "causal must be True"),
        (lambda: decoder(lambda i: sgpa.SparseGPAttention(8, 2, 3)), "attention must be causal"),
    ],
)
def test_senseless_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
