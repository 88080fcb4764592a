import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from probseq.laplace import LaplaceLinear, fit_curvature, laplace_model
from probseq.transformers import KernelAttention, SoftmaxAttention
from small import small_batch, small_transformer

CLASSES, DIM = 3, 8
WIDTH = DIM + 1  # the features and the bias's one


def build(kind="vision", *, noise=0.0, dropout=0.0, seed=0):
    """A small transformer of a kind and a batch that it takes, both in float64."""

    def attention(index):
        if noise:
            return KernelAttention(DIM, 2, noise=noise)
        return SoftmaxAttention(DIM, 2, dropout=dropout)

    return small_transformer(kind, attention, dropout=dropout, seed=seed), small_batch(kind, seed)


def labels_for(inputs):
    return torch.arange(len(inputs)) % CLASSES


def pairs_of(inputs):
    return [(inputs, labels_for(inputs))]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def eye(size):
    return torch.eye(size).double()


def drawing(generator, samples):
    return lambda model, inputs: model(inputs, generator=generator, num_samples=samples)


def features_of(model, inputs, **arguments):
    """What goes into the last layer, with a one."""
    seen = []
    with model.head.linear.register_forward_pre_hook(lambda _, given: seen.append(given[0])):
        model(inputs, **arguments)
    return torch.cat([seen[0], torch.ones_like(seen[0][:, :1])], 1).detach()


def factors(phi, weight):
    """Mean outer product of features and mean softmax Hessian, row by row."""
    outer = sum(torch.outer(row, row) for row in phi) / len(phi)
    probs = (phi @ weight.mT).softmax(-1)
    return outer, sum(torch.diag(p) - torch.outer(p, p) for p in probs) / len(phi)


def dense_covariance(phi, new, weight, prior_precision, num_data):
    """Covariance of the new logits by inverting the whole precision of vec(W), rows first."""
    outer, hessian = factors(phi, weight)
    precision = num_data * torch.kron(hessian, outer) + prior_precision * eye(WIDTH * CLASSES)
    jacobian = torch.stack([torch.kron(eye(CLASSES), row) for row in new])
    return jacobian @ torch.linalg.inv(precision) @ jacobian.mT, precision


def diagonals(covariance):
    return torch.diagonal(covariance, dim1=-2, dim2=-1)


def augmented(linear):
    return torch.cat([linear.weight, linear.bias[:, None]], 1).detach()


@pytest.mark.parametrize("kind", ["vision", "text", "sequence"])
@pytest.mark.parametrize("variance", ["centred", "plain"])
def test_predictions_match_the_dense_kronecker_posterior(kind, variance):
    model, inputs = build(kind)
    model.eval()
    phi, weight = features_of(model, inputs), augmented(model.head.linear)
    covariance, _ = dense_covariance(phi, phi, weight, 0.3, len(inputs))
    if variance == "centred":
        centre = eye(CLASSES) - 1 / CLASSES
        covariance = centre @ covariance @ centre * CLASSES / (CLASSES - 1)
    expected = model(inputs).logits / torch.sqrt(1 + math.pi / 8 * diagonals(covariance))
    pairs = [(inputs[part], labels_for(inputs)[part]) for part in (slice(0, 2), slice(2, None))]
    adjusted = laplace_model(model, pairs, prior_precision=0.3, variance=variance)
    torch.testing.assert_close(adjusted(inputs).logits, expected.detach())


def test_the_evidence_is_that_of_dense_algebra_and_the_grid_finds_its_peak():
    model, inputs = build()
    phi, weight = features_of(model, inputs), augmented(model.head.linear)
    log_likelihood = -cross_entropy(phi @ weight.mT, labels_for(inputs), reduction="sum")

    def evidence(prior_precision):
        _, precision = dense_covariance(phi, phi, weight, prior_precision, len(inputs))
        fit = log_likelihood - 0.5 * prior_precision * weight.square().sum()
        occam = torch.logdet(precision) - precision.shape[0] * math.log(prior_precision)
        return float(fit - 0.5 * occam)

    chosen = laplace_model(model, pairs_of(inputs)).head.linear
    assert chosen.log_evidence == pytest.approx(evidence(chosen.prior_precision))
    assert 1e-4 < chosen.prior_precision < 1e4
    for factor in (0.79, 1.26):  # the neighbours on the grid
        assert evidence(chosen.prior_precision * factor) < chosen.log_evidence
    fixed = laplace_model(model, pairs_of(inputs), prior_precision=2.0).head.linear
    assert fixed.log_evidence == pytest.approx(evidence(2.0))


def test_with_one_data_point_the_posterior_is_the_exact_gauss_newton_one():
    # With one data point the Kronecker product is the exact curvature: no independence is assumed.
    generator = seeded(0)
    phi = torch.randn(1, WIDTH, generator=generator).double()
    phi[:, -1] = 1.0
    weight = torch.randn(CLASSES, WIDTH, generator=generator).double()

    def loss(flat):
        return cross_entropy(phi @ flat.view(CLASSES, WIDTH).mT, torch.tensor([1]))

    exact = torch.autograd.functional.hessian(loss, weight.flatten())
    outer, hessian = factors(phi, weight)
    torch.testing.assert_close(torch.kron(hessian, outer), exact)
    linear = nn.Linear(WIDTH - 1, CLASSES).double()
    linear.load_state_dict({"weight": weight[:, :-1], "bias": weight[:, -1]})
    data = [(phi[:, :-1], torch.tensor([1]))]
    found = [
        fit_curvature(linear, data, structure).variance(0.5, "plain")(phi[:, :-1])[0]
        for structure in ("kronecker", "full")
    ]
    jacobian = torch.kron(eye(CLASSES), phi[0])
    dense = jacobian @ torch.linalg.inv(exact + 0.5 * eye(27)) @ jacobian.mT
    for variances in found:
        torch.testing.assert_close(variances, torch.diag(dense))


@pytest.mark.parametrize("variance", ["centred", "plain"])
def test_the_full_posterior_is_that_of_the_dense_hessian(variance):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    inputs = torch.randn(20, 4, generator=seeded(1)).double()
    hidden = model[:2](inputs).detach()
    phi = torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1)
    weight = augmented(model[2])

    def loss(flat):
        logits = phi @ flat.view(CLASSES, 6).mT
        return cross_entropy(logits, torch.zeros(20).long(), reduction="sum")

    hessian = torch.autograd.functional.hessian(loss, weight.flatten())
    jacobian = torch.stack([torch.kron(eye(CLASSES), row) for row in phi])
    covariance = jacobian @ torch.linalg.inv(hessian + 0.3 * eye(6 * CLASSES)) @ jacobian.mT
    if variance == "centred":
        centre = eye(CLASSES) - 1 / CLASSES
        covariance = centre @ covariance @ centre * CLASSES / (CLASSES - 1)
    settings = {"prior_precision": 0.3, "variance": variance, "structure": "full"}
    pairs = [(inputs[:7], torch.zeros(7).long()), *pairs_of(inputs[7:])]
    adjusted = laplace_model(model, pairs, **settings)
    expected = model(inputs) / torch.sqrt(1 + math.pi / 8 * diagonals(covariance))
    torch.testing.assert_close(adjusted(inputs), expected.detach())
    log_det = torch.logdet(hessian + 0.3 * eye(6 * CLASSES)) - 6 * CLASSES * math.log(0.3)
    losses = [cross_entropy(model(x), y, reduction="sum").detach() for x, y in pairs]
    evidence = -sum(losses) - 0.15 * weight.square().sum() - 0.5 * log_det
    assert adjusted[2].log_evidence == pytest.approx(float(evidence))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("structure", "theirs"), [("full", "full"), ("kronecker", "kron")])
def test_laplace_torch_predicts_the_same(structure, theirs):
    library = pytest.importorskip("laplace")
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(60) % 3
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)).double()
    posterior = library.Laplace(net, "classification", "last_layer", theirs, prior_precision=0.7)
    posterior.fit(DataLoader(TensorDataset(x, labels), batch_size=60))
    expected = posterior(x, pred_type="glm", link_approx="probit")
    adjusted = laplace_model(
        net, [(x, labels)], prior_precision=0.7, structure=structure, variance="plain"
    )
    torch.testing.assert_close(adjusted(x).softmax(-1), expected, atol=1e-7, rtol=0.0)


def test_centred_variances_predict_closer_to_monte_carlo_than_plain_ones():
    model, inputs = build(seed=4)
    with torch.no_grad():
        model.head.linear.weight.mul_(6.0)
    phi, weight = features_of(model, inputs), augmented(model.head.linear)
    covariance, _ = dense_covariance(phi, phi, weight, 0.1, 40 * len(inputs))
    noise = torch.randn(50_000, 5, CLASSES, generator=seeded(0)).double()
    spread = torch.einsum("ncd,snd->snc", torch.linalg.cholesky(covariance), noise)
    exact = ((phi @ weight.mT)[None] + spread).softmax(-1).mean(0)
    error = {}
    for name in ("centred", "plain"):
        adjusted = laplace_model(model, pairs_of(inputs) * 40, prior_precision=0.1, variance=name)
        error[name] = (adjusted(inputs).logits.softmax(-1) - exact).abs().max()
    assert error["centred"] < 0.5 * error["plain"]


def test_a_sure_prior_changes_nothing_and_neither_dropout_nor_copies_matter():
    model, inputs = build(dropout=0.5)
    before = copy.deepcopy(model.state_dict())
    expected = model.eval()(inputs).logits
    evidences = []
    for mode, count in ((False, None), (False, 3), (True, None)):
        given = {"prior_precision": 1e12, "call": drawing(None, count)}
        adjusted = laplace_model(model.train(mode), pairs_of(inputs), **given)
        torch.testing.assert_close(adjusted(inputs).logits, expected.detach())
        evidences.append(adjusted.head.linear.log_evidence)
    assert evidences == pytest.approx([evidences[0]] * 3, rel=1e-12)
    assert type(adjusted) is type(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_models_that_draw_average_their_curvature_over_the_samples():
    model, inputs = build(noise=0.3)
    phi = features_of(model.eval(), inputs, generator=seeded(5), num_samples=4)
    weight = augmented(model.head.linear)
    covariance, _ = dense_covariance(phi, phi, weight, 0.5, len(inputs))
    settings = {"prior_precision": 0.5, "variance": "plain", "call": drawing(seeded(5), 4)}
    adjusted = laplace_model(model, pairs_of(inputs), **settings)
    variances = adjusted.head.linear.variance(phi[:, :-1])
    torch.testing.assert_close(variances, diagonals(covariance))
    logits = adjusted(inputs, generator=seeded(5), num_samples=4).logits
    plain = (phi @ weight.mT) / torch.sqrt(1 + math.pi / 8 * variances)
    torch.testing.assert_close(logits, plain.unflatten(0, (4, -1)))


@pytest.mark.parametrize("num_samples", [None, 3])
def test_validation_data_choose_the_prior_precision_of_the_smallest_nll(num_samples):
    model, inputs = build(noise=0.3 if num_samples else 0.0)
    with torch.no_grad():
        model.head.linear.weight.mul_(8.0)  # too sure of itself
    shifted = torch.cat([inputs + 0.3, inputs - 0.3, inputs * 2.0])
    labels = model.eval()(shifted, generator=seeded(0)).logits.argmax(-1)
    labels[::5] = (labels[::5] + 1) % CLASSES  # right for the most part
    held = [(shifted[:4], labels[:4]), (shifted[4:], labels[4:])]

    def fit(**settings):
        call = drawing(seeded(7), num_samples)
        return laplace_model(model, pairs_of(inputs), call=call, **settings)

    def nll(adjusted):
        generator = seeded(7)
        adjusted(inputs, generator=generator, num_samples=num_samples)  # as many draws as the fit
        total = 0.0
        for x, labels in held:
            logits = adjusted(x, generator=generator, num_samples=num_samples or 1).logits
            total -= logits.softmax(-1).mean(0).log()[torch.arange(len(labels)), labels].sum()
        return total

    chosen = fit(validation=held)
    precision, best = chosen.head.linear.prior_precision, nll(chosen)
    for other in (1e-4, precision / 1.26, precision * 1.26, 1e4):
        assert best <= nll(fit(prior_precision=other)) + 1e-12
    assert 1e-4 < precision < 1e4
    assert best < nll(fit())


def test_a_layer_without_a_bias_has_no_uncertain_one():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES, bias=False)).double()
    inputs = torch.randn(6, 4, generator=seeded(1)).double()
    adjusted = laplace_model(model, pairs_of(inputs), prior_precision=0.3, variance="plain")
    phi, weight = model[:2](inputs).detach(), model[2].weight.detach()
    # (N A ⊗ H + δI)⁻¹, element by element.
    probs = (phi @ weight.T).softmax(-1)
    hessian = (torch.diag(probs.sum(0)) - probs.T @ probs) / len(phi)
    precision = torch.kron(phi.T @ phi, hessian) + 0.3 * torch.eye(8 * CLASSES).double()
    covariance = precision.inverse().reshape(8, CLASSES, 8, CLASSES)
    variance = torch.einsum("ni,icjc,nj->nc", phi, covariance, phi)
    torch.testing.assert_close(adjusted[2].variance(phi), variance)
    named = [({"input": inputs}, labels_for(inputs))]
    again = laplace_model(model, named, prior_precision=0.3, variance="plain")
    assert torch.equal(again(inputs), adjusted(inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_in_half_precision_are_near_those_in_double(dtype):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).to(dtype)
    inputs = torch.randn(6, 4, generator=seeded(1)).to(dtype)
    halved = laplace_model(model, pairs_of(inputs), prior_precision=0.3)
    exact = laplace_model(model.double(), pairs_of(inputs.double()), prior_precision=0.3)
    found = halved(inputs)
    assert found.dtype == torch.float32
    # Round-off of the logits and of the features.
    torch.testing.assert_close(found.double(), exact(inputs.double()), atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": [(build()[1], torch.arange(3))]}, r"labels must be int64 of shape \(batch,\)"),
        ({"batches": [(build()[1], torch.arange(5))]}, "labels must be from 0 to 2"),
        ({"batches": []}, "must hold data"),
        ({"validation": []}, "must hold data"),
        ({"prior_precision": 0.0}, "prior_precision"),
        ({"prior_precision": 1.0, "validation": []}, "validation"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU())}, "its logits do not"),
        ({"model": nn.ReLU()}, r"must end with an nn\.Linear"),
    ],
)
def test_senseless_arguments_are_refused(changes, message):
    model, inputs = build()
    if "model" in changes:
        changes["model"].double()
    with pytest.raises(ValueError, match=message):
        laplace_model(**{"model": model, "batches": pairs_of(inputs), **changes})


class Twins(nn.Module):
    """Logits from a layer that neither comes first nor last among the linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.other = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        features = self.trunk(x).tanh()
        self.auxiliary = self.other(features)
        return self.head(features)


def test_the_layer_whose_outputs_are_the_logits_is_found_wherever_it_is():
    torch.manual_seed(0)
    model, inputs = Twins().double(), torch.randn(9, 4).double()
    plain = nn.Sequential(model.trunk, nn.Tanh(), model.head)
    found, expected = (
        laplace_model(each, pairs_of(inputs), prior_precision=1.0) for each in (model, plain)
    )
    assert isinstance(found.head, LaplaceLinear)
    assert type(found.other) is nn.Linear
    torch.testing.assert_close(found(inputs), expected(inputs))
    with pytest.raises(ValueError, match="that were called are: trunk, other, head"):
        laplace_model(model, pairs_of(inputs), call=lambda own, x: 2 * own(x))


def test_samples_may_be_folded_into_the_batch_sample_major():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, labels = torch.randn(30, 6), torch.arange(30) % 3
    thrice = laplace_model(model, [(x, labels)], call=lambda m, inputs: m(inputs.repeat(3, 1)))
    torch.testing.assert_close(thrice(x), laplace_model(model, [(x, labels)])(x))
