"""Correlated GP attention passes the shared suite and equals dense algebra, head by head."""

import copy
import itertools
import math

import jaxtyping
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from cgpt import CorrelatedGPAttention
from cgpt.posterior import draw_samples
from probseq.testing.attention import AttentionSuite
from probseq.testing.instruments import constant_noise
from probseq.transformers import KernelAttention


class CorrelatedSuite(AttentionSuite):
    options = {}  # noqa: RUF012
    # A Cholesky factor follows the order of the tokens; the law of the draws doesn't.
    permuted_noises = (0.0,)
    # T×T is documented.
    long_tokens = None

    def make(self, dim, num_heads):
        return CorrelatedGPAttention(dim, num_heads, **self.options)


class TestDefault(CorrelatedSuite):
    compile_imports = "from cgpt import CorrelatedGPAttention"
    compile_modules = (
        "CorrelatedGPAttention(4, 2)",
        "CorrelatedGPAttention(4, 2, conditional='exact')",
        "CorrelatedGPAttention(4, 2, regulariser='jensen', sample_in_training=True)",
    )

    def test_training_and_evaluation_mode_agree_without_dropout(self):
        """Training forwards the mean (Algorithm 1): they agree where no noise is drawn."""
        module, x = self.build(), self.tokens(2, 5, 4)
        with constant_noise(0.0), torch.no_grad():
            evaluated = module(x)
        with constant_noise(1.0), torch.no_grad():
            sampled = module(x)
            trained = module.train()(x)
        assert_close(evaluated.values, trained.values)
        assert_close(evaluated.penalty, trained.penalty)
        assert not torch.allclose(sampled.values, trained.values)


class TestNoisyMarginals(TestDefault):
    options = {"canonical_prior": "noisy", "regulariser": "marginals"}  # noqa: RUF012
    compile_modules = ()


class TestJensenWithSamplesInTraining(CorrelatedSuite):
    options = {"regulariser": "jensen", "sample_in_training": True}  # noqa: RUF012


class TestExactWithSamplesInTraining(CorrelatedSuite):
    options = {"conditional": "exact", "sample_in_training": True}  # noqa: RUF012


def build(dim=6, heads=2, seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = CorrelatedGPAttention(dim, heads, noise=0.3, **options).double()
        with torch.no_grad():
            module.raw_query_scale.fill_(math.log(0.6))
            module.raw_key_scale.fill_(math.log(1.4))
            for parameter in (module.raw_lengthscale, module.raw_query_scale):
                parameter += 0.3 * torch.randn_like(parameter)
    return module.eval()


def dense_of(module, x, head, make_dense):
    """The dense problem of one sequence and one head."""
    width = module.dim // module.num_heads
    rows = slice(head * width, (head + 1) * width)
    scale = module.lengthscale[head]
    latent = module.to_k if module.to_latent is None else module.to_latent
    return make_dense(
        module.canonical_prior,
        queries=x @ module.to_q.weight[rows].mT / scale,
        keys=x @ module.to_k.weight[rows].mT / scale,
        latent=x @ latent.weight[rows].mT / scale,
        values=x @ module.to_v.weight[rows].mT,
        query_scale=float(module.query_scale[head]),
        key_scale=float(module.key_scale[head]),
        noise=module.noise,
    )


def expected_log_prob(values, gain, residual, inducing):
    """E log N(values; G z_o, residual) over z_o, summed over output dimensions."""
    normal = MultivariateNormal(torch.zeros(len(values), dtype=values.dtype), residual)
    spread = torch.linalg.solve(residual, gain @ inducing @ gain.mT).trace()
    return normal.log_prob(values.mT).sum() - 0.5 * values.shape[1] * spread


SETTINGS = [
    *itertools.product(["nystrom"], ["noise-free", "noisy"], ["joint", "marginals", "jensen"]),
    *itertools.product(["exact"], ["noise-free"], ["joint", "marginals"]),
]


@pytest.mark.parametrize(("conditional", "canonical_prior", "regulariser"), SETTINGS)
@torch.no_grad()
def test_each_head_equals_dense_conditioning(
    make_dense, draw, conditional, canonical_prior, regulariser
):
    options = {"canonical_prior": canonical_prior, "regulariser": regulariser, "nugget": 0.07}
    module, x = build(conditional=conditional, **options), draw(2, 5, 6)
    posterior = module.posterior(x)
    outputs, log_density = [], 0.0
    for sequence in range(2):
        means = []
        for head in range(2):
            dense = dense_of(module, x[sequence], head, make_dense)
            exact = dense.exact_joint() if conditional == "exact" else None
            joint = dense.predictive_joint() if exact is None else exact
            gain = joint[:5, 5:] @ torch.linalg.inv(joint[5:, 5:])
            mean = gain @ dense.observations
            covariance = joint[:5, :5] - gain @ joint[5:, :5]
            assert_close(posterior.mean[sequence, head], mean.mT)
            for channel in range(3):
                assert_close(posterior.covariance[sequence, head, channel], covariance)
            means.append(mean)
            added = 0.07 * dense.identity
            if regulariser == "jensen":
                for name, values, nugget in (
                    ("queries", mean, added),
                    ("keys", dense.observations, 0.0),
                ):
                    gain, residual = dense.conditional(name)
                    log_density += expected_log_prob(
                        values, gain, residual + nugget, dense.inducing
                    )
                continue
            density = dense.density_joint() if exact is None else exact
            density = density + torch.block_diag(added, 0.0 * added)
            if regulariser == "marginals":
                density = torch.block_diag(density[:5, :5], density[5:, 5:])
            normal = MultivariateNormal(torch.zeros(10, dtype=torch.float64), density)
            log_density += normal.log_prob(torch.cat([mean, dense.observations]).mT).sum()
        outputs.append(module.to_out(torch.cat(means, -1)))
    actual = module.train()(x)
    assert_close(actual.values, torch.stack(outputs))
    assert_close(actual.penalty, -log_density / 2)


@torch.no_grad()
def test_exact_is_asymmetric_kernel_attention(draw):
    module = CorrelatedGPAttention(6, 2, conditional="exact").double().train()
    plain = KernelAttention(6, 2, symmetric=False, initial_variance=1.0).double()
    plain.to_qk, plain.to_k = module.to_q, module.to_k
    plain.to_v, plain.to_out = module.to_v, module.to_out
    plain.kernel.raw_lengthscale.copy_(module.raw_lengthscale)
    x = draw(2, 5, 6)
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    assert_close(module(x, mask).values[mask], plain(x, mask).values[mask])


@torch.no_grad()
def test_attention_is_asymmetric_and_alive_at_the_start(draw):
    x = torch.nn.functional.layer_norm(draw(4, 64, 128), (128,))
    for conditional in ("nystrom", "exact"):
        torch.manual_seed(0)
        module = CorrelatedGPAttention(128, 4, conditional=conditional).double()
        joint, _ = module._covariances(*module._project(x, None)[:3], None)
        assert joint.cross.abs().mean() > 0.05
        assert not torch.allclose(joint.cross, joint.cross.mT, atol=0.05)
        # Without the lengthscale, as in the paper, nothing would be left.
        module.raw_lengthscale.zero_()
        dead, _ = module._covariances(*module._project(x, None)[:3], None)
        assert dead.cross.abs().mean() < 1e-3


@torch.no_grad()
def test_samples_vary_as_the_posterior_says(draw):
    module, x = build(), draw(2, 4, 6)
    mask = torch.tensor([[True] * 4, [True, True, False, True]])
    module.to_out = torch.nn.Identity()
    count = 20_000
    draws = module(
        x, mask, num_samples=count, generator=torch.Generator().manual_seed(0)
    ).values.view(count, 2, 4, 2, 3)
    posterior = module.posterior(x, mask)
    for sequence in range(2):
        real = mask[sequence]
        for head in range(2):
            values = draws[:, sequence, real, head]
            expected = posterior.covariance[sequence, head, 0][real][:, real]
            scale = float(expected.diagonal().max())
            tolerance = 8.0 * scale / count**0.5
            mean = posterior.mean[sequence, head][:, real].mT
            assert_close(values.mean(0), mean, rtol=0, atol=6.0 * (scale / count) ** 0.5)
            for channel in range(3):
                covariance = values[..., channel].T.cov()
                assert_close(covariance, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e30])
def test_padding_may_hold_anything_even_where_gradients_are_taken(draw, junk):
    module, x = build().train(), draw(2, 4, 6)
    mask = torch.tensor([[True] * 4, [True, True, False, True]])
    gradients = []
    for tokens in (x, x.masked_fill(~mask[..., None], junk)):
        values, penalty = module(tokens, mask)
        loss = values[mask].sum() + penalty
        gradients.append(torch.autograd.grad(loss, tuple(module.parameters())))
    assert_close(*gradients, rtol=0, atol=0)


def test_the_floor_of_the_draws_is_measured_by_the_queries_variance(draw, monkeypatch):
    module, measures = build(), []

    def spy(mean, *args, prior_variance, **kwargs):
        measures.append(prior_variance)
        return draw_samples(mean, *args, prior_variance=prior_variance, **kwargs)

    monkeypatch.setattr("cgpt.attention.draw_samples", spy)
    module(draw(1, 3, 6))
    assert_close(measures, [module.query_scale.square()])


@torch.no_grad()
def test_training_repeats_the_mean_for_every_sample(draw):
    module, x = build().train(), draw(2, 4, 6)
    values = module(x, num_samples=3).values
    assert_close(values, module(x).values.repeat(3, 1, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 0.0}, "noise must be positive and finite, got 0.0"),
        ({"nugget": 0.0}, "nugget must be positive"),
        ({"jitter": 0.0}, "jitter must be positive"),
        ({"dropout": math.nan}, r"dropout must be in \[0, 1\), got nan"),
        ({"conditional": "sor"}, r"conditional must be one of \('nystrom', 'exact'\), got 'sor'"),
        ({"regulariser": "elbo"}, "regulariser must be one of"),
        ({"canonical_prior": "free"}, "canonical_prior must be one of"),
        ({"conditional": "exact", "regulariser": "jensen"}, "conditional='exact' has no inducing"),
        ({"conditional": "exact", "canonical_prior": "noisy"}, "got 'joint' and 'noisy'"),
    ],
)
def test_bad_arguments_are_refused_by_name(monkeypatch, options, message):
    # Past the type checks of the test session, which would refuse first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        CorrelatedGPAttention(8, 2, **options)


@torch.no_grad()
def test_draws_in_float32_and_float64_follow_one_law_where_keys_determine_queries():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = CorrelatedGPAttention(32, 2).eval()
        x = torch.nn.functional.layer_norm(torch.randn(2, 16, 32), (32,))
    module.raw_lengthscale += 3.0
    with constant_noise(1.0):
        found = module(x).values
        expected = copy.deepcopy(module).double()(x.double()).values
    tolerance = 3e-4 * float(expected.abs().max())
    assert_close(found.double(), expected, rtol=0.0, atol=tolerance)
