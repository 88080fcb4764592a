"""The predictive distribution against conditioning of the joint, and against simulation."""

import warnings

import pytest
import torch
from torch.testing import assert_close

from cgpt.covariances import Scales, latent_covariances, predictive_joint
from cgpt.posterior import draw_samples, predictive_covariance, predictive_mean

PRIORS = ("noise-free", "noisy")


def joint_of(dense):
    return predictive_joint(dense.through_latents())


def condition(joint, observations):
    """Mean and covariance of the first half given the second."""
    n = len(joint) // 2
    gain = joint[:n, n:] @ torch.linalg.inv(joint[n:, n:])
    return gain @ observations, joint[:n, :n] - gain @ joint[n:, :n]


@pytest.mark.parametrize("canonical_prior", [*PRIORS, "exact"])
def test_equals_the_conditional_of_the_dense_joint(make_dense, canonical_prior):
    exact = canonical_prior == "exact"
    dense = make_dense("noise-free" if exact else canonical_prior)
    expected = dense.exact_joint() if exact else dense.predictive_joint()
    mean, covariance = condition(expected, dense.observations)
    joint = dense.exactly() if exact else joint_of(dense)
    assert_close(predictive_mean(joint, dense.values[None, None])[0, 0], mean)
    assert_close(predictive_covariance(joint)[0, 0], covariance)


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_equals_the_papers_formulas(make_dense, canonical_prior):
    dense = make_dense(canonical_prior)
    gain = dense.k_qo @ dense.inverse
    b = torch.linalg.inv(dense.k_k)
    mean = gain @ dense.k_ok @ b @ dense.observations  # (22)
    covariance = dense.k_q - gain @ dense.k_ok @ b @ dense.k_ok.mT @ gain.mT  # (45-52)
    if canonical_prior == "noise-free":
        covariance = covariance - dense.noise**2 * gain @ gain.mT
    joint = joint_of(dense)
    assert_close(predictive_mean(joint, dense.values[None, None])[0, 0], mean)
    assert_close(predictive_covariance(joint)[0, 0], covariance)


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_equals_a_simulation_from_keys_to_queries(make_dense, draw, canonical_prior):
    dense, count = make_dense(canonical_prior), 200_000
    b = torch.linalg.inv(dense.k_k)
    observed = dense.observations[:, :1]
    # z_o given z_k, then z_q given z_o.
    middle = torch.linalg.cholesky(dense.inducing - dense.k_ok @ b @ dense.k_ok.mT)
    z_o = dense.k_ok @ b @ observed + middle @ draw(6, count, seed=3)
    gain, residual = dense.conditional("queries")
    z_q = gain @ z_o + torch.linalg.cholesky(residual) @ draw(6, count, seed=4)
    joint = joint_of(dense)
    covariance = predictive_covariance(joint)[0, 0]
    # Five standard errors.
    error = 5.0 * float(covariance.diagonal().max()) / count**0.5
    mean = predictive_mean(joint, dense.values[None, None, :, :1])[0, 0, :, 0]
    assert_close(z_q.mean(1), mean, rtol=0, atol=error / float(covariance.diagonal().max()) ** 0.5)
    assert_close(z_q.cov(), covariance, rtol=0, atol=1.5 * error)


def test_far_from_every_key_the_prediction_is_the_prior(make_dense):
    dense = make_dense()
    dense = make_dense(queries=dense.queries + 100.0)
    joint = joint_of(dense)
    assert not predictive_mean(joint, dense.values[None, None]).any()
    assert_close(predictive_covariance(joint)[0, 0], dense.k_q)


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_samples_have_the_predictive_mean_and_covariance(make_dense, canonical_prior):
    dense, count = make_dense(canonical_prior), 50_000
    joint = joint_of(dense)
    mean = predictive_mean(joint, dense.values[None, None])
    covariance = predictive_covariance(joint)
    samples = draw_samples(
        mean,
        covariance,
        num_samples=count,
        prior_variance=torch.tensor([dense.query_scale**2], dtype=torch.float64),
        generator=torch.Generator().manual_seed(0),
    )
    assert samples.shape == (count, *mean.shape)
    draws = samples[:, 0, 0] - mean[0, 0]
    deviation = float(covariance.diagonal(dim1=-2, dim2=-1).max()) ** 0.5
    # Five and a half standard errors of the mean and of the covariance of a Gaussian.
    assert draws.mean(0).abs().max() < 5.5 * deviation / count**0.5
    for channel in range(draws.shape[-1]):
        actual = draws[..., channel].T.cov()
        assert_close(actual, covariance[0, 0], rtol=0, atol=8.0 * deviation**2 / count**0.5)
    # Output dimensions are independent.
    across = (draws[:, :, 0].T @ draws[:, :, 1]) / count
    assert across.abs().max() < 5.5 * deviation**2 / count**0.5


def test_float32_samples_where_the_keys_determine_the_queries(draw):
    # Queries, keys and latent inputs are the same tokens, some of them twice.
    tokens = draw(2, 2, 24, 8).float()
    tokens = torch.cat([tokens, tokens[..., :8, :]], -2)
    scales = Scales(torch.zeros(2), torch.zeros(2), 0.1)
    for lengthscale in (0.1, 1.0, 10.0, 100.0):
        scaled = tokens / lengthscale
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            joint = predictive_joint(
                latent_covariances(scaled, scaled, scaled, scales, canonical_prior="noise-free")
            )
            samples = draw_samples(
                torch.zeros_like(tokens),
                predictive_covariance(joint),
                num_samples=2,
                prior_variance=torch.ones(2),
                generator=torch.Generator().manual_seed(0),
            )
        assert samples.isfinite().all()
        assert samples.abs().max() < 10.0
