"""SCGPT's module passes the suite that every attention module passes, and keeps its promises."""

import copy
import math

import jaxtyping
import pytest
import torch
from torch.testing import assert_close

from cgpt import SparseCorrelatedGPAttention
from probseq.testing.attention import AttentionSuite
from probseq.testing.instruments import constant_noise


class TestFree(AttentionSuite):
    options = {}  # noqa: RUF012
    compile_imports = "from cgpt import SparseCorrelatedGPAttention"
    compile_modules = (
        "SparseCorrelatedGPAttention(4, 2, 3)",
        "SparseCorrelatedGPAttention(4, 2, 3, inducing='mixed', max_tokens=8, conditional='fitc')",
    )

    def make(self, dim, num_heads):
        # Draws in training too: the suite compares the two modes.
        return SparseCorrelatedGPAttention(
            dim, num_heads, 3, sample_in_training=True, **self.options
        )


class TestFITC(TestFree):
    options = {  # noqa: RUF012
        "conditional": "fitc",
        "regulariser": "marginals",
        "num_key_inducing": 2,
        "canonical_prior": "noisy",
    }
    compile_modules = ()
    long_tokens = None


class TestOneInducingInput(TestFree):
    compile_modules = ()
    long_tokens = None

    def make(self, dim, num_heads):
        return SparseCorrelatedGPAttention(
            dim, num_heads, 1, noise=0.5, regulariser="jensen", sample_in_training=True
        )


class TestMixed(TestFree):
    options = {"inducing": "mixed", "max_tokens": 16}  # noqa: RUF012
    compile_modules = ()
    # A weight belongs to a position.
    permuted_noises = ()
    long_tokens = None

    def test_too_many_tokens_are_refused_by_name(self):
        with pytest.raises(ValueError, match="x must have at most max_tokens=16 tokens, got 17"):
            self.build()(self.tokens(1, 17, 4))


def build(dim=32, heads=2, count=8, *, seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SparseCorrelatedGPAttention(dim, heads, count, **options)


def tokens(*shape, seed=1):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.layer_norm(x, shape[-1:])


def test_training_forwards_the_mean_and_evaluation_draws_around_it(draw):
    module, x = build(8, 2, 3).double(), draw(2, 5, 8)
    with torch.no_grad():
        mean = module.train()(x)
        copies = module(x, num_samples=3)
        module.eval()
        expected = module.to_out(module.posterior(x).mean.permute(1, 2, 0, 3).flatten(2))
        draw_ = module(x)
        with constant_noise(0.0):
            centre = module(x)
    assert_close(mean.values, expected)
    assert_close(copies.values, mean.values.repeat(3, 1, 1))
    assert_close(centre.values, mean.values)
    assert (draw_.values - mean.values).abs().max() > 0.01
    assert_close(draw_.penalty, mean.penalty)


@pytest.mark.parametrize("conditional", ["sor", "fitc"])
def test_draws_have_the_law_of_the_dense_prediction(draw, conditional):
    """Joint moments over tokens of one head, with to_out taken away."""
    module = build(3, 1, 4, conditional=conditional, noise=0.3, jitter=1e-8).double().eval()
    module.to_out = torch.nn.Identity()
    x, number = draw(1, 5, 3), 100_000
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        samples = module(x, generator=generator, num_samples=number).values
        marginals = module.posterior(x)
        mean, variance = (t[0, 0] for t in (marginals.mean, marginals.variance))
        cov = torch.stack([samples[..., d].T.cov() for d in range(3)])
        # The covariance from its definition: X_o is the second projection.
        q, o, k, _ = (x[0] @ w.mT for w in module.to_qokv.weight.chunk(4))
        dense = dense_covariance(module, q, o, k)
    deviation = (variance / number).sqrt()
    assert ((samples.mean(0) - mean).abs() < 6 * deviation).all()
    diagonal = dense.diagonal()
    assert_close(variance, diagonal[:, None].expand_as(variance), atol=1e-6, rtol=1e-6)
    error = 6 * ((diagonal.outer(diagonal) + dense.square()) / number).sqrt()
    assert ((cov - dense).abs() < error).all()
    across = (samples[..., 0].T @ samples[..., 1] / number) - mean[:, :1] @ mean[:, 1:2].mT
    assert (across.abs() < 6 * (diagonal.outer(diagonal) / number).sqrt() * 3).all()


def dense_covariance(module, q, o, k):
    def kappa(a, b):
        difference = (a[:, None] - b[None]) / module.lengthscale[0]
        return torch.exp(-0.5 * difference.square().sum(-1))

    z, z_k = module.inducing.inputs[0, 0], module.key_inducing.inputs[0, 0]
    variance = module.noise.item() ** 2
    k_qm, k_om, k_ol, k_kl = kappa(q, z), kappa(o, z), kappa(o, z_k), kappa(k, z_k)
    p = torch.linalg.inv(kappa(z, z) + k_om.mT @ k_om / variance)
    r = torch.linalg.inv(kappa(z_k, z_k) + k_kl.mT @ k_kl / variance)
    eye = torch.eye(len(q), dtype=q.dtype)
    of_o = variance * eye + k_ol @ r @ k_ol.mT
    covariance = variance * eye + k_qm @ (p + p @ k_om.mT @ of_o @ k_om @ p / variance**2) @ k_qm.mT
    if module.conditional == "fitc":
        q_q = k_qm @ torch.linalg.solve(kappa(z, z), k_qm.mT)
        covariance = covariance + (1 - q_q.diagonal()).diag()
    return covariance


@pytest.mark.parametrize("options", [{}, {"inducing": "mixed", "max_tokens": 64}])
def test_attention_is_alive_at_initialisation(options):
    module, x = build(128, 4, 16, **options).train(), tokens(4, 64, 128)
    with torch.no_grad():
        mean = module.posterior(x).mean
        values = module.to_qokv(x)[..., -128:]
        heads = torch.stack(
            [module.posterior(x).mean, module.posterior(tokens(4, 64, 128, seed=2)).mean]
        )
    # A smoother of values with a standard deviation of 0.6, not a vanishing kernel.
    assert 0.05 < mean.std() < values.std()
    assert (heads[0] - heads[1]).abs().mean() > 0.02
    x.requires_grad_()
    module(x).values.square().sum().backward()
    assert x.grad.abs().mean() > 1e-4


@torch.no_grad()
def test_float32_and_float64_are_one_model_where_lengthscales_are_long():
    module, x = build(32, 2, 16), tokens(2, 16, 32)
    module.raw_lengthscale.fill_(math.log(8.0) + 3.0)
    found, expected = module.posterior(x), copy.deepcopy(module).double().posterior(x.double())
    for moment in ("mean", "variance"):
        exact = getattr(expected, moment)
        tolerance = 1e-3 * float(exact.abs().max())
        assert_close(getattr(found, moment).double(), exact, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("noise", [0.1, 0.5])
@pytest.mark.parametrize("conditional", ["sor", "fitc"])
def test_float32_holds_at_the_paper_s_noise_and_size(noise, conditional):
    module, x = build(128, 4, 16, noise=noise, conditional=conditional), tokens(2, 64, 128)
    x.requires_grad_()
    values, penalty = module.train()(x)
    gradient = torch.autograd.grad(values.square().sum() + 1e-4 * penalty, x)[0]
    wide = x.detach().double().requires_grad_()
    values_64, penalty_64 = module.double()(wide)
    gradient_64 = torch.autograd.grad(values_64.square().sum() + 1e-4 * penalty_64, wide)[0]
    for found, expected in ((values, values_64), (penalty, penalty_64), (gradient, gradient_64)):
        scale = float(expected.detach().abs().max())
        assert_close(found.double(), expected, atol=1e-3 * scale, rtol=0)


# Where inducing inputs are mixtures, the origin follows their offsets and not the tokens.
@pytest.mark.parametrize(
    ("options", "offset"), [({}, 100.0), ({"inducing": "mixed", "max_tokens": 8}, 10.0)]
)
def test_an_offset_that_tokens_and_inducing_inputs_share_costs_float32_few_digits(options, offset):
    module, x = build(**options), tokens(2, 8, 32)
    x[..., -1] = 1.0
    with torch.no_grad():
        module.to_qokv.weight[:, -1] = 0.0
        module.eval()
        near = module.posterior(x)
        # The constant feature moves queries, canonical inputs and keys.
        module.to_qokv.weight[:96, -1] = offset
        for inputs in (module.inducing, module.key_inducing):
            if options:
                inputs.offset += offset * (1.0 - inputs.weights.sum(-1))[:, None, :, None]
            else:
                inputs.inputs += offset
        far = module.posterior(x)
    assert_close(far.mean, near.mean, atol=2e-3, rtol=0)
    assert_close(far.variance, near.variance, atol=2e-3, rtol=0)


def test_noise_is_fixed_and_saved_with_the_weights():
    module, other = build(noise=0.5), build(noise=0.1)
    assert "raw_noise" not in dict(module.named_parameters())
    other.load_state_dict(module.state_dict())
    assert_close(other.noise, torch.full((2,), 0.5))


def test_attention_is_not_symmetric():
    """Cov(z_q(x), z_k(x')) has no reason to be Cov(z_q(x'), z_k(x))."""
    module = build(4, 1, 6).double().train()
    module.to_out = torch.nn.Identity()
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        inputs = module._project(x, None)
        rows = []
        for token in range(3):
            values = torch.zeros_like(inputs.values)
            values[:, :, token] = 1.0
            out = module._predict(inputs._replace(values=values), None)
            rows.append((out.features.queries @ out.posterior.coefficients)[0, 0, :, 0])
    attention = torch.stack(rows, 1)
    assert (attention - attention.T).abs().max() > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 0.0}, "noise must be positive"),
        ({"jitter": 0.0}, "jitter must be positive"),
        ({"dropout": math.nan}, r"dropout must be in \[0, 1\), got nan"),
        ({"num_inducing": 0}, "num_inducing must be a whole number of at least 1, got 0"),
        ({"num_key_inducing": 0}, "num_key_inducing must be a whole number of at least 1, got 0"),
        ({"conditional": "exact"}, "conditional must be one of .* got 'exact'"),
        ({"regulariser": "none"}, "regulariser must be one of .* got 'none'"),
        ({"canonical_prior": "none"}, "canonical_prior must be one of .* got 'none'"),
        ({"inducing": "other"}, "inducing must be one of .* got 'other'"),
        ({"inducing": "mixed"}, "max_tokens, the longest sequence, must be given"),
        ({"max_tokens": 8}, "max_tokens, the longest sequence, must be given"),
        (
            {"inducing": "mixed", "max_tokens": 0},
            "max_tokens must be a whole number of at least 1, got 0",
        ),
    ],
)
def test_bad_settings_are_refused_at_construction(monkeypatch, options, message):
    # Past the type checks of the test session, which would refuse first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        SparseCorrelatedGPAttention(8, 2, **{"num_inducing": 4, **options})


def test_memory_kept_for_the_backward_pass_is_linear_in_the_tokens():
    module = build(16, 2, 4).train()

    def kept(length: int) -> int:
        storages = {}

        def keep(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            module(tokens(1, length, 16))
        return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())

    few, more, most = (kept(length) for length in (256, 512, 1024))
    assert most - more == pytest.approx(2 * (more - few), rel=0.05)
