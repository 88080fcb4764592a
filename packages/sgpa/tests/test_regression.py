"""The Laplace likelihood and predictions under it, against torch.distributions."""

import inspect
import math

import pytest
import torch
from torch.distributions import Laplace
from torch.testing import assert_close

from probseq.transformers import TransformerOutput
from sgpa import LaplaceLikelihood, predict_regression


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


class Sampler:
    """A model whose sample s for input x is x + generator noise."""

    def __call__(self, x, *rest, num_samples, generator):
        noise = torch.randn((num_samples, *x.shape), generator=generator, dtype=x.dtype)
        return TransformerOutput(x + noise + sum(rest), x.new_zeros(()))


def test_laplace_likelihood_is_that_of_the_distribution():
    likelihood = LaplaceLikelihood(0.7).double()
    outputs, targets = draw(4, 5, 1), draw(5, seed=1)
    expected = Laplace(outputs[..., 0], likelihood.scale).log_prob(targets)
    assert_close(likelihood.log_prob(outputs, targets), expected)
    assert_close(float(likelihood.scale.detach()), 0.7, rtol=1e-6, atol=0.0)
    # The maximum over the scale is at the mean absolute error.
    best = (targets - outputs[..., 0]).abs().mean()
    likelihood.raw_scale.data = best.log()
    likelihood.log_prob(outputs, targets).mean().backward()
    assert_close(float(likelihood.raw_scale.grad), 0.0, rtol=0.0, atol=1e-12)


def test_a_laplace_scale_and_outputs_that_make_no_sense_are_refused():
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="scale must be positive"):
            LaplaceLikelihood(scale)
    log_prob = inspect.unwrap(LaplaceLikelihood.log_prob)
    with pytest.raises(
        ValueError, match=r"outputs must have shape \(..., batch, 1\), got \(5, 2\)"
    ):
        log_prob(LaplaceLikelihood(), torch.zeros(5, 2), torch.zeros(5))
    with pytest.raises(ValueError, match=r"targets must have shape .*=\(5,\), got \(5, 1\)"):
        log_prob(LaplaceLikelihood(), torch.zeros(3, 5, 1), torch.zeros(5, 1))


def test_predicted_mean_and_variance_are_those_of_the_mixture():
    x, likelihood = draw(5, 1), LaplaceLikelihood(0.5).double()
    actual = predict_regression(
        Sampler(), likelihood, x, num_samples=6, generator=torch.Generator().manual_seed(3)
    )
    samples = x + torch.randn((6, 5, 1), generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    components = Laplace(samples[..., 0], likelihood.scale.detach())
    assert_close(actual.mean, components.mean.mean(0))
    # Second moment of the mixture minus the square of its mean.
    second = (components.variance + components.mean.square()).mean(0)
    assert_close(actual.variance, second - components.mean.mean(0).square())
