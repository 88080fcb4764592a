import sys

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import sgpa
from probseq.errors import MissingExtraError
from probseq_apps.baselines.svdkl import svdkl_model

PROCESSES, INDUCING = 4, 5


def changed(make_model, kind="vision", *, seed=0, **settings):
    model, inputs = make_model(kind, seed=seed, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = svdkl_model(model, num_data=20, num_processes=PROCESSES, num_inducing=INDUCING)
        for name, parameter in model.processes.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape).double()
            with torch.no_grad():
                parameter.add_(noise.tril() if "chol" in name else noise)
    return model, inputs


def dense(model, inputs):
    """Mean, variance and divergence of each process by textbook algebra, one after the other."""
    reduced = model.model.eval()(inputs).logits @ model.reduction.weight.mT + model.reduction.bias
    processes, strategy = model.processes, model.processes.variational_strategy
    q = strategy._variational_distribution
    means, variances, divergence = [], [], 0.0
    for index in range(PROCESSES):
        z = strategy.inducing_points[index, :, 0]
        x = reduced[:, index]
        scale = processes.covar_module.outputscale[index]
        length = processes.covar_module.base_kernel.lengthscale[index, 0, 0]
        constant = processes.mean_module.constant[index]

        def kernel(a, b, scale=scale, length=length):
            return scale * torch.exp(-0.5 * ((a[:, None] - b[None]) / length).square())

        jitter = strategy.jitter_val * torch.eye(INDUCING).double()
        root = torch.linalg.cholesky(kernel(z, z) + jitter)
        weights = kernel(x, z) @ torch.linalg.inv(root).mT
        factor = q.chol_variational_covar[index].tril()
        covariance = factor @ factor.mT
        mean = q.variational_mean[index]
        means.append(constant + weights @ mean)
        middle = torch.eye(INDUCING).double() - covariance
        variances.append(scale - torch.diag(weights @ middle @ weights.mT))
        standard = MultivariateNormal(torch.zeros_like(mean), torch.eye(INDUCING).double())
        divergence = divergence + kl_divergence(MultivariateNormal(mean, covariance), standard)
    return torch.stack(means, 1), torch.stack(variances, 1), divergence


@pytest.mark.parametrize("kind", ["vision", "text", "sequence"])
def test_draws_have_the_mean_and_covariance_of_mixed_gaussian_processes(make_model, kind):
    model, inputs = changed(make_model, kind)
    mean, variance, _ = dense(model, inputs)
    mixing, near = model.mixing.weight, {"atol": 0.02, "rtol": 0.0}
    with torch.no_grad():
        logits = model.eval()(inputs, num_samples=40_000).logits
    torch.testing.assert_close(logits.mean(0), (mean @ mixing.mT).detach(), **near)
    for index in range(len(inputs)):
        expected = mixing @ torch.diag(variance[index]) @ mixing.mT
        torch.testing.assert_close(torch.cov(logits[:, index].mT), expected.detach(), **near)


@pytest.mark.parametrize("mode", [True, False])
def test_marginals_and_penalty_are_dense_algebra_in_training_and_in_eval_mode(make_model, mode):
    model, inputs = changed(make_model)
    mean, variance, divergence = dense(model, inputs)
    torch.testing.assert_close(model.train(mode)(inputs).penalty, divergence / 20)
    reduced = model.reduction(model.model(inputs).logits)
    marginals = model.processes.marginals(reduced)
    # gpytorch adds its jitter to the prior variance of the data too.
    jitter = model.processes.variational_strategy.jitter_val
    torch.testing.assert_close(marginals.mean, mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(marginals.variance, variance, atol=3 * jitter, rtol=1e-5)


def test_a_backbone_that_draws_draws_for_each_sample(make_model):
    model, inputs = changed(make_model, attention=lambda index: sgpa.SparseGPAttention(8, 2, 3))
    with torch.no_grad():
        for parameter in model.processes.parameters():
            parameter.zero_()  # a posterior without spread: what is left is the backbone's
        model.processes.variational_strategy._variational_distribution.variational_mean.add_(
            torch.linspace(-1.0, 1.0, INDUCING)
        )
        model.processes.covar_module.initialize(outputscale=1e-3)
        model.mixing.weight.mul_(100.0)
    logits = model.eval()(inputs, num_samples=3).logits
    assert logits.shape == (3, 5, 3)
    assert not torch.allclose(logits[0], logits[1])


def test_equal_inputs_and_many_inducing_points_stay_finite_in_single_precision(make_model):
    model, inputs = make_model()
    model = svdkl_model(model.float(), num_data=10, num_inducing=64)
    same = inputs[:1].float().expand(7, -1, -1, -1)
    logits, penalty = model(same)
    (logits.square().sum() + penalty).backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_without_gpytorch_the_extra_is_named_and_the_model_is_left_whole(make_model, monkeypatch):
    model, inputs = make_model()
    expected = model(inputs).logits
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(MissingExtraError, match=r"probseq-apps\[dkl\]"):
        svdkl_model(model, num_data=10)
    torch.testing.assert_close(model(inputs).logits, expected)
