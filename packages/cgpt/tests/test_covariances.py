"""Joint covariances against linear-Gaussian models written out as matrices."""

import warnings

import pytest
import torch
from torch.testing import assert_close

from cgpt.covariances import (
    Scales,
    conditional_covariances,
    density_joint,
    latent_covariances,
    masked_cholesky,
    predictive_joint,
)

PRIORS = ("noise-free", "noisy")


def full(joint):
    """The blocks as one matrix."""
    queries, cross, keys = (block[0, 0] for block in joint)
    return torch.cat([torch.cat([queries, cross], 1), torch.cat([cross.mT, keys], 1)])


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_both_joints_equal_the_generative_model(make_dense, canonical_prior):
    dense = make_dense(canonical_prior)
    latent = dense.through_latents()
    predictive = predictive_joint(latent)
    density = density_joint(latent, predictive)
    assert_close(full(predictive), dense.predictive_joint())
    assert_close(full(density), dense.density_joint())
    # What the two share, and what the noise-free prior takes from it.
    same = torch.allclose(full(predictive), full(density))
    assert same == (canonical_prior == "noisy")


def test_the_exact_joint_is_that_of_one_process_seen_twice(make_dense):
    dense = make_dense()
    joint = dense.exactly()
    assert_close(full(joint), dense.exact_joint())


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_conditionals_given_the_canonical_process(make_dense, canonical_prior):
    dense = make_dense(canonical_prior)
    queries, keys = conditional_covariances(dense.through_latents())
    assert_close(queries[0, 0], dense.conditional("queries")[1])
    assert_close(keys[0, 0], dense.conditional("keys")[1])


def test_the_printed_formula_is_indefinite_below_a_scale_of_one_and_ours_is_not(make_dense):
    # Below Eq. 20 the cross-covariances are printed without σ_q and σ_k.
    dense = make_dense(query_scale=0.3, noise=0.1)
    unscaled = dense.k_qo / dense.query_scale
    printed = dense.k_q - unscaled @ dense.inverse @ unscaled.mT
    assert torch.linalg.eigvalsh(printed).min() < -0.1
    ours, _ = conditional_covariances(dense.through_latents())
    assert torch.linalg.eigvalsh(ours[0, 0]).min() > -1e-12
    for joint in (dense.predictive_joint(), dense.density_joint()):
        assert torch.linalg.eigvalsh(joint).min() > -1e-12


@pytest.mark.parametrize("canonical_prior", PRIORS)
def test_inducing_at_the_keys_without_noise_is_exact(make_dense, canonical_prior):
    dense = make_dense(canonical_prior, noise=1e-4)
    dense = make_dense(canonical_prior, noise=1e-4, latent=dense.keys)
    joint = full(predictive_joint(dense.through_latents()))
    assert_close(joint, dense.exact_joint(), rtol=0, atol=1e-4)


def test_padding_is_independent_of_all_else(draw):
    root = draw(2, 3, 5, 5)
    real = torch.tensor([[True, False, True, True, False], [False] * 5])
    both = (real[:, :, None] & real[:, None, :])[:, None]
    matrix = (root @ root.mT + torch.eye(5)).masked_fill(~both, 0.0)
    factor = masked_cholesky(matrix, real, jitter=None)
    inner = matrix[0][:, real[0]][..., real[0]]
    assert_close(factor[0][:, real[0]][..., real[0]], torch.linalg.cholesky(inner))
    mean = inner.diagonal(dim1=-2, dim2=-1).mean(-1)
    expected = torch.diag_embed(mean.sqrt()[:, None].expand(3, 2))
    assert_close(factor[0][:, ~real[0]][..., ~real[0]], expected)
    assert not factor[0][:, real[0]][..., ~real[0]].any()
    assert_close(factor[1], torch.eye(5, dtype=torch.float64).expand(3, 5, 5))


def test_float32_needs_no_jitter_for_equal_tokens_at_any_lengthscale(draw):
    tokens = draw(3, 2, 2, 20, 8).float()
    tokens = torch.cat([tokens, tokens[..., :12, :]], -2)
    log_scale = torch.zeros(2)
    for lengthscale in (0.05, 1.0, 20.0):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            latent = latent_covariances(
                *(tokens / lengthscale),
                Scales(log_scale, log_scale, 0.1),
                canonical_prior="noise-free",
            )
        assert all(block.isfinite().all() for block in latent)
