import numpy as np
import pytest
import torch

from probseq import metrics


def predictions(seed, rows=50, classes=3):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (rows,), generator=generator)
    return logits.softmax(-1), labels


def test_all_metrics_are_those_of_the_single_functions():
    probs, labels = predictions(0)
    found = metrics.evaluate(probs, labels)
    confidence, right = probs.amax(1), probs.argmax(1) == labels
    assert found["nll"] == float(metrics.nll(probs, labels))
    assert found["ece"] == float(metrics.expected_calibration_error(probs, labels))
    assert found["e-aurc"] == float(metrics.e_aurc(confidence, right))
    assert found["failure-fpr95"] == float(metrics.fpr_at_tpr(confidence, right))
    assert "mcc" not in found
    assert "mcc" in metrics.evaluate(*predictions(1, classes=2))


def test_arrays_lists_and_batches_are_taken_and_one_hot_labels_refused_by_name():
    probs, labels = predictions(0)
    expected = metrics.evaluate(probs, labels)
    pairs = zip(probs.split(20), labels.split(20), strict=True)
    named = ({"probs": rows.numpy(), "labels": own} for rows, own in pairs)
    for given in (
        (probs.numpy(), labels.numpy().astype(np.uint8)),
        (probs.tolist(), labels.tolist()),
        ((probs, labels),),
        (named,),
        ([(probs[:7], labels[:7].int()), (probs[7:], labels[7:])],),
    ):
        assert metrics.evaluate(*given) == pytest.approx(expected, rel=1e-12)
    one_hot = torch.nn.functional.one_hot(labels)
    with pytest.raises(ValueError, match=r"labels that are whole numbers .* shape \(50, 3\)"):
        metrics.evaluate(probs, one_hot)
    with pytest.raises(ValueError, match=r"labels that are whole numbers .* got float64"):
        metrics.evaluate(probs, labels.double().numpy())
    with pytest.raises(ValueError, match="probs must hold data, got none"):
        metrics.evaluate([])


def test_failures_of_a_model_without_any_are_not_defined():
    found = metrics.evaluate(torch.eye(3, dtype=torch.float64), torch.arange(3))
    assert found["accuracy"] == 1.0
    assert found["failure-auroc"] is found["failure-fpr95"] is None


def test_every_score_tells_the_other_set_from_the_test_set():
    (inside, labels), (outside, _) = predictions(0), predictions(1, rows=30)
    near = {"energy": torch.linspace(-1, 0, 50).double(), "none": torch.full((50,), torch.nan)}
    far = {"energy": torch.linspace(1, 2, 30).double(), "none": torch.full((30,), torch.nan)}
    found = metrics.evaluate_ood((inside, near), (outside, far), (inside, labels))
    expected = metrics.ood_metrics(metrics.entropy_score(inside), metrics.entropy_score(outside))
    assert found["entropy/aupr-out"] == float(expected["aupr_out"])
    assert found["energy/auroc"] == 1.0
    assert "kl-matching/fpr95" in found
    missing = metrics.evaluate_ood((inside, near), (outside, far), (inside[:1], labels[:1]))
    assert not any(name.startswith(("kl-matching", "none")) for name in missing)
