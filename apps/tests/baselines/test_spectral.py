import copy

import pytest
import torch
from torch import nn

from probseq_apps.baselines.spectral import SpectralBound, bound_spectral_norm


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


def test_only_linear_layers_are_bounded_and_their_state_is_saved():
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)).double()
    fresh = copy.deepcopy(model)
    for each in (model, fresh):
        bound_spectral_norm(each, bound=0.3)
    assert [hasattr(module, "parametrizations") for module in model] == [True, False, True]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    for _ in range(30):
        model(weight_of((3, 4)))
    fresh.load_state_dict(model.state_dict())
    x = weight_of((3, 4), seed=1)
    torch.testing.assert_close(fresh.eval()(x), model.eval()(x), rtol=0.0, atol=0.0)
    for layer in (model[0], model[2]):
        assert torch.linalg.matrix_norm(layer.weight, 2) <= 0.3 * (1 + 1e-9)


def test_autocast_leaves_the_norm_in_full_precision():
    weight = weight_of((8, 8)).float()
    scale = SpectralBound(weight, bound=0.5).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scaled = scale(weight)
    assert torch.linalg.matrix_norm(scaled, 2) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_bounds_that_are_not_positive_are_refused(bound):
    with pytest.raises(ValueError, match="bound"):
        SpectralBound(torch.eye(2), bound=bound)
