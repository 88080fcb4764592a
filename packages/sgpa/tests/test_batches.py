"""Data as people have them give the same in all functions that read batches."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from probseq.batches import read_batches
from probseq.laplace import LaplaceLinear, laplace_model
from probseq.metrics import evaluate, mean_log_probs
from probseq.transformers import active_dropout, fine_tune
from probseq.transformers.drawing import log_probabilities
from sgpa import calibrate


class Classifier(nn.Module):
    """Three classes of vectors, in double precision, surer than it should be."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.double().eval()
        self.head.weight.data *= 20.0

    def forward(self, x):
        return {"logits": self.head(self.hidden(x).tanh())}


def data():
    """Vectors, and labels of which a third are random."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 4, generator=generator).double()
    labels = Classifier()(x)["logits"].argmax(-1)
    labels[::3] = torch.randint(3, (20,), generator=generator)
    return x, labels


def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}


def read_only(tensor):
    array = tensor.numpy().copy()
    array.flags.writeable = False
    return array


X, Y = data()
SET = TensorDataset(X, Y)
# Batches of all rows, so that fine-tuning's steps are the same in any order.
KINDS = {
    "shuffled loader": lambda: DataLoader(SET, batch_size=60, shuffle=True),
    "loader of mappings": lambda: DataLoader(SET, batch_size=60, shuffle=True, collate_fn=collate),
    "generator": lambda: (pair for pair in [(X, Y)]),
    "pair": lambda: (X, Y),
    "list of a pair": lambda: [X, Y],
    "mapping": lambda: {"x": X, "labels": Y},
    "array of labels": lambda: [(X, Y.numpy().astype(np.int32))],
    "arrays": lambda: (X.flip(0).numpy()[::-1], Y.flip(0).numpy()[::-1]),
    "read-only arrays": lambda: (read_only(X), read_only(Y)),
    "array in a mapping": lambda: [{"x": X.numpy(), "labels": Y.tolist()}],
    "list of labels": lambda: (X, Y.tolist()),
}


def plain():
    return [(X, Y)]


def held(model):
    with torch.no_grad():
        return model(X)


def calibrated(read):
    found = calibrate(Classifier(), X, read(), deviations=(0.0,))
    assert found.chosen == "temperature"
    return torch.tensor(found.candidates["temperature"].temperature)


def laplace(read):
    return held(laplace_model(Classifier(), read(), validation=read()))["logits"]


def evidence(read):
    return held(laplace_model(Classifier(), read()))["logits"]


def tuned(read):
    return held(fine_tune(Classifier(), read(), read(), steps=3, every=3))


def whole_tuned(read):
    return held(fine_tune(Classifier(), read(), read(), steps=3, every=3, frozen=False))


def evaluated(read):
    def predictions():
        for x, labels in read_batches(read(), Classifier()):
            yield held_probs(x), labels

    return torch.tensor([v for v in evaluate(predictions()).values() if v is not None])


def held_probs(x):
    with torch.no_grad():
        return Classifier()(**x if isinstance(x, dict) else {"x": x})["logits"].softmax(-1)


@pytest.mark.parametrize("function", [calibrated, laplace, evidence, tuned, whole_tuned, evaluated])
def test_what_people_have_is_taken_by_all_functions(function):
    expected = function(plain)
    for name, kind in KINDS.items():
        found = function(kind)
        assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def test_small_shuffled_batches_give_the_temperature_of_all():
    loader = DataLoader(SET, batch_size=7, shuffle=True)
    torch.manual_seed(3)
    found = (
        calibrate(Classifier(), X, loader, deviations=(0.0,)).candidates["temperature"].temperature
    )
    assert found == pytest.approx(float(calibrated(plain)), rel=1e-6)


def test_floating_arrays_get_the_dtype_of_the_weights():
    double, single = X.numpy(), Classifier().float()
    ((x, _),) = read_batches((double, Y), single)
    assert x.dtype == torch.float32
    found = calibrate(single, double, (double, Y.numpy()), deviations=(0.0,))
    assert_close(found(double), found(X.float()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([X], "must hold pairs of inputs and labels, or mappings with 'labels', got Tensor"),
        ([{"x": X}], r"must hold pairs .* got \['x'\]"),
        ([(X, Y, Y)], r"must hold pairs .* got tuple"),
        (
            [(X[0], Y[0])],
            r"must have labels that are whole numbers .* of shape \(\)",
        ),
        ((X, Y[:, None]), r"must have labels .* got torch.int64 of shape \(60, 1\)"),
        ((X, np.array(["a"] * 60)), r"must have labels .* got <U1 of shape \(60,\)"),
        ((X, Y > 1), r"must have labels .* got torch.bool"),
    ],
)
def test_what_is_no_data_is_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=f"validation {message}"):
        calibrate(Classifier(), X, wrong, deviations=(0.0,))
    with pytest.raises(ValueError, match=f"batches {message}"):
        laplace_model(Classifier(), wrong)
    with pytest.raises(ValueError, match=f"train {message}"):
        fine_tune(Classifier(), wrong, plain())
    with pytest.raises(ValueError, match=f"probs {message}"):
        evaluate(wrong)


def perceptron():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)), X.float()


def residual_network():
    model = pytest.importorskip("timm").create_model("test_resnet", num_classes=3, drop_rate=0.3)
    return model, X.float().repeat(1, 48).view(60, 3, 8, 8)


@pytest.mark.parametrize("build", [perceptron, residual_network])
def test_what_needs_no_attention_takes_any_classifier(build):
    torch.manual_seed(0)
    model, inputs = build()
    with torch.no_grad():
        logits = 5.0 * model.eval()(inputs)
    batch = (inputs, logits.softmax(-1).multinomial(1)[:, 0])
    with pytest.warns(UserWarning, match="candidates with a deviation are left out"):
        found = calibrate(model, inputs, batch)
    assert_close(found(inputs).exp().sum(-1), torch.ones(60))
    members = [found(inputs)]
    tuned = fine_tune(copy.deepcopy(model), batch, batch, uncertainty="laplace", steps=2, every=2)
    for other in (laplace_model(model, batch), tuned.model):
        assert sum(isinstance(part, LaplaceLinear) for part in other.modules()) == 1
        members.append(log_probabilities(other, inputs, None).detach())
    assert evaluate(mean_log_probs(members).exp(), batch[1])["nll"] < 2.0
    with torch.no_grad():
        model = active_dropout(model)
        assert not torch.equal(model(inputs), model(inputs))
