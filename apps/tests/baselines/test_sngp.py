import math

import pytest
import torch
from torch import nn

from probseq_apps.baselines.backbone import pooled_features
from probseq_apps.baselines.sngp import (
    GaussianProcessHead,
    SpectralBound,
    bound_spectral_norm,
    fit_precision,
    sngp_model,
)


def features_of(model, inputs):
    """Random features by hand: cosines, then sines, of norm one."""
    captured = []
    handle = model.model.head.linear.register_forward_pre_hook(
        lambda module, arguments: captured.append(arguments[0])
    )
    model(inputs)
    handle.remove()
    head = model.head
    phase = captured[0] / head.kernel.lengthscale @ head.frequencies.mT
    return torch.cat([phase.cos(), phase.sin()], -1) / math.sqrt(len(head.frequencies))


def trained(make_model, kind="vision", **settings):
    model, inputs = make_model(kind, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        changed = sngp_model(model, num_data=10, num_features=20, prior_std=3.0)
    return changed, inputs


@pytest.mark.parametrize("kind", ["vision", "text", "sequence"])
def test_predictions_match_a_dense_laplace_posterior(make_model, kind):
    model, inputs = trained(make_model, kind)
    unadjusted = model.eval()(inputs).logits
    phi = features_of(model, inputs)
    probs = (phi @ model.head.output.weight.mT + model.head.output.bias).softmax(-1)
    weight = torch.stack([max(p * (1 - p) for p in row) for row in probs])
    precision = torch.eye(20).double() / 9 + phi.mT @ torch.diag(weight) @ phi
    variance = torch.diag(phi @ torch.linalg.inv(precision) @ phi.mT)
    fit_precision(model, inputs.split(2))
    expected = unadjusted / torch.sqrt(1 + math.pi / 8 * variance)[:, None]
    torch.testing.assert_close(model(inputs).logits, expected)
    torch.testing.assert_close(model.head.variance(phi), variance)


def test_with_many_features_the_variance_is_that_of_the_exact_gaussian_process():
    dim, prior_std, lengthscale = 2, 2.0, 1.3
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(12, dim, generator=generator).double()
    new = 2.0 * torch.randn(6, dim, generator=generator).double()
    weight = 0.05 + 0.2 * torch.rand(12, generator=generator).double()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = GaussianProcessHead(
            dim, 3, num_features=3000, lengthscale=lengthscale, prior_std=prior_std
        ).double()
    phi = head.features(h)
    eye = torch.eye(3000).double()
    head.set_precision(eye / prior_std**2 + phi.mT @ (weight[:, None] * phi))

    def kernel(x, z):
        return prior_std**2 * torch.exp(-0.5 * torch.cdist(x, z).square() / lengthscale**2)

    # Curvature w is that of a Gaussian likelihood with noise variance 1/w.
    noisy = kernel(h, h) + torch.diag(1 / weight)
    cross = kernel(new, h)
    exact = prior_std**2 - torch.diag(cross @ torch.linalg.solve(noisy, cross.mT))
    torch.testing.assert_close(head.variance(head.features(new)), exact, atol=0.25, rtol=0.0)
    far = head.variance(head.features(torch.full((1, dim), 50.0).double()))
    torch.testing.assert_close(far, torch.tensor([4.0]).double(), atol=0.3, rtol=0.0)


def test_training_drops_the_posterior_of_other_weights(make_model):
    model, inputs = trained(make_model)
    plain = model.eval()(inputs).logits
    fit_precision(model, [inputs])
    assert not torch.allclose(model(inputs).logits, plain)
    model.train()
    torch.testing.assert_close(model.eval()(inputs).logits, plain)


def test_residual_branches_are_bounded_and_nothing_else(make_model):
    model, _ = make_model(pooling="sequence")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)
    changed = sngp_model(model, num_data=10, bound=0.7, num_features=8)
    bounded = {n for n, m in changed.named_modules() if hasattr(m, "parametrizations")}
    expected = {
        f"model.encoder.{part}"
        for index in range(2)
        for part in (
            f"attention.{index}.to_qkv",
            f"attention.{index}.to_out.0",
            f"feedforward.{index}.0",
            f"feedforward.{index}.3",
        )
    }
    assert bounded == expected
    for name in bounded:
        norm = torch.linalg.matrix_norm(changed.get_submodule(name).weight.detach(), 2)
        assert float(norm) == pytest.approx(0.7)


def test_the_penalty_is_the_negative_log_prior_an_example(make_model):
    model, inputs = trained(make_model)
    expected = model.head.output.weight.square().sum() / (2 * 9) / 10
    torch.testing.assert_close(model(inputs).penalty, expected)


@pytest.mark.parametrize("kind", ["vision", "text", "sequence"])
@pytest.mark.parametrize("attention", ["softmax", "kernel", "kernel-asym"])
def test_samples_are_copies(make_model, kind, attention):
    model, inputs = trained(make_model, kind, attention=attention)
    fit_precision(model, [inputs])
    single = model(inputs).logits
    torch.testing.assert_close(model(inputs, num_samples=3).logits, single.expand(3, -1, -1))


def test_under_autocast_the_precision_is_that_of_the_features_which_the_head_sees(make_model):
    model, inputs = trained(make_model)
    model, inputs = model.float().eval(), inputs.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = pooled_features(model.model, inputs).float()
        fit_precision(model, [inputs])
    phi = model.head.features(h)
    probs = model.head.output(phi).softmax(-1)
    weight = (probs * (1 - probs)).amax(-1)
    precision = torch.eye(20) / 9 + phi.mT @ (weight[:, None] * phi)
    variance = (phi * torch.linalg.solve(precision, phi.mT).mT).sum(-1)
    torch.testing.assert_close(model.head.variance(phi), variance, rtol=1e-4, atol=0.0)


def test_fitting_needs_an_sngp_and_data(make_model):
    model, inputs = trained(make_model)
    with pytest.raises(ValueError, match="SNGPTransformer"):
        fit_precision(model.model, [inputs])
    with pytest.raises(ValueError, match="batches"):
        fit_precision(model, [])


def weight_of(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("shape", [(6, 4), (3, 9), (5, 5), (1, 4), (4, 1)])
@pytest.mark.parametrize("bound", [0.5, 2.0, 100.0])
def test_a_matrix_is_scaled_down_to_the_bound_and_never_up(shape, bound):
    weight = weight_of(shape)
    largest = torch.linalg.matrix_norm(weight, 2)
    scaled = SpectralBound(weight, bound=bound).eval()(weight)
    torch.testing.assert_close(scaled, weight * min(1.0, bound / float(largest)))
    assert torch.linalg.matrix_norm(scaled, 2) <= bound * (1 + 1e-12)


def test_power_iteration_follows_a_matrix_that_moves():
    weight, direction = weight_of((20, 12)), weight_of((20, 12), seed=1)
    scale = SpectralBound(weight, bound=1.0).train()
    for _ in range(200):
        weight = weight + 0.01 * direction
        scaled = scale(weight)
    torch.testing.assert_close(
        torch.linalg.matrix_norm(scaled, 2), torch.tensor(1.0).double(), atol=0.01, rtol=0.0
    )


def test_vectors_stay_in_eval_mode_and_move_in_training():
    scale = SpectralBound(weight_of((6, 4)), bound=1.0).eval()
    before = scale.right.clone()
    other = weight_of((6, 4), seed=1)
    scale(other)
    assert torch.equal(scale.right, before)
    scale.train()(other)
    assert not torch.allclose(scale.right, before)


def test_the_gradient_is_that_of_the_quotient_by_the_largest_singular_value():
    weight = weight_of((4, 3)).requires_grad_()
    scale = SpectralBound(weight, bound=0.7).eval()
    target = weight_of((4, 3), seed=1)
    (scale(weight) * target).sum().backward()
    exact = weight.detach().clone().requires_grad_()
    (0.7 * exact / torch.linalg.svdvals(exact)[0] * target).sum().backward()
    torch.testing.assert_close(weight.grad, exact.grad)


def test_a_matrix_within_the_bound_and_one_of_zeros_keep_their_gradient():
    for weight in (weight_of((4, 3)) * 1e-3, torch.zeros(4, 3).double()):
        parameter = weight.clone().requires_grad_()
        SpectralBound(parameter, bound=1.0)(parameter).sum().backward()
        torch.testing.assert_close(parameter.grad, torch.ones_like(parameter))


def test_two_passes_before_the_backward_pass_are_fine():
    layer = nn.Sequential(nn.Linear(4, 4)).double()
    bound_spectral_norm(layer, bound=0.1)
    x = weight_of((2, 4))
    layer(layer(x)).sum().backward()
    assert layer[0].parametrizations.weight.original.grad.isfinite().all()


def test_autocast_leaves_the_norm_in_full_precision():
    weight = weight_of((8, 8)).float()
    scale = SpectralBound(weight, bound=0.5).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scaled = scale(weight)
    assert torch.linalg.matrix_norm(scaled, 2) == pytest.approx(0.5, abs=1e-5)
