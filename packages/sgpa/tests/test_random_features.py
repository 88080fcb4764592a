"""Random features and what is exact about them; the layer's moments are tested with the others."""

import math

import pytest
import torch
from torch.testing import assert_close

from sgpa import SparseGPAttention
from sgpa.random_features import feature_terms, features, orthogonal_frequencies


def generator(seed):
    return torch.Generator().manual_seed(seed)


def correlations(x, count, seed):
    omega = orthogonal_frequencies(count // 2, x.shape[-1], generator=generator(seed)).double()
    phi = features(x, omega)
    return phi @ phi.mT


def test_features_have_length_one_and_frequencies_are_orthogonal_in_blocks():
    omega = orthogonal_frequencies(10, 4, generator=generator(0)).double()
    for block in omega.split(4):
        gram = block @ block.mT
        assert_close(gram, gram.diagonal().diag(), atol=1e-5, rtol=0.0)
    x = torch.randn(50, 4, generator=generator(1), dtype=torch.float64)
    assert_close(features(x, omega).square().sum(-1), torch.ones(50).double(), atol=1e-15, rtol=0.0)


def test_frequencies_have_the_law_of_standard_normal_vectors():
    drawn = torch.stack([orthogonal_frequencies(4, 4, generator=generator(s)) for s in range(4000)])
    rows = drawn.flatten(0, 1).double()
    # Rows of a block depend on one another in direction alone: bounds of six standard errors.
    assert (rows.mean(0).abs() < 6 / math.sqrt(len(rows))).all()
    assert ((rows.T.cov() - torch.eye(4)).abs() < 6 * math.sqrt(2 / len(rows))).all()
    kurtosis = rows.pow(4).mean(0)
    assert ((kurtosis - 3.0).abs() < 6 * math.sqrt(96 / len(rows))).all()


@pytest.mark.parametrize("count", [64, 128, 256])
def test_the_error_of_the_rbf_kernel_follows_its_law(count):
    x = torch.randn(40, 16, generator=generator(1), dtype=torch.float64) * 0.35
    exact = torch.exp(-0.5 * torch.cdist(x, x).square())
    errors = torch.stack([correlations(x, count, seed) - exact for seed in range(60)])
    # Independent frequencies err by (1 − κ²)/√r; orthogonal ones by less where κ is large.
    law = (1.0 - exact.square()) / math.sqrt(count)
    off = ~torch.eye(40, dtype=torch.bool)
    ratio = float((errors.square().mean(0)[off].sqrt() / law[off]).mean())
    assert 0.2 < ratio < 1.0
    assert float(errors.mean(0).abs().max()) < 6 * float(law.max()) / math.sqrt(60)


@torch.no_grad()
def test_variances_are_never_negative_even_where_inducing_inputs_coincide():
    for seed in range(200):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layer = SparseGPAttention(4, 2, 6, num_features=8, initial_posterior="prior").double()
            layer.inducing_inputs[:, 3:] = layer.inducing_inputs[:, :3]
            x = torch.randn(1, 20, 4).double()
        # R = 0: the least variance, 1 − |w|².
        layer.raw_inducing_factor.zero_().diagonal(dim1=-2, dim2=-1).fill_(-50.0)
        queries, values = layer.project(x, None)
        terms = layer._global_terms(None)
        whitened = layer._posterior(queries, values, terms, None).whitened
        roots = torch.einsum("hbtm,hcmn->hbtcn", whitened, terms.factors)
        variance = 1.0 - whitened.square().sum(-1)[..., None] + roots.square().sum(-1)
        assert float(variance.min()) > -1e-12


@torch.no_grad()
def test_the_triangle_of_the_factorisation_is_the_cholesky_factor():
    layer = SparseGPAttention(8, 2, 5, num_features=16).double()
    inducing = torch.randn(2, 5, 4, generator=generator(0), dtype=torch.float64)
    given = (layer._head_kernel(), layer.inducing_mean, layer.raw_inducing_factor)
    terms = feature_terms(inducing, *given, layer.frequencies)
    covariance = terms.features @ terms.features.mT
    lower = torch.linalg.cholesky(covariance)
    assert_close(terms.features @ terms.whitener.mT, lower)
    # c = Lᵀ D v_g, and Q has orthonormal columns.
    scale = layer.kernel.outputscale.sqrt()[:, None, None]
    assert_close(terms.mean, lower.mT @ (scale * layer.inducing_mean))
    assert_close(terms.whitener @ terms.whitener.mT, torch.eye(5).double().expand(2, 5, 5))


@torch.no_grad()
def test_frequencies_are_saved_and_new_ones_give_another_function():
    first, second = (SparseGPAttention(8, 2, 3, num_features=8).double().eval() for _ in range(2))
    x = torch.randn(2, 5, 8, generator=generator(0), dtype=torch.float64)
    second.load_state_dict({**first.state_dict(), "frequencies": second.frequencies})
    assert not torch.allclose(first.posterior(x).mean, second.posterior(x).mean)
    second.load_state_dict(first.state_dict())
    assert_close(first.posterior(x).mean, second.posterior(x).mean)


@pytest.mark.parametrize("count", [0, 7, 2])
def test_odd_or_too_few_features_are_refused(count):
    with pytest.raises(ValueError, match="num_features must be"):
        SparseGPAttention(8, 2, 3, num_features=count)
