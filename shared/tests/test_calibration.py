"""Calibration of classifiers as people have them, and the decisions that come of it."""

import copy
import dataclasses
import math
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from probseq import calibration
from probseq.calibrated import FILE, load_calibrated
from probseq.calibration import calibrate, split_in_three
from probseq.files import hash_module
from probseq.laplace import laplace_model
from probseq.metrics import expected_calibration_error, search_temperature, select_with_error


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Net(nn.Module):
    """Three classes of vectors, three times surer than it should be; has dropout and BatchNorm."""

    def __init__(self, outputs=lambda hidden, logits: logits):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.hidden, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
            self.head = nn.Linear(8, 3)
        self.head.weight.data *= 9.0
        self.dropout, self.outputs = nn.Dropout(0.5), outputs

    def forward(self, x):
        hidden = self.norm(self.dropout(self.hidden(x)).tanh())
        return self.outputs(hidden, self.head(hidden))


def data(count=600, seed=1, temperature=3.0):
    """Vectors, and labels that the net is right about at a temperature."""
    x = torch.randn(count, 4, generator=seeded(seed))
    with torch.no_grad():
        probs = (Net().eval()(x) / temperature).softmax(-1)
    return x, probs.multinomial(1, generator=seeded(seed))[:, 0]


X, Y = data()


def logits():
    with torch.no_grad():
        return Net().eval()(X)


@pytest.fixture
def calibrated():
    return calibrate(Net(), (X, Y), error_rate=0.2)


# What is fitted, and how well


def test_the_temperature_is_that_of_the_third_that_fits_and_the_table_that_of_the_second(
    calibrated,
):
    fit, choose, _ = split_in_three(Y, 0)
    assert calibrated.chosen == "temperature"
    temperature = search_temperature(logits()[fit].log_softmax(-1), Y[fit])
    assert float(calibrated.temperature) == pytest.approx(temperature, rel=1e-5)
    assert temperature == pytest.approx(3.0, rel=0.2)
    log_probs = (logits()[choose] / temperature).log_softmax(-1)
    row = {row.name: row for row in calibrated.rows}["temperature"]
    losses = F.nll_loss(log_probs, Y[choose], reduction="none")
    assert row.nll == pytest.approx(float(losses.mean()), rel=1e-5)
    assert row.nll_half == pytest.approx(1.96 * float(losses.std()) / math.sqrt(200), rel=1e-5)
    ece = expected_calibration_error(log_probs.exp(), Y[choose])
    assert row.ece == pytest.approx(float(ece), rel=1e-4)
    draws = [torch.randint(200, (200,), generator=seeded(seed)) for seed in range(200)]
    errors = [expected_calibration_error(log_probs.exp()[i], Y[choose][i]) for i in draws]
    assert row.ece_half == pytest.approx(1.96 * float(torch.stack(errors).std()), rel=0.5)
    before = F.nll_loss(logits()[choose].log_softmax(-1), Y[choose], reduction="none")
    paired = losses - before
    assert row.difference == pytest.approx(float(paired.mean()), rel=1e-4)
    assert row.difference_half == pytest.approx(1.96 * float(paired.std()) / math.sqrt(200), 1e-4)
    assert_close(calibrated(X), (logits() / temperature).log_softmax(-1), atol=1e-5, rtol=1e-5)


def test_the_first_candidate_is_chosen_that_is_level_with_the_lowest():
    noise = torch.randn(400, generator=seeded(0))
    noise -= noise.mean()
    losses = {
        "as it is": torch.full((400,), 0.9),
        "temperature": 0.5 + 0.1 * noise,
        "Laplace": torch.full((400,), 0.496),
        "Laplace, temperature": torch.full((400,), 0.7),
    }
    log_probs = {
        name: torch.stack([-loss, torch.log1p(-(-loss).exp())], 1) for name, loss in losses.items()
    }
    chosen, rows = calibration._choose(log_probs, torch.zeros(400).long())
    assert min(rows, key=lambda row: row.nll).name == "Laplace"
    assert chosen == "temperature"
    log_probs["temperature"] = log_probs["as it is"]
    assert calibration._choose(log_probs, torch.zeros(400).long())[0] == "Laplace"


def test_sklearn_fits_the_same_temperature():
    base = pytest.importorskip("sklearn.base")
    calibrators = pytest.importorskip("sklearn.calibration")
    frozen = pytest.importorskip("sklearn.frozen")
    fit, *_ = split_in_three(Y, 0)

    class Wrapped(base.ClassifierMixin, base.BaseEstimator):
        classes_ = np.arange(3)

        def __sklearn_is_fitted__(self):
            return True

        def decision_function(self, x):
            with torch.no_grad():
                return Net().eval()(torch.tensor(x)).double().numpy()

        def fit(self, *_):
            return self

        def predict(self, x):
            return self.decision_function(x).argmax(-1)

    wrapped = frozen.FrozenEstimator(Wrapped())
    # Older versions have no temperature.
    pytest.importorskip("sklearn", minversion="1.8")
    theirs = calibrators.CalibratedClassifierCV(wrapped, method="temperature", ensemble=False)
    theirs.fit(X[fit].numpy(), Y[fit].numpy())
    ours = calibrate(Net(), (X, Y), structure=None)
    expected = torch.tensor(theirs.predict_proba(X.numpy()))
    assert_close(ours(X).exp().double(), expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("structure", ["kronecker", "full"])
def test_a_laplace_posterior_is_served_as_it_was_measured(structure):
    x, y = data(400, seed=3, temperature=1.0)
    train = data(40, seed=4, temperature=1.0)
    net = Net()
    found = calibrate(net, (x, y), train=train, structure=structure)
    fit, choose, _ = split_in_three(y, 0)
    names = [row.name for row in found.rows]
    assert names == ["as it is", "temperature", "Laplace", "Laplace, temperature"]
    best = min(
        (
            laplace_model(net, train, prior_precision=p, structure=structure)
            for p in torch.logspace(-4, 4, 17).tolist()
        ),
        key=lambda model: float(F.cross_entropy(model(x[fit]), y[fit])),
    )
    nll = float(F.cross_entropy(best(x[choose]), y[choose]))
    assert found.rows[2].nll == pytest.approx(nll, rel=1e-4)


@pytest.fixture
def unsure():
    """A net that learned too much from 40 examples, of which Laplace knows: it is chosen."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
    x = torch.randn(2000, 2) * torch.tensor([3.0, 1.0])
    y = ((x[:, 0] + x[:, 1] > 0) ^ (torch.rand(2000) < 0.15)).long()
    train = x[:40] * 0.3, y[:40]
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(400):
        optimizer.zero_grad()
        F.cross_entropy(net(train[0]), train[1]).backward()
        optimizer.step()
    return net, (x[40:], y[40:]), train


def serve_laplace(net, held_out, train):
    """A calibrated model that serves the posterior, whatever would be chosen."""
    with pytest.MonkeyPatch.context() as patch:
        choose = calibration._choose
        patch.setattr(
            "probseq.calibration._choose",
            lambda *arguments: ("Laplace, temperature", choose(*arguments)[1]),
        )
        return calibrate(net, held_out, train=train)


def test_a_served_posterior_is_the_measured_one_and_changes_no_layer(unsure):
    net, (x, y), train = unsure
    before = [type(module) for module in net.modules()]
    found = serve_laplace(net, (x, y), train)
    _, choose, _ = split_in_three(y, 0)
    nll = float(F.nll_loss(found(x[choose]), y[choose]))
    assert nll == pytest.approx(found.rows[3].nll, rel=1e-4)
    assert [type(module) for module in net.modules()] == before
    assert not any("forward" in vars(module) for module in net.modules())


def test_nothing_better_than_as_it_is_is_an_answer():
    x, y = data(temperature=1.0)
    found = calibrate(Net(), (x, y), seed=1)
    assert found.chosen == "as it is"
    assert "Nothing is better than the model as it is." in str(found)
    assert_close(found(x), Net().eval()(x).log_softmax(-1).detach())


def test_an_ensemble_is_a_mean_of_probabilities_of_models_that_end_in_a_softmax_too():
    first, second = Net(), Net(outputs=lambda _, logits: logits.softmax(-1))
    second.load_state_dict(first.state_dict())
    second.head.weight.data = second.head.weight.data.flip(1)
    second.head.weight.data.copy_(0.4 * first.head.weight + 0.1 * torch.randn(3, 8))
    found = calibrate([first, second], (X, Y))
    names = [row.name for row in found.rows]
    assert names == ["as it is", "temperature", "ensemble", "ensemble, temperature"]
    _, choose, _ = split_in_three(Y, 0)
    with torch.no_grad():
        mean = (first.eval()(X).softmax(-1) + second.eval()(X)).log() - math.log(2)
    nll = float(F.nll_loss(mean[choose], Y[choose]))
    assert found.rows[2].nll == pytest.approx(nll, rel=1e-4)


# Halves


def test_rows_that_alternate_and_sorted_ones_are_spread_over_both_halves():
    for labels in (torch.arange(200) % 2, torch.arange(200) // 100, torch.arange(203) % 7):
        thirds = split_in_three(labels, 0)
        assert sorted(torch.cat(thirds).tolist()) == list(range(len(labels)))
        first, second = (labels[rows].bincount() for rows in thirds[:2])
        assert (first - second).abs().max() <= 1
        assert all(len((rows % 2).unique()) == 2 for rows in thirds)
        # Some of the rows that fit choose a prior: they are of all classes.
        assert len(labels[thirds[0][:40]].unique()) == labels.max() + 1
    assert torch.equal(split_in_three(Y, 3)[0], split_in_three(Y, 3)[0])
    assert not torch.equal(split_in_three(Y, 3)[0], split_in_three(Y, 4)[0])


def test_pairs_of_positive_and_negative_rows_give_the_temperature_of_shuffled_ones():
    score = 6 * torch.randn(1000, generator=seeded(0))
    label = torch.rand(1000, generator=seeded(1)) < (score / 6).sigmoid()
    order = torch.stack([label.nonzero()[:450, 0], (~label).nonzero()[:450, 0]], 1).flatten()
    paired = calibrate(score[order], label[order].long())
    shuffled = order[torch.randperm(900, generator=seeded(2))]
    assert paired.chosen == "temperature"
    expected = calibrate(score[shuffled], label[shuffled].long()).temperature
    assert_close(paired.temperature, expected, rtol=0.2, atol=0.0)


# Decisions


@pytest.mark.parametrize("unknown", [None, 0.3 * torch.randn(50, 3, generator=seeded(7))])
def test_errors_among_the_accepted_are_below_the_rate_as_often_as_promised(unknown):
    broken = 0
    for seed in range(30):
        z = 3 * torch.randn(4400, 3, generator=seeded(seed))
        y = (z / 2).softmax(-1).multinomial(1, generator=seeded(1000 + seed))[:, 0]
        found = calibrate(z[:400], y[:400], error_rate=0.1, unknown=unknown, level=0.9)
        decision = found.decide(z[400:])
        wrong = (decision.label != y[400:])[decision.accepted]
        broken += int(len(wrong) > 0 and float(wrong.double().mean()) > 0.1)
        assert decision.unknown.any() == (unknown is not None)
    # Of 30 with a probability of .1 or less: more than 7 come in one of 120 runs.
    assert broken <= 7


def test_the_threshold_is_certified_on_what_is_accepted_of_the_last_third():
    found = calibrate(logits(), Y, error_rate=0.3, unknown=torch.zeros(9, 3), level=0.7)
    rows = split_in_three(Y, 0)[2]
    decision = found.decide(logits()[rows])
    usual, right = ~decision.unknown, decision.label == Y[rows]
    expected = select_with_error(decision.confidence[usual], right[usual], 0.3, level=0.7)
    assert float(found.threshold) == expected.threshold
    accepted = float(decision.accepted.double().mean())
    assert found.facts["decision"]["accepted"] == pytest.approx(accepted)
    assert found.facts["unknown"]["rate"] == pytest.approx(float((~usual).double().mean()))
    confident = decision.confidence > found.threshold
    assert torch.equal(decision.accepted, confident & usual)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("unknown", [None, torch.zeros(9, 3)])
def test_outputs_that_are_no_numbers_are_unknown_and_may_be_any_class(value, unknown):
    found = calibrate(logits(), Y, error_rate=0.9, unknown=unknown)
    decision = found.decide(torch.tensor([[value, 0.0, 1.0], [9.0, 0.0, 0.0]]))
    assert decision.unknown.tolist() == [True, False]
    assert decision.accepted.tolist() == [False, True]
    assert decision.sets[0].all()


def test_prediction_sets_are_those_of_split_conformal_and_hold_the_class_as_often():
    shares = []
    for seed in range(20):
        z = 2 * torch.randn(2200, 4, generator=seeded(seed))
        y = z.softmax(-1).multinomial(1, generator=seeded(500 + seed))[:, 0]
        found = calibrate(z[:200], y[:200], coverage=0.8)
        sets = found.decide(z[200:]).sets
        shares.append(float(sets.gather(1, y[200:, None]).double().mean()))
    assert sum(shares) / 20 == pytest.approx(0.8, abs=0.03)
    # By hand: the k-th largest of 1 - p_y of the third that neither fitted nor chose.
    rows = split_in_three(y[:200], 0)[2]
    missed = 1 - found(z[:200])[rows].exp().gather(1, y[:200][rows, None])[:, 0]
    expected = 1 - missed.sort().values[math.ceil((len(rows) + 1) * 0.8) - 1]
    assert float(found.least_probability) == pytest.approx(float(expected), rel=1e-5)


def test_sets_equal_those_of_crepes():
    crepes = pytest.importorskip("crepes")
    found = calibrate(logits(), Y)
    missed = 1.0 - found(logits()).exp().double().numpy()
    rows = split_in_three(Y, 0)[2]
    theirs = crepes.ConformalClassifier().fit(missed[rows, Y[rows]])
    sets = theirs.predict_set(missed, confidence=0.9, smoothing=False)
    assert (np.array(sets) == found.decide(logits()).sets.numpy()).mean() > 0.999


def test_unknown_inputs_are_found_with_the_rate_of_false_alarms():
    known = 4 * F.one_hot(torch.arange(900) % 3, 3) + torch.randn(900, 3, generator=seeded(0))
    unknown = 0.3 * torch.randn(300, 3, generator=seeded(1))
    found = calibrate(known[:600], torch.arange(600) % 3, unknown=unknown, level=0.9)
    assert found.decide(unknown).unknown.double().mean() > 0.95
    assert found.decide(known[600:]).unknown.double().mean() == pytest.approx(0.1, abs=0.06)
    assert not found.decide(unknown).accepted[found.decide(unknown).unknown].any()
    assert found.facts["unknown"]["auroc"] > 0.95
    assert "Unknown: " in str(found)
    for form in ([unknown[:9], unknown[9:]], unknown.numpy(), DataLoader(TensorDataset(unknown))):
        again = calibrate(known[:600], torch.arange(600) % 3, unknown=form, level=0.9)
        assert again.facts["unknown"] == found.facts["unknown"]
    pair = (X, torch.ones(600)), Y
    assert calibrate(Lengths(), pair, unknown=pair[0]).facts["unknown"]["caught"] < 0.2
    texts = ["ab", "b", "aab"] * 40
    count = calibrate(
        lambda each: torch.tensor([[s.count("a"), 1.0] for s in each]),
        (texts, [0, 1, 0] * 40),
        unknown=texts[:9],
    )
    assert count.facts["unknown"]["auroc"] == pytest.approx(0.5, abs=0.2)


def test_no_share_can_be_accepted_of_few_examples():
    found = calibrate(logits()[:40], Y[:40], error_rate=0.001)
    assert not found.decide(logits()).accepted.any()
    assert "it takes more examples" in str(found)
    assert calibrate(logits()[:40], Y[:40], coverage=0.99).decide(logits()).sets.all()
    assert "It takes 99 examples" in str(calibrate(logits()[:40], Y[:40], coverage=0.99))


# Outputs of models


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


OUTPUTS = {
    "mapping": lambda hidden, z: {"logits": z, "hidden": hidden},
    "mapping of one": lambda _, z: {"out": z},
    "dataclass": lambda hidden, z: Output(z, hidden),
    "tuple of one": lambda _, z: (z,),
    "softmax": lambda _, z: z.softmax(-1),
    "log-softmax": lambda _, z: z.log_softmax(-1),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_one_reader_of_outputs(kind):
    found = calibrate(Net(OUTPUTS[kind]), (X, Y), structure=None)
    expected = calibrate(Net(), (X, Y), structure=None)
    assert float(found.temperature) == pytest.approx(float(expected.temperature), rel=1e-3)
    assert_close(found(X), expected(X), rtol=1e-3, atol=1e-3)
    assert ("outputs are probabilities" in str(found)) == (kind == "softmax")


def test_what_is_served_is_of_the_kind_and_classes_that_were_calibrated():
    found = calibrate(logits().softmax(-1), Y)
    with pytest.raises(ValueError, match="must give probabilities, as when it was calibrated"):
        found(logits())
    with pytest.raises(ValueError, match="outputs of 3 classes, as when it was calibrated, got 4"):
        found(torch.full((2, 4), 0.25))
    score = torch.randn(600, 1, generator=seeded(0))
    column = calibrate(score.sigmoid(), (score[:, 0] > 0.0).long())
    with pytest.raises(ValueError, match="must give probabilities of the second class"):
        column(torch.tensor([[3.0]]))


def test_outputs_from_0_to_1_that_are_no_probabilities_are_named():
    assert "outputs from 0 to 1 are read as logits" in str(calibrate(logits().sigmoid(), Y))
    y = torch.arange(600) % 2
    z = F.one_hot(y, 3) + torch.randn(600, 3, generator=seeded(0))
    assert "1 classes have no held-out example" in first_words(z, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_renormalised(dtype):
    found = calibrate(logits().softmax(-1).to(dtype), Y)
    assert found.facts["kinds"] == ["probabilities"]
    assert_close(found(X[:, :3].softmax(-1)).exp().sum(-1), torch.ones(600))


def test_two_candidates_are_refused_by_name_and_output_says_which():
    pair = Net(lambda hidden, z: (hidden, z))
    message = r"tuple with 0 of shape \(256, 8\), 1 of shape \(256, 3\): output must say which"
    with pytest.raises(ValueError, match=message):
        calibrate(pair, (X, Y))
    expected = calibrate(Net(), (X, Y))(X)
    for model, output in (
        (pair, 1),
        (pair, lambda outputs: outputs[1]),
        (Net(lambda hidden, z: {"a": hidden, "b": z}), "b"),
        (Net(lambda hidden, z: Output(hidden, z)), "hidden"),
    ):
        assert_close(calibrate(model, (X, Y), output=output)(X), expected)
    with pytest.raises(ValueError, match="output 'c' must be in what the model gives, a dict"):
        calibrate(Net(lambda hidden, z: {"a": hidden, "b": z}), (X, Y), output="c")
    with pytest.raises(ValueError, match=r"must return logits: .* got NoneType"):
        calibrate(Net(lambda *_: None), (X, Y))


@pytest.mark.parametrize("column", [True, False])
def test_one_column_is_that_of_the_second_of_two_classes(column):
    z = 2 * torch.randn(500, 1, generator=seeded(0))
    y = (torch.rand(500, generator=seeded(1)) < (z[:, 0] / 3).sigmoid()).long()
    z = z if column else z[:, 0]
    found = calibrate(z, y)
    two = calibrate(torch.stack([torch.zeros(500), z.flatten()], 1), y)
    assert_close(found.temperature, two.temperature)
    assert_close(found(z), two(torch.stack([torch.zeros(500), z.flatten()], 1)))
    squashed = calibrate(z.sigmoid(), y)
    assert "probabilities of the second class" in str(squashed)
    assert_close(squashed(z.sigmoid()), found(z), rtol=1e-2, atol=1e-2)


RANDOM, ZEROS = torch.randn(20, 3), torch.zeros(20).long()
TOKENS = torch.randn(20, 20, 4), ZEROS


@pytest.mark.parametrize(
    ("outputs", "held_out", "message"),
    [
        (torch.randn(20, 5, 20), ZEROS, r"one row of logits .* got \(20, 5, 20\)"),
        (torch.randn(20, 5), torch.zeros(20, 20).long(), r"labels .* of shape \(20, 20\)"),
        (torch.randn(100, 3), ZEROS, "a label a row, got 20 for 100 rows"),
        (RANDOM, torch.full((20,), 3), "labels from 0 to 2, got 3 to 3"),
        (torch.zeros(20, 3), ZEROS, "tell examples apart, and gives all of them the same"),
        (RANDOM.index_fill(1, ZEROS[:1], -math.inf), ZEROS, "a logit of -inf in 20 rows"),
        ([RANDOM, RANDOM[:, :2]], ZEROS, r"of the same shape, got \[\(20, 2\), \(20, 3\)\]"),
        (Net(), TensorDataset(X, Y), "a DataLoader makes of a data set, got TensorDataset"),
        (Net(), list(zip(X, Y, strict=True)), "a DataLoader makes batches of single examples"),
        (Net(), None, "must be batches .* got NoneType"),
        (Net(), iter(()), "got none: a generator gives its batches once"),
        (torch.randn(4, 3), torch.zeros(4).long(), "10 examples at least, got 4"),
        (torch.full((20, 3), math.nan), ZEROS, "finite outputs, got NaN"),
        (RANDOM, torch.zeros(20), "labels that are whole numbers"),
        (torch.zeros(20, 3).long(), ZEROS, "floating-point logits"),
        ([RANDOM, Net()], ZEROS, "or logits, got Tensor"),
        (object(), ZEROS, "a function, an estimator .* got object"),
        ([], ZEROS, "one model or several, got none"),
        (nn.Linear(4, 3), TOKENS, "logits of several tokens or pixels"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0, 1)), TOKENS, "logits of several tokens or"),
        (lambda x: torch.randn(20, 3, 20), TOKENS, "logits of several tokens or pixels"),
        (Net(), (X, ["a"] * 600), "whole numbers .*: name the classes in the order"),
        (Net(), [(X[:0], Y[:0])], "held_out must hold data, got none"),
        (Net(), [(X, Y, Y)], "held_out must hold pairs of inputs and labels, .* got tuple"),
    ],
)
def test_what_is_no_classification_and_no_data_is_refused_by_name(outputs, held_out, message):
    with pytest.raises(ValueError, match=message):
        calibrate(outputs, held_out)


# What the order of classes and the preparation of inputs give away


def first_words(*arguments):
    """Return the first line of the report, or the refusal."""
    try:
        return str(calibrate(*arguments)).splitlines()[0]
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("swap", [{3: 5, 5: 3}, {1: 2, 2: 3, 3: 1}, {i: 9 - i for i in range(8)}])
def test_some_classes_in_another_order_are_said_first(swap):
    y = torch.arange(600) % 10
    z = 5.0 * F.one_hot(y, 10) + torch.randn(600, 10, generator=seeded(0))
    order = [swap.get(i, i) for i in range(10)]
    first = first_words(z[:, order], y)
    assert "in another order" in first or "the order of the classes is probably" in first
    assert "another order" not in str(calibrate(z, y))


def test_a_model_of_rare_classes_that_knows_something_is_taken():
    y = (torch.arange(2000) % 50 == 0).long()
    score = -4.5 + 2.0 * y + torch.randn(2000, generator=seeded(0))
    assert calibrate(score + 0.4, y).facts["classes"] == 2


class Scaled(Net):
    def __init__(self, factor, shift):
        super().__init__()
        self.factor, self.shift = factor, shift

    def forward(self, x):
        return super().forward(x * self.factor + self.shift)


@pytest.mark.parametrize(("factor", "shift"), [(255.0, 0.0), (0.3, 1.0), (1.0, 2.5)])
def test_inputs_that_are_prepared_in_another_way_are_said_first(factor, shift):
    x = torch.randn(1000, 4, generator=seeded(2))
    with torch.no_grad():
        y = Net().eval()(x).argmax(-1)
    first = first_words(Scaled(factor, shift), (x, y))
    assert "prepared in another way than in training" in first
    assert "prepared" not in str(calibrate(Net(), (x, y)))


# Modes, state and files


@pytest.mark.parametrize("serve", [calibrate, None])
def test_predictions_are_made_in_eval_mode_and_modes_are_left_as_they_were(serve, unsure):
    net, held_out = Net(), (X, Y)
    net.train()
    net.norm.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = calibrate(net, held_out) if serve else serve_laplace(net, held_out, held_out)
    modes = [module.training for module in net.modules()]
    assert modes[0]
    assert not net.norm.training
    expected = found(X)
    for mode in (True, False, True):
        found.train(mode)
        assert torch.equal(found(X), expected)
    net.train()
    net.dropout.eval()
    assert torch.equal(found(X), expected)
    assert net.training
    assert not net.dropout.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_threads_get_what_one_gets_whatever_the_mode(unsure):
    net, held_out, train = unsure
    found = serve_laplace(nn.Sequential(nn.Dropout(0.5), *net), held_out, train)
    found.models.train()
    x = held_out[0]
    expected, wrong = [found(x[i : i + 50]) for i in range(0, 400, 50)], []

    def work(number):
        for _ in range(20):
            piece = found(x[50 * number : 50 * number + 50])
            if not torch.equal(piece, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(module.training for module in found.models.modules())


def test_rows_get_the_same_answer_in_any_batch(calibrated):
    alone = torch.cat([calibrated(row[None]) for row in X[:20]])
    assert_close(alone, calibrated(X)[:20], rtol=1e-5, atol=1e-5)
    loader = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)
    assert float(calibrate(Net(), loader).temperature) == pytest.approx(3.0, rel=0.3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_thresholds_are_exact_whatever_the_precision_of_the_model(dtype, calibrated):
    values = {name: value.clone() for name, value in calibrated.named_buffers(recurse=False)}
    calibrated.to(dtype)
    assert calibrated.models[0].head.weight.dtype == dtype
    assert all(torch.equal(getattr(calibrated, name), value) for name, value in values.items())
    assert calibrated(X[:3].to(dtype)).dtype == torch.float32


@pytest.mark.parametrize("laplace", [False, True])
def test_copies_pickles_states_and_files_predict_the_same(laplace, unsure, tmp_path):
    net, (x, y), train = unsure
    if laplace:
        found = serve_laplace(net, (x, y), train)
    else:
        found = calibrate(net, (x, y), error_rate=0.4, structure=None)
    decision = found.decide(x)
    fresh = calibrate(copy.deepcopy(net), (x, y), seed=5)
    missing = fresh.load_state_dict(found.state_dict())
    assert not missing.missing_keys
    assert not missing.unexpected_keys
    found.save(tmp_path)
    for other in (
        copy.deepcopy(found),
        pickle.loads(pickle.dumps(found)),
        fresh,
        load_calibrated(tmp_path, copy.deepcopy(net)),
    ):
        assert all(map(torch.equal, other.decide(x), decision))
        assert str(other) == str(found)
    program = torch.export.export(found.eval(), (x[:5],)).module()
    assert_close(program(x[:5]), found(x[:5]))
    compiled = torch.compile(found, backend="eager")
    assert_close(compiled(x[:5]), found(x[:5]))


def test_logits_alone_are_saved_and_read(tmp_path):
    found = calibrate(logits().numpy()[::-1], Y.tolist()[::-1])
    found.save(tmp_path)
    again = load_calibrated(tmp_path)
    assert torch.equal(again(logits()), found(logits()))
    assert torch.equal(again(logits().numpy()), found(logits()))


def test_every_flipped_bit_of_a_file_is_refused(calibrated, tmp_path):
    calibrated.save(tmp_path)
    content = (tmp_path / FILE).read_bytes()
    for position in torch.randint(8 * len(content), (300,), generator=seeded(0)).tolist():
        changed = bytearray(content)
        changed[position // 8] ^= 1 << position % 8
        (tmp_path / FILE).write_bytes(changed)
        with pytest.raises(ValueError, match=FILE):
            load_calibrated(tmp_path, Net())


def test_other_weights_are_refused(calibrated, tmp_path):
    calibrated.save(tmp_path)
    other = Net()
    other.norm.running_mean += 1e-3
    for models, message in (
        ([other], "must have the weights .* and number 0 has others"),
        ([], "must be as many as .* serves, 1, got 0"),
        ([Net(), Net()], "must be as many as .* serves, 1, got 2"),
        ([lambda x: x], "must be of torch, got function"),
    ):
        with pytest.raises(ValueError, match=message):
            load_calibrated(tmp_path, *models)
    load_calibrated(tmp_path, torch.compile(Net(), backend="eager"))
    load_calibrated(tmp_path, nn.ModuleDict({"module": Net()})["module"])


@pytest.mark.filterwarnings("ignore")
def test_packed_weights_are_hashed():
    quantize = torch.ao.quantization.quantize_dynamic
    first, second = Net(), Net()
    second.head.weight.data[0, 0] += 3.0
    hashes = {hash_module(quantize(net, {nn.Linear})) for net in (first, second, Net())}
    assert len(hashes) == 2
    packed = quantize(first, {nn.Linear})
    found = calibrate(packed, (X, Y))
    assert [row.name for row in found.rows] == ["as it is", "temperature"]


def test_what_has_no_values_is_refused_when_it_is_hashed():
    with torch.device("meta"):
        net = Net()
    with pytest.raises(ValueError, match=r"state hidden.weight must have its values in memory"):
        hash_module(net)


@pytest.fixture
def group():
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS = {
    "distributed": nn.parallel.DistributedDataParallel,
    "compiled in parallel": lambda net: nn.parallel.DistributedDataParallel(
        torch.compile(net, backend="eager")
    ),
}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_posterior_of_a_wrapped_model_serves_the_plain_one(wrap, tmp_path):
    x, y = data(400, temperature=1.0)
    wrapped = wrap(Net()).eval()
    found = serve_laplace(wrapped, (x, y), (x, y))
    found.save(tmp_path)
    for net in (Net(), wrapped):
        assert_close(load_calibrated(tmp_path, net)(x), found(x))


@pytest.mark.usefixtures("group")
def test_sharded_weights_take_a_temperature_and_serve_the_plain_model(tmp_path):
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    sharded = torch.distributed.fsdp.fully_shard(Net(), mesh=mesh)
    found = calibrate(sharded, (X, Y))
    assert found.chosen == "temperature"
    assert "no Laplace posterior" in str(found)
    found.save(tmp_path)
    assert_close(load_calibrated(tmp_path, Net())(X), found(X))


@pytest.mark.parametrize("disk", [False, True])
def test_offloaded_weights_take_a_temperature(disk, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    if disk:
        devices = {"hidden": "cpu", "norm": "disk", "head": "cpu", "dropout": "cpu"}
        net = accelerate.dispatch_model(
            Net().eval(), devices, main_device="cpu", offload_dir=tmp_path / "weights"
        )
    else:
        net = accelerate.cpu_offload(Net().eval(), execution_device="cpu")
    found = calibrate(net, (X, Y))
    assert found.chosen == "temperature"
    assert_close(found(X), calibrate(Net(), (X, Y))(X))
    if disk:
        with pytest.raises(ValueError, match="must have its values in memory"):
            found.save(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_weights_of_torchao_are_hashed(tmp_path):
    quantization = pytest.importorskip("torchao.quantization")
    first, second = Net().eval(), Net().eval()
    second.head.weight.data[0, 0] += 3.0
    for net in (first, second):
        quantization.quantize_(net, quantization.Int8WeightOnlyConfig())
    found = calibrate(first, (X, Y))
    assert [row.name for row in found.rows] == ["as it is", "temperature"]
    found.save(tmp_path)
    assert_close(load_calibrated(tmp_path, first)(X), found(X))
    with pytest.raises(ValueError, match="number 0 has others"):
        load_calibrated(tmp_path, second)


class Cosine(nn.Linear):
    def forward(self, x):
        return 9.0 * F.linear(F.normalize(x), F.normalize(self.weight))


@pytest.mark.parametrize("kind", ["root", "normed", "cosine"])
def test_layers_have_a_posterior_where_they_are_linear_as_they_are_called(kind):
    net = nn.Linear(4, 3) if kind == "root" else Net()
    if kind == "normed":
        nn.utils.parametrizations.weight_norm(net.head)
    elif kind == "cosine":
        net.head = Cosine(8, 3)
    with torch.no_grad():
        found = calibrate(net, (X, net.eval()(X).argmax(-1)))
    assert ("Laplace" in [row.name for row in found.rows]) == (kind != "cosine")
    assert ("no Laplace posterior" in str(found)) == (kind == "cosine")


# Images, texts and sequences


class Kind(nn.Module):
    """A classifier of one kind of inputs, sharp, with dropout; `outputs` says what it returns."""

    def __init__(self, kind, outputs=lambda hidden, logits: logits):
        super().__init__()
        self.kind, self.outputs = kind, outputs
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.images = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(12, 16))
            self.words = nn.Embedding(30, 16, padding_idx=0)
            self.sequences = nn.GRU(3, 16, batch_first=True)
            self.head, self.dropout = nn.Linear(16, 3), nn.Dropout(0.5)
        self.head.weight.data *= 12.0

    def forward(self, inputs, lengths=None, attention_mask=None):
        if self.kind == "images":
            hidden = self.images(inputs)
        elif self.kind == "texts":
            mask = attention_mask[..., None]
            hidden = (self.words(inputs) * mask).sum(1) / mask.sum(1)
        else:
            hidden = self.sequences(inputs)[0][torch.arange(len(inputs)), lengths - 1]
        hidden = self.dropout(hidden.tanh())
        return self.outputs(hidden, self.head(hidden))


def inputs_of(kind, count=900):
    """Inputs as a tensor, as a mapping of keywords, and as a tuple."""
    lengths = 1 + torch.arange(count) % 5
    if kind == "images":
        return torch.randn(count, 3, 8, 8, generator=seeded(1))
    if kind == "texts":
        ids = torch.randint(1, 30, (count, 5), generator=seeded(1))
        mask = (torch.arange(5) < lengths[:, None]).long()
        return {"inputs": ids * mask, "attention_mask": mask}
    return torch.randn(count, 5, 3, generator=seeded(1)), lengths


def call(net, inputs):
    with torch.no_grad():
        if isinstance(inputs, dict):
            return net(**inputs)
        return net(*inputs) if isinstance(inputs, tuple) else net(inputs)


def labels_of(kind, temperature=3.0):
    probs = (call(Kind(kind).eval(), inputs_of(kind)) / temperature).softmax(-1)
    return probs.multinomial(1, generator=seeded(2))[:, 0]


def rows_of(inputs, rows):
    if isinstance(inputs, dict):
        return {name: value[rows] for name, value in inputs.items()}
    return tuple(each[rows] for each in inputs) if isinstance(inputs, tuple) else inputs[rows]


kinds = pytest.mark.parametrize("kind", ["images", "texts", "sequences"])


@kinds
@pytest.mark.parametrize("output", ["mapping", "softmax", "log-softmax", "dataclass"])
def test_each_kind_is_calibrated_with_each_output_in_any_mode_and_batch(kind, output, tmp_path):
    inputs, labels = inputs_of(kind), labels_of(kind)
    net = Kind(kind, OUTPUTS[output]).train()
    batches = [
        (rows_of(inputs, slice(i, i + 90)), labels[i : i + 90].tolist()) for i in range(0, 900, 90)
    ]
    found = calibrate(net, iter(batches), seed=1)
    assert found.chosen == "temperature"
    assert float(found.temperature) == pytest.approx(3.0, rel=0.2)
    expected = call(Kind(kind).eval(), inputs) / found.temperature.float()
    assert_close(found(inputs), expected.log_softmax(-1), rtol=1e-3, atol=1e-3)
    assert net.training
    found.save(tmp_path)
    few = rows_of(inputs, slice(3))
    again = load_calibrated(tmp_path, Kind(kind, OUTPUTS[output]))
    assert_close(again(few), found(inputs)[:3], rtol=1e-4, atol=1e-4)


@kinds
def test_each_kind_with_classes_in_another_order_is_refused_or_said_first(kind):
    inputs, labels = inputs_of(kind), labels_of(kind, 1.0)
    for order in ([1, 2, 0], [2, 0, 1]):
        with pytest.raises(ValueError, match="the order of the classes is probably another"):
            calibrate(Kind(kind, lambda _, z, order=order: z[:, order]), (inputs, labels))
    swapped = Kind(kind, lambda _, z: z[:, [1, 0, 2]])
    assert "order" in first_words(swapped, (inputs, labels))


@kinds
def test_each_kind_with_inputs_prepared_in_another_way_is_said_first(kind):
    labels = labels_of(kind, 0.1)
    for change in (1, 2):
        inputs = inputs_of(kind)
        if kind == "images":  # a scale of 0..255 and a mean; other colours
            inputs = 255 * inputs + 90 if change == 1 else inputs.flip(1) + 2
        elif kind == "texts":  # another vocabulary
            ids = inputs["inputs"]
            inputs["inputs"] = torch.where(ids > 0, (ids + change) % 29 + 1, 0)
        else:
            inputs = 40 * inputs[0] + 20 if change == 1 else 2 - inputs[0].flip(-1), inputs[1]
        first = first_words(Kind(kind), (inputs, labels))
        assert "prepared in another way" in first or "another order" in first, first


# Data as people have them


class Lengths(Net):
    def forward(self, x, lengths):
        return super().forward(x + 0.0 * lengths[:, None])


class Named(Net):
    def forward(self, *, x, scale=1.0):
        return super().forward(scale * x)


class Packed(Net):
    def forward(self, packed):
        return super().forward(nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0][:, 0])


def test_tuples_mappings_words_and_empty_batches_are_taken():
    expected = calibrate(Net(), (X, Y))(X)
    lengths = torch.ones(600)
    found = calibrate(Lengths(), ((X, lengths), Y))
    assert_close(found(X, lengths), expected)
    assert_close(found((X, lengths)), expected)
    named = calibrate(Named(), {"x": X, "labels": Y})
    assert_close(named(x=X), expected)
    assert_close(calibrate(Named(), {"x": X, "scale": torch.ones(()), "labels": Y})(x=X), expected)
    assert_close(named({"x": X}), expected)
    assert_close(found(X, lengths=lengths), expected)
    packed = nn.utils.rnn.pack_sequence(list(X[:, None]))
    assert_close(calibrate(Packed(), (packed, Y))(packed), expected)
    for labels in (list(Y.numpy()), tuple(Y.tolist())):
        assert_close(calibrate([Net()], (X, labels))(X), expected)
    words = [("no", "maybe", "yes")[label] for label in Y.tolist()]
    for batches in (
        (X, words),
        [(X[:0], Y[:0]), (X, Y), (X[:0], Y[:0])],
        [(X[:100], words[:100]), (X[100:], words[100:])],
        (X.numpy(), np.array(words)),
    ):
        found = calibrate(Net(), batches, classes=("no", "maybe", "yes"))
        assert_close(found(X), expected)
        assert found.facts["names"] == ["no", "maybe", "yes"]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (["a"] * 600, ("x", "y", "z"), r"among the classes .* got \['a'\]: classes must name"),
        (Y, ("x", "y"), "classes must be as many as outputs, 3, got 2"),
        (Y, ("x", "y", "y"), "classes must have different names"),
    ],
)
def test_classes_that_do_not_fit_are_refused(labels, classes, message):
    with pytest.raises(ValueError, match=message):
        calibrate(Net(), (X, labels), classes=classes)


def test_pandas_estimators_and_functions_are_taken():
    pandas = pytest.importorskip("pandas")
    ensemble = pytest.importorskip("sklearn.ensemble")
    x, names = X.numpy(), np.array(["no", "maybe", "yes"])[Y.numpy()]
    frame, column = pandas.DataFrame(x, columns=list("abcd")), pandas.Series(names)
    forest = ensemble.RandomForestClassifier(30, random_state=0)
    forest.fit(frame[:300], column[:300])
    found = calibrate(forest, (frame[300:], column[300:]), error_rate=0.3)
    assert found.facts["names"] == ["maybe", "no", "yes"]
    assert "probabilities of 0 count as 1e-12" in str(found)
    probs = torch.tensor(forest.predict_proba(frame)).clamp_min(1e-12)
    expected = (probs.log() / found.temperature).log_softmax(-1)
    assert_close(found(frame), expected)
    with pytest.raises(ValueError, match="must be of torch to be saved"):
        found.save("nowhere")
    expected = calibrate(Net(), (X, Y))(X)
    for model in (Net(), lambda frame: call(Net().eval(), torch.tensor(frame.to_numpy()))):
        found = calibrate(model, (frame, pandas.Series(Y.numpy())), unknown=frame[:9])
        assert_close(found(frame), expected)
    numbers = calibrate(lambda x: call(Net().eval(), torch.tensor(x.astype("f4"))), (x, Y))
    assert_close(numbers(x), expected)


def test_a_trained_model_of_transformers_names_its_classes():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        vocab_size=20, id2label={0: "positive", 1: "negative"},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    model.classifier.weight.data *= 40.0
    texts = {"input_ids": torch.randint(20, (200, 6)), "attention_mask": torch.ones(200, 6).long()}
    with torch.no_grad():
        words = [config.id2label[i] for i in model(**texts).logits.argmax(-1).tolist()]
    found = calibrate(model, {**texts, "labels": words})
    assert found.rows[0].accuracy == 1.0
    assert found(texts).shape == (200, 2)


def test_senseless_arguments_are_refused():
    for name in ("error_rate", "coverage", "level"):
        for value in (0.0, 1.0, -1.0, math.nan):
            with pytest.raises(ValueError, match=f"{name} must be above 0 and below 1"):
                calibrate(logits(), Y, **{name: value})
    for name, value, message in (
        ("train", (X, Y), "train must come with a model of torch whose logits a linear layer"),
        ("unknown", [], "unknown must hold data, got none"),
        ("unknown", [[X, Y]], "unknown must hold inputs without labels"),
    ):
        with pytest.raises(ValueError, match=message):
            calibrate(logits(), Y, **{name: value})
