"""Regularisers against torch.distributions and against Monte Carlo."""

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from cgpt.covariances import conditional_covariances, density_joint, predictive_joint
from cgpt.posterior import predictive_covariance, predictive_mean
from cgpt.regulariser import jensen_bound, joint_log_density, marginals_log_density

PRIORS = ("noise-free", "noisy")
NUGGET = 0.05


def problem(dense, mask=None, pad=0):
    """Everything the densities take, for one sequence and one head, with junk behind it."""
    values = torch.cat([dense.values, torch.zeros(pad, 3, dtype=torch.float64)])[None, None]
    latent = dense.through_latents(mask, pad)
    predictive = predictive_joint(latent)
    return (
        latent,
        predictive,
        density_joint(latent, predictive),
        predictive_mean(predictive, values),
        predictive.keys @ values,
    )


def nugget_on_queries(n):
    return torch.block_diag(
        NUGGET * torch.eye(n, dtype=torch.float64), torch.zeros(n, n, dtype=torch.float64)
    )


def dense_mean(dense):
    return dense.k_qo @ dense.inverse @ dense.k_ok @ dense.values


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_joint_equals_a_multivariate_normal_of_both(make_dense, canonical_prior):
    dense = make_dense(canonical_prior)
    normal = MultivariateNormal(
        torch.zeros(12, dtype=torch.float64), dense.density_joint() + nugget_on_queries(6)
    )
    expected = normal.log_prob(torch.cat([dense_mean(dense), dense.observations]).mT).sum()
    _, _, joint, mean, observations = problem(dense)
    actual = joint_log_density(joint, mean, observations, nugget=NUGGET)
    assert_close(actual, expected[None, None])


def test_joint_of_the_exact_conditional(make_dense):
    dense = make_dense()
    joint = dense.exactly()
    mean = dense.k_qk @ dense.values
    normal = MultivariateNormal(
        torch.zeros(12, dtype=torch.float64), dense.exact_joint() + nugget_on_queries(6)
    )
    expected = normal.log_prob(torch.cat([mean, dense.observations]).mT).sum()
    actual = joint_log_density(
        joint, mean[None, None], dense.observations[None, None], nugget=NUGGET
    )
    assert_close(actual, expected[None, None])


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_marginals_equal_two_multivariate_normals_and_are_another_number(
    make_dense, canonical_prior
):
    dense = make_dense(canonical_prior)
    covariance = dense.density_joint() + nugget_on_queries(6)
    zero = torch.zeros(6, dtype=torch.float64)
    expected = sum(
        MultivariateNormal(zero, block).log_prob(values.mT).sum()
        for block, values in (
            (covariance[:6, :6], dense_mean(dense)),
            (covariance[6:, 6:], dense.observations),
        )
    )
    _, _, joint, mean, observations = problem(dense)
    actual = marginals_log_density(joint, mean, observations, nugget=NUGGET)
    assert_close(actual, expected[None, None])
    # Eq. 27 says that they are equal.
    other = joint_log_density(joint, mean, observations, nugget=NUGGET)
    assert (actual - other).abs() > 1.0


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_jensen_equals_monte_carlo_over_the_canonical_process(make_dense, draw, canonical_prior):
    dense, count = make_dense(canonical_prior), 20_000
    z_o = torch.linalg.cholesky(dense.inducing) @ draw(6, count, seed=5)
    estimate = 0.0
    error = 0.0
    for name, values, added in (
        ("queries", dense_mean(dense), NUGGET),
        ("keys", dense.observations, 0.0),
    ):
        gain, residual = dense.conditional(name)
        normal = MultivariateNormal(
            torch.zeros(6, dtype=torch.float64), residual + added * dense.identity
        )
        draws = sum(normal.log_prob((v[:, None] - gain @ z_o).mT) for v in values.mT)
        estimate += float(draws.mean())
        error += float(draws.std()) / count**0.5
    latent, _, joint, mean, observations = problem(dense)
    conditionals = conditional_covariances(latent)
    actual = jensen_bound(joint, conditionals, mean, observations, nugget=NUGGET)
    assert_close(float(actual), estimate, rtol=0, atol=4.0 * error)
    assert error < 1.0
    marginals = marginals_log_density(joint, mean, observations, nugget=NUGGET)
    assert float(actual) < float(marginals)


def test_jensen_is_tight_where_the_canonical_process_says_nothing(make_dense):
    dense = make_dense()
    dense = make_dense(latent=dense.latent + 100.0)
    latent, _, joint, mean, observations = problem(dense)
    bound = jensen_bound(joint, conditional_covariances(latent), mean, observations, nugget=NUGGET)
    assert_close(bound, marginals_log_density(joint, mean, observations, nugget=NUGGET))
    # ... and then nothing connects queries with keys either.
    assert_close(bound, joint_log_density(joint, mean, observations, nugget=NUGGET))


def test_with_noisy_inducing_values_the_mean_is_the_mode(make_dense):
    # log p(ν, z_k) = log p(z_k) + log N(ν; ν, V + nugget), so that gradients see uncertainty only.
    dense = make_dense("noisy")
    latent, predictive, joint, mean, observations = problem(dense)
    keys = MultivariateNormal(torch.zeros(6, dtype=torch.float64), dense.k_k)
    covariance = predictive_covariance(predictive)[0, 0] + NUGGET * dense.identity
    queries = MultivariateNormal(mean[0, 0].mT, covariance).log_prob(mean[0, 0].mT).sum()
    expected = keys.log_prob(dense.observations.mT).sum() + queries
    actual = joint_log_density(joint, mean, observations, nugget=NUGGET)
    assert_close(actual, expected[None, None])
    assert latent.noise_queries is None


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_densities_count_real_tokens_only(make_dense, canonical_prior):
    dense = make_dense(canonical_prior)
    mask = torch.arange(10)[None] < 6
    for kind in (joint_log_density, marginals_log_density, jensen_bound):
        results = []
        for padding in (None, mask):
            latent, _, joint, mean, observations = problem(
                dense, padding, 0 if padding is None else 4
            )
            extra = (conditional_covariances(latent),) if kind is jensen_bound else ()
            results.append(kind(joint, *extra, mean, observations, padding, nugget=NUGGET))
        assert_close(results[1], results[0])


def test_without_a_nugget_the_density_would_have_no_bound(make_dense):
    # Queries and latent inputs at the keys, and less and less noise.
    dense = make_dense("noisy")
    densities = []
    for noise in (1e-1, 1e-2, 1e-3):
        same = make_dense("noisy", queries=dense.keys, latent=dense.keys, noise=noise)
        _, _, joint, mean, observations = problem(same)
        densities.append(
            [float(joint_log_density(joint, mean, observations, nugget=n)) for n in (1e-9, 0.01)]
        )
    without, bounded = zip(*densities, strict=True)
    assert without[2] - without[1] > 30.0
    assert abs(bounded[2] - bounded[1]) < 1.0
