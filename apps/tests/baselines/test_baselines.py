"""What all baselines that change a transformer have in common."""

import copy

import pytest
import torch

from probseq.laplace import laplace_model
from probseq.metrics import class_predictions
from probseq.transformers import Predictor
from probseq_apps.baselines.backbone import pooled_features, with_features
from probseq_apps.baselines.mean_field import mean_field_model
from probseq_apps.baselines.sngp import fit_precision, sngp_model
from probseq_apps.baselines.svdkl import svdkl_model
from probseq_apps.engine.checkpoints import copy_weights, load_weights

MAKERS = {
    "mean-field": lambda model: mean_field_model(model, num_data=10, initial_std=0.2),
    "sngp": lambda model: sngp_model(model, num_data=10, num_features=20),
    "svdkl": lambda model: svdkl_model(model, num_data=10, num_processes=4, num_inducing=5),
}
LABELS = torch.arange(5) % 3
SAMPLED = ("mean-field", "svdkl")


@pytest.fixture
def make(make_model):
    def start(name, kind="vision", *, seed=0, **settings):
        model, inputs = make_model(kind, seed=seed, **settings)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return MAKERS[name](model), inputs

    return start


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SAMPLED)
def test_equal_generators_give_equal_draws_and_the_global_one_is_left_alone(make, name):
    model, inputs = make(name)
    for mode in (True, False):
        model.train(mode)
        state = torch.get_rng_state()
        first, again, other = (
            model(inputs, generator=seeded(seed), num_samples=2).logits for seed in (1, 1, 2)
        )
        assert torch.equal(state, torch.get_rng_state())
        assert torch.equal(first, again)
        assert not torch.allclose(first, other)
        assert not torch.allclose(first[0], first[1])
    with pytest.raises(ValueError, match="num_samples"):
        model(inputs, num_samples=0)


@pytest.mark.parametrize("name", MAKERS)
def test_every_parameter_is_trained(make, name):
    model, inputs = make(name, "sequence", pooling="sequence")
    logits, penalty = model(inputs)
    (logits.square().sum() + penalty).backward()
    missing = [key for key, p in model.named_parameters() if p.grad is None]
    # The random features' kernel is not learned: the features that go in are.
    assert all("kernel" in key for key in missing) == (name == "sngp" or not missing)


@pytest.mark.parametrize("name", [*MAKERS, "sngp fitted", "laplace"])
def test_a_saved_model_is_the_model_and_new_weights_are_used_at_once(make, make_model, name):
    if name == "laplace":
        inputs = make_model()[1]
        model, fresh = (laplace_model(make_model(seed=n)[0], [(inputs, LABELS)]) for n in (1, 2))
    else:
        model, inputs = make(name.split()[0], seed=1)
        fresh, _ = make(name.split()[0], seed=2)
    if "fitted" in name:
        fit_precision(model, [inputs])
    fresh.eval()(inputs)  # fills whatever is remembered in eval mode
    load_weights(fresh, copy_weights(model))
    outputs = [each.eval()(inputs, generator=seeded(0)) for each in (model, fresh)]
    assert torch.equal(outputs[0].logits, outputs[1].logits)
    assert torch.equal(outputs[0].penalty, outputs[1].penalty)
    with torch.no_grad():
        for parameter in copy.deepcopy(model).parameters():  # a copy shares nothing
            parameter.zero_()
    assert torch.equal(model(inputs, generator=seeded(0)).logits, outputs[0].logits)


@pytest.mark.parametrize("name", ["mean-field", "svdkl"])
def test_bfloat16_autocast_leaves_divergences_and_processes_in_full_precision(make, name):
    model, inputs = make(name)
    model, inputs = model.float(), inputs.float()
    expected = model(inputs).penalty
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, penalty = model(inputs)
    (logits.float().square().sum() + penalty).backward()
    assert penalty.dtype == torch.float32
    torch.testing.assert_close(penalty, expected)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", ["softmax", "laplace", *MAKERS])
@pytest.mark.parametrize("samples", [None, 3])
def test_features_behind_predictions_are_what_the_last_layer_is_given(
    make, make_model, name, samples
):
    model, inputs = make(name) if name in MAKERS else make_model()
    if name == "laplace":
        model = laplace_model(model, [(inputs, LABELS)])
    backbone = model.eval() if name in ("softmax", "laplace") else model.eval().model
    given = pooled_features(backbone, inputs)
    predictor = Predictor(class_predictions, num_samples=samples)
    options = {"device": torch.device("cpu"), "seed": 0}
    with with_features(model, predictor) as deeper:
        *outputs, features = deeper.predict(model, inputs, **options)
    for found, expected in zip(outputs, predictor.predict(model, inputs, **options), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)
    if name == "mean-field":  # whose features are draws, too
        assert features.shape == given.shape
    else:
        torch.testing.assert_close(features, given)
