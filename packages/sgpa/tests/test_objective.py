"""The evidence lower bound, its likelihoods, and predictions, against torch.distributions."""

import inspect
import math

import pytest
import torch
from torch.distributions import Categorical, Laplace
from torch.testing import assert_close

from probseq.transformers import TransformerOutput
from sgpa import (
    LaplaceLikelihood,
    categorical_log_likelihood,
    kl_annealing,
    negative_elbo,
    predict_regression,
)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


class Sampler:
    """A model whose sample s for input x is x + generator noise."""

    def __call__(self, x, *rest, num_samples, generator):
        noise = torch.randn((num_samples, *x.shape), generator=generator, dtype=x.dtype)
        return TransformerOutput(x + noise + sum(rest), x.new_zeros(()))


@pytest.mark.parametrize("shape", [(5, 3), (4, 5, 3)])
def test_categorical_log_likelihood_is_that_of_the_distribution(shape):
    logits, labels = draw(*shape), torch.tensor([0, 2, 1, 1, 0])
    expected = Categorical(logits=logits).log_prob(labels.expand(shape[:-1]))
    assert_close(categorical_log_likelihood(logits, labels), expected)


def test_labels_out_of_range_are_refused_by_name():
    for labels in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="labels must be from 0 to 2, got"):
            categorical_log_likelihood(draw(4, 2, 3), torch.tensor(labels))


def test_negative_elbo_is_the_mean_loss_plus_the_scaled_divergence():
    log_likelihood, kl = draw(3, 4), torch.tensor(7.0, dtype=torch.float64)
    out = negative_elbo(log_likelihood, kl, kl_scale=0.25)
    nll = sum(-log_likelihood[s, b] for s in range(3) for b in range(4)) / 12
    assert_close(out.nll, nll)
    assert_close(out.kl, kl)
    assert_close(out.loss, nll + 7.0 / 4)
    assert_close(negative_elbo(log_likelihood, kl).loss, nll + 7.0)
    with pytest.raises(ValueError, match=r"kl_scale must be finite and not negative, got -0\.5"):
        negative_elbo(log_likelihood, kl, kl_scale=-0.5)
    with pytest.raises(ValueError, match="kl_scale must be finite and not negative, got nan"):
        negative_elbo(log_likelihood, kl, kl_scale=math.nan)
    with pytest.raises(ValueError, match=r"log_likelihood must .* one sequence, got shape \(0,\)"):
        negative_elbo(log_likelihood[0, :0], kl)


def test_annealing_grows_linearly_and_then_stays_at_one():
    assert [kl_annealing(p, 0.5) for p in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)] == [
        0.0,
        0.25,
        0.5,
        1.0,
        1.0,
        1.0,
    ]
    assert kl_annealing(0.0, 0.0) == 1.0
    for progress in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"progress must be from 0 to 1, got {progress}"):
            kl_annealing(progress, 0.5)
    assert kl_annealing(0.5, 1.0) == 0.5
    for fraction in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="fraction must be from 0 to 1"):
            kl_annealing(0.5, fraction)


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


def test_labels_targets_and_penalties_of_another_shape_or_type_are_refused():
    # Without the tests' own shape checks, as a user calls them.
    log_likelihood = inspect.unwrap(categorical_log_likelihood)
    for labels in (torch.zeros(4).long(), torch.zeros(5, 1).long(), torch.zeros(5)):
        with pytest.raises(ValueError, match=r"labels must be int64 of shape \(batch,\)=\(5,\)"):
            log_likelihood(torch.zeros(3, 5, 2), labels)
    log_prob = inspect.unwrap(LaplaceLikelihood.log_prob)
    with pytest.raises(ValueError, match=r"targets must have shape .*=\(5,\), got \(5, 1\)"):
        log_prob(LaplaceLikelihood(), torch.zeros(3, 5, 1), torch.zeros(5, 1))
    with pytest.raises(ValueError, match="penalty must be one number"):
        inspect.unwrap(negative_elbo)(torch.zeros(5), torch.zeros(5))
