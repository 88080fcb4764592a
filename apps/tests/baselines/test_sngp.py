import copy
import math

import pytest
import torch

from probseq_apps.baselines.backbone import pooled_features
from probseq_apps.baselines.sngp import GaussianProcessHead, fit_precision, sngp_model
from probseq_apps.engine.checkpoints import copy_weights, load_weights


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


def test_the_posterior_only_lowers_the_confidence(make_model):
    model, inputs = trained(make_model)
    before = model.eval()(inputs).logits
    fit_precision(model, [inputs])
    after = model(inputs).logits
    assert torch.equal(before.argmax(-1), after.argmax(-1))
    assert (after.softmax(-1).amax(-1) < before.softmax(-1).amax(-1)).all()


def test_more_data_leave_less_variance(make_model):
    model, inputs = trained(make_model)
    phi = features_of(model, inputs)
    fit_precision(model, [inputs])
    once = model.head.variance(phi)
    fit_precision(model, [inputs] * 10)
    assert (model.head.variance(phi) < once).all()
    assert (once < 9.0).all()


def test_training_drops_the_posterior_of_other_weights(make_model):
    model, inputs = trained(make_model)
    plain = model.eval()(inputs).logits
    fit_precision(model, [inputs])
    assert not torch.allclose(model(inputs).logits, plain)
    model.train()
    torch.testing.assert_close(model.eval()(inputs).logits, plain)


@pytest.mark.parametrize("fitted", [True, False])
def test_a_saved_model_is_the_model_posterior_included(make_model, fitted):
    model, inputs = trained(make_model, seed=1)
    if fitted:
        fit_precision(model, [inputs])
    fresh, _ = trained(make_model, seed=2)
    load_weights(fresh, copy_weights(model))
    assert torch.equal(fresh.eval()(inputs).logits, model.eval()(inputs).logits)


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


def test_learned_parameters_all_have_gradients_and_the_features_have_none(make_model):
    model, inputs = trained(make_model)
    logits, penalty = model(inputs)
    (logits.square().sum() + penalty).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == ("kernel" not in name), name


def test_building_is_reproducible_and_copies_are_independent(make_model):
    model, inputs = trained(make_model)
    again, _ = trained(make_model)
    assert torch.equal(model.eval()(inputs).logits, again.eval()(inputs).logits)
    copied = copy.deepcopy(model)
    fit_precision(copied, [inputs])
    assert torch.equal(model(inputs).logits, again(inputs).logits)
    assert copied.head is copied.model.head.linear


def test_autocast_leaves_the_gaussian_process_in_full_precision(make_model):
    model, inputs = trained(make_model)
    model, inputs = model.float(), inputs.float()
    fit_precision(model, [inputs])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(inputs).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, model(inputs).logits, atol=0.1, rtol=0.1)


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_data": 0}, "num_data"),
        ({"bound": 0.0}, "bound"),
        ({"bound": float("inf")}, "bound must be positive and finite"),
        ({"num_features": 0}, "num_features"),
        ({"num_features": 7}, "num_features must be even"),
        ({"lengthscale": 0.0}, "lengthscale"),
        ({"prior_std": -1.0}, "prior_std"),
    ],
)
def test_bad_settings_are_refused(make_model, settings, message):
    with pytest.raises(ValueError, match=message):
        sngp_model(make_model()[0], **{"num_data": 10, **settings})


def test_fitting_needs_an_sngp_and_data(make_model):
    model, inputs = trained(make_model)
    with pytest.raises(ValueError, match="SNGPTransformer"):
        fit_precision(model.model, [inputs])
    with pytest.raises(ValueError, match="batches"):
        fit_precision(model, [])
