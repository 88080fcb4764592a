import math

import pytest
import torch
from torch import nn

from probseq_apps.baselines.backbone import pooled_features
from probseq_apps.baselines.sngp import (
    SpectralBound,
    bound_spectral_norm,
    fit_precision,
    sngp_model,
)


def make(make_model, kind="vision", **settings):
    model, inputs = make_model(kind, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sngp_model(model, num_data=10, num_features=20), inputs


@pytest.mark.parametrize("kind", ["vision", "text", "sequence"])
def test_predictions_match_a_dense_laplace_posterior_until_training_drops_it(make_model, kind):
    model, inputs = make(make_model, kind)
    unadjusted = model.eval()(inputs).logits
    # Random features: cosines, then sines, of norm one.
    head = model.head
    phase = pooled_features(model.model, inputs) / math.sqrt(8) @ head.frequencies.mT
    phi = torch.cat([phase.cos(), phase.sin()], -1) / math.sqrt(len(head.frequencies))
    probs = (phi @ head.output.weight.mT + head.output.bias).softmax(-1)
    weight = torch.stack([max(p * (1 - p) for p in row) for row in probs])
    precision = torch.eye(20).double() / 9 + phi.mT @ torch.diag(weight) @ phi
    variance = torch.diag(phi @ torch.linalg.inv(precision) @ phi.mT)
    fit_precision(model, inputs.split(2))
    expected = unadjusted / torch.sqrt(1 + math.pi / 8 * variance)[:, None]
    torch.testing.assert_close(model(inputs).logits, expected)
    samples = model(inputs, num_samples=3).logits  # nothing is drawn
    torch.testing.assert_close(samples, expected.expand(3, -1, -1))
    torch.testing.assert_close(head.variance(phi), variance)
    model.train()
    torch.testing.assert_close(model.eval()(inputs).logits, unadjusted)


def test_residual_branches_are_bounded_and_nothing_else(make_model):
    model, _ = make_model(pooling="sequence")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0)
    changed = sngp_model(model, num_data=10, bound=0.7, num_features=8)
    bounded = {n for n, m in changed.named_modules() if hasattr(m, "parametrizations")}
    layers = {"attention": ("to_qkv", "to_out.0"), "feedforward": ("0", "3")}
    expected = {f"{part}.{n}.{name}" for part in layers for n in (0, 1) for name in layers[part]}
    assert bounded == {f"model.encoder.{name}" for name in expected}
    for name in bounded:
        norm = torch.linalg.matrix_norm(changed.get_submodule(name).weight.detach(), 2)
        assert float(norm) == pytest.approx(0.7)


def test_the_penalty_is_the_negative_log_prior_an_example(make_model):
    model, inputs = make(make_model)
    expected = model.head.output.weight.square().sum() / (2 * 9) / 10
    torch.testing.assert_close(model(inputs).penalty, expected)


def test_under_autocast_the_precision_is_that_of_the_features_which_the_head_sees(make_model):
    model, inputs = make(make_model)
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


def weight_of(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("shape", [(6, 4), (3, 9), (1, 4)])
@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_a_matrix_is_scaled_down_to_the_bound_and_never_up(shape, bound):
    weight = weight_of(shape)
    largest = torch.linalg.matrix_norm(weight, 2)
    scaled = SpectralBound(weight, bound=bound).eval()(weight)
    torch.testing.assert_close(scaled, weight * min(1.0, bound / float(largest)))


def test_power_iteration_follows_a_matrix_that_moves_in_training_alone():
    start, direction = weight_of((20, 12)), weight_of((20, 12), seed=1)
    weight, scale = start, SpectralBound(start, bound=1.0).eval()
    before = scale.right.clone()
    scale(direction)
    assert torch.equal(scale.right, before)
    scale.train()
    for _ in range(200):
        weight = weight + 0.01 * direction
        scaled = scale(weight)
    norm = torch.linalg.matrix_norm(scaled, 2)
    torch.testing.assert_close(norm, torch.tensor(1.0).double(), atol=0.01, rtol=0.0)


def test_the_gradient_is_that_of_the_quotient_by_the_largest_singular_value():
    weight = weight_of((4, 3)).requires_grad_()
    scale = SpectralBound(weight, bound=0.7).eval()
    target = weight_of((4, 3), seed=1)
    (scale(weight) * target).sum().backward()
    exact = weight.detach().clone().requires_grad_()
    (0.7 * exact / torch.linalg.svdvals(exact)[0] * target).sum().backward()
    torch.testing.assert_close(weight.grad, exact.grad)
    for small in (weight_of((4, 3)) * 1e-3, torch.zeros(4, 3).double()):  # within the bound
        parameter = small.clone().requires_grad_()
        SpectralBound(parameter, bound=1.0)(parameter).sum().backward()
        torch.testing.assert_close(parameter.grad, torch.ones_like(parameter))


def test_two_passes_may_come_before_the_backward_pass():
    layer = nn.Sequential(nn.Linear(4, 4)).double()
    bound_spectral_norm(layer, bound=0.1)
    layer(layer(weight_of((2, 4)))).sum().backward()
    assert layer[0].parametrizations.weight.original.grad.isfinite().all()


def test_autocast_leaves_the_norm_in_full_precision():
    weight = weight_of((8, 8)).float()
    scale = SpectralBound(weight, bound=0.5).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scaled = scale(weight)
    assert torch.linalg.matrix_norm(scaled, 2) == pytest.approx(0.5, abs=1e-5)
