import pytest
import torch

from probseq_apps.data.images import load_images
from probseq_apps.methods.build import build
from probseq_apps.methods.warm_start import (
    SGPA_PARAMETERS,
    copy_kernel_weights,
    warm_start_config,
)
from probseq_apps.settings.classify import (
    ClassifySettings,
    ImageAndTextSettings,
)
from probseq_apps.settings.methods import METHODS, TrainingSettings

SETTINGS = ClassifySettings(
    model=ImageAndTextSettings(dim=16, hidden_dim=16, patch_size=4, shared_norm=True)
)


def model(name, seed=0):
    return build(METHODS[name], SETTINGS, load_images("digits"), seed=seed)


def test_all_weights_but_the_inducing_ones_come_from_the_kernel_model():
    kernel, sgpa = model("kernel", 1), model("sgpa", 2)
    before = {name: tensor.clone() for name, tensor in sgpa.state_dict().items()}
    copy_kernel_weights(kernel, sgpa)
    given, after = kernel.state_dict(), sgpa.state_dict()
    own = {name for name in after if name.rpartition(".")[2] in SGPA_PARAMETERS}
    assert own == after.keys() - given.keys()
    assert len(own) == 3 * SETTINGS.model.depth
    assert all(torch.equal(after[name], tensor) for name, tensor in given.items())
    assert all(torch.equal(after[name], before[name]) for name in own)
    assert any(not torch.equal(before[name], given[name]) for name in given)


@pytest.mark.parametrize("name", ["cgpt", "scgpt"])
def test_correlated_attention_starts_from_the_asymmetric_kernel_s_projections(name):
    kernel, correlated = model("kernel-asym", 1), model(name, 2)
    latent = [
        a.to_latent.weight if name == "cgpt" else a.to_qokv.weight[16:32]
        for a in correlated.encoder.attention
    ]
    latent = [weight.clone() for weight in latent]
    copy_kernel_weights(kernel, correlated)
    for given, taken, own in zip(
        kernel.encoder.attention, correlated.encoder.attention, latent, strict=True
    ):
        if name == "cgpt":
            rows = [taken.to_q.weight, taken.to_latent.weight, taken.to_k.weight, taken.to_v.weight]
        else:
            rows = taken.to_qokv.weight.chunk(4)
        expected = (given.to_qk.weight, own, given.to_k.weight, given.to_v.weight)
        assert all(torch.equal(row, weight) for row, weight in zip(rows, expected, strict=True))
        assert torch.equal(taken.lengthscale, given.kernel.lengthscale)
        torch.testing.assert_close(taken.query_scale * taken.key_scale, given.kernel.outputscale)
        assert torch.equal(taken.to_out[0].weight, given.to_out[0].weight)
    assert torch.equal(kernel.head.linear.weight, correlated.head.linear.weight)


def test_a_model_that_differs_by_anything_else_is_refused():
    with pytest.raises(ValueError, match="to_qkv"):
        copy_kernel_weights(model("mle"), model("sgpa"))
    with pytest.raises(ValueError, match="to_q"):
        copy_kernel_weights(model("kernel"), model("cgpt"))
    with pytest.raises(ValueError, match="inducing"):
        copy_kernel_weights(model("kernel"), model("kernel"))


def test_a_weight_of_another_shape_is_refused():
    longer = ClassifySettings(
        model=ImageAndTextSettings(dim=16, hidden_dim=32, patch_size=4, shared_norm=True)
    )
    other = build(METHODS["kernel"], longer, load_images("digits"), seed=0)
    with pytest.raises(ValueError, match="same shape"):
        copy_kernel_weights(other, model("sgpa"))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_warm_start_ends_where_the_full_schedule_would_be(schedule):
    settings = TrainingSettings(
        epochs=60,
        warmup_epochs=5,
        learning_rate=5e-4,
        final_learning_rate=1e-5,
        schedule=schedule,
    )
    config = warm_start_config(settings, 20, seed=3)
    steps = 400
    full = settings.train_config(seed=3)
    assert config.epochs == 20
    assert config.select == "last"
    last = config.step_size(20 * steps - 1, steps)
    assert last == pytest.approx(full.step_size(20 * steps - 1, steps), rel=1e-3)
    assert config.step_size(5, steps) == full.step_size(5, steps)
