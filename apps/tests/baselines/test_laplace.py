import copy
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import sgpa
from probseq.transformers import SoftmaxAttention, TransformerConfig, VisionTransformer
from probseq_apps.baselines.laplace import KroneckerCurvature, LaplaceLinear, laplace_model
from probseq_apps.baselines.mean_field import mean_field_model

CLASSES, WIDTH = 3, 9  # eight features and the bias's one


def labels_for(inputs):
    return torch.arange(len(inputs)) % CLASSES


def features_of(model, inputs, **arguments):
    captured = []
    handle = model.head.linear.register_forward_pre_hook(
        lambda module, given: captured.append(given[0])
    )
    model(inputs, **arguments)
    handle.remove()
    return torch.cat([captured[0], torch.ones_like(captured[0][:, :1])], 1).detach()


def factors(phi, weight):
    """Mean outer product of features and mean softmax Hessian, row by row."""
    outer = sum(torch.outer(row, row) for row in phi) / len(phi)
    probs = (phi @ weight.mT).softmax(-1)
    return outer, sum(torch.diag(p) - torch.outer(p, p) for p in probs) / len(phi)


def dense_covariance(phi, new, weight, prior_precision, num_data):
    """Covariance of the new logits by inverting the whole precision of vec(W), rows first."""
    outer, hessian = factors(phi, weight)
    size = WIDTH * CLASSES
    precision = num_data * torch.kron(hessian, outer) + prior_precision * torch.eye(size).double()
    covariance = torch.linalg.inv(precision)
    jacobian = torch.stack([torch.kron(torch.eye(CLASSES).double(), row) for row in new])
    return jacobian @ covariance @ jacobian.mT, precision


def augmented(linear):
    return torch.cat([linear.weight, linear.bias[:, None]], 1).detach()


@pytest.mark.parametrize("kind", ["vision", "text", "sequence"])
@pytest.mark.parametrize("variance", ["centred", "plain"])
def test_predictions_match_the_dense_kronecker_posterior(make_model, kind, variance):
    model, inputs = make_model(kind)
    model.eval()
    phi, weight = features_of(model, inputs), augmented(model.head.linear)
    covariance, _ = dense_covariance(phi, phi, weight, 0.3, len(inputs))
    if variance == "centred":
        centre = torch.eye(CLASSES).double() - 1 / CLASSES
        covariance = centre @ covariance @ centre * CLASSES / (CLASSES - 1)
    variances = torch.diagonal(covariance, dim1=-2, dim2=-1)
    expected = model(inputs).logits / torch.sqrt(1 + math.pi / 8 * variances)
    pairs = [(inputs[part], labels_for(inputs)[part]) for part in (slice(0, 2), slice(2, None))]
    adjusted = laplace_model(model, pairs, prior_precision=0.3, variance=variance)
    torch.testing.assert_close(adjusted(inputs).logits, expected.detach())


def test_the_covariance_of_the_logits_is_dense_algebra(make_model):
    model, inputs = make_model()
    phi, weight = features_of(model, inputs), augmented(model.head.linear)
    curvature = KroneckerCurvature.of(*factors(phi, weight), 5)
    new = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    expected, _ = dense_covariance(phi, new, weight, 2.0, 5)
    torch.testing.assert_close(curvature.logit_covariance(new, 2.0), expected)


def test_the_evidence_is_that_of_dense_algebra_and_the_grid_finds_its_peak(make_model):
    model, inputs = make_model()
    labels = labels_for(inputs)
    phi, weight = features_of(model, inputs), augmented(model.head.linear)
    log_likelihood = -cross_entropy(phi @ weight.mT, labels, reduction="sum")

    def evidence(prior_precision):
        _, precision = dense_covariance(phi, phi, weight, prior_precision, len(inputs))
        fit = log_likelihood - 0.5 * prior_precision * weight.square().sum()
        occam = torch.logdet(precision) - precision.shape[0] * math.log(prior_precision)
        return float(fit - 0.5 * occam)

    chosen = laplace_model(model, [(inputs, labels)]).head.linear
    assert chosen.log_evidence == pytest.approx(evidence(chosen.prior_precision))
    assert 1e-4 < chosen.prior_precision < 1e4
    for factor in (0.79, 1.26):  # the neighbours on the grid
        assert evidence(chosen.prior_precision * factor) < chosen.log_evidence
    fixed = laplace_model(model, [(inputs, labels)], prior_precision=2.0).head.linear
    assert fixed.log_evidence == pytest.approx(evidence(2.0))


def test_with_one_data_point_the_posterior_is_the_exact_gauss_newton_one():
    # With one data point the Kronecker product is the exact curvature: no independence is assumed.
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(1, WIDTH, generator=generator).double()
    weight = torch.randn(CLASSES, WIDTH, generator=generator).double()

    def loss(flat):
        return cross_entropy(phi @ flat.view(CLASSES, WIDTH).mT, torch.tensor([1]))

    exact = torch.autograd.functional.hessian(loss, weight.flatten())
    outer, hessian = factors(phi, weight)
    torch.testing.assert_close(torch.kron(hessian, outer), exact)
    covariance = KroneckerCurvature.of(outer, hessian, 1).logit_covariance(phi, 0.5)
    jacobian = torch.kron(torch.eye(CLASSES).double(), phi[0])
    dense = jacobian @ torch.linalg.inv(exact + 0.5 * torch.eye(27).double()) @ jacobian.mT
    torch.testing.assert_close(covariance[0], dense)


def test_centred_variances_predict_closer_to_monte_carlo_than_plain_ones(make_model):
    model, inputs = make_model(seed=4)
    with torch.no_grad():
        model.head.linear.weight.mul_(6.0)
    pairs = [(inputs, labels_for(inputs))] * 40
    phi, weight = features_of(model, inputs), augmented(model.head.linear)
    covariance, _ = dense_covariance(phi, phi, weight, 0.1, 40 * len(inputs))
    mean = (phi @ weight.mT)[None]
    noise = torch.randn(50_000, 5, CLASSES, generator=torch.Generator().manual_seed(0)).double()
    root = torch.linalg.cholesky(covariance)
    exact = (mean + torch.einsum("ncd,snd->snc", root, noise)).softmax(-1).mean(0)
    error = {}
    for variance in ("centred", "plain"):
        adjusted = laplace_model(model, pairs, prior_precision=0.1, variance=variance)
        error[variance] = (adjusted(inputs).logits.softmax(-1) - exact).abs().max()
    assert error["centred"] < 0.5 * error["plain"]


def test_centred_variances_do_not_change_when_all_logits_are_shifted(make_model):
    model, inputs = make_model()
    pairs = [(inputs, labels_for(inputs))]
    # Along the shift the curvature is zero and the prior alone decides: let it decide for much.
    loose, tight = (
        laplace_model(model, pairs * 200, prior_precision=precision).head.linear
        for precision in (1e-9, 1e-7)
    )
    phi = features_of(model, inputs)[:, :-1]
    for each in (loose, tight):
        assert each.variance(phi).max() < 1e3
    plain = laplace_model(model, pairs * 200, prior_precision=1e-9, variance="plain").head.linear
    assert plain.variance(phi).min() > 1e8


def test_independent_alike_logits_have_equal_centred_and_plain_variances():
    flat = KroneckerCurvature.of(
        torch.eye(WIDTH).double(), torch.zeros(CLASSES, CLASSES).double(), 10
    )
    layers = [
        LaplaceLinear(
            torch.nn.Linear(WIDTH - 1, CLASSES).double(),
            flat,
            prior_precision=2.0,
            log_likelihood=0.0,
            variance=name,
        )
        for name in ("centred", "plain")
    ]
    x = torch.randn(4, WIDTH - 1, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(layers[0].variance(x), layers[1].variance(x))


def test_a_sure_prior_leaves_the_model_as_it_is_and_the_model_is_not_touched(make_model):
    model, inputs = make_model()
    before = copy.deepcopy(model.state_dict())
    expected = model.eval()(inputs).logits
    adjusted = laplace_model(model, [(inputs, labels_for(inputs))], prior_precision=1e12)
    torch.testing.assert_close(adjusted(inputs).logits, expected.detach())
    assert type(adjusted) is type(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def sampling_model(make_model, seed=0):
    return make_model(
        attention=lambda index: sgpa.SparseGPAttention(8, 2, 3, initial_posterior="random"),
        seed=seed,
    )


def test_models_that_draw_average_their_curvature_over_the_samples(make_model):
    model, inputs = sampling_model(make_model)
    model.eval()
    generator = torch.Generator().manual_seed(5)
    phi = features_of(model, inputs, generator=generator, num_samples=4)
    weight = augmented(model.head.linear)
    covariance, _ = dense_covariance(phi, phi, weight, 0.5, len(inputs))
    adjusted = laplace_model(
        model,
        [(inputs, labels_for(inputs))],
        prior_precision=0.5,
        variance="plain",
        num_samples=4,
        generator=torch.Generator().manual_seed(5),
    )
    torch.testing.assert_close(
        adjusted.head.linear.variance(phi[:, :-1]), torch.diagonal(covariance, dim1=1, dim2=2)
    )
    variances = adjusted.head.linear.variance(phi[:, :-1])
    logits = adjusted(inputs, generator=torch.Generator().manual_seed(5), num_samples=4).logits
    plain = (phi @ weight.mT) / torch.sqrt(1 + math.pi / 8 * variances)
    torch.testing.assert_close(logits, plain.unflatten(0, (4, -1)))


def test_a_saved_model_is_the_model(make_model):
    model, inputs = make_model()
    first = laplace_model(model, [(inputs, labels_for(inputs))], prior_precision=0.1)
    second = laplace_model(model, [(inputs + 1.0, labels_for(inputs))], prior_precision=9.0)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(inputs).logits, second(inputs).logits)


def test_digits_turned_upside_down_lose_more_confidence_than_digits_do():
    digits = load_digits()
    images = (torch.from_numpy(digits.images).float() / 16.0)[:, None]
    labels = torch.from_numpy(digits.target).long()
    config = TransformerConfig(depth=1, dim=16, num_heads=2, hidden_dim=16, dropout=0.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = VisionTransformer(
            config,
            image_size=8,
            patch_size=4,
            channels=1,
            num_classes=10,
            attention=lambda index: SoftmaxAttention(16, 2),
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(200):
        rows = slice(100 * (step % 10), 100 * (step % 10 + 1))
        optimizer.zero_grad()
        cross_entropy(model(images[rows]).logits, labels[rows]).backward()
        optimizer.step()
    adjusted = laplace_model(model, [(images[:1000], labels[:1000])])
    model.eval()
    strange = images[1000:].flip(-2)
    with torch.no_grad():
        lost = [
            (model(x).logits.softmax(-1).amax(-1) - adjusted(x).logits.softmax(-1).amax(-1)).mean()
            for x in (images[1000:], strange)
        ]
        nll = [
            cross_entropy(each(images[1000:]).logits, labels[1000:]) for each in (model, adjusted)
        ]
    assert 0.0 < lost[0] < lost[1]
    assert nll[1] < nll[0]


def test_other_baselines_and_missing_data_are_refused(make_model):
    model, inputs = make_model()
    with pytest.raises(ValueError, match="batches"):
        laplace_model(model, [])
    with pytest.raises(ValueError, match="prior_precision"):
        laplace_model(model, [(inputs, labels_for(inputs))], prior_precision=0.0)
    with pytest.raises(ValueError, match="num_samples"):
        laplace_model(model, [(inputs, labels_for(inputs))], num_samples=0)
    adjusted = laplace_model(model, [(inputs, labels_for(inputs))])
    with pytest.raises(ValueError, match="LaplaceLinear"):
        laplace_model(adjusted, [(inputs, labels_for(inputs))])
    with pytest.raises(ValueError, match="MeanFieldTransformer"):
        laplace_model(mean_field_model(model, num_data=3), [(inputs, labels_for(inputs))])


@pytest.mark.parametrize("num_samples", [None, 3])
def test_validation_data_choose_the_prior_precision_of_the_smallest_nll(make_model, num_samples):
    model, inputs = make_model() if num_samples is None else sampling_model(make_model)
    with torch.no_grad():
        model.head.linear.weight.mul_(8.0)  # too sure of itself
    training = [(inputs, labels_for(inputs))]
    shifted = torch.cat([inputs + 0.3, inputs - 0.3, inputs * 2.0])
    labels = model.eval()(shifted, generator=torch.Generator().manual_seed(0)).logits.argmax(-1)
    labels[::5] = (labels[::5] + 1) % CLASSES  # right for the most part
    held = [(shifted[:4], labels[:4]), (shifted[4:], labels[4:])]

    def settings(**other):
        seeded = torch.Generator().manual_seed(7)
        return {"num_samples": num_samples, "generator": seeded, **other}

    def nll(adjusted):
        generator = torch.Generator().manual_seed(7)
        adjusted(inputs, generator=generator, num_samples=num_samples)  # as many draws as the fit
        total = 0.0
        for x, labels in held:
            logits = adjusted(x, generator=generator, num_samples=num_samples or 1).logits
            total -= logits.softmax(-1).mean(0).log()[torch.arange(len(labels)), labels].sum()
        return total

    chosen = laplace_model(model, training, **settings(validation=held))
    precision = chosen.head.linear.prior_precision
    best = nll(chosen)
    for other in (1e-4, precision / 1.26, precision * 1.26, 1e4):
        fixed = laplace_model(model, training, **settings(prior_precision=other))
        assert best <= nll(fixed) + 1e-12
    assert 1e-4 < precision < 1e4
    assert best < nll(laplace_model(model, training, **settings()))


def test_a_given_prior_precision_and_validation_data_exclude_each_other(make_model):
    model, inputs = make_model()
    pairs = [(inputs, labels_for(inputs))]
    with pytest.raises(ValueError, match="validation"):
        laplace_model(model, pairs, prior_precision=1.0, validation=pairs)
    with pytest.raises(ValueError, match="must hold data"):
        laplace_model(model, pairs, validation=[])


def test_copies_as_samples_change_nothing_and_each_has_its_own_label(make_model):
    model, inputs = make_model()
    batches = [(inputs, labels_for(inputs))]
    once, many = (
        laplace_model(model.eval(), batches, prior_precision=0.7, num_samples=count).head.linear
        for count in (None, 3)
    )
    assert many.log_evidence == pytest.approx(once.log_evidence, rel=1e-12)


def test_dropout_is_off_whatever_mode_the_model_is_in(make_model):
    model, inputs = make_model(dropout=0.5)
    batches = [(inputs, labels_for(inputs))]
    evaluated, trained = (
        laplace_model(model.train(mode), batches, prior_precision=0.7) for mode in (False, True)
    )
    assert not trained.training
    assert trained.head.linear.log_evidence == evaluated.head.linear.log_evidence
    torch.testing.assert_close(trained(inputs).logits, evaluated(inputs).logits)
